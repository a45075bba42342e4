//! The Solana VM's versions of the hot loops. The row kernel is the program's, in assembly; attention
//! is compiled, but checks bounds once a call: compute units are what turns are made of.

use super::plain::{finish_row, finish_score, row_dot, sum};
use super::words::{I32, I64};
use super::{Overflow, Rows};
use core::ops::Range;

/// Rows of one call.
const ROWS: usize = 3;

unsafe extern "C" {
    /// Wrapping sums of products of [`ROWS`] consecutive rows with a vector of `columns` words.
    fn facit_dot3(weights: *const u8, x: *const I64, columns: u64, sums: *mut [i64; ROWS]);
}

/// The dot products of all rows, in order.
#[inline(always)]
fn each_dot(
    rows: Rows<'_>,
    x: &[I64],
    mut take: impl FnMut(usize, i64) -> Result<(), Overflow>,
) -> Result<(), Overflow> {
    assert!(x.len() == rows.cols);
    let mut groups = rows.weights.chunks_exact(ROWS * rows.cols);
    let mut row = 0;
    for group in &mut groups {
        let mut sums = [0; ROWS];
        // SAFETY: the group is three rows of as many bytes as the vector has words.
        unsafe { facit_dot3(group.as_ptr(), x.as_ptr(), rows.cols as u64, &mut sums) };
        for dot in sums {
            take(row, dot)?;
            row += 1;
        }
    }
    for weights in groups.remainder().chunks_exact(rows.cols) {
        take(row, row_dot(weights, x))?;
        row += 1;
    }
    Ok(())
}

/// As [`super::plain::matvec`].
pub fn matvec(rows: Rows<'_>, x: &[I64], out: &mut [I64]) {
    let sum = sum(x);
    let _ = each_dot(rows, x, |row, dot| {
        out[row].set(finish_row(dot, sum, rows.scales[row]));
        Ok(())
    });
}

/// As [`super::plain::matvec_cache`].
pub fn matvec_cache(rows: Rows<'_>, x: &[I64], out: &mut [I32]) -> Result<(), Overflow> {
    let sum = sum(x);
    each_dot(rows, x, |row, dot| {
        let value = finish_row(dot, sum, rows.scales[row]);
        out[row].set(i32::try_from(value).map_err(|_| Overflow)?);
        Ok(())
    })
}

/// As [`super::plain::scores`].
pub fn scores(
    q: &[I64],
    keys: &[I32],
    stride: usize,
    inv_sqrt: u32,
    range: Range<usize>,
    scores: &mut [I64],
    mut largest: i64,
) -> i64 {
    let (q8, q1) = q.as_chunks::<8>();
    if range.is_empty() {
        return largest;
    }
    // One check for all positions instead of one each.
    assert!(range.end <= scores.len() && (range.end - 1) * stride + q.len() <= keys.len());
    // SAFETY: position `range.start` is within the keys.
    let mut key = unsafe { keys.as_ptr().add(range.start * stride) };
    let start = range.start;
    for (i, score) in scores[range].iter_mut().enumerate() {
        let (mut k, mut dot) = (key, 0i64);
        for q in q8 {
            // SAFETY: `q.len()` keys follow `key` at every position of the range.
            let eight = unsafe { &*k.cast::<[I32; 8]>() };
            for j in 0..8 {
                dot = dot.wrapping_add(q[j].get().wrapping_mul(eight[j].get() as i64));
            }
            k = k.wrapping_add(8);
        }
        for q in q1 {
            // SAFETY: as above.
            dot = dot.wrapping_add(q.get().wrapping_mul(unsafe { *k }.get() as i64));
            k = k.wrapping_add(1);
        }
        let value = finish_score(dot, inv_sqrt);
        if value > largest || start + i == 0 {
            largest = value;
        }
        score.set(value);
        key = key.wrapping_add(stride);
    }
    largest
}

/// As [`super::plain::weighted_values`].
pub fn weighted_values(
    probabilities: &[I64],
    values: &[I32],
    stride: usize,
    range: Range<usize>,
    out: &mut [I64],
) {
    let mut e = range.start;
    while e < range.end {
        if range.end - e >= 4 {
            columns::<4>(probabilities, &values[e..], stride, &mut out[e..]);
            e += 4;
        } else {
            columns::<1>(probabilities, &values[e..], stride, &mut out[e..]);
            e += 1;
        }
    }
}

/// `N` elements of a head's output, from the columns of the cache that `values` begins with.
#[inline(always)]
fn columns<const N: usize>(probabilities: &[I64], values: &[I32], stride: usize, out: &mut [I64]) {
    let last = probabilities.len().saturating_sub(1) * stride;
    assert!(last + N <= values.len() && N <= out.len());
    let (mut value, mut sums) = (values.as_ptr(), [0i64; N]);
    for p in probabilities {
        // SAFETY: `N` values follow at every position, which was just checked for the last.
        let row = unsafe { &*value.cast::<[I32; N]>() };
        for j in 0..N {
            sums[j] = sums[j].wrapping_add(p.get().wrapping_mul(row[j].get() as i64));
        }
        value = value.wrapping_add(stride);
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        out.set(sum >> 24);
    }
}
