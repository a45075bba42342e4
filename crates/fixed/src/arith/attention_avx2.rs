//! AVX2 for attention and normalisation: 32 x 32 to 64-bit multiplies where the values allow it,
//! and division by a number that stays the same through multiplication with its reciprocal.
//! Every function first checks that its shortcut is exact for the given values and else runs the
//! definition.
#![allow(unsafe_code)]

use super::plain;
use super::words::{I32, I64};
use core::arch::x86_64::*;
use core::ops::Range;

/// As [`plain::scores`]: four positions at a time.
#[target_feature(enable = "avx2")]
pub(super) fn scores(
    q: &[I64],
    keys: &[I32],
    stride: usize,
    inv_sqrt: u32,
    range: Range<usize>,
    scores: &mut [I64],
    mut largest: i64,
) -> i64 {
    let fours = range.start..range.start + range.len() / 4 * 4;
    if !all_i32(q) || !q.len().is_multiple_of(4) || fours.is_empty() {
        return plain::scores(q, keys, stride, inv_sqrt, range, scores, largest);
    }
    assert!(covers(keys, fours.end, stride, q.len()), "a key for every position");
    if range.start == 0 {
        largest = i64::MIN;
    }
    let mut maxima = _mm256_set1_epi64x(largest);
    let scale = _mm256_set1_epi64x(inv_sqrt.into());
    for i in fours.clone().step_by(4) {
        let mut sums = [_mm256_setzero_si256(); 4];
        for e in (0..q.len()).step_by(4) {
            // SAFETY: `q` has elements e..e+4, and so has each key (asserted for the last one).
            unsafe {
                let q = _mm256_loadu_si256(q.as_ptr().add(e).cast());
                for (k, sum) in sums.iter_mut().enumerate() {
                    let key = _mm_loadu_si128(keys.as_ptr().add((i + k) * stride + e).cast());
                    // The product of the low halves of each 64-bit lane, signed.
                    let product = _mm256_mul_epi32(q, _mm256_cvtepu32_epi64(key));
                    *sum = _mm256_add_epi64(*sum, product);
                }
            }
        }
        let dots = shift_right::<16>(lane_sums(sums));
        let values = shift_right::<24>(multiply_u32(dots, scale));
        let out = &mut scores[i..i + 4];
        // SAFETY: room for four words.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), values) };
        let larger = _mm256_cmpgt_epi64(values, maxima);
        maxima = _mm256_blendv_epi8(maxima, values, larger);
    }
    largest = to_array(maxima).into_iter().fold(largest, i64::max);
    if fours.end == range.end {
        return largest;
    }
    plain::scores(q, keys, stride, inv_sqrt, fours.end..range.end, scores, largest)
}

/// `lanes >> BITS`, arithmetic: an offset makes it a logical shift and is taken off again.
#[inline]
#[target_feature(enable = "avx2")]
fn shift_right<const BITS: i32>(lanes: __m256i) -> __m256i {
    let shifted = _mm256_srli_epi64::<BITS>(_mm256_xor_si256(lanes, _mm256_set1_epi64x(i64::MIN)));
    _mm256_sub_epi64(shifted, _mm256_set1_epi64x(1 << (63 - BITS)))
}

/// `lanes * factor`, wrapping; each lane of `factor` below 2^32.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply_u32(lanes: __m256i, factor: __m256i) -> __m256i {
    let low = _mm256_mul_epu32(lanes, factor);
    let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(lanes), factor);
    _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high))
}

/// Whether every value fits 32 bits; no early end, so that it takes four at a time.
#[inline]
#[target_feature(enable = "avx2")]
fn all_i32(values: &[I64]) -> bool {
    values.iter().fold(0, |or, v| or | (v.get() ^ v.get() >> 63)) >> 31 == 0
}

/// Whether the cache has `elements` elements at each of the positions (at least one), a stride apart.
fn covers(cache: &[I32], positions: usize, stride: usize, elements: usize) -> bool {
    let end = (positions - 1).checked_mul(stride).and_then(|last| last.checked_add(elements));
    end.is_some_and(|end| end <= cache.len())
}

