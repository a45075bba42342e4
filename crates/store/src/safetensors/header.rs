//! One file's header, read and checked in full: afterwards every tensor is known to lie
//! inside the file, on its own bytes, with the size its type and shape say.

use super::dtype::Dtype;
use super::json::{Cursor, Problem};
use super::table::ShapeTable;
use crate::Digest;
use crate::io::{File, read_exact_at};
use std::io;

/// Longest header accepted, the limit of the format's own library.
pub const MAX_HEADER: u64 = 100_000_000;
/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 8;
/// Longest tensor name in bytes.
pub const MAX_NAME: usize = 1024;
/// Most bytes of `__metadata__` kept for a file.
pub const MAX_METADATA: usize = 1 << 20;

/// Why a header was refused.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum HeaderError {
    #[error("the file is empty")]
    Empty,
    #[error("the file is only {size} bytes long, too short for a safetensors header")]
    TooShort { size: u64 },
    #[error(
        "this is a Git LFS pointer, not the weights: fetch the file itself (`git lfs pull` or \
         `facit pull`)"
    )]
    LfsPointer,
    #[error(
        "the header claims {claimed} bytes, but the file has only {available} after its first \
         8: cut off, or not a safetensors file"
    )]
    HeaderPastEnd { claimed: u64, available: u64 },
    #[error("the header claims {claimed} bytes, more than the limit of {MAX_HEADER}")]
    HeaderTooLong { claimed: u64 },
    #[error("the header does not begin with {{: not a safetensors file")]
    NotAnObject,
    #[error("the header is not valid at byte {at}: expected {expected}")]
    Json { at: usize, expected: &'static str },
    #[error("__metadata__ is longer than {MAX_METADATA} bytes")]
    MetadataTooLong,
    #[error("__metadata__ occurs twice")]
    MetadataTwice,
    #[error("a tensor name is longer than {MAX_NAME} bytes: {name:?}...")]
    NameTooLong { name: String },
    #[error("tensor {name}: {problem}")]
    Tensor { name: String, problem: TensorProblem },
    #[error("{bytes} bytes between {before} and {after} belong to no tensor (at {at})")]
    Hole { bytes: u64, before: String, after: String, at: u64 },
    #[error("tensors {first} and {second} overlap (bytes {begin}..{end})")]
    Overlap { first: String, second: String, begin: u64, end: u64 },
    #[error(
        "the tensors end at byte {tensors} of the data, the file at byte {file}: it is {}",
        if tensors > file { "cut off" } else { "longer than its header says" }
    )]
    SizeMismatch { tensors: u64, file: u64 },
    #[error("the header cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// What is wrong with one tensor's entry.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TensorProblem {
    #[error("unknown dtype {0:?}")]
    Dtype(String),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} occurs twice")]
    Twice(&'static str),
    #[error("unknown field {0:?}")]
    UnknownField(String),
    #[error("more than {MAX_RANK} dimensions")]
    Rank,
    #[error("the shape {shape:?} overflows the size of any file")]
    ShapeOverflow { shape: Vec<u64> },
    #[error("data_offsets must be two numbers")]
    OffsetCount,
    #[error("data_offsets {begin}..{end} are reversed")]
    Reversed { begin: u64, end: u64 },
    #[error("dtype and shape need {expected} bytes, data_offsets give {got}")]
    Size { expected: u64, got: u64 },
    #[error("data_offsets end at {end}, past the file's {data} bytes of data")]
    PastEnd { end: u64, data: u64 },
}

impl From<Problem> for HeaderError {
    fn from(p: Problem) -> Self {
        HeaderError::Json { at: p.at, expected: p.expected }
    }
}

/// A tensor of one file: its name is `names[name.0..name.1]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub name: (u32, u32),
    pub kind: u32,
    pub begin: u64,
    pub end: u64,
}

/// A checked header. Entries are in the order of their bytes.
#[derive(Debug)]
pub(super) struct Header {
    pub names: String,
    pub entries: Vec<Entry>,
    pub metadata: Vec<(String, String)>,
    pub data_start: u64,
    /// Types and shapes that `kind` of the entries refers to.
    pub shapes: ShapeTable,
    /// Of the JSON as it stands.
    pub digest: Digest,
}

