//! AVX-512F: eight `f64` a vector.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::E2m1Bytes;
use super::{Lanes, avx2, entry_points};
use std::arch::x86_64::*;

entry_points!("avx512f,avx2,fma", Avx512);

/// See the module.
pub(crate) struct Avx512;

// SAFETY: callers enable AVX-512F, AVX2 and FMA. Loads and stores are the unaligned forms.
unsafe impl Lanes for Avx512 {
    type V = __m512d;
    const N: usize = 8;
    const ROWS: [usize; 2] = [6, 6];

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
    unsafe fn widen(p: *const f32) -> __m512d {
        _mm512_cvtps_pd(_mm256_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast())
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: f32, out: *mut f32) {
        avx2::e4m3(p, scale, out)
    }
    #[inline(always)]
    unsafe fn e2m1(p: *const u8, bytes: &E2m1Bytes, out: *mut f32) {
        avx2::e2m1(p, bytes, out)
    }
}
