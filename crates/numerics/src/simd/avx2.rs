//! AVX2 and FMA: four `f64` a vector, lanes in their natural order.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::{E4M3_MASK, E4M3_NAN};
use super::{Lanes, entry_points};
use crate::e8m0;
use std::arch::x86_64::*;

entry_points!("avx2,fma", Avx2);

/// See the module.
pub(crate) struct Avx2;

// SAFETY: callers enable AVX2 and FMA. Loads and stores are the unaligned forms.
unsafe impl Lanes for Avx2 {
    type V = __m256d;
    const N: usize = 4;
    type Block = [__m256d; 4];
    /// Upper halves of the magnitudes as `f64`.
    type Table = __m256i;
    const ROWS: usize = 2;

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
    unsafe fn zeros() -> [__m256d; 4] {
        [_mm256_setzero_pd(); 4]
    }

    #[inline(always)]
    unsafe fn f32(p: *const u8) -> [__m256d; 4] {
        let p = p.cast::<f32>();
        [
            _mm256_cvtps_pd(_mm_loadu_ps(p)),
            _mm256_cvtps_pd(_mm_loadu_ps(p.add(4))),
            _mm256_cvtps_pd(_mm_loadu_ps(p.add(8))),
            _mm256_cvtps_pd(_mm_loadu_ps(p.add(12))),
        ]
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [__m256d; 4] {
        // A zero half below each bf16 makes it an f32.
        let zero = _mm_setzero_si128();
        let a = _mm_loadu_si128(p.cast());
        let b = _mm_loadu_si128(p.add(16).cast());
        [
            _mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpacklo_epi16(zero, a))),
            _mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpackhi_epi16(zero, a))),
            _mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpacklo_epi16(zero, b))),
            _mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpackhi_epi16(zero, b))),
        ]
    }

    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: __m256d) -> [__m256d; 4] {
        let ([a, b], [c, d]) = (e4m3_eight(p, scale), e4m3_eight(p.add(8), scale));
        [a, b, c, d]
    }

    #[inline(always)]
    unsafe fn e2m1_table(scale: u8) -> __m256i {
        if scale == e8m0::NAN {
            return _mm256_setzero_si256();
        }
        // The upper halves of the f64 0, .5, 1, 1.5, 2, 3, 4, 6, the scale added to the exponents:
        // 2^-128 to 6 * 2^127 are all normal f64.
        #[rustfmt::skip]
        let values = _mm256_setr_epi32(0, 0x3fe0_0000, 0x3ff0_0000, 0x3ff8_0000,
            0x4000_0000, 0x4008_0000, 0x4010_0000, 0x4018_0000);
        let not_zero = _mm256_setr_epi32(0, -1, -1, -1, -1, -1, -1, -1);
        let power = _mm256_set1_epi32((scale as i32 - 127) << 20);
        _mm256_add_epi32(values, _mm256_and_si256(power, not_zero))
    }

    #[inline(always)]
    unsafe fn e2m1(p: *const u8, table: __m256i) -> [__m256d; 4] {
        let ([a, b], [c, d]) = (e2m1_eight(p, table), e2m1_eight(p.add(4), table));
        [a, b, c, d]
    }
}

/// Eight E4M3 codes as `f32` bits (see [`E4M3_MASK`]), widened and scaled.
#[inline(always)]
unsafe fn e4m3_eight(p: *const u8, scale: __m256d) -> [__m256d; 2] {
    let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
    let shifted = _mm256_srai_epi32::<4>(_mm256_slli_epi32::<24>(codes));
    let bits = _mm256_and_si256(shifted, _mm256_set1_epi32(E4M3_MASK));
    let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(E4M3_NAN));
    let nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(E4M3_NAN));
    let floats = _mm256_castsi256_ps(_mm256_or_si256(bits, nan));
    let low = _mm256_cvtps_pd(_mm256_castps256_ps128(floats));
    let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(floats));
    [_mm256_mul_pd(low, scale), _mm256_mul_pd(high, scale)]
}

/// Eight E2M1 codes (four bytes), looked up in the `table` of the upper halves of their values.
#[inline(always)]
unsafe fn e2m1_eight(p: *const u8, table: __m256i) -> [__m256d; 2] {
    // Shifts that bring a nibble to the top of each 32 bits, in the order that makes the two
    // unpacks below yield columns 0..4 and 4..8.
    let shifts = _mm256_setr_epi32(28, 24, 12, 8, 20, 16, 4, 0);
    let nibbles = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
    let top = _mm256_sllv_epi32(nibbles, shifts);
    // The permutation looks at three bits, the magnitude, and not at the sign above.
    let magnitude = _mm256_permutevar8x32_epi32(table, _mm256_srli_epi32::<28>(top));
    let sign = _mm256_and_si256(top, _mm256_set1_epi32(i32::MIN));
    let upper = _mm256_or_si256(magnitude, sign);
    let zero = _mm256_setzero_si256();
    [
        _mm256_castsi256_pd(_mm256_unpacklo_epi32(zero, upper)),
        _mm256_castsi256_pd(_mm256_unpackhi_epi32(zero, upper)),
    ]
}
