//! AVX2 and FMA: four `f64` a vector.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::{E2m1Bytes, E4M3};
use super::{Lanes, entry_points};
use std::arch::x86_64::*;

entry_points!("avx2,fma", Avx2);

/// See the module.
pub(crate) struct Avx2;

// SAFETY: callers enable AVX2 and FMA. Loads and stores are the unaligned forms.
unsafe impl Lanes for Avx2 {
    type V = __m256d;
    const N: usize = 4;
    const ROWS: [usize; 2] = [2, 3];

    #[inline(always)]
    unsafe fn zero() -> __m256d {
        _mm256_setzero_pd()
    }
    #[inline(always)]
    unsafe fn splat(v: f64) -> __m256d {
        _mm256_set1_pd(v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> __m256d {
        _mm256_loadu_pd(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f64, v: __m256d) {
        _mm256_storeu_pd(p, v)
    }
    #[inline(always)]
    unsafe fn fma(acc: __m256d, a: __m256d, b: __m256d) -> __m256d {
        _mm256_fmadd_pd(a, b, acc)
    }
    #[inline(always)]
    unsafe fn widen(p: *const f32) -> __m256d {
        _mm256_cvtps_pd(_mm_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast())
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: f32, out: *mut f32) {
        e4m3(p, scale, out)
    }
    #[inline(always)]
    unsafe fn e2m1(p: *const u8, bytes: &E2m1Bytes, out: *mut f32) {
        e2m1(p, bytes, out)
    }
}

/// See [`Lanes::e2m1`].
#[inline(always)]
pub(super) unsafe fn e2m1(p: *const u8, bytes: &E2m1Bytes, out: *mut f32) {
    let packed = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
    let (low, high) = (table(&bytes.low), table(&bytes.high));
    // Unpacking works within halves: so the lower half takes columns 0..4, 8..12, ... (bytes 0, 1,
    // 4, 5, ...) and the upper half the others. Each byte becomes a word, then two nibbles.
    #[rustfmt::skip]
    let order = _mm256_setr_epi8(
        0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1,
        2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
    let words = _mm256_shuffle_epi8(packed, order);
    let both = _mm256_or_si256(words, _mm256_slli_epi16::<4>(words));
    let codes = _mm256_and_si256(both, _mm256_set1_epi8(15));
    let (low, high) = (_mm256_shuffle_epi8(low, codes), _mm256_shuffle_epi8(high, codes));
    for (i, v) in spread(low, high).into_iter().enumerate() {
        _mm256_storeu_si256(out.add(8 * i).cast(), v);
    }
}

/// See [`Lanes::e4m3`]. The two upper bytes of each value are looked up, so that four vectors of
/// floats are worked out as one of bytes. (The plain form takes twice the time.)
#[inline(always)]
pub(super) unsafe fn e4m3(p: *const u8, scale: f32, out: *mut f32) {
    let codes = _mm256_loadu_si256(p.cast());
    // Columns 0..4, 8..12, ... in the lower half, as for [`e2m1`].
    let codes = _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    let nibble = _mm256_set1_epi8(15);
    let lower = _mm256_and_si256(codes, nibble);
    let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
    let mut low = _mm256_shuffle_epi8(table(&E4M3.low), lower);
    let mut high = _mm256_shuffle_epi8(table(&E4M3.high), upper);
    // A zero exponent: three bits of mantissa are all there is to look up.
    let exponent = _mm256_and_si256(codes, _mm256_set1_epi8(0x78));
    let subnormal = _mm256_cmpeq_epi8(exponent, _mm256_setzero_si256());
    let sign = _mm256_and_si256(codes, _mm256_set1_epi8(i8::MIN));
    let subnormal_high = _mm256_shuffle_epi8(table(&E4M3.subnormal_high), lower);
    low =
        _mm256_blendv_epi8(low, _mm256_shuffle_epi8(table(&E4M3.subnormal_low), lower), subnormal);
    high = _mm256_blendv_epi8(high, _mm256_or_si256(sign, subnormal_high), subnormal);
    let magnitude = _mm256_andnot_si256(sign, codes);
    let nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7f));
    let values = spread(_mm256_or_si256(low, nan), _mm256_or_si256(high, nan));
    let scale = _mm256_set1_ps(scale);
    for (i, v) in values.into_iter().enumerate() {
        _mm256_storeu_ps(out.add(8 * i), _mm256_mul_ps(_mm256_castsi256_ps(v), scale));
    }
}

/// A table of sixteen bytes for each half of a vector.
#[inline(always)]
unsafe fn table(bytes: &[u8; 16]) -> __m256i {
    _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()))
}

/// Bytes as the two upper ones of floats; halves of the vectors hold columns as [`e2m1`] says.
#[inline(always)]
unsafe fn spread(low: __m256i, high: __m256i) -> [__m256i; 4] {
    let zero = _mm256_setzero_si256();
    let (a, b) = (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
    [
        _mm256_unpacklo_epi16(zero, a),
        _mm256_unpackhi_epi16(zero, a),
        _mm256_unpacklo_epi16(zero, b),
        _mm256_unpackhi_epi16(zero, b),
    ]
}
