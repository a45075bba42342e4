//! AVX2 and FMA: four `f64` a vector, lanes in their natural order.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::e4m3_unit;
use super::{Lanes, UNIT, entry_points};
use crate::dot::LANES;
use std::arch::x86_64::*;

entry_points!("avx2,fma", Avx2);

/// See the module.
pub(crate) struct Avx2;

// SAFETY: callers enable AVX2 and FMA. Loads and stores are the unaligned forms.
unsafe impl Lanes for Avx2 {
    type V = __m256d;
    const N: usize = 4;
    type Block = [__m256d; 4];
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
        std::array::from_fn(|i| _mm256_cvtps_pd(_mm_loadu_ps(p.cast::<f32>().add(4 * i))))
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [__m256d; 4] {
        let zero = _mm_setzero_si128();
        // A zero half below each bf16 makes it an f32.
        let four = |bits: __m128i| _mm256_cvtps_pd(_mm_castsi128_ps(bits));
        let a = _mm_loadu_si128(p.cast());
        let b = _mm_loadu_si128(p.add(16).cast());
        [
            four(_mm_unpacklo_epi16(zero, a)),
            four(_mm_unpackhi_epi16(zero, a)),
            four(_mm_unpacklo_epi16(zero, b)),
            four(_mm_unpackhi_epi16(zero, b)),
        ]
    }

    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: f64) -> [[__m256d; 4]; 2] {
        let codes = _mm256_loadu_si256(p.cast());
        let magnitudes = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
        let nan = _mm256_cmpeq_epi8(magnitudes, _mm256_set1_epi8(0x7f));
        if _mm256_movemask_epi8(nan) != 0 {
            let w = e4m3_unit(p, scale);
            let half =
                |at: usize| std::array::from_fn(|i| _mm256_loadu_pd(w.as_ptr().add(at + 4 * i)));
            return [half(0), half(LANES)];
        }
        // The code's seven bits, put below the sign of an f32 so that its exponent field holds
        // their exponent, are the value times 2^(7-127), subnormal codes included.
        let scale = _mm256_set1_pd(scale * f64::from_bits((1023 + 120) << 52));
        let eight = |at: usize| {
            let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(at).cast()));
            let shifted = _mm256_srai_epi32::<4>(_mm256_slli_epi32::<24>(codes));
            let bits = _mm256_and_si256(shifted, _mm256_set1_epi32(0x87f0_0000u32 as i32));
            let floats = _mm256_castsi256_ps(bits);
            let low = _mm256_cvtps_pd(_mm256_castps256_ps128(floats));
            let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(floats));
            [_mm256_mul_pd(low, scale), _mm256_mul_pd(high, scale)]
        };
        let sixteen = |at: usize| {
            let ([a, b], [c, d]) = (eight(at), eight(at + 8));
            [a, b, c, d]
        };
        [sixteen(0), sixteen(LANES)]
    }

    #[inline(always)]
    unsafe fn e2m1(p: *const u8, scale: u8) -> [[__m256d; 4]; 2] {
        // The upper halves of the f64 0, .5, 1, 1.5, 2, 3, 4, 6, the scale added to the
        // exponents: 2^-128 to 6 * 2^127 are all normal f64.
        let values = _mm256_setr_epi32(
            0,
            0x3fe0_0000,
            0x3ff0_0000,
            0x3ff8_0000,
            0x4000_0000,
            0x4008_0000,
            0x4010_0000,
            0x4018_0000,
        );
        let not_zero = _mm256_setr_epi32(0, -1, -1, -1, -1, -1, -1, -1);
        let power = _mm256_set1_epi32((scale as i32 - 127) << 20);
        let scaled = _mm256_add_epi32(values, _mm256_and_si256(power, not_zero));
        let table = if scale == 255 { _mm256_setzero_si256() } else { scaled };
        // Shifts that bring a nibble to the top of each 32 bits, in the order that makes the
        // two unpacks below yield columns 0..4 and 4..8.
        let shifts = _mm256_setr_epi32(28, 24, 12, 8, 20, 16, 4, 0);
        let sign = _mm256_set1_epi32(i32::MIN);
        let eight = |at: usize| {
            let nibbles = _mm256_set1_epi32(p.add(at).cast::<i32>().read_unaligned());
            let top = _mm256_sllv_epi32(nibbles, shifts);
            // The permutation looks at three bits, the magnitude, and not at the sign above.
            let high = _mm256_permutevar8x32_epi32(table, _mm256_srli_epi32::<28>(top));
            let high = _mm256_or_si256(high, _mm256_and_si256(top, sign));
            let zero = _mm256_setzero_si256();
            [
                _mm256_castsi256_pd(_mm256_unpacklo_epi32(zero, high)),
                _mm256_castsi256_pd(_mm256_unpackhi_epi32(zero, high)),
            ]
        };
        let sixteen = |at: usize| {
            let ([a, b], [c, d]) = (eight(at), eight(at + 4));
            [a, b, c, d]
        };
        [sixteen(0), sixteen(UNIT / 4)]
    }
}