/// The sum of each register's four lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn lane_sums([a, b, c, d]: [__m256i; 4]) -> __m256i {
    // Within each half of 128 bits: a and b, c and d added up.
    let ab = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let cd = _mm256_add_epi64(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
    _mm256_add_epi64(
        _mm256_permute2x128_si256::<0x20>(ab, cd),
        _mm256_permute2x128_si256::<0x31>(ab, cd),
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn to_array(lanes: __m256i) -> [i64; 4] {
    // SAFETY: a register of four i64 is an array of them.
    unsafe { core::mem::transmute(lanes) }
}

/// As [`plain::probabilities`]: division by `total` through its reciprocal.
#[target_feature(enable = "avx2")]
pub(super) fn probabilities(total: u64, range: Range<usize>, scores: &mut [I64]) {
    let or = scores[range.clone()].iter().fold(0, |or, e| or | e.get() as u64);
    if or >> 31 != 0 || !(1 << 24..1 << 48).contains(&total) {
        return plain::probabilities(total, range, scores);
    }
    // With L = floor(log2 total), reciprocal = floor(2^(31+L) / total) lies in 2^30..=2^31, and
    // for e < 2^31 the product stays below 2^62. Cutting the reciprocal loses less than one, so
    // (e * reciprocal) >> (7+L) falls short of e * 2^24 / total by less than e / 2^(7+L) + 1, and
    // e < 2^31 <= 2^(7+L): the estimate is the quotient or one less, and the remainder says which.
    let log = total.ilog2();
    let reciprocal = ((1u128 << (31 + log)) / total as u128) as u64;
    let (low, high) = (total & 0xFFFF_FFFF, total >> 32);
    for score in &mut scores[range] {
        // The masks change nothing; they let the compiler multiply halves instead of wholes.
        let e = score.get() as u64 & 0xFFFF_FFFF;
        let estimate = (e * (reciprocal & 0xFFFF_FFFF)) >> (7 + log) & 0xFFFF_FFFF;
        let rest = (e << 24).wrapping_sub((estimate * low).wrapping_add((estimate * high) << 32));
        score.set((estimate + (rest >= total) as u64) as i64);
    }
}

/// As [`plain::weighted_values`]: 16 or 8 elements at a time over all positions.
#[target_feature(enable = "avx2")]
pub(super) fn weighted_values(
    probabilities: &[I64],
    values: &[I32],
    stride: usize,
    range: Range<usize>,
    out: &mut [I64],
) {
    if !all_i32(probabilities) || probabilities.is_empty() {
        return plain::weighted_values(probabilities, values, stride, range, out);
    }
    assert!(covers(values, probabilities.len(), stride, range.end), "a value for every position");
    let mut e = range.start;
    while e + 16 <= range.end {
        // SAFETY: every position has elements up to the end of the range (asserted).
        unsafe { weigh::<2>(probabilities, &values[e..], stride, &mut out[e..e + 16]) };
        e += 16;
    }
    if e + 8 <= range.end {
        // SAFETY: as above.
        unsafe { weigh::<1>(probabilities, &values[e..], stride, &mut out[e..e + 8]) };
        e += 8;
    }
    plain::weighted_values(probabilities, values, stride, e..range.end, out);
}

/// `8 * N` elements.
///
/// # Safety
/// `values` must have `8 * N` elements at every position.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn weigh<const N: usize>(
    probabilities: &[I64],
    values: &[I32],
    stride: usize,
    out: &mut [I64],
) {
    let mut even = [_mm256_setzero_si256(); N];
    let mut odd = [_mm256_setzero_si256(); N];
    for (i, p) in probabilities.iter().enumerate() {
        let p = _mm256_set1_epi64x(p.get());
        for n in 0..N {
            // SAFETY: the caller's promise.
            let eight =
                unsafe { _mm256_loadu_si256(values.as_ptr().add(i * stride + 8 * n).cast()) };
            even[n] = _mm256_add_epi64(even[n], _mm256_mul_epi32(p, eight));
            let eight = _mm256_srli_epi64::<32>(eight);
            odd[n] = _mm256_add_epi64(odd[n], _mm256_mul_epi32(p, eight));
        }
    }
    for n in 0..N {
        let (even, odd) = (to_array(even[n]), to_array(odd[n]));
        for j in 0..4 {
            out[8 * n + 2 * j].set(even[j] >> 24);
            out[8 * n + 2 * j + 1].set(odd[j] >> 24);
        }
    }
}
