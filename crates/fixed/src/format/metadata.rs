//! Section zero as a type: checked once, then read without further doubt.

use core::ops::Range;

use super::{Config, Matrices, SECTION_COUNT, SECTION_TABLE, TABLES, TAG, TOKEN_BYTES};
use super::{section_count, table_offsets};
use crate::bytes::{Half, halves, read_u32, read_u64};
use crate::planner::TurnPlan;
use crate::{Error, Fault, WeightSection};

/// Section zero of an artifact.
///
/// [`Metadata::new`] checks all of it. [`Metadata::sealed`] checks what keeps reading safe and is
/// for hosts that know the bytes were checked before, such as a program that verified a digest.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    /// The model's configuration.
    pub config: Config,
    /// The bytes of section zero.
    pub bytes: &'a [u8],
    inv_sqrt: u32,
    exponential: &'a [Half],
    silu: &'a [Half],
    rotary: &'a [Half],
    norms: &'a [Half],
    starts: &'a [Half],
    keys: &'a [Half],
    sorted: &'a [Half],
    text: &'a [u8],
}

impl<'a> Metadata<'a> {
    /// Checks the bytes of section zero and returns a view of them.
    ///
    /// # Errors
    /// [`Error::InvalidFormat`]; [`Metadata::check`] says which check failed.
    pub fn new(bytes: &'a [u8]) -> Result<Metadata<'a>, Error> {
        Ok(Metadata::check(bytes)?)
    }

    /// [`Metadata::new`] with the failed check by name.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn check(bytes: &'a [u8]) -> Result<Metadata<'a>, Fault> {
        let m = Metadata::structure(bytes)?;
        m.check_tables()?;
        m.check_tokens(0..m.config.vocab())?;
        Ok(m)
    }

