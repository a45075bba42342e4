//! Weight formats as the kernels see them: where a row lies and how 32 columns become `f32`.
//!
//! Kernels hold decoded weights as `f32` for a moment, in the first-level cache, and widen them to
//! `f64` as they load them. (Measured on AVX2: widening a vector from memory costs no arithmetic,
//! widening one from a register costs two instructions.) Every weight fits but those of absurd
//! scales, which [`Format::EXACT`] excludes: such rows go to the definition.
#![allow(unsafe_code)]

use super::{Lanes, UNIT};
use crate::{Matrix, Weights, e8m0, fp4};
use std::ops::RangeToInclusive;

/// A matrix of one weight format, with its shape.
pub(crate) trait Format: Copy {
    /// Bytes of a unit of columns, without scales.
    const UNIT_BYTES: usize;
    /// Whether there are scales.
    const SCALED: bool = true;
    /// Scales for which every weight is exact in `f32`; 255 is handled apart.
    const EXACT: RangeToInclusive<u8>;

    /// Columns of the matrix.
    fn cols(&self) -> usize;
    /// Bytes of row `r` (from the first column to the last) and the scales that belong to it.
    fn row(&self, r: usize) -> Row<'_>;
    /// Bytes between the starts of two rows.
    fn stride(&self) -> usize;
    /// The E8M0 scale of unit `u` of a row with these scales, where the format has any.
    fn scale(&self, scales: &[u8], u: usize) -> u8;
    /// Decodes the unit at `p` to `out`.
    ///
    /// # Safety
    /// `p` is readable for [`Format::UNIT_BYTES`], `out` writable for 32 floats, and as for
    /// [`Lanes`].
    unsafe fn decode<L: Lanes>(p: *const u8, scale: u8, out: *mut f32);
}

/// One row: weight bytes and scale bytes.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) scales: &'a [u8],
}

/// Bytes of a unit in the widest format.
const MAX_UNIT_BYTES: usize = 4 * UNIT;

impl Row<'_> {
    /// Decodes unit `u` to `out`; columns past the end are zero.
    ///
    /// # Safety
    /// `u < cols.div_ceil(32)`, `out` is writable for 32 floats, and as for [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn unit<L: Lanes, F: Format>(
        &self,
        f: &F,
        u: usize,
        out: *mut f32,
        seen: &mut Scales,
    ) {
        let at = u * F::UNIT_BYTES;
        // SAFETY: a whole unit lies there, or is put together; the rest is passed on.
        unsafe {
            if at + F::UNIT_BYTES <= self.bytes.len() {
                return self.whole_unit::<L, F>(f, u, out, seen);
            }
            let scale = f.scale(self.scales, u);
            seen.add(scale);
            F::decode::<L>(self.padded(at).as_ptr(), scale, out);
        }
    }

    /// Decodes unit `u`, all of whose columns exist, to `out`.
    ///
    /// # Safety
    /// `u < cols / 32`, and as for [`Row::unit`].
    #[inline(always)]
    pub(crate) unsafe fn whole_unit<L: Lanes, F: Format>(
        &self,
        f: &F,
        u: usize,
        out: *mut f32,
        seen: &mut Scales,
    ) {
        debug_assert!((u + 1) * F::UNIT_BYTES <= self.bytes.len());
        let scale = f.scale(self.scales, u);
        seen.add(scale);
        // SAFETY: the unit lies there; the rest is passed on to the caller.
        unsafe { F::decode::<L>(self.bytes.as_ptr().add(u * F::UNIT_BYTES), scale, out) }
    }

    /// The bytes from `at` on, less than a unit, followed by zeros (which every format reads as
    /// the number zero).
    #[cold]
    #[inline(never)]
    fn padded(&self, at: usize) -> [u8; MAX_UNIT_BYTES] {
        let mut padded = [0u8; MAX_UNIT_BYTES];
        let rest = &self.bytes[at..];
        padded[..rest.len()].copy_from_slice(rest);
        padded
    }
}

/// The largest scale seen, where 255 (a zero group: a NaN is refused before) is less than all.
#[derive(Clone, Copy, Default)]
pub(crate) struct Scales(u8);

impl Scales {
    #[inline(always)]
    fn add(&mut self, scale: u8) {
        self.0 = self.0.max(scale.wrapping_add(1));
    }

