//! A file read past the page cache where that works, and through it where not.

use super::Event;
use crate::io::{DIRECT_ALIGN, Disk, File, Mode, end_of_file};
use crate::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Interruptions in a row after which a read is given up.
const MAX_INTERRUPTS: u32 = 1000;

/// A file opened both ways.
#[derive(Debug)]
pub struct DirectFile {
    path: PathBuf,
    buffered: Arc<dyn File>,
    direct: Option<Arc<dyn File>>,
    /// The file system took the flag but refused a read.
    refused: AtomicBool,
    why: std::sync::Mutex<Option<String>>,
}

impl DirectFile {
    /// Opens `path`; that it cannot be read directly is not an error, see
    /// [`DirectFile::event`].
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let buffered = disk.open(path, Mode::Read).map_err(|e| Error::io("open", path, e))?;
        let direct = disk.open(path, Mode::Direct);
        let why = direct.as_ref().err().map(ToString::to_string);
        Ok(DirectFile {
            path: path.to_owned(),
            buffered,
            direct: direct.ok(),
            refused: AtomicBool::new(false),
            why: std::sync::Mutex::new(why),
        })
    }

    /// Opens `path` for reads through the page cache only.
    pub fn open_buffered(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let buffered = disk.open(path, Mode::Read).map_err(|e| Error::io("open", path, e))?;
        Ok(DirectFile {
            path: path.to_owned(),
            buffered,
            direct: None,
            refused: AtomicBool::new(false),
            why: std::sync::Mutex::new(None),
        })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For small reads, through the page cache.
    pub(crate) fn buffered(&self) -> &dyn File {
        &*self.buffered
    }

    /// Its length in bytes.
    pub fn size(&self) -> Result<u64> {
        self.buffered.size().map_err(|e| Error::io("measure", &self.path, e))
    }

    /// That it is not read directly, told once.
    pub fn event(&self) -> Option<Event> {
        let reason = self.why.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()?;
        Some(Event::NoDirect { path: self.path.clone(), reason })
    }

    /// The file to use for an aligned request.
    pub(super) fn best(&self) -> &Arc<dyn File> {
        match &self.direct {
            Some(direct) if !self.refused.load(Ordering::Relaxed) => direct,
            _ => &self.buffered,
        }
    }

    fn refuse(&self, why: &io::Error) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            *self.why.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                Some(why.to_string());
        }
    }

    /// Reads an aligned window of the file into `buf`, whose first `need` bytes must exist:
    /// the last window of a file reaches past its end. `done` bytes are already there.
    pub(crate) fn read_window(
        &self,
        buf: &mut [u8],
        offset: u64,
        need: usize,
        mut done: usize,
    ) -> io::Result<()> {
        let mut interrupts = 0;
        while done < need {
            // After a short read in the middle of a block the rest is no aligned request.
            let aligned = (done as u64).is_multiple_of(DIRECT_ALIGN);
            let file = if aligned { self.best() } else { &self.buffered };
            let direct = !Arc::ptr_eq(file, &self.buffered);
            let end = if direct { buf.len() } else { need };
            match file.read_at(&mut buf[done..end], offset + done as u64) {
                Ok(0) => return Err(end_of_file(offset + done as u64)),
                Ok(n) => {
                    done += n;
                    interrupts = 0;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted && interrupts < MAX_INTERRUPTS => {
                    interrupts += 1;
                }
                Err(e) if direct && refuses_direct(&e) => self.refuse(&e),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Whether an error means that direct access, not the disk, is the problem.
fn refuses_direct(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}
