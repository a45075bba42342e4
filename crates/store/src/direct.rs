//! Large reads past the page cache: aligned buffers, io_uring with a plain fallback, one
//! stream of requests in the order given, urgent ones first.
//!
//! Why past the page cache: a checkpoint larger than memory would only churn it, every byte
//! would be copied once more, and memory use could not be planned.

mod buffer;
mod file;
mod reader;
mod uring;

pub use buffer::AlignedBuf;
pub use file::DirectFile;
pub use reader::{Backend, Done, Handle, ReadFailure, Reader, ReaderStats, Request, Window};

use std::path::PathBuf;

/// Something the user should hear once; nothing is wrong with the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// io_uring cannot be used; plain reads are.
    NoUring {
        /// What the system said.
        reason: String,
    },
    /// A file cannot be read past the page cache; it is read through it.
    NoDirect {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::NoUring { reason } => {
                write!(f, "io_uring is not available ({reason}); using plain reads")
            }
            Event::NoDirect { path, reason } => write!(
                f,
                "{} cannot be read directly ({reason}); reading through the page cache",
                path.display()
            ),
        }
    }
}
