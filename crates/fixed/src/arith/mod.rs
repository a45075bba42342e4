//! The arithmetic of the forward pass on slices: [`plain`] defines it, the other backends are
//! faster and leave the same bits. Nothing here knows about phases, turns or the state's layout.
//!
//! A vector is a slice of [`words::I64`] (Q16) where it lies in the state, a cached key or value
//! one of [`words::I32`], a table of section zero a slice of 4-byte groups (no alignment assumed).
//! Lengths are the caller's promise, checked when artifact and state were accepted; a wrong one is
//! a programming error and panics.

#![cfg_attr(
    any(target_arch = "bpf", all(feature = "std", target_arch = "x86_64")),
    allow(unsafe_code)
)]
// Only x86-64 has backends that use all of what the vector backends share.
#![cfg_attr(all(feature = "std", not(target_arch = "x86_64")), allow(dead_code))]

#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod attention_avx2;
#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod avx2;
#[cfg(target_arch = "bpf")]
mod bpf;
#[cfg(feature = "std")]
mod digits;
#[cfg(feature = "std")]
mod fast;
#[cfg(feature = "std")]
mod madd;
#[cfg(all(feature = "std", target_arch = "aarch64", target_endian = "little"))]
mod neon;
pub mod plain;
#[cfg(all(feature = "std", target_pointer_width = "64"))]
mod reciprocal;
#[cfg(all(feature = "std", target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod vnni;
pub mod words;

#[cfg(feature = "std")]
pub use digits::Input;

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

/// Room a backend needs between calls; keep one a thread. Empty where only [`plain`] runs.
#[derive(Default)]
pub struct Scratch {
    #[cfg(feature = "std")]
    input: Input,
}

/// A way to do the arithmetic that this machine can run: only [`Backend::plain`],
/// [`Backend::detect`] and [`Backend::supported`] make one. All leave the same bits.
/// Operations without a method here have one implementation: call [`plain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    Avx2,
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    Vnni,
    #[cfg(all(feature = "std", target_arch = "aarch64", target_endian = "little"))]
    Neon,
    #[cfg(all(feature = "std", target_arch = "wasm32", target_feature = "simd128"))]
    Simd128,
}

/// From slow to fast, what this build has code for.
const KINDS: &[Kind] = &[
    Kind::Plain,
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    Kind::Avx2,
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    Kind::Vnni,
    #[cfg(all(feature = "std", target_arch = "aarch64", target_endian = "little"))]
    Kind::Neon,
    #[cfg(all(feature = "std", target_arch = "wasm32", target_feature = "simd128"))]
    Kind::Simd128,
];

impl Kind {
    fn runs_here(self) -> bool {
        match self {
            Kind::Plain => true,
            #[cfg(all(feature = "std", target_arch = "x86_64"))]
            Kind::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(all(feature = "std", target_arch = "x86_64"))]
            Kind::Vnni => vnni::detected(),
            // Part of every such target.
            #[allow(unreachable_patterns)]
            _ => true,
        }
    }
}

impl Backend {
    /// The definition; on every target.
    pub const fn plain() -> Backend {
        Backend(Kind::Plain)
    }

    /// All that this machine can run, from slow to fast; the first is [`Backend::plain`].
    pub fn supported() -> impl Iterator<Item = Backend> {
        KINDS.iter().copied().filter(|kind| kind.runs_here()).map(Backend)
    }

    /// The fastest this machine can run.
    pub fn detect() -> Backend {
        Backend::supported().last().unwrap_or(Backend::plain())
    }

    /// What the backend is called in reports.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Plain => "plain",
            #[cfg(all(feature = "std", target_arch = "x86_64"))]
            Kind::Avx2 => "avx2",
            #[cfg(all(feature = "std", target_arch = "x86_64"))]
            Kind::Vnni => "avx512-vnni",
            #[cfg(all(feature = "std", target_arch = "aarch64", target_endian = "little"))]
            Kind::Neon => "neon",
            #[cfg(all(feature = "std", target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => "simd128",
        }
    }

    /// As [`plain::matvec`].
    pub fn matvec(self, scratch: &mut Scratch, rows: Rows<'_>, x: &[I64], out: &mut [I64]) {
        #[cfg(feature = "std")]
        if self != Backend::plain() {
            scratch.input.prepare(self, x);
            return scratch.input.rows(rows, out);
        }
        let _ = scratch;
        #[cfg(target_arch = "bpf")]
        return bpf::matvec(rows, x, out);
        #[cfg(not(target_arch = "bpf"))]
        plain::matvec(rows, x, out);
    }

    /// As [`plain::matvec_cache`].
    ///
    /// # Errors
    /// A value that does not fit 32 bits.
    pub fn matvec_cache(
        self,
        scratch: &mut Scratch,
        rows: Rows<'_>,
        x: &[I64],
        out: &mut [I32],
    ) -> Result<(), Overflow> {
        #[cfg(feature = "std")]
        if self != Backend::plain() {
            scratch.input.prepare(self, x);
            return scratch.input.rows_cache(rows, out);
        }
        let _ = scratch;
        #[cfg(target_arch = "bpf")]
        return bpf::matvec_cache(rows, x, out);
        #[cfg(not(target_arch = "bpf"))]
        plain::matvec_cache(rows, x, out)
    }

    /// Whether the AVX2 versions of the smaller operations run.
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    #[inline(always)]
    fn has_avx2(self) -> bool {
        matches!(self.0, Kind::Avx2 | Kind::Vnni)
    }

    /// As [`plain::rms_norm`].
    #[inline]
    pub fn rms_norm(self, x: &[I64], weights: &[[u8; 4]], out: &mut [I64]) {
        #[cfg(all(feature = "std", target_pointer_width = "64"))]
        if self != Backend::plain() {
            return reciprocal::rms_norm(x, weights, out);
        }
        plain::rms_norm(x, weights, out)
    }

    /// As [`plain::rms_norm_in_place`].
    #[inline]
    pub fn rms_norm_in_place(self, x: &mut [I64], weights: &[[u8; 4]]) {
        #[cfg(all(feature = "std", target_pointer_width = "64"))]
        if self != Backend::plain() {
            return reciprocal::rms_norm_in_place(x, weights);
        }
        plain::rms_norm_in_place(x, weights)
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
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        if self.has_avx2() {
            // SAFETY: the backend is only made where AVX2 is.
            return unsafe {
                attention_avx2::scores(q, keys, stride, inv_sqrt, range, scores, largest)
            };
        }
        #[cfg(target_arch = "bpf")]
        return bpf::scores(q, keys, stride, inv_sqrt, range, scores, largest);
        #[cfg(not(target_arch = "bpf"))]
        plain::scores(q, keys, stride, inv_sqrt, range, scores, largest)
    }

    /// As [`plain::probabilities`].
    #[inline]
    pub fn probabilities(self, total: u64, range: Range<usize>, scores: &mut [I64]) {
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        if self.has_avx2() {
            // SAFETY: the backend is only made where AVX2 is.
            return unsafe { attention_avx2::probabilities(total, range, scores) };
        }
        plain::probabilities(total, range, scores)
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
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        if self.has_avx2() {
            // SAFETY: the backend is only made where AVX2 is.
            return unsafe {
                attention_avx2::weighted_values(probabilities, values, stride, range, out)
            };
        }
        #[cfg(target_arch = "bpf")]
        return bpf::weighted_values(probabilities, values, stride, range, out);
        #[cfg(not(target_arch = "bpf"))]
        plain::weighted_values(probabilities, values, stride, range, out)
    }
}