    /// Whether all weights decoded were exact.
    #[inline(always)]
    pub(crate) fn exact<F: Format>(self) -> bool {
        self.0 <= F::EXACT.end.wrapping_add(1)
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
    const UNIT_BYTES: usize = 4 * UNIT;
    const SCALED: bool = false;
    const EXACT: RangeToInclusive<u8> = ..=NO_SCALE;
    fn cols(&self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn row(&self, r: usize) -> Row<'_> {
        let at = r * self.stride();
        Row { bytes: &self.bytes[at..at + self.cols * 4], scales: &[] }
    }
    #[inline(always)]
    fn stride(&self) -> usize {
        self.stride * 4
    }
    #[inline(always)]
    fn scale(&self, _: &[u8], _: usize) -> u8 {
        NO_SCALE
    }
    #[inline(always)]
    unsafe fn decode<L: Lanes>(p: *const u8, _: u8, out: *mut f32) {
        // SAFETY: the caller gives this many bytes and floats.
        unsafe { out.cast::<[f32; UNIT]>().write(p.cast::<[f32; UNIT]>().read_unaligned()) }
    }
}

impl Format for Bf16<'_> {
    const UNIT_BYTES: usize = 2 * UNIT;
    const SCALED: bool = false;
    const EXACT: RangeToInclusive<u8> = ..=NO_SCALE;
    fn cols(&self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn row(&self, r: usize) -> Row<'_> {
        let at = r * self.stride();
        Row { bytes: &self.bytes[at..at + self.cols * 2], scales: &[] }
    }
    #[inline(always)]
    fn stride(&self) -> usize {
        self.cols * 2
    }
    #[inline(always)]
    fn scale(&self, _: &[u8], _: usize) -> u8 {
        NO_SCALE
    }
    #[inline(always)]
    unsafe fn decode<L: Lanes>(p: *const u8, _: u8, out: *mut f32) {
        // SAFETY: the caller gives this many bytes and floats.
        unsafe {
            let words = p.cast::<[u16; UNIT]>().read_unaligned();
            let mut floats = [0f32; UNIT];
            for i in 0..UNIT {
                floats[i] = f32::from_bits((words[i] as u32) << 16);
            }
            out.cast::<[f32; UNIT]>().write(floats);
        }
    }
}

impl Format for Mxfp4<'_> {
    const UNIT_BYTES: usize = UNIT / 2;
    /// 6 times 2^125 is the last.
    const EXACT: RangeToInclusive<u8> = ..=252;
    fn cols(&self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn row(&self, r: usize) -> Row<'_> {
        let (bytes, groups) = (self.stride(), self.cols.div_ceil(UNIT));
        Row {
            bytes: &self.packed[r * bytes..(r + 1) * bytes],
            scales: &self.scales[r * groups..(r + 1) * groups],
        }
    }
    #[inline(always)]
    fn stride(&self) -> usize {
        self.cols / 2
    }
    #[inline(always)]
    fn scale(&self, scales: &[u8], u: usize) -> u8 {
        scales[u]
    }
    #[inline(always)]
    unsafe fn decode<L: Lanes>(p: *const u8, scale: u8, out: *mut f32) {
        // SAFETY: passed on to the caller.
        unsafe { L::e2m1(p, &E2M1[scale as usize], out) }
    }
}

impl Format for Fp8<'_> {
    const UNIT_BYTES: usize = UNIT;
    /// 448 times 2^119 is the last.
    const EXACT: RangeToInclusive<u8> = ..=246;
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
    fn stride(&self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn scale(&self, scales: &[u8], u: usize) -> u8 {
        // One scale a unit is the common case, and a division is slow.
        scales[if self.block_units == 1 { u } else { u / self.block_units }]
    }
    #[inline(always)]
    unsafe fn decode<L: Lanes>(p: *const u8, scale: u8, out: *mut f32) {
        // SAFETY: passed on to the caller.
        unsafe { L::e4m3(p, e8m0::decode(scale), out) }
    }
}

/// What formats without scales give as one.
const NO_SCALE: u8 = 0;

/// The bytes of floats in memory. Only for little-endian machines, which all SIMD backends are.
#[cfg(target_endian = "little")]
pub(crate) fn as_bytes(floats: &[f32]) -> &[u8] {
    // SAFETY: any f32 is four initialised bytes; the lifetime is that of the slice.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len() * 4) }
}

