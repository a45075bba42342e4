//! Which files make up a checkpoint, and what its index file says about them.

use super::json::{Cursor, Problem};
use crate::io::{Disk, Mode, read_exact_at};
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Name of the file that maps tensors to shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Longest index file accepted. The largest known (half a million tensors) has 55 MB.
const MAX_INDEX_FILE: u64 = 1 << 30;
/// Most shards of a checkpoint.
pub(super) const MAX_SHARDS: usize = 1 << 15;

/// The content of an index file: its text, and the shards it names, in order.
pub(crate) struct WeightMap {
    pub path: PathBuf,
    text: Vec<u8>,
    pub shards: Vec<String>,
}

enum Refusal {
    Json(Problem),
    Other(String),
}

impl From<Problem> for Refusal {
    fn from(p: Problem) -> Self {
        Refusal::Json(p)
    }
}

impl WeightMap {
    /// Reads the index file of a directory; `None` if it has none.
    pub fn open(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(INDEX_FILE);
        let file = match disk.open(&path, Mode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| Error::io("open", &path, e))?,
        };
        let size = file.size().map_err(|e| Error::io("measure", &path, e))?;
        if size > MAX_INDEX_FILE {
            let problem = format!("{size} bytes, more than the limit of {MAX_INDEX_FILE}");
            return Err(Error::format(&path, problem));
        }
        let mut text = vec![0; size as usize];
        read_exact_at(&*file, &mut text, 0).map_err(|e| Error::io("read", &path, e))?;
        let mut map = WeightMap { path, text, shards: Vec::new() };
        let mut names = BTreeSet::new();
        let mut last = String::new();
        map.each(|_, shard| {
            if shard != last {
                check_name(shard)?;
                last = shard.to_owned();
                names.insert(last.clone());
                if names.len() > MAX_SHARDS {
                    return Err(format!("it names more than {MAX_SHARDS} shards"));
                }
            }
            Ok(())
        })?;
        if names.is_empty() {
            return Err(Error::format(&map.path, "it names no tensors"));
        }
        map.shards = names.into_iter().collect();
        Ok(Some(map))
    }

    /// Calls `f(tensor, shard)` for every entry, in the file's order.
    pub fn each(&self, mut f: impl FnMut(&str, &str) -> Result<(), String>) -> Result<()> {
        let (mut key, mut tensor, mut shard) = (String::new(), String::new(), String::new());
        let mut cursor = Cursor::new(&self.text);
        let mut maps = 0;
        let mut parse = || -> Result<(), Refusal> {
            cursor.members(b'{', b'}', |c| {
                if c.key(&mut key)? != "weight_map" {
                    return Ok(c.skip_value()?);
                }
                maps += 1;
                c.members(b'{', b'}', |c| {
                    let tensor = c.key(&mut tensor)?;
                    f(tensor, c.string(&mut shard)?).map_err(Refusal::Other)
                })
            })?;
            Ok(cursor.end()?)
        };
        let problem = match parse() {
            Ok(()) if maps == 1 => return Ok(()),
            Ok(()) => "it must have exactly one weight_map".to_owned(),
            Err(Refusal::Json(p)) => format!("not valid at byte {}: expected {}", p.at, p.expected),
            Err(Refusal::Other(problem)) => problem,
        };
        Err(Error::format(&self.path, problem))
    }
}

/// Shards lie beside their index file: a name with a path in it would reach elsewhere.
fn check_name(shard: &str) -> Result<(), String> {
    let plain = shard.ends_with(".safetensors")
        && !shard.contains(['/', '\\', '\0'])
        && !shard.starts_with('.');
    if plain {
        return Ok(());
    }
    let shown: String = shard.chars().take(80).collect();
    Err(format!("{shown:?} is not the plain name of a .safetensors file"))
}

/// Every `*.safetensors` file of a directory, by name.
pub(super) fn list(dir: &Path) -> Result<Vec<String>> {
    let io = |e| Error::io("list", dir, e);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        // Names that are not Unicode are not shards of any checkpoint.
        if let Some(name) = name.to_str().filter(|n| check_name(n).is_ok()) {
            names.push(name.to_owned());
        }
    }
    if names.is_empty() {
        return Err(Error::format(dir, "no .safetensors file in this directory"));
    }
    if names.len() > MAX_SHARDS {
        return Err(Error::format(dir, format!("more than {MAX_SHARDS} .safetensors files")));
    }
    names.sort();
    missing_part(&names).map_or(Ok(names), |problem| Err(Error::format(dir, problem)))
}

/// For files named `...-00002-of-00005.safetensors`: the first that is absent.
fn missing_part(names: &[String]) -> Option<String> {
    for name in names {
        let stem = name.strip_suffix(".safetensors")?;
        let Some((rest, total)) = stem.rsplit_once("-of-") else { continue };
        let Some((prefix, _)) = rest.rsplit_once('-') else { continue };
        let width = total.len();
        let Some(count) = total.parse::<usize>().ok().filter(|&n| n <= MAX_SHARDS) else {
            continue;
        };
        for i in 1..=count {
            let part = format!("{prefix}-{i:0width$}-of-{total}.safetensors");
            if names.binary_search(&part).is_err() {
                return Some(format!("the shard {part} is missing"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_part_is_named() {
        let names = |n: &[&str]| n.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let (a, b) = ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors");
        assert_eq!(missing_part(&names(&[a, b, "x.safetensors"])), None);
        assert!(missing_part(&names(&[a])).unwrap().contains(b));
    }

    #[test]
    fn a_shard_name_cannot_leave_the_directory() {
        for bad in ["../x.safetensors", "/x.safetensors", ".x.safetensors", "x.bin", ""] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name("model-00001-of-00096.safetensors").is_ok());
    }
}
