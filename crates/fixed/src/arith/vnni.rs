//! AVX-512 VNNI: 8-bit digits through `vpdpbusd`, 64 weights a register. The instruction multiplies
//! unsigned bytes by signed ones, which is how weights (plus 128) and digits come.
#![allow(unsafe_code)]

use super::Rows;
use super::avx2::prefetch;
use super::digits::{BLOCK8, Input, block_start};
use super::madd::prefetch_distance;
use super::plain::finish_row;
use super::words::I64;
use core::arch::x86_64::*;

/// Rows done side by side, so that a digit is loaded once for all of them.
const SIDE: usize = 4;

/// Blocks summed before widening: a product is at most 255 * 128 in magnitude, so all 32-bit lanes
/// of 65,536 columns still add up within 32 bits (65,536 * 32,640 < 2^31).
const PART: usize = 65_536 / BLOCK8;

/// Whether this machine has every instruction set named below.
pub(super) fn detected() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f")
        && has!("avx512bw")
        && has!("avx512vl")
        && has!("avx512dq")
        && has!("avx512vnni")
}

/// [`Input::prepare8`], compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn prepare(input: &mut Input, x: &[I64]) {
    input.prepare8(x);
}

/// `write(r, row r times the input)` for every row in order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn rows(input: &Input, rows: Rows<'_>, mut write: impl FnMut(usize, i64)) {
    assert_eq!(rows.cols, input.cols, "a matrix as wide as its input");
    let count = rows.scales.len();
    assert_eq!(rows.weights.len(), count * rows.cols);
    for first in (0..count).step_by(SIDE) {
        // A last group of fewer rows repeats the last row and drops the surplus.
        let starts: [*const u8; SIDE] = core::array::from_fn(|r| {
            rows.weights[(first + r).min(count - 1) * rows.cols..].as_ptr()
        });
        let mut totals = [0; SIDE];
        // Digits in groups of at most four: sixteen sums stay in registers.
        for digit in (0..input.count).step_by(4) {
            // SAFETY: each start has `cols` bytes behind it.
            let dots = unsafe {
                match input.count - digit {
                    1 => dots::<1>(starts, input, digit),
                    2 => dots::<2>(starts, input, digit),
                    3 => dots::<3>(starts, input, digit),
                    _ => dots::<4>(starts, input, digit),
                }
            };
            for r in 0..SIDE {
                totals[r] = i64::wrapping_add(totals[r], dots[r] << (8 * digit));
            }
        }
        for r in 0..SIDE.min(count - first) {
            write(first + r, finish_row(totals[r], input.sum, rows.scales[first + r]));
        }
    }
}

/// Four rows times digits `first .. first + D`.
///
/// # Safety
/// `rows` point at `input.cols >= 64` bytes each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<const D: usize>(
    rows: [*const u8; SIDE],
    input: &Input,
    first: usize,
) -> [i64; SIDE] {
    let blocks = input.cols.div_ceil(BLOCK8);
    let ahead = prefetch_distance(SIDE * input.cols);
    let mut totals = [0i64; SIDE];
    for part in (0..blocks).step_by(PART) {
        let mut sums = [[_mm512_setzero_si512(); SIDE]; D];
        for block in part..(part + PART).min(blocks) {
            let column = block_start(block, BLOCK8, input.cols);
            let digits: [__m512i; D] = core::array::from_fn(|d| {
                let digits: &[i8; BLOCK8] = &input.digits8[block * input.count + first + d];
                // SAFETY: a block of digits is one register's 64 bytes.
                unsafe { _mm512_loadu_si512(digits.as_ptr().cast()) }
            });
            for r in 0..SIDE {
                // SAFETY: a block ends within its row.
                let bytes = unsafe { _mm512_loadu_si512(rows[r].add(column).cast()) };
                prefetch(rows[r].wrapping_add(column + ahead));
                for d in 0..D {
                    sums[d][r] = _mm512_dpbusd_epi32(sums[d][r], bytes, digits[d]);
                }
            }
        }
        for d in 0..D {
            let sums = row_sums(sums[d]);
            for r in 0..SIDE {
                totals[r] += sums[r] << (8 * d);
            }
        }
    }
    totals
}

/// Each register's sixteen 32-bit lanes added up.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn row_sums([a, b, c, d]: [__m512i; SIDE]) -> [i64; SIDE] {
    // Within each quarter of 128 bits: rows a, b, c, d added up.
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    let quarters = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let halves = _mm256_add_epi32(
        _mm512_castsi512_si256(quarters),
        _mm512_extracti64x4_epi64::<1>(quarters),
    );
    let sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    // SAFETY: a register of four i64 is an array of them.
    unsafe { core::mem::transmute::<__m256i, [i64; SIDE]>(_mm256_cvtepi32_epi64(sums)) }
}