impl Header {
    pub fn name(&self, entry: &Entry) -> &str {
        &self.names[entry.name.0 as usize..entry.name.1 as usize]
    }

    fn parse(&mut self, text: &[u8]) -> Result<(), HeaderError> {
        if text.first() != Some(&b'{') {
            return Err(HeaderError::NotAnObject);
        }
        let mut has_metadata = false;
        let mut scratch = String::new();
        let mut cursor = Cursor::new(text);
        cursor.members(b'{', b'}', |c| {
            let name = c.key(&mut scratch)?;
            if name == "__metadata__" {
                if has_metadata {
                    return Err(HeaderError::MetadataTwice);
                }
                has_metadata = true;
                self.metadata = metadata(c)?;
                return Ok(());
            }
            if name.len() > MAX_NAME {
                let name = name.chars().take(60).collect();
                return Err(HeaderError::NameTooLong { name });
            }
            // A header is at most MAX_HEADER bytes, so its names' offsets fit 32 bits.
            let start = self.names.len() as u32;
            self.names.push_str(name);
            let place = (start, self.names.len() as u32);
            let entry = tensor(c, place, &mut self.shapes).map_err(|e| match e {
                EntryError::Json(p) => p.into(),
                EntryError::Tensor(problem) => {
                    let name = self.names[start as usize..].to_owned();
                    HeaderError::Tensor { name, problem }
                }
            })?;
            self.entries.push(entry);
            Ok(())
        })?;
        Ok(cursor.end()?)
    }
}

/// Reads and checks the header of `file`, which is `size` bytes long.
pub(super) fn read(file: &dyn File, size: u64) -> Result<Header, HeaderError> {
    let text = read_text(file, size)?;
    let data_start = 8 + text.len() as u64;
    let mut header = Header {
        names: String::new(),
        entries: Vec::new(),
        metadata: Vec::new(),
        data_start,
        shapes: ShapeTable::default(),
        digest: Digest::of(&text),
    };
    header.parse(&text)?;
    header.entries.sort_by_key(|e| (e.begin, e.end));
    check_cover(&header, size - data_start)?;
    Ok(header)
}

fn read_text(file: &dyn File, size: u64) -> Result<Vec<u8>, HeaderError> {
    if size == 0 {
        return Err(HeaderError::Empty);
    }
    if size < 8 {
        return Err(HeaderError::TooShort { size });
    }
    let mut prefix = [0; 8];
    read_exact_at(file, &mut prefix, 0)?;
    if &prefix == b"version " {
        return Err(HeaderError::LfsPointer);
    }
    let claimed = u64::from_le_bytes(prefix);
    let available = size - 8;
    if claimed > available {
        return Err(HeaderError::HeaderPastEnd { claimed, available });
    }
    let len = usize::try_from(claimed).ok().filter(|_| claimed <= MAX_HEADER);
    let Some(len) = len else { return Err(HeaderError::HeaderTooLong { claimed }) };
    let mut text = vec![0; len];
    read_exact_at(file, &mut text, 8)?;
    Ok(text)
}

fn metadata(c: &mut Cursor<'_>) -> Result<Vec<(String, String)>, HeaderError> {
    let mut pairs = Vec::new();
    let mut bytes = 0;
    let (mut key, mut value) = (String::new(), String::new());
    c.members(b'{', b'}', |c| {
        let key = c.key(&mut key)?;
        let value = c.string(&mut value)?;
        // Each pair costs two allocations, empty strings too.
        bytes += key.len() + value.len() + 16;
        if bytes > MAX_METADATA {
            return Err(HeaderError::MetadataTooLong);
        }
        pairs.push((key.to_owned(), value.to_owned()));
        Ok(())
    })?;
    Ok(pairs)
}

enum EntryError {
    Json(Problem),
    Tensor(TensorProblem),
}

impl From<Problem> for EntryError {
    fn from(p: Problem) -> Self {
        EntryError::Json(p)
    }
}

