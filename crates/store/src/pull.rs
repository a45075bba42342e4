//! Downloading a checkpoint from a Hugging Face style hub, so that what lies in the directory
//! in the end is what the hub has, whatever happened on the way.
//!
//! * The revision is resolved to a commit first; everything comes from that commit.
//! * Files are fetched in ranges, several at once, into `NAME.partial`; `NAME.chunks` says
//!   which ranges are there, so that an interrupted download continues.
//! * A file gets its name only after its size and digest have been compared with the hub's
//!   listing. One that differs is fetched again alone.
//! * [`MANIFEST`] keeps sizes and digests, for checking offline later.

mod fetch;
mod hub;
mod manifest;

pub use hub::{Hub, RemoteFile};
pub use manifest::{MANIFEST, Manifest, ManifestFile};

use crate::atomic::partial_path;
use crate::doctor::free_space;
use crate::io::Disk;
use crate::plan::size;
use crate::safetensors::{INDEX_FILE, WeightMap};
use crate::{Error, Result};
use fetch::Download;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How to download.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Branch, tag or commit.
    pub revision: String,
    /// Only what the first so many layers need.
    pub layers: Option<u32>,
    /// Requests at once.
    pub connections: usize,
    /// Bytes of one range.
    pub chunk: u64,
    /// Attempts without any progress after which a range is given up.
    pub attempts: u32,
    /// First pause between attempts; it doubles.
    pub pause: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        PullOptions {
            revision: "main".to_owned(),
            layers: None,
            connections: 8,
            chunk: 64 << 20,
            attempts: 8,
            pause: Duration::from_millis(500),
        }
    }
}

/// What a download is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullProgress<'p> {
    /// The file that made the latest progress.
    pub file: &'p str,
    /// Files finished and checked.
    pub files: usize,
    /// Files in all.
    pub of_files: usize,
    /// Bytes that are here, of all files.
    pub bytes: u64,
    /// Bytes in all.
    pub of_bytes: u64,
}

/// Endings of files that belong to a model besides its weights.
const SIDE_FILES: [&str; 6] = [".json", ".model", ".txt", ".jinja", ".tiktoken", ".md"];
/// Side files larger than this are not for us.
const MAX_SIDE_FILE: u64 = 256 << 20;

/// Downloads `repo` into `dir`. `progress` is called from several threads and may stop the
/// download (which can be continued later) by returning false.
///
/// # Errors
/// The first file that could not be had; everything else that could be has been fetched.
pub fn pull(
    disk: &Arc<dyn Disk>,
    hub: &Hub,
    repo: &str,
    dir: &Path,
    options: &PullOptions,
    progress: &(dyn Fn(PullProgress<'_>) -> bool + Sync),
) -> Result<Manifest> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
    let commit = hub.commit(repo, &options.revision, options)?;
    let mut files = hub.list(repo, &commit, options)?;
    files.retain(wanted);
    if !files.iter().any(|f| f.path.ends_with(".safetensors")) {
        return Err(hub.problem(repo, "the repository has no .safetensors files"));
    }
    let old = Manifest::read(&**disk, dir)?;
    let download = Download { disk, hub, repo, commit: &commit, dir, options, progress, old };
    if let Some(layers) = options.layers {
        let index: Vec<RemoteFile> =
            files.iter().filter(|f| f.path == INDEX_FILE).cloned().collect();
        if !index.is_empty() {
            download.run(&index)?;
            let keep = shards_of_layers(&**disk, dir, layers)?;
            files.retain(|f| !f.path.ends_with(".safetensors") || keep.contains(&f.path));
        }
    }
    room(dir, &files)?;
    let files = download.run(&files)?;
    let manifest = Manifest { repo: repo.to_owned(), commit: commit.clone(), files };
    manifest.write(disk, dir)?;
    Ok(manifest)
}

/// Refuses a download for which the disk has no room, before hours are spent on it.
fn room(dir: &Path, files: &[RemoteFile]) -> Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let missing = |file: &RemoteFile| {
        let path = dir.join(&file.path);
        if std::fs::metadata(&path).is_ok_and(|m| m.len() == file.size) {
            return 0;
        }
        // A file that is being fetched has its full length and holes where nothing is yet.
        let here = std::fs::metadata(partial_path(&path)).map_or(0, |m| m.blocks() * 512);
        file.size.saturating_sub(here)
    };
    let needed = files.iter().map(missing).fold(0, u64::saturating_add);
    let free = free_space(dir)?;
    if needed <= free {
        return Ok(());
    }
    Err(Error::DoesNotFit(format!(
        "{} more are needed in {}, and {} are free there: make room, or take another directory",
        size(needed),
        dir.display(),
        size(free)
    )))
}

fn wanted(file: &RemoteFile) -> bool {
    let side = SIDE_FILES.iter().any(|s| file.path.ends_with(s)) && file.size <= MAX_SIDE_FILE;
    file.path.ends_with(".safetensors") || side
}

/// Shards with a tensor of one of the first layers, or of no layer at all.
fn shards_of_layers(disk: &dyn Disk, dir: &Path, layers: u32) -> Result<BTreeSet<String>> {
    let mut keep = BTreeSet::new();
    if let Some(map) = WeightMap::open(disk, dir)? {
        map.each(|tensor, shard| {
            if layer_of(tensor).is_none_or(|l| l < layers) && !keep.contains(shard) {
                keep.insert(shard.to_owned());
            }
            Ok(())
        })?;
    }
    Ok(keep)
}

/// The number after `layers.` in a tensor's name.
fn layer_of(tensor: &str) -> Option<u32> {
    let (_, rest) = tensor.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_found_in_names() {
        assert_eq!(layer_of("language_model.model.layers.17.mlp.w"), Some(17));
        assert_eq!(layer_of("model.embed_tokens.weight"), None);
        assert_eq!(layer_of("layers.x.w"), None);
    }
}
