//! AVX-512F: eight `f64` a vector, lanes in their natural order.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::{E4M3_MASK, E4M3_NAN};
use super::{Lanes, entry_points};
use crate::{e8m0, fp4};
use std::arch::x86_64::*;

entry_points!("avx512f,avx2,fma", Avx512);

/// See the module.
pub(crate) struct Avx512;

// SAFETY: callers enable AVX-512F, AVX2 and FMA. Loads and stores are the unaligned forms.
unsafe impl Lanes for Avx512 {
    type V = __m512d;
    const N: usize = 8;
    type Block = [__m512d; 2];
    /// The values without and with sign.
    type Table = [__m512d; 2];
    const ROWS: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> __m512d {
        _mm512_setzero_pd()
    }
    #[inline(always)]
    unsafe fn splat(v: f64) -> __m512d {
        _mm512_set1_pd(v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> __m512d {
        _mm512_loadu_pd(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f64, v: __m512d) {
        _mm512_storeu_pd(p, v)
    }
    #[inline(always)]
    unsafe fn fma(acc: __m512d, a: __m512d, b: __m512d) -> __m512d {
        _mm512_fmadd_pd(a, b, acc)
    }

    #[inline(always)]
    unsafe fn zeros() -> [__m512d; 2] {
        [_mm512_setzero_pd(); 2]
    }

    #[inline(always)]
    unsafe fn f32(p: *const u8) -> [__m512d; 2] {
        let p = p.cast::<f32>();
        [_mm512_cvtps_pd(_mm256_loadu_ps(p)), _mm512_cvtps_pd(_mm256_loadu_ps(p.add(8)))]
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [__m512d; 2] {
        [bf16_eight(p), bf16_eight(p.add(16))]
    }

    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: __m512d) -> [__m512d; 2] {
        [e4m3_eight(p, scale), e4m3_eight(p.add(8), scale)]
    }

    #[inline(always)]
    unsafe fn e2m1_table(scale: u8) -> [__m512d; 2] {
        let scale = if scale == e8m0::NAN { 0.0 } else { e8m0::decode64(scale) };
        let scale = _mm512_set1_pd(scale);
        let values = fp4::VALUES.as_ptr();
        [
            _mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(values)), scale),
            _mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(values.add(8))), scale),
        ]
    }

    #[inline(always)]
    unsafe fn e2m1(p: *const u8, [positive, negative]: [__m512d; 2]) -> [__m512d; 2] {
        let nibbles = _mm512_set1_epi64(p.cast::<i64>().read_unaligned());
        // The two-table permutation looks at the low four bits of each 64: one nibble, whose upper
        // bit, the sign, chooses the table.
        let low = _mm512_srlv_epi64(nibbles, _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28));
        let high = _mm512_srlv_epi64(nibbles, _mm512_setr_epi64(32, 36, 40, 44, 48, 52, 56, 60));
        [
            _mm512_permutex2var_pd(positive, low, negative),
            _mm512_permutex2var_pd(positive, high, negative),
        ]
    }
}

/// Eight bf16: shifted up, they are `f32`.
#[inline(always)]
unsafe fn bf16_eight(p: *const u8) -> __m512d {
    let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
    _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)))
}

/// Eight E4M3 codes as `f32` bits (see [`E4M3_MASK`]), widened and scaled.
#[inline(always)]
unsafe fn e4m3_eight(p: *const u8, scale: __m512d) -> __m512d {
    let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
    let shifted = _mm256_srai_epi32::<4>(_mm256_slli_epi32::<24>(codes));
    let bits = _mm256_and_si256(shifted, _mm256_set1_epi32(E4M3_MASK));
    let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(E4M3_NAN));
    let nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(E4M3_NAN));
    let floats = _mm256_castsi256_ps(_mm256_or_si256(bits, nan));
    _mm512_mul_pd(_mm512_cvtps_pd(floats), scale)
}