impl From<TensorProblem> for EntryError {
    fn from(p: TensorProblem) -> Self {
        EntryError::Tensor(p)
    }
}

/// Sets a field that must not be set yet.
fn once<T>(field: &mut Option<T>, value: T, name: &'static str) -> Result<(), TensorProblem> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(TensorProblem::Twice(name)),
    }
}

/// The value of one tensor's key.
fn tensor(
    c: &mut Cursor<'_>,
    name: (u32, u32),
    shapes: &mut ShapeTable,
) -> Result<Entry, EntryError> {
    let mut dtype = None;
    let mut shape = None;
    let mut offsets = None;
    let mut scratch = String::new();
    c.members(b'{', b'}', |c| -> Result<(), EntryError> {
        match c.key(&mut scratch)? {
            "dtype" => {
                let name = c.string(&mut scratch)?;
                let Some(found) = Dtype::from_name(name) else {
                    return Err(TensorProblem::Dtype(name.chars().take(40).collect()).into());
                };
                once(&mut dtype, found, "dtype")?;
            }
            "shape" => once(&mut shape, integers::<MAX_RANK>(c, TensorProblem::Rank)?, "shape")?,
            "data_offsets" => {
                let (pair, n) = integers::<2>(c, TensorProblem::OffsetCount)?;
                if n != 2 {
                    return Err(TensorProblem::OffsetCount.into());
                }
                once(&mut offsets, (pair[0], pair[1]), "data_offsets")?;
            }
            other => {
                return Err(TensorProblem::UnknownField(other.chars().take(40).collect()).into());
            }
        }
        Ok(())
    })?;
    let dtype = dtype.ok_or(TensorProblem::Missing("dtype"))?;
    let (dims, rank) = shape.ok_or(TensorProblem::Missing("shape"))?;
    let (begin, end) = offsets.ok_or(TensorProblem::Missing("data_offsets"))?;
    let shape = &dims[..rank];
    let got = end.checked_sub(begin).ok_or(TensorProblem::Reversed { begin, end })?;
    let kind = shapes
        .intern(dtype, shape)
        .ok_or_else(|| TensorProblem::ShapeOverflow { shape: shape.to_vec() })?;
    let expected = shapes.get(kind).bytes;
    if got != expected {
        return Err(TensorProblem::Size { expected, got }.into());
    }
    Ok(Entry { name, kind, begin, end })
}

/// An array of at most `N` integers.
fn integers<const N: usize>(
    c: &mut Cursor<'_>,
    too_many: TensorProblem,
) -> Result<([u64; N], usize), EntryError> {
    let mut values = [0; N];
    let mut n = 0;
    let mut overflow = false;
    c.members(b'[', b']', |c| -> Result<(), Problem> {
        let value = c.integer()?;
        match values.get_mut(n) {
            Some(slot) => *slot = value,
            None => overflow = true,
        }
        n += usize::from(!overflow);
        Ok(())
    })?;
    if overflow { Err(too_many.into()) } else { Ok((values, n)) }
}

/// Tensors, sorted by their bytes, must cover the data exactly.
fn check_cover(header: &Header, data: u64) -> Result<(), HeaderError> {
    let mut at = 0;
    let mut before: Option<&Entry> = None;
    let name = |e: Option<&Entry>, none: &str| match e {
        Some(e) => header.name(e).to_owned(),
        None => none.to_owned(),
    };
    for entry in &header.entries {
        if entry.end > data {
            let problem = TensorProblem::PastEnd { end: entry.end, data };
            return Err(HeaderError::Tensor { name: name(Some(entry), ""), problem });
        }
        if entry.begin > at {
            return Err(HeaderError::Hole {
                bytes: entry.begin - at,
                before: name(before, "the start"),
                after: name(Some(entry), ""),
                at,
            });
        }
        if entry.begin < at {
            return Err(HeaderError::Overlap {
                first: name(before, ""),
                second: name(Some(entry), ""),
                begin: entry.begin,
                end: at.min(entry.end),
            });
        }
        at = entry.end;
        before = Some(entry);
    }
    if at != data {
        return Err(HeaderError::SizeMismatch { tensors: at, file: data });
    }
    Ok(())
}
