//! AVX2: 16-bit digits through `vpmaddwd`, 32 weights a register.
#![allow(unsafe_code)]

use super::Rows;
use super::digits::Input;
use super::madd::{self, Lanes};
use super::words::I64;
use core::arch::x86_64::*;

struct Avx2;

/// Asks for the memory at an address, which need not exist.
#[inline(always)]
pub(super) fn prefetch(from: *const u8) {
    // SAFETY: part of every x86-64 processor; no address can make it fail.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
}

impl Lanes for Avx2 {
    type Register = __m256i;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: AVX2 is the caller's promise, here and below.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: 32 readable bytes are the caller's promise.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn even(bytes: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_and_si256(bytes, _mm256_set1_epi16(0xFF)) }
    }

    #[inline(always)]
    unsafe fn odd(bytes: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_srli_epi16::<8>(bytes) }
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: __m256i, bytes: __m256i, digits: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(bytes, digits)) }
    }

    #[inline(always)]
    fn prefetch(from: *const u8) {
        prefetch(from);
    }

    #[inline(always)]
    unsafe fn row_sums([a, b, c, d]: [__m256i; 4]) -> [i64; 4] {
        // SAFETY: as above; a register of four i64 is an array of them.
        unsafe {
            // Within each half of 128 bits: rows a, b, c, d added up in 32 bits.
            let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            let halves =
                _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
            let low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(halves));
            let high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256::<1>(halves));
            core::mem::transmute::<__m256i, [i64; 4]>(_mm256_add_epi64(low, high))
        }
    }
}

/// [`Input::prepare16`], compiled for AVX2.
#[target_feature(enable = "avx2")]
pub(super) fn prepare(input: &mut Input, x: &[I64]) {
    input.prepare16(x);
}

/// `write(r, row r times the input)` for every row in order.
#[target_feature(enable = "avx2")]
pub(super) fn rows(input: &Input, rows: Rows<'_>, write: impl FnMut(usize, i64)) {
    // SAFETY: this function has AVX2.
    unsafe { madd::rows::<Avx2>(input, rows, write) }
}
