//! Weight formats as the kernels see them: where a row lies and how 32 columns become `f64`.
#![allow(unsafe_code)]

use super::{Lanes, UNIT};
use crate::e8m0;

/// A matrix of one weight format, with its shape.
pub(crate) trait Format: Copy {
    /// Bytes of 16 columns, without scales.
    const CHUNK_BYTES: usize;
    /// What the 32 columns of a unit share.
    type Scale<L: Lanes>: Copy;

    /// Columns of the matrix.
    fn cols(&self) -> usize;
    /// Bytes of row `r` (from the first column to the last) and the scales that belong to it.
    fn row(&self, r: usize) -> Row<'_>;
    /// The scale of unit `u` of a row with these scales.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn scale<L: Lanes>(&self, scales: &[u8], u: usize) -> Self::Scale<L>;
    /// Widens the 16 columns at `p`.
    ///
    /// # Safety
    /// `p` is readable for [`Format::CHUNK_BYTES`], and as for [`Lanes`].
    unsafe fn chunk<L: Lanes>(p: *const u8, scale: Self::Scale<L>) -> L::Block;
}

/// One row: weight bytes and scale bytes.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) scales: &'a [u8],
}

/// Bytes of a unit in the widest format.
const UNIT_BYTES: usize = 4 * UNIT;

impl Row<'_> {
    /// Widens unit `u`; columns past the end are zero.
    ///
    /// # Safety
    /// `u < cols.div_ceil(32)`, and as for [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn unit<L: Lanes, F: Format>(&self, f: &F, u: usize) -> [L::Block; 2] {
        let at = 2 * u * F::CHUNK_BYTES;
        let padded;
        let p = if at + 2 * F::CHUNK_BYTES <= self.bytes.len() {
            self.bytes[at..].as_ptr()
        } else {
            padded = self.padded(at);
            padded.as_ptr()
        };
        // SAFETY: a whole unit lies at `p`.
        unsafe {
            let scale = f.scale::<L>(self.scales, u);
            [F::chunk::<L>(p, scale), F::chunk::<L>(p.add(F::CHUNK_BYTES), scale)]
        }
    }

    /// The bytes from `at` on, less than a unit, followed by zeros (which every format reads as
    /// the number zero).
    #[cold]
    #[inline(never)]
    pub(crate) fn padded(&self, at: usize) -> [u8; UNIT_BYTES] {
        let mut padded = [0u8; UNIT_BYTES];
        let rest = &self.bytes[at..];
        padded[..rest.len()].copy_from_slice(rest);
        padded
    }
}

/// `f32`, little-endian; rows may lie further apart than they are long.
#[derive(Clone, Copy)]
pub(crate) struct F32<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) cols: usize,
    pub(crate) stride: usize,
}

/// bf16, little-endian.
#[derive(Clone, Copy)]
pub(crate) struct Bf16<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) cols: usize,
}

/// E2M1 with a scale per 32.
#[derive(Clone, Copy)]
pub(crate) struct Mxfp4<'a> {
    pub(crate) packed: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) cols: usize,
}

/// E4M3 with a scale per block.
#[derive(Clone, Copy)]
pub(crate) struct Fp8<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) cols: usize,
    pub(crate) first_row: usize,
    pub(crate) block_rows: usize,
    /// Units that share a scale.
    pub(crate) block_units: usize,
}

impl Format for F32<'_> {
    const CHUNK_BYTES: usize = 64;
    type Scale<L: Lanes> = ();
    fn cols(&self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn row(&self, r: usize) -> Row<'_> {
        let at = r * self.stride * 4;
        Row { bytes: &self.bytes[at..at + self.cols * 4], scales: &[] }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(&self, _: &[u8], _: usize) {}
    #[inline(always)]
    unsafe fn chunk<L: Lanes>(p: *const u8, _: ()) -> L::Block {
        // SAFETY: passed on to the caller.
        unsafe { L::f32(p) }
    }
}

impl Format for Bf16<'_> {
    const CHUNK_BYTES: usize = 32;
    type Scale<L: Lanes> = ();
    fn cols(&self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn row(&self, r: usize) -> Row<'_> {
        let at = r * self.cols * 2;
        Row { bytes: &self.bytes[at..at + self.cols * 2], scales: &[] }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(&self, _: &[u8], _: usize) {}
    #[inline(always)]
    unsafe fn chunk<L: Lanes>(p: *const u8, _: ()) -> L::Block {
        // SAFETY: passed on to the caller.
        unsafe { L::bf16(p) }
    }
}