    /// A view of bytes that were checked before (by [`Metadata::new`], under a digest): only tag,
    /// configuration and table offsets are looked at, in time that does not grow with the model.
    /// Bytes that were not checked give wrong tokens or an error, never a panic.
    ///
    /// # Errors
    /// [`Error::InvalidFormat`].
    pub fn sealed(bytes: &'a [u8]) -> Result<Metadata<'a>, Error> {
        Ok(Metadata::structure(bytes)?)
    }

    /// Checks tag, configuration, counts of the header and where the tables lie.
    fn structure(bytes: &'a [u8]) -> Result<Metadata<'a>, Fault> {
        if bytes.len() < SECTION_TABLE || !bytes.starts_with(TAG) {
            return Err(Fault::format("section zero does not open with CURTAW01 and a header"));
        }
        let config = Config::from_bytes(&bytes[8..])
            .map_err(|_| Fault::format("the configuration is out of range"))?;
        if read_u32(bytes, 40) as usize != Matrices::count(&config) {
            return Err(Fault::format("the matrix count does not follow from the configuration"));
        }
        if read_u32(bytes, 48) != 0 || bytes[92..SECTION_TABLE].iter().any(|b| *b != 0) {
            return Err(Fault::format("a reserved header field is not zero"));
        }
        let sections = read_u32(bytes, SECTION_COUNT) as u64;
        let text_len = read_u32(bytes, 88) as u64;
        let offsets = table_offsets(&config, sections, text_len);
        if offsets[TABLES] != bytes.len() as u64 {
            return Err(Fault::format("section zero's length does not fit its tables"));
        }
        let mut at = [0; TABLES + 1];
        at[TABLES] = bytes.len();
        for i in 0..TABLES {
            // Below the length just compared, so it fits usize.
            at[i] = offsets[i] as usize;
            if read_u32(bytes, 52 + 4 * i) as u64 != offsets[i] {
                return Err(Fault::format("a table offset is not where the tables before it end"));
            }
        }
        // Vocabulary and rotary tables may be followed by padding: cut to their own lengths.
        let table = |i: usize, words: usize| halves(&bytes[at[i]..at[i] + 4 * words]);
        let vocab = config.vocab();
        Ok(Metadata {
            config,
            bytes,
            inv_sqrt: read_u32(bytes, 44),
            exponential: table(1, super::TABLE_ENTRIES),
            silu: table(2, super::TABLE_ENTRIES),
            rotary: table(3, config.seq() * config.head_size()),
            norms: table(4, (2 * config.layers() + 1) * config.dim()),
            starts: table(5, vocab + 1),
            keys: table(6, vocab),
            sorted: table(7, vocab),
            text: &bytes[at[8]..at[8] + text_len as usize],
        })
    }

    /// Checks the section table and the matrix descriptors: with [`Metadata::check_tokens`], what
    /// [`Metadata::sealed`] leaves out of [`Metadata::check`].
    ///
    /// # Errors
    /// The first check that failed.
    pub fn check_tables(&self) -> Result<(), Fault> {
        self.check_section_table()?;
        self.check_descriptors()
    }

    fn check_section_table(&self) -> Result<(), Fault> {
        let count = section_count(&self.config);
        if self.section_count() != count {
            return Err(Fault::format("the section count does not follow from the configuration"));
        }
        let entry = |i: usize| {
            let at = SECTION_TABLE + 16 * i;
            (read_u64(self.bytes, at), read_u64(self.bytes, at + 8))
        };
        let mut end = self.bytes.len() as u64;
        if entry(0) != (0, end) {
            return Err(Fault::format("the section table's first entry is not section zero"));
        }
        let mut matrices = Matrices::new(self.config).peekable();
        for i in 1..count {
            let mut len = 0;
            while let Some(m) = matrices.next_if(|m| m.section as usize == i) {
                len += m.block_len();
            }
            if entry(i) != (end, len) {
                return Err(Fault::format(
                    "a section table entry does not follow from the configuration",
                ));
            }
            end += len;
        }
        if usize::try_from(end).is_err() {
            return Err(Fault::format("the artifact exceeds this machine's address space"));
        }
        Ok(())
    }

    fn check_descriptors(&self) -> Result<(), Fault> {
        let first = read_u32(self.bytes, 52) as usize;
        for (i, m) in Matrices::new(self.config).enumerate() {
            let word = |k: usize| read_u32(self.bytes, first + 16 * i + 4 * k);
            if (word(0), word(1) as u64, word(2), word(3))
                != (m.section, m.offset, m.rows, m.columns)
            {
                return Err(Fault::format(
                    "a matrix descriptor does not follow from the configuration",
                ));
            }
        }
        Ok(())
    }

    /// Checks tokens `range` of the vocabulary: their texts' places, and that the sorted ids at these
    /// ranks follow the ones before. Ranges that cover `0..vocab` check everything, so a host with a
    /// limit can spread the work.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn check_tokens(&self, range: Range<usize>) -> Result<(), Fault> {
        let start = |i: usize| self.starts.get(i).map(|s| u32::from_le_bytes(*s) as usize);
        let outside = Fault::format("a token outside the vocabulary");
        if start(0) != Some(0) || start(self.config.vocab()) != Some(self.text.len()) {
            return Err(Fault::format("the tokens' texts do not begin and end with the text"));
        }
        // Strictly increasing pairs of (text, id) are distinct ids: a permutation, if all in range.
        let mut last = None;
        for i in range.start.saturating_sub(1)..range.end {
            let (from, to) = start(i).zip(start(i + 1)).ok_or(outside)?;
            if to < from || to - from > TOKEN_BYTES {
                return Err(Fault::format("a token's text has no length from 0 to 128 bytes"));
            }
            let id = self.sorted_id(i).map_err(|_| outside)?;
            let text = self.token_text(id).map_err(|_| {
                Fault::format("a sorted id is outside the vocabulary, or its text outside the text")
            })?;
            if last.is_some_and(|last| last >= (text, id)) {
                return Err(Fault::format("the sorted ids are not in the order of their texts"));
            }
            last = Some((text, id));
        }
        Ok(())
    }

    /// Sections of the artifact, section zero included.
    pub fn section_count(&self) -> usize {
        read_u32(self.bytes, SECTION_COUNT) as usize
    }

    /// Where section `index` starts in the artifact.
    ///
    /// # Panics
    /// If the artifact has no such section.
    pub fn section_offset(&self, index: usize) -> usize {
        self.known_section(index, 0)
    }

    /// Bytes of section `index`.
    ///
    /// # Panics
    /// If the artifact has no such section.
    pub fn section_len(&self, index: usize) -> usize {
        self.known_section(index, 8)
    }

    fn known_section(&self, index: usize, field: usize) -> usize {
        let entry = self.section_entry(index, field);
        let count = self.section_count();
        // `check_section_table` bounded both fields by the end of the artifact.
        entry.unwrap_or_else(|| panic!("section {index} of {count}")) as usize
    }

    /// A field of the section table; `None` if there is no such section.
    pub(crate) fn section_entry(&self, index: usize, field: usize) -> Option<u64> {
        (index < self.section_count())
            .then(|| read_u64(self.bytes, SECTION_TABLE + 16 * index + field))
    }

    /// One over the square root of the head size, 24 fractional bits.
    #[inline]
    pub fn inv_sqrt(&self) -> u32 {
        self.inv_sqrt
    }

    /// `e^(-i / 256)` with 30 fractional bits, little-endian u32, 4,097 entries.
    #[inline]
    pub fn exponential(&self) -> &'a [Half] {
        self.exponential
    }

