//! Fixed fields at byte offsets, and what can be wrong with them.

use crate::bytes::{read_u32, read_u64, write_u32, write_u64};
use core::fmt;

/// An address.
pub type Key = [u8; 32];

/// Why account, instruction or event bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Problem {
    /// Fewer or more bytes than the layout has.
    WrongLength = 1,
    /// Another tag: not this kind of account, or not initialised.
    WrongTag = 2,
    /// A version this code does not know.
    WrongVersion = 3,
    /// A field out of its range.
    OutOfRange = 4,
    /// A byte that must be zero is not.
    NotZero = 5,
    /// An instruction number that does not exist.
    UnknownInstruction = 6,
}

impl Problem {
    /// Stable number, from 1.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Problem::WrongLength => "the length does not fit the layout",
            Problem::WrongTag => {
                "the tag is another one: a different kind of account, or not initialised"
            }
            Problem::WrongVersion => "the version is unknown",
            Problem::OutOfRange => "a field is out of range",
            Problem::NotZero => "a byte that must be zero is not",
            Problem::UnknownInstruction => "there is no instruction of this number",
        })
    }
}

impl core::error::Error for Problem {}

/// Reads fields of bytes that are long enough, which `open` checked.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Checks length, tag and version of an account or event.
    pub fn open(bytes: &'a [u8], len: usize, tag: &[u8; 8]) -> Result<Reader<'a>, Problem> {
        let bytes = bytes.get(..len).ok_or(Problem::WrongLength)?;
        if !bytes.starts_with(tag) {
            return Err(Problem::WrongTag);
        }
        if read_u32(bytes, 8) != super::VERSION {
            return Err(Problem::WrongVersion);
        }
        Ok(Reader(bytes))
    }

    pub fn u32(self, offset: usize) -> u32 {
        read_u32(self.0, offset)
    }

    pub fn u64(self, offset: usize) -> u64 {
        read_u64(self.0, offset)
    }

    pub fn key(self, offset: usize) -> Key {
        let mut key = [0; 32];
        key.copy_from_slice(&self.0[offset..offset + 32]);
        key
    }

    /// A flag: 0 or 1.
    pub fn flag(self, offset: usize) -> Result<bool, Problem> {
        match self.u32(offset) {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Problem::OutOfRange),
        }
    }

    /// Insists on zeros from `from` to `to`.
    pub fn zero(self, from: usize, to: usize) -> Result<(), Problem> {
        if self.0[from..to].iter().all(|b| *b == 0) { Ok(()) } else { Err(Problem::NotZero) }
    }
}

/// Writes fields over zeros.
pub(super) struct Writer<'a>(pub &'a mut [u8]);

impl<'a> Writer<'a> {
    /// Zeroes the first `len` bytes and writes tag and version.
    pub fn open(bytes: &'a mut [u8], len: usize, tag: &[u8; 8]) -> Result<Writer<'a>, Problem> {
        let bytes = bytes.get_mut(..len).ok_or(Problem::WrongLength)?;
        bytes.fill(0);
        bytes[..8].copy_from_slice(tag);
        write_u32(bytes, 8, super::VERSION);
        Ok(Writer(bytes))
    }

    pub fn u32(&mut self, offset: usize, value: u32) {
        write_u32(self.0, offset, value);
    }

    pub fn u64(&mut self, offset: usize, value: u64) {
        write_u64(self.0, offset, value);
    }

    pub fn bytes(&mut self, offset: usize, value: &[u8]) {
        self.0[offset..offset + value.len()].copy_from_slice(value);
    }
}
