//! The operating system as the store sees it: a small trait over files, its real
//! implementation, and one that fails on purpose.
//!
//! Whatever a disk may do (short reads, interruptions, refusing direct access) is handled by
//! the functions here, once; callers get all the bytes or an error.

mod faulty;
mod memory;
mod real;

pub use faulty::{Action, Faulty, Op, Rule};
pub use memory::Memory;
pub use real::Real;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For reading through the page cache.
    Read,
    /// For reading past the page cache: offset, length and address of every read must be
    /// multiples of [`DIRECT_ALIGN`]. Fails where the file system has no such thing.
    Direct,
    /// For writing, emptied or created, locked against other writers.
    Create,
    /// For reading and writing, created if missing, content kept, locked against other writers.
    Update,
}

/// Alignment of direct reads: offset, length and memory address.
pub const DIRECT_ALIGN: u64 = 4096;

/// Longest single request passed to the system. Linux cuts reads at 2 GiB - 4 KiB; a
/// power of two below that keeps every continuation aligned.
const MAX_REQUEST: usize = 1 << 30;

/// Interruptions in a row after which a read is given up.
const MAX_INTERRUPTS: u32 = 1000;

/// A file system.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>>;
    /// Renames a file over another.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes renames within a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// An open file. May do less than asked, like the system calls it stands for.
pub trait File: fmt::Debug + Send + Sync {
    /// Its length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Reads at most `buf.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at most `buf.len()` bytes at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Makes its content durable.
    fn sync(&self) -> io::Result<()>;
    /// Cuts or extends it.
    fn set_size(&self, size: u64) -> io::Result<()>;
    /// The descriptor, if requests may go to the kernel past this trait (io_uring).
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// Reads until `buf` is full. [`io::ErrorKind::UnexpectedEof`] if the file ends first.
pub fn read_exact_at(file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    let want = buf.len();
    let got = read_full_at(file, buf, offset)?;
    if got < want {
        return Err(end_of_file(offset + got as u64));
    }
    Ok(())
}

/// The error for a file that ends at `at` although more was expected.
pub(crate) fn end_of_file(at: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("the file ends at byte {at}; it was cut or is still being written"),
    )
}

/// Reads until `buf` is full or the file ends; the number of bytes read.
pub fn read_full_at(file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    let mut interrupts = 0;
    while done < buf.len() {
        let end = buf.len().min(done + MAX_REQUEST);
        match file.read_at(&mut buf[done..end], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => {
                done += n;
                interrupts = 0;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted && interrupts < MAX_INTERRUPTS => {
                interrupts += 1;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Writes all of `buf`.
pub fn write_all_at(file: &dyn File, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    let mut interrupts = 0;
    while done < buf.len() {
        let end = buf.len().min(done + MAX_REQUEST);
        match file.write_at(&buf[done..end], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                done += n;
                interrupts = 0;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted && interrupts < MAX_INTERRUPTS => {
                interrupts += 1;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
