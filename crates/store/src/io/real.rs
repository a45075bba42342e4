//! The real file system.

use super::{Disk, File, Mode};
use rustix::fs::{FlockOperation, OFlags};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

impl Real {
    /// As the shared object the store takes.
    pub fn shared() -> Arc<dyn Disk> {
        Arc::new(Real)
    }
}

/// Open flags of a mode. Non-blocking: a pipe named like a shard must not hang the program.
fn flags(mode: Mode) -> io::Result<OFlags> {
    Ok(match mode {
        Mode::Read => OFlags::NONBLOCK,
        #[cfg(target_os = "linux")]
        Mode::Direct => OFlags::NONBLOCK | OFlags::DIRECT,
        #[cfg(not(target_os = "linux"))]
        Mode::Direct => return Err(io::ErrorKind::Unsupported.into()),
        Mode::Create | Mode::Update => OFlags::empty(),
    })
}

impl Disk for Real {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let writes = matches!(mode, Mode::Create | Mode::Update);
        let file = OpenOptions::new()
            .read(true)
            .write(writes)
            .create(writes)
            .custom_flags(flags(mode)?.bits().cast_signed())
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if writes {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process is writing it")
            })?;
        }
        // Only now that the lock is held.
        if mode == Mode::Create {
            file.set_len(0)?;
        }
        Ok(Arc::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }
}

impl File for fs::File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}
