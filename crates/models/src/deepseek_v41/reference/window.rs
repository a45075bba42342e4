//! Which rows a query attends to, and attention over a list of rows with a sink.

use super::formats::to_bf16_rne;
use numerics::{dot, elementary};

/// Slot numbers a query attends to, `([query, cols], cols)`, -1 for a slot that holds nothing.
///
/// * `start == 0` (prefill): rows of the chunk itself, one causal window of at most `window`
///   rows for each of the `len` queries; `cols = min(len, window)`.
/// * otherwise (decode, one query at position `start`): all `window` slots of the ring, oldest
///   first. The slot of position `p` is `p % window`, and `start`'s own row is already there.
///
/// # Panics
/// If `window` is zero.
pub fn window_topk_idxs(window: usize, len: usize, start: usize) -> (Vec<i32>, usize) {
    if start == 0 {
        let cols = len.min(window);
        let mut idx = Vec::with_capacity(len * cols);
        for t in 0..len {
            let first = (t + 1).saturating_sub(window);
            idx.extend((first..first + cols).map(|i| if i > t { -1 } else { i as i32 }));
        }
        (idx, cols)
    } else {
        // With start % window == window-1 the oldest slot is 0 and the first range is empty.
        let oldest = start % window + 1;
        let ring = (oldest..window).chain(0..oldest);
        let idx = ring.map(|i| if i > start { -1 } else { i as i32 });
        (idx.collect(), window)
    }
}

/// Attention of every head over listed rows, keys and values being the same rows.
///
/// `q` `[query, heads, dim]`, `kv` `[row, dim]`, `sink` `[heads]`, `idx` `[query, cols]` row
/// numbers with -1 for "none"; returns `[query, heads, dim]`, rounded to bf16 once.
///
/// Per head, over the listed rows in their order (the -1 left out): `s_j = dot(q, kv_j) * scale`;
/// `m = max(sink, s_j)`; `p_j = exp(s_j - m)`; `denom = sum p_j + exp(sink - m)`, added in f64
/// in order and rounded once; `o = sum (p_j / denom) * kv_j`, exact products added in f64 in
/// order. The sink is an unscaled logit that enters the denominator only. A query without rows
/// gives zeros.
///
/// # Panics
/// If a length does not fit or a row number is outside `kv`.
pub fn sparse_attn(
    q: &[f32],
    kv: &[f32],
    sink: &[f32],
    idx: &[i32],
    cols: usize,
    dim: usize,
    scale: f32,
) -> Vec<f32> {
    let heads = sink.len();
    let queries = q.len() / (heads * dim);
    assert_eq!(q.len(), queries * heads * dim, "q is [query, heads, dim]");
    assert_eq!(idx.len(), queries * cols, "idx is [query, cols]");
    let mut out = Vec::with_capacity(q.len());
    for t in 0..queries {
        let listed = idx[t * cols..(t + 1) * cols].iter().filter(|&&i| i >= 0);
        let rows: Vec<&[f32]> = listed.map(|&i| &kv[i as usize * dim..][..dim]).collect();
        for h in 0..heads {
            let query = &q[(t * heads + h) * dim..][..dim];
            let p = sink_softmax(rows.iter().map(|row| dot(query, row) * scale).collect(), sink[h]);
            out.extend((0..dim).map(|d| {
                let weighted =
                    p.iter().zip(&rows).map(|(&p, row)| f64::from(p) * f64::from(row[d]));
                to_bf16_rne(weighted.sum::<f64>() as f32)
            }));
        }
    }
    out
}

/// Softmax of `scores` with one extra logit, the sink, that takes its share of the sum and
/// gives nothing back. See [`sparse_attn`] for the order of operations.
pub fn sink_softmax(mut scores: Vec<f32>, sink: f32) -> Vec<f32> {
    sink_softmax_inplace(&mut scores, sink);
    scores
}

/// [`sink_softmax`] in place.
pub fn sink_softmax_inplace(scores: &mut [f32], sink: f32) {
    let max = scores.iter().fold(sink, |m, &s| m.max(s));
    let mut sum = 0.0f64;
    for s in scores.iter_mut() {
        *s = elementary::exp(*s - max);
        sum += f64::from(*s);
    }
    let denominator = (sum + f64::from(elementary::exp(sink - max))) as f32;
    for p in scores {
        *p /= denominator;
    }
}
