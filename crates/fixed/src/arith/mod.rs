//! The arithmetic of the forward pass on slices: [`plain`] defines it, the other backends are
//! faster and leave the same bits. Nothing here knows about phases, turns or the state's layout.
//!
//! A vector is a slice of [`words::I64`] (Q16) where it lies in the state, a cached key or value
//! one of [`words::I32`], a table of section zero a slice of 4-byte groups (no alignment assumed).
//! Lengths are the caller's promise, checked when artifact and state were accepted; a wrong one is
//! a programming error and panics.

pub mod plain;
pub mod words;

use core::ops::Range;
use words::{I32, I64};

/// A key or value does not fit the cache's 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// Consecutive rows of one matrix: `[row, column]` weight bytes (weight + 128) and a Q24 scale a row.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Row scales, little-endian u32.
    pub scales: &'a [[u8; 4]],
    /// Weight bytes, row after row.
    pub weights: &'a [u8],
    /// Columns.
    pub cols: usize,
}

impl<'a> Rows<'a> {
    /// All rows of a matrix block as the artifact stores it: scales, then weights.
    pub fn of_block(block: &'a [u8], rows: usize, cols: usize) -> Rows<'a> {
        let (scales, rest) = block.split_at(rows * 4);
        Rows { scales: scales.as_chunks().0, weights: &rest[..rows * cols], cols }
    }

    /// Rows `range` of these.
    pub fn range(self, range: Range<usize>) -> Rows<'a> {
        let weights = &self.weights[range.start * self.cols..range.end * self.cols];
        Rows { scales: &self.scales[range], weights, cols: self.cols }
    }

    /// Each row's weights and scale.
    pub fn each(self) -> impl Iterator<Item = (&'a [u8], [u8; 4])> {
        self.weights.chunks_exact(self.cols).zip(self.scales.iter().copied())
    }
}

/// Room a backend needs between calls; keep one a thread. Empty for the plain backend.
#[derive(Default)]
pub struct Scratch {}

/// A way to do the arithmetic that this machine can run: only [`Backend::plain`],
/// [`Backend::detect`] and [`Backend::supported`] make one. All leave the same bits.
/// Operations without a method here have one implementation: call [`plain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
}

impl Backend {
    /// The definition; on every target.
    pub const fn plain() -> Backend {
        Backend(Kind::Plain)
    }

    /// The fastest this machine supports.
    pub fn detect() -> Backend {
        Backend::plain()
    }

    /// What the backend is called in reports: `plain`, `avx2`, ...
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Plain => "plain",
        }
    }

    /// As [`plain::matvec`].
    #[inline]
    pub fn matvec(self, _scratch: &mut Scratch, rows: Rows<'_>, x: &[I64], out: &mut [I64]) {
        match self.0 {
            Kind::Plain => plain::matvec(rows, x, out),
        }
    }

    /// As [`plain::matvec_cache`].
    ///
    /// # Errors
    /// A value that does not fit 32 bits.
    #[inline]
    pub fn matvec_cache(
        self,
        _scratch: &mut Scratch,
        rows: Rows<'_>,
        x: &[I64],
        out: &mut [I32],
    ) -> Result<(), Overflow> {
        match self.0 {
            Kind::Plain => plain::matvec_cache(rows, x, out),
        }
    }

    /// As [`plain::scores`].
    #[inline]
    pub fn scores(
        self,
        q: &[I64],
        keys: &[I32],
        stride: usize,
        inv_sqrt: u32,
        range: Range<usize>,
        scores: &mut [I64],
        largest: i64,
    ) -> i64 {
        match self.0 {
            Kind::Plain => plain::scores(q, keys, stride, inv_sqrt, range, scores, largest),
        }
    }

    /// As [`plain::probabilities`].
    #[inline]
    pub fn probabilities(self, total: u64, range: Range<usize>, scores: &mut [I64]) {
        match self.0 {
            Kind::Plain => plain::probabilities(total, range, scores),
        }
    }

    /// As [`plain::weighted_values`].
    #[inline]
    pub fn weighted_values(
        self,
        probabilities: &[I64],
        values: &[I32],
        stride: usize,
        range: Range<usize>,
        out: &mut [I64],
    ) {
        match self.0 {
            Kind::Plain => plain::weighted_values(probabilities, values, stride, range, out),
        }
    }
}
