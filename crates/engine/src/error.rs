//! The one error type of this crate. The binary turns each variant into an exit code.

use std::io;
use std::path::PathBuf;

/// What can go wrong between a file and a verified output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request that cannot be carried out as asked, and how to change it.
    #[error("{0}")]
    Refused(String),
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be written. Whatever was there before is still there, whole.
    #[error("cannot write {}: {source}; what was there before is unchanged", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file's bytes are not what its format demands.
    #[error("{what}: {why}")]
    Corrupt {
        /// The file or part that is damaged.
        what: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// Two things that must be equal are not.
    #[error("{what}: expected {expected}, got {got}")]
    Mismatch {
        /// What was compared.
        what: String,
        /// The value demanded.
        expected: String,
        /// The value found.
        got: String,
    },
    /// A replay disagrees with its receipt.
    #[error("turn {turn} differs: {field} is recorded as {recorded}, the replay gives {computed}")]
    TurnDiffers {
        /// The first turn that differs, from 1.
        turn: usize,
        /// The field of the record.
        field: &'static str,
        /// The receipt's value.
        recorded: String,
        /// The replay's value.
        computed: String,
    },
    /// More memory than there is.
    #[error("{what} needs {bytes} bytes of memory and the system does not give them")]
    DoesNotFit {
        /// What was to be allocated.
        what: &'static str,
        /// How much.
        bytes: u64,
    },
    /// The model's numbers left their range: the output up to here cannot be trusted.
    #[error(
        "a key or value does not fit the cache's 32 bits: this model's weights cannot be run in \
         fixed point, and text made so far is unsound"
    )]
    Unsound,
    /// A model stopped: numbers that are not finite, tokens or states it refuses.
    #[error(transparent)]
    Step(#[from] models::machine::StepError),
    /// A saved state of a giant model was refused.
    #[error("the saved state is refused: {0}")]
    Snapshot(#[from] models::machine::SnapshotError),
    /// Weights could not be found or read.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] crate::giant::SamplingError),
    /// Text could not be encoded or ids decoded.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// The integer core refused for a reason none of the above names.
    #[error("{doing}: core error {} ({source:?})", *source as u32)]
    Core {
        /// What was being done.
        doing: &'static str,
        /// The core's error.
        source: fixed::Error,
    },
}

impl Error {
    pub(crate) fn corrupt(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), why: why.into() }
    }

    pub(crate) fn mismatch(
        what: impl Into<String>,
        expected: impl ToString,
        got: impl ToString,
    ) -> Self {
        Self::Mismatch { what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }
}
