//! Files that are either whole or not there: written under another name, made durable,
//! then renamed into place. A crash leaves at most a `.partial` file that the next writer
//! overwrites; two writers of one file exclude each other by a lock on it.

use crate::io::{Disk, File, Mode, write_all_at};
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes collected before they are written.
const BUFFER: usize = 1 << 20;

/// A file being written. Dropped without [`AtomicFile::commit`], it leaves nothing.
#[derive(Debug)]
pub struct AtomicFile {
    disk: Arc<dyn Disk>,
    file: Arc<dyn File>,
    path: PathBuf,
    partial: PathBuf,
    buffer: Vec<u8>,
    written: u64,
    committed: bool,
}

/// `NAME.partial` next to `NAME`.
pub(crate) fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// The directory of a file, for making renames in it durable.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

impl AtomicFile {
    /// Begins to write `path`; nothing is visible there before [`AtomicFile::commit`].
    pub fn create(disk: &Arc<dyn Disk>, path: &Path) -> Result<Self> {
        let partial = partial_path(path);
        let file =
            disk.open(&partial, Mode::Create).map_err(|e| Error::io("create", &partial, e))?;
        Ok(AtomicFile {
            disk: Arc::clone(disk),
            file,
            path: path.to_owned(),
            partial,
            buffer: Vec::with_capacity(BUFFER),
            written: 0,
            committed: false,
        })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() <= BUFFER {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.flush()?;
        if bytes.len() < BUFFER {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.put(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.put(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
        result
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        write_all_at(&*self.file, bytes, self.written)
            .map_err(|e| Error::io("write", &self.partial, e))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Makes everything written durable and puts the file in its place.
    pub fn commit(mut self) -> Result<()> {
        self.flush()?;
        self.file.sync().map_err(|e| Error::io("sync", &self.partial, e))?;
        self.disk
            .rename(&self.partial, &self.path)
            .map_err(|e| Error::io("rename into place", &self.path, e))?;
        self.committed = true;
        let dir = parent(&self.path);
        self.disk.sync_dir(dir).map_err(|e| Error::io("sync directory", dir, e))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing can be done about a failure, and nothing depends on success.
            let _ = self.disk.remove(&self.partial);
        }
    }
}

/// Writes a whole file atomically.
pub fn write(disk: &Arc<dyn Disk>, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create(disk, path)?;
    file.write(bytes)?;
    file.commit()
}