/// Whether all weights of `m` are exact in `f32`.
pub(crate) fn exact(m: &Matrix) -> bool {
    let within = |scales: &[u8], last| scales.iter().all(|&s| s <= last || s == e8m0::NAN);
    match m.weights() {
        Weights::Floats(_) | Weights::F32(_) | Weights::Bf16(_) => true,
        Weights::Mxfp4 { scales, .. } => within(scales, Mxfp4::EXACT.end),
        Weights::Fp8 { scales, .. } => within(scales, Fp8::EXACT.end),
    }
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

/// The value of an E4M3 code, in a form that compilers turn into vectors. (Subnormal floats on the
/// way would do with less code and cost processors some ten cycles each.)
#[inline(always)]
pub(crate) const fn e4m3(code: u8) -> f32 {
    /// What leads from the exponent's bias 7 to 127, and one more.
    const REBIAS: u32 = (127 - 7) << 23;
    const LEAST: u32 = REBIAS + (1 << 23);
    // Exponent and mantissa where a float has them.
    let magnitude = (code as u32 & 0x7f) << 20;
    let normal = magnitude + REBIAS;
    // With exponent 0 the leading one is not there: put in by the sum, taken out again.
    let subnormal = f32::from_bits(magnitude + LEAST) - f32::from_bits(LEAST);
    let is_subnormal = magnitude < 1 << 23;
    let bits = if is_subnormal { subnormal.to_bits() } else { normal };
    let nan = if magnitude == 0x7f << 20 { u32::MAX } else { 0 };
    f32::from_bits(bits | nan | (code as u32 & 0x80) << 24)
}

/// The two upper bytes of the sixteen E2M1 values times a scale, as `f32`; the other two are zero.
#[repr(C, align(32))]
pub(crate) struct E2m1Bytes {
    pub(crate) low: [u8; 16],
    pub(crate) high: [u8; 16],
}

/// For each scale. That of 255 makes all values zero; those past [`Format::EXACT`] are not used.
static E2M1: [E2m1Bytes; 256] = {
    let mut all = [const { E2m1Bytes { low: [0; 16], high: [0; 16] } }; 256];
    let mut scale = 0;
    while scale < e8m0::NAN {
        let mut code = 0;
        while code < 16 {
            let [_, _, low, high] = (fp4::VALUES[code] * e8m0::decode(scale)).to_le_bytes();
            all[scale as usize].low[code] = low;
            all[scale as usize].high[code] = high;
            code += 1;
        }
        scale += 1;
    }
    all
};

/// The two upper bytes of the E4M3 values as `f32` (the other two are zero), for backends that look
/// bytes up. The NaN codes are not among them.
#[allow(dead_code)] // not every architecture does
pub(crate) struct E4m3Bytes {
    /// By the lower nibble of a code of exponent 1 and more.
    pub(crate) low: [u8; 16],
    /// By the upper nibble of such a code.
    pub(crate) high: [u8; 16],
    /// By the mantissa of a positive code of exponent 0.
    pub(crate) subnormal_low: [u8; 16],
    /// See [`E4m3Bytes::subnormal_low`].
    pub(crate) subnormal_high: [u8; 16],
}

/// See there.
#[allow(dead_code)] // not every architecture does
pub(crate) static E4M3: E4m3Bytes = {
    let mut all =
        E4m3Bytes { low: [0; 16], high: [0; 16], subnormal_low: [0; 16], subnormal_high: [0; 16] };
    let mut i = 0;
    while i < 16 {
        // The lower byte does not depend on the upper three bits of the exponent, nor the upper
        // byte on the lowest; 0x10 and 8 stand for any that make no subnormal code.
        let [_, _, low, _] = e4m3(0x10 | i as u8).to_le_bytes();
        let [_, _, _, high] = e4m3((i << 4) as u8 | 8).to_le_bytes();
        let [_, _, subnormal_low, subnormal_high] = e4m3(i as u8 & 7).to_le_bytes();
        all.low[i] = low;
        all.high[i] = high;
        all.subnormal_low[i] = subnormal_low;
        all.subnormal_high[i] = subnormal_high;
        i += 1;
    }
    all
};