impl Format for Mxfp4<'_> {
    const CHUNK_BYTES: usize = 8;
    type Scale<L: Lanes> = L::Table;
    fn cols(&self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn row(&self, r: usize) -> Row<'_> {
        let (bytes, groups) = (self.cols / 2, self.cols.div_ceil(UNIT));
        Row {
            bytes: &self.packed[r * bytes..(r + 1) * bytes],
            scales: &self.scales[r * groups..(r + 1) * groups],
        }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(&self, scales: &[u8], u: usize) -> L::Table {
        // SAFETY: passed on to the caller.
        unsafe { L::e2m1_table(scales[u]) }
    }
    #[inline(always)]
    unsafe fn chunk<L: Lanes>(p: *const u8, table: L::Table) -> L::Block {
        // SAFETY: passed on to the caller.
        unsafe { L::e2m1(p, table) }
    }
}

impl Format for Fp8<'_> {
    const CHUNK_BYTES: usize = 16;
    type Scale<L: Lanes> = L::V;
    fn cols(&self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn row(&self, r: usize) -> Row<'_> {
        let blocks = self.cols.div_ceil(UNIT * self.block_units);
        let block = (self.first_row + r) / self.block_rows;
        Row {
            bytes: &self.codes[r * self.cols..(r + 1) * self.cols],
            scales: &self.scales[block * blocks..(block + 1) * blocks],
        }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(&self, scales: &[u8], u: usize) -> L::V {
        // One scale a unit is the common case, and a division is slow.
        let block = if self.block_units == 1 { u } else { u / self.block_units };
        // SAFETY: passed on to the caller.
        unsafe { L::splat(e8m0::decode64(scales[block]) * E4M3_AS_F32) }
    }
    #[inline(always)]
    unsafe fn chunk<L: Lanes>(p: *const u8, scale: L::V) -> L::Block {
        // SAFETY: passed on to the caller.
        unsafe { L::e4m3(p, scale) }
    }
}

/// The bytes of floats in memory. Only for little-endian machines, which all SIMD backends are.
#[cfg(target_endian = "little")]
pub(crate) fn as_bytes(floats: &[f32]) -> &[u8] {
    // SAFETY: any f32 is four initialised bytes; the lifetime is that of the slice.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len() * 4) }
}

/// Evaluates `$body` with `$f` bound to the matrix in its format.
macro_rules! with_format {
    ($m:expr, |$f:ident| $body:expr) => {
        match $m.weights() {
            $crate::Weights::Floats(w) => {
                let bytes = $crate::simd::format::as_bytes(w);
                let $f = F32 { bytes, cols: $m.cols(), stride: $m.stride() };
                $body
            }
            $crate::Weights::F32(bytes) => {
                let $f = F32 { bytes, cols: $m.cols(), stride: $m.stride() };
                $body
            }
            $crate::Weights::Bf16(bytes) => {
                let $f = Bf16 { bytes, cols: $m.cols() };
                $body
            }
            $crate::Weights::Mxfp4 { packed, scales, .. } => {
                let $f = Mxfp4 { packed, scales, cols: $m.cols() };
                $body
            }
            $crate::Weights::Fp8 { codes, scales, block_rows, block_cols } => {
                let block_units = block_cols / $crate::simd::UNIT;
                let (cols, first_row) = ($m.cols(), $m.first_row());
                let $f = Fp8 { codes, scales, cols, first_row, block_rows, block_units };
                $body
            }
        }
    };
}
pub(crate) use with_format;

/// An E4M3 code whose seven bits are put below the sign of an `f32` so that the exponent field
/// holds their exponent ([`E4M3_MASK`]) is, read as `f32`, the value times `2^(7-127)`. Subnormal
/// codes are subnormal `f32` then, so they are included; the code NaN is not ([`E4M3_NAN`]).
/// Multiplying by this gives the value.
pub(crate) const E4M3_AS_F32: f64 = f64::from_bits((1023 + 120) << 52);
/// What remains of a code at the top of 32 bits, shifted right by four with its sign: sign bit,
/// lower four exponent bits, upper three mantissa bits.
#[allow(dead_code)]
pub(crate) const E4M3_MASK: i32 = 0x87f0_0000u32 as i32;

/// [`E4M3_MASK`] without the sign: what the code NaN leaves. Such a code must become an `f32` NaN,
/// for instance by setting all its bits.
#[allow(dead_code)]
pub(crate) const E4M3_NAN: i32 = 0x07f0_0000;

/// The two upper bytes of each E2M1 value as an `f64` (the others are zero), for backends that
/// look bytes up in a table of sixteen.
#[allow(dead_code)] // not every architecture does
pub(crate) const E2M1_HIGH: [u8; 16] = e2m1_bytes(7);
/// See [`E2M1_HIGH`].
#[allow(dead_code)]
pub(crate) const E2M1_LOW: [u8; 16] = e2m1_bytes(6);

const fn e2m1_bytes(byte: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < 16 {
        bytes[code] = (crate::fp4::VALUES[code] as f64).to_le_bytes()[byte];
        code += 1;
    }
    bytes
}
