//! The core's eight errors and the [`Fault`] that names the check behind one.
//!
//! Numbers are part of the published interface: the WebAssembly exports and the on-chain program
//! return them. Nothing here formats beyond a fixed sentence, so the core stays `no_std`.

use core::fmt;

/// Everything the core can refuse, with the number other targets see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Error {
    /// A configuration value outside its range, or a turn allowance outside
    /// [`MIN_ALLOWANCE`](crate::planner::MIN_ALLOWANCE)..=[`ALLOWANCE`](crate::planner::ALLOWANCE)
    /// or too small for the next chunk of work.
    InvalidConfig = 1,
    /// Weights whose tag, counts, offsets, descriptors or tables do not fit, or a checkpoint or
    /// tokenizer file that does not match its format.
    InvalidFormat = 2,
    /// A state with the wrong tag or size, a cursor out of range, not aligned to eight bytes, or
    /// complete where a turn was asked for.
    InvalidState = 3,
    /// `init_state` given a buffer whose length is not `state_size`.
    BufferTooSmall = 4,
    /// A turn without a matrix section it needs, or with one shorter than what it holds.
    MissingWeights = 5,
    /// A prompt over 1,024 bytes, with a zero byte, not UTF-8 or with a byte the vocabulary cannot
    /// express; maximum tokens outside 1..=context; a temperature above 16.
    InvalidPrompt = 6,
    /// The prompt's tokens plus maximum tokens, less one, above the context length.
    ContextExceeded = 7,
    /// A key or value that does not fit the cache's 32 bits.
    Arithmetic = 8,
}

impl Error {
    /// All errors, in the order of their numbers.
    pub const ALL: [Error; 8] = [
        Error::InvalidConfig,
        Error::InvalidFormat,
        Error::InvalidState,
        Error::BufferTooSmall,
        Error::MissingWeights,
        Error::InvalidPrompt,
        Error::ContextExceeded,
        Error::Arithmetic,
    ];

    /// The published number, 1 to 8 (0 is success wherever numbers are returned).
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The published name.
    pub const fn name(self) -> &'static str {
        match self {
            Error::InvalidConfig => "InvalidConfig",
            Error::InvalidFormat => "InvalidFormat",
            Error::InvalidState => "InvalidState",
            Error::BufferTooSmall => "BufferTooSmall",
            Error::MissingWeights => "MissingWeights",
            Error::InvalidPrompt => "InvalidPrompt",
            Error::ContextExceeded => "ContextExceeded",
            Error::Arithmetic => "Arithmetic",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::InvalidConfig => "a configuration value or turn allowance is out of range",
            Error::InvalidFormat => "the weights, checkpoint or tokenizer do not match their format",
            Error::InvalidState => "the state is damaged, complete or not aligned to eight bytes",
            Error::BufferTooSmall => "the buffer's length is not the state's size",
            Error::MissingWeights => "a matrix section the turn needs is missing or too short",
            Error::InvalidPrompt => {
                "the prompt (1,024 bytes of UTF-8, no zero byte), maximum tokens or temperature is out of range"
            }
            Error::ContextExceeded => {
                "the prompt's tokens and maximum tokens exceed the context: shorten one of them"
            }
            Error::Arithmetic => "a key or value does not fit the cache's 32 bits",
        })
    }
}

impl core::error::Error for Error {}

/// A refusal with the name of the check that failed, for people; programs use [`Fault::error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The published error.
    pub error: Error,
    /// Which check failed, lower case, without a full stop.
    pub what: &'static str,
}

impl Fault {
    pub(crate) const fn format(what: &'static str) -> Self {
        Fault { error: Error::InvalidFormat, what }
    }

    pub(crate) const fn state(what: &'static str) -> Self {
        Fault { error: Error::InvalidState, what }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error.name(), self.what)
    }
}

impl core::error::Error for Fault {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        fault.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_published_ones() {
        for (i, e) in Error::ALL.iter().enumerate() {
            assert_eq!(e.number() as usize, i + 1);
        }
    }
}