    /// `x * sigmoid(x)` at `x = i / 128 - 16` with 16 fractional bits, i32, 4,097 entries.
    #[inline]
    pub fn silu(&self) -> &'a [Half] {
        self.silu
    }

    /// Cosine and sine (i32, 24 fractional bits) of every pair at `position`: `[head_size / 2, 2]`.
    ///
    /// # Panics
    /// If the position is beyond the context.
    #[inline]
    pub fn rotary(&self, position: usize) -> &'a [Half] {
        let n = self.config.head_size();
        &self.rotary[position * n..][..n]
    }

    /// Normalisation weights (i32, 24 fractional bits, `[dim]`): vector `2 * layer` before
    /// attention, `2 * layer + 1` before the feed-forward, `2 * layers` the final one.
    ///
    /// # Panics
    /// If there is no such vector.
    #[inline]
    pub fn norm(&self, index: usize) -> &'a [Half] {
        let n = self.config.dim();
        &self.norms[index * n..][..n]
    }

    /// The text of a token.
    ///
    /// # Errors
    /// [`Error::InvalidFormat`] for an id outside the vocabulary (or, in bytes that were never
    /// checked, a start outside the text).
    #[inline]
    pub fn token_text(&self, id: u32) -> Result<&'a [u8], Error> {
        let at = |i: usize| self.starts.get(i).map(|s| u32::from_le_bytes(*s) as usize);
        let id = id as usize;
        let (Some(from), Some(to)) = (at(id), at(id + 1)) else {
            return Err(Error::InvalidFormat);
        };
        match self.text.get(from..to) {
            Some(text) if text.len() <= TOKEN_BYTES => Ok(text),
            _ => Err(Error::InvalidFormat),
        }
    }

    /// The score key of a token: greater merges first.
    ///
    /// # Errors
    /// [`Error::InvalidFormat`] for an id outside the vocabulary.
    #[inline]
    pub fn score_key(&self, id: u32) -> Result<u32, Error> {
        let key = self.keys.get(id as usize).ok_or(Error::InvalidFormat)?;
        Ok(u32::from_le_bytes(*key))
    }

    /// The token at `rank` in the order of texts.
    #[inline]
    pub(crate) fn sorted_id(&self, rank: usize) -> Result<u32, Error> {
        let id = self.sorted.get(rank).ok_or(Error::InvalidFormat)?;
        Ok(u32::from_le_bytes(*id))
    }
}

/// A whole artifact: section zero and all matrix sections, checked.
#[derive(Clone, Copy, Debug)]
pub struct Artifact<'a> {
    /// Section zero.
    pub metadata: Metadata<'a>,
    bytes: &'a [u8],
}

impl<'a> Artifact<'a> {
    /// Checks a whole artifact. Matrix bytes can hold any value, so there is nothing to check in
    /// them; a digest is what tells two models apart.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn new(bytes: &'a [u8]) -> Result<Artifact<'a>, Fault> {
        if bytes.len() < SECTION_TABLE + 16 || !bytes.starts_with(TAG) {
            return Err(Fault::format("the file does not open with CURTAW01 and a section table"));
        }
        let zero = usize::try_from(read_u64(bytes, SECTION_TABLE + 8))
            .ok()
            .and_then(|len| bytes.get(..len))
            .ok_or(Fault::format("the file ends inside section zero"))?;
        let metadata = Metadata::check(zero)?;
        let last = metadata.section_count() - 1;
        let end = metadata.section_offset(last) + metadata.section_len(last);
        if bytes.len() < end {
            return Err(Fault::format("the file ends inside a matrix section"));
        }
        if bytes.len() > end {
            return Err(Fault::format("the file goes on after its last section"));
        }
        Ok(Artifact { metadata, bytes })
    }

    /// All bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Section `index` (zero is the metadata) as [`crate::turn`] takes it.
    ///
    /// # Panics
    /// If the artifact has no such section.
    pub fn section(&self, index: u32) -> WeightSection<'a> {
        let i = index as usize;
        let from = self.metadata.section_offset(i);
        WeightSection { index, bytes: &self.bytes[from..from + self.metadata.section_len(i)] }
    }

    /// The sections a plan names; the first [`TurnPlan::section_count`] entries are used.
    pub fn sections(&self, plan: &TurnPlan) -> [WeightSection<'a>; 2] {
        let mut sections = [WeightSection { index: 0, bytes: &[] }; 2];
        for i in 0..plan.section_count {
            sections[i] = self.section(plan.sections[i]);
        }
        sections
    }
}
