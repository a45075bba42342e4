//! The arithmetic by definition: plain code that every other backend must equal bit for bit, and
//! that WebAssembly without SIMD and the Solana virtual machine run.
//!
//! 64-bit sums and products wrap; `>>` floors; `/` truncates towards zero (spec sections 7 and 8).
//! Ranges are explicit, because a turn may stop after any unit of work.

use super::words::{I32, I64};
use super::{Overflow, Rows};
use core::ops::Range;

/// Fractional bits of the SiLU table's domain: inputs from -16 to 16 in Q16.
const SILU_LIMIT: i64 = 1 << 20;
/// The epsilon 0.00001 with 32 fractional bits.
const RMS_EPSILON: u64 = 42_950;
/// Last index of the exponential table.
const EXP_LAST: u64 = 4096;

#[inline(always)]
fn u32_at(table: &[[u8; 4]], index: usize) -> u32 {
    u32::from_le_bytes(table[index])
}

#[inline(always)]
fn i32_at(table: &[[u8; 4]], index: usize) -> i64 {
    i32::from_le_bytes(table[index]) as i64
}

/// Wrapping sum of a vector, taken once for all rows of a matrix.
pub fn sum(x: &[I64]) -> i64 {
    x.iter().fold(0, |s: i64, v| s.wrapping_add(v.get()))
}

/// `sum byte * x`, wrapping: the loop almost all time is spent in.
#[inline(always)]
pub fn row_dot(weights: &[u8], x: &[I64]) -> i64 {
    let (w8, w1) = weights.as_chunks::<8>();
    let (x8, x1) = x.as_chunks::<8>();
    let mut acc = 0i64;
    for (w, x) in w8.iter().zip(x8) {
        for i in 0..8 {
            acc = acc.wrapping_add((w[i] as i64).wrapping_mul(x[i].get()));
        }
    }
    for (w, x) in w1.iter().zip(x1) {
        acc = acc.wrapping_add((*w as i64).wrapping_mul(x.get()));
    }
    acc
}

/// A row's value from its dot product: the stored bytes are weight + 128, the scale is Q24.
#[inline(always)]
pub(super) fn finish_row(acc: i64, sum: i64, scale: [u8; 4]) -> i64 {
    let signed = acc.wrapping_sub(sum.wrapping_mul(128));
    signed.wrapping_mul(u32::from_le_bytes(scale) as i64) >> 24
}

/// `out[r] = row r of the matrix times x` for the given rows.
pub fn matvec(rows: Rows<'_>, x: &[I64], out: &mut [I64]) {
    let sum = sum(x);
    for ((weights, scale), out) in rows.each().zip(out) {
        out.set(finish_row(row_dot(weights, x), sum, scale));
    }
}

/// As [`matvec`] into the cache.
///
/// # Errors
/// A value that does not fit 32 bits; rows before it have been written.
pub fn matvec_cache(rows: Rows<'_>, x: &[I64], out: &mut [I32]) -> Result<(), Overflow> {
    let sum = sum(x);
    for ((weights, scale), out) in rows.each().zip(out) {
        let y = finish_row(row_dot(weights, x), sum, scale);
        out.set(i32::try_from(y).map_err(|_| Overflow)?);
    }
    Ok(())
}

/// Phase 3: one row of the embedding, `((byte - 128) * scale) >> 8`.
pub fn embed(row: Rows<'_>, x: &mut [I64]) {
    let scale = u32_at(row.scales, 0) as i64;
    for (x, byte) in x.iter_mut().zip(row.weights) {
        // |byte - 128| <= 128 and scale < 2^32: far from wrapping.
        x.set(((*byte as i64 - 128) * scale) >> 8);
    }
}

/// Root mean square of `x`, at least 1, at most 2^32.
pub fn root_mean_square(x: &[I64]) -> i64 {
    let squares = x.iter().fold(0u64, |t, v| {
        let v = v.get();
        t.wrapping_add(v.wrapping_mul(v) as u64)
    });
    root(squares, x.len())
}

/// The root from the wrapped sum of squares.
pub(super) fn root(squares: u64, len: usize) -> i64 {
    (squares / len as u64 + RMS_EPSILON).isqrt().max(1) as i64
}

#[inline(always)]
pub(super) fn normalise(x: i64, weight: i64, root: i64) -> i64 {
    // The root is positive, so the division cannot overflow.
    (x.wrapping_mul(weight) / root) >> 8
}

