//! What was downloaded: sizes and digests for later checks without the network.

use crate::io::{Disk, Mode, read_exact_at};
use crate::{Error, Result, atomic};
use std::path::Path;
use std::sync::Arc;

/// Name of the manifest in a model's directory.
pub const MANIFEST: &str = ".facit-manifest.json";

const MAX_MANIFEST: u64 = 64 << 20;

/// A downloaded file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ManifestFile {
    /// Path below the model's directory.
    pub path: String,
    /// Length in bytes.
    pub size: u64,
    /// SHA-256 in hex.
    pub sha256: String,
}

/// A download.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Manifest {
    /// Repository.
    pub repo: String,
    /// Commit all files are of.
    pub commit: String,
    /// Files by path.
    pub files: Vec<ManifestFile>,
}

impl Manifest {
    /// Reads the manifest of a directory; `None` if it has none.
    pub fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(MANIFEST);
        let file = match disk.open(&path, Mode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| Error::io("open", &path, e))?,
        };
        let size = file.size().map_err(|e| Error::io("measure", &path, e))?;
        if size > MAX_MANIFEST {
            return Err(Error::format(&path, format!("longer than {MAX_MANIFEST} bytes")));
        }
        let mut text = vec![0; size as usize];
        read_exact_at(&*file, &mut text, 0).map_err(|e| Error::io("read", &path, e))?;
        let manifest = serde_json::from_slice(&text)
            .map_err(|e| Error::format(&path, format!("{e}: delete it and pull again")))?;
        Ok(Some(manifest))
    }

    /// Writes it, atomically.
    pub fn write(&self, disk: &Arc<dyn Disk>, dir: &Path) -> Result<()> {
        let text =
            serde_json::to_vec_pretty(self).unwrap_or_else(|e| unreachable!("plain data: {e}"));
        atomic::write(disk, &dir.join(MANIFEST), &text)
    }
}
