//! One file in memory, for tests and fuzzing.

use super::{Disk, File, Mode};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

/// A disk on which every file has the same content and nothing can be changed.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Vec<u8>>);

impl Memory {
    /// With this content.
    pub fn shared(content: Vec<u8>) -> Arc<dyn Disk> {
        Arc::new(Memory(Arc::new(content)))
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Disk for Memory {
    fn open(&self, _: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        match mode {
            Mode::Read => Ok(Arc::new(self.clone())),
            Mode::Direct => Err(io::ErrorKind::Unsupported.into()),
            Mode::Create | Mode::Update => read_only(),
        }
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        read_only()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        read_only()
    }
}

impl File for Memory {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|o| self.0.get(o..)).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        read_only()
    }

    fn sync(&self) -> io::Result<()> {
        read_only()
    }

    fn set_size(&self, _: u64) -> io::Result<()> {
        read_only()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