/// Phases 4 and 11: `out = rms(x, weights)`.
pub fn rms_norm(x: &[I64], weights: &[[u8; 4]], out: &mut [I64]) {
    let root = root_mean_square(x);
    for (i, (x, out)) in x.iter().zip(out).enumerate() {
        out.set(normalise(x.get(), i32_at(weights, i), root));
    }
}

/// Phase 17: `x = rms(x, weights)`.
pub fn rms_norm_in_place(x: &mut [I64], weights: &[[u8; 4]]) {
    let root = root_mean_square(x);
    for (i, x) in x.iter_mut().enumerate() {
        x.set(normalise(x.get(), i32_at(weights, i), root));
    }
}

#[inline(always)]
fn rotate_pair(a: i64, b: i64, cos: i64, sin: i64) -> (i64, i64) {
    (
        a.wrapping_mul(cos).wrapping_sub(b.wrapping_mul(sin)) >> 24,
        a.wrapping_mul(sin).wrapping_add(b.wrapping_mul(cos)) >> 24,
    )
}

/// Phase 8 on the query: every head's pairs `(2j, 2j+1)` turned by `angles[2j], angles[2j+1]` =
/// (cos, sin) of this position; `angles` has head-size entries.
pub fn rotate(x: &mut [I64], angles: &[[u8; 4]]) {
    for head in x.chunks_exact_mut(angles.len()) {
        for j in (0..angles.len()).step_by(2) {
            let (cos, sin) = (i32_at(angles, j), i32_at(angles, j + 1));
            let (a, b) = rotate_pair(head[j].get(), head[j + 1].get(), cos, sin);
            head[j].set(a);
            head[j + 1].set(b);
        }
    }
}

/// Phase 8 on this position's cached key.
///
/// # Errors
/// A value that does not fit 32 bits; pairs before it have been written.
pub fn rotate_cache(key: &mut [I32], angles: &[[u8; 4]]) -> Result<(), Overflow> {
    for head in key.chunks_exact_mut(angles.len()) {
        for j in (0..angles.len()).step_by(2) {
            let (cos, sin) = (i32_at(angles, j), i32_at(angles, j + 1));
            let (a, b) = rotate_pair(head[j].get() as i64, head[j + 1].get() as i64, cos, sin);
            head[j].set(i32::try_from(a).map_err(|_| Overflow)?);
            head[j + 1].set(i32::try_from(b).map_err(|_| Overflow)?);
        }
    }
    Ok(())
}

/// Attention stage 0, positions `range`: scores of query `q` (head-size elements) with the cached
/// keys; position i's key starts at `keys[i * stride]`. Returns the running maximum, which starts
/// afresh at position 0.
pub fn scores(
    q: &[I64],
    keys: &[I32],
    stride: usize,
    inv_sqrt: u32,
    range: Range<usize>,
    scores: &mut [I64],
    mut largest: i64,
) -> i64 {
    for i in range {
        let key = &keys[i * stride..][..q.len()];
        let dot = q
            .iter()
            .zip(key)
            .fold(0i64, |s, (q, k)| s.wrapping_add(q.get().wrapping_mul(k.get() as i64)));
        let score = finish_score(dot, inv_sqrt);
        if i == 0 || score > largest {
            largest = score;
        }
        scores[i].set(score);
    }
    largest
}

#[inline(always)]
pub(super) fn finish_score(dot: i64, inv_sqrt: u32) -> i64 {
    (dot >> 16).wrapping_mul(inv_sqrt as i64) >> 24
}

/// Attention stage 1, positions `range`: each score becomes `exp(score - largest)` (Q30) by the
/// table of 4,097 entries. Returns the running total, which starts afresh at position 0.
pub fn exponentials(
    table: &[[u8; 4]],
    largest: i64,
    range: Range<usize>,
    scores: &mut [I64],
    total: u64,
) -> u64 {
    let start = if range.start == 0 { 0 } else { total };
    scores[range].iter_mut().fold(start, |total, score| {
        let d = largest.wrapping_sub(score.get()) as u64;
        let e = u32_at(table, (d >> 8).min(EXP_LAST) as usize);
        score.set(e as i64);
        total.wrapping_add(e as u64)
    })
}

/// Attention stage 2, positions `range`: exponentials become probabilities (Q24).
///
/// Both sides are unsigned and a total of zero counts as one: neither matters for a state that
/// execution made (exponentials are below 2^31, totals above 2^29), and a forged one cannot trap.
pub fn probabilities(total: u64, range: Range<usize>, scores: &mut [I64]) {
    let total = total.max(1);
    for score in &mut scores[range] {
        score.set((((score.get() as u64) << 24) / total) as i64);
    }
}

