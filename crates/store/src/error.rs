//! The crate's error: what happened, where, and (where that is not obvious) what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Result with the crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Anything that can go wrong in the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Verb phrase: "open", "write", ...
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A read of weights failed.
    #[error("cannot read {what} (bytes {offset}..{} of {}): {source}", offset + len, path.display())]
    Read {
        /// The tensor, layer or expert.
        what: String,
        /// The file.
        path: PathBuf,
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        len: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem as a sentence.
        problem: String,
    },
    /// A tensor the checkpoint should have is not in it.
    #[error("the checkpoint has no tensor {name}")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor has another type or shape than the model needs.
    #[error("tensor {name} is {got} in the checkpoint, the model needs {expected}")]
    WrongTensor {
        /// Its name.
        name: String,
        /// Type and shape needed.
        expected: String,
        /// Type and shape found.
        got: String,
    },
    /// A caller gave a buffer of the wrong length.
    #[error("tensor {name} has {expected} bytes, the buffer has {got}")]
    BufferLength {
        /// Its name.
        name: String,
        /// Bytes of the tensor.
        expected: u64,
        /// Bytes of the buffer.
        got: u64,
    },
    /// A server could not be reached or gave a wrong answer.
    #[error("{url}: {problem}")]
    Network {
        /// What was asked for.
        url: String,
        /// The problem as a sentence.
        problem: String,
    },
    /// Something does not fit into what it was given.
    #[error("{0}")]
    DoesNotFit(String),
    /// Memory was refused by the system.
    #[error("no memory for {what} ({bytes} bytes): lower the budget")]
    Memory {
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// A configuration that makes no sense.
    #[error("{0}")]
    Refused(String),
}

/// Coarse kind of an error, for exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Wrong use or a refused configuration.
    Refused,
    /// Does not fit into memory.
    DoesNotFit,
    /// A model file is missing, incomplete or corrupt.
    ModelFile,
    /// The disk failed or is full.
    Disk,
    /// The network or a server failed.
    Network,
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Error::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn format(path: &Path, problem: impl Into<String>) -> Self {
        Error::Format { path: path.to_owned(), problem: problem.into() }
    }

    /// Whether something was to be written.
    fn writes(&self) -> bool {
        matches!(self, Error::Io { action, .. } if !["open", "read", "measure", "list"].contains(action))
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> Kind {
        match self {
            Error::Io { source, .. } | Error::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => Kind::ModelFile,
                io::ErrorKind::NotADirectory
                | io::ErrorKind::IsADirectory
                // Not a regular file.
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::PermissionDenied
                    if !self.writes() =>
                {
                    Kind::ModelFile
                }
                _ => Kind::Disk,
            },
            Error::Format { .. } | Error::MissingTensor { .. } | Error::WrongTensor { .. } => {
                Kind::ModelFile
            }
            Error::DoesNotFit(_) | Error::Memory { .. } => Kind::DoesNotFit,
            Error::Network { .. } => Kind::Network,
            Error::BufferLength { .. } | Error::Refused(_) => Kind::Refused,
        }
    }
}