/// Attention stage 3, elements `range` of one head: the sum over positions of probability times
/// cached value. `out` is the head's output; position i's value starts at `values[i * stride]`.
pub fn weighted_values(
    probabilities: &[I64],
    values: &[I32],
    stride: usize,
    range: Range<usize>,
    out: &mut [I64],
) {
    // Four elements at a time: the cache is read along its rows, the sums stay in registers.
    let mut e = range.start;
    while e < range.end {
        let n = (range.end - e).min(4);
        let mut acc = [0i64; 4];
        for (i, p) in probabilities.iter().enumerate() {
            let at = i * stride + e;
            // Elements after the range are summed in vain rather than asked about.
            if let Some(four) = values.get(at..at + 4) {
                for j in 0..4 {
                    acc[j] = acc[j].wrapping_add(p.get().wrapping_mul(four[j].get() as i64));
                }
            } else {
                for (acc, v) in acc.iter_mut().zip(&values[at..at + n]) {
                    *acc = acc.wrapping_add(p.get().wrapping_mul(v.get() as i64));
                }
            }
        }
        for (out, acc) in out[e..e + n].iter_mut().zip(acc) {
            out.set(acc >> 24);
        }
        e += n;
    }
}

/// Phases 11 and 16: `x += y`.
pub fn add(x: &mut [I64], y: &[I64]) {
    for (x, y) in x.iter_mut().zip(y) {
        x.set(x.get().wrapping_add(y.get()));
    }
}

/// Phase 14: `gate = (silu(gate) * up) >> 16` by the table of 4,097 entries.
pub fn silu_times(table: &[[u8; 4]], gate: &mut [I64], up: &[I64]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        gate.set(silu(table, gate.get()).wrapping_mul(up.get()) >> 16);
    }
}

#[inline(always)]
fn silu(table: &[[u8; 4]], g: i64) -> i64 {
    if g >= SILU_LIMIT {
        g
    } else if g <= -SILU_LIMIT {
        0
    } else {
        i32_at(table, ((g + SILU_LIMIT) >> 9) as usize)
    }
}

/// Sampling pass 0, entries `range`: the running maximum and its first index, which start afresh
/// at entry 0.
pub fn largest(
    logits: &[I64],
    range: Range<usize>,
    mut largest: i64,
    mut chosen: u32,
) -> (i64, u32) {
    for i in range {
        let logit = logits[i].get();
        if i == 0 || logit > largest {
            (largest, chosen) = (logit, i as u32);
        }
    }
    (largest, chosen)
}

/// A logit's weight at a temperature (Q16, not zero): `exp((logit - largest) / temperature)`, Q30.
#[inline(always)]
pub fn weight(table: &[[u8; 4]], largest: i64, logit: i64, temperature: u32) -> u32 {
    let d = largest.wrapping_sub(logit) as u64;
    // (d << 16) / temperature / 256 reaches 4096 exactly when d >= 16 * temperature; asking that
    // first avoids the overflow for large d, and most divisions.
    let index =
        if d >= 16 * temperature as u64 { EXP_LAST } else { ((d << 16) / temperature as u64) >> 8 };
    u32_at(table, index as usize)
}

/// Sampling pass 1, entries `range`: the running sum of weights, which starts afresh at entry 0.
pub fn weights(
    table: &[[u8; 4]],
    logits: &[I64],
    largest: i64,
    temperature: u32,
    range: Range<usize>,
    total: u64,
) -> u64 {
    let start = if range.start == 0 { 0 } else { total };
    logits[range].iter().fold(start, |total, logit| {
        total.wrapping_add(weight(table, largest, logit.get(), temperature) as u64)
    })
}

/// Sampling pass 2, entries `range`: takes the weights off `draw` until it falls inside one.
/// Returns what is left of the draw and the entry found, if any.
pub fn draw(
    table: &[[u8; 4]],
    logits: &[I64],
    largest: i64,
    temperature: u32,
    range: Range<usize>,
    mut draw: u64,
) -> (u64, Option<u32>) {
    for i in range {
        let weight = weight(table, largest, logits[i].get(), temperature) as u64;
        if draw < weight {
            return (draw, Some(i as u32));
        }
        draw -= weight;
    }
    (draw, None)
}
