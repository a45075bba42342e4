//! The indexer: which compressed rows a query attends to.
//!
//! **Every source scores its own keys on every step.** The released code republishes its shared
//! keys only when a group completes, so on every other decode step it scores a ratio-2 layer's
//! queries against another layer's keys, and prefill and decode disagree; this is the corrected
//! reading.
//!
//! What a query sees depends on its position alone: it sees row `j` if the group is complete at
//! its position, `(j+1)*ratio <= position+1`, wherever the chunk began. Ties go to the lowest
//! position.

use super::cache::Rows;
use numerics::{Error, Kernels, Matrix, bf16, top_k};

/// Keys scored at once: bounds the scores held for a chunk.
const KEY_TILE: usize = 1024;

/// Scores of many queries against the keys of one source.
///
/// `queries` `[T, heads, dim]` (rounded), `weights` `[T, heads]`; `keys` lists the packed keys in
/// order of position. Returns `[T, keys]` with `S = bf16(sum over heads of
/// bf16(relu(bf16(q.k)) * w))`, the sum in f64 in order of the heads.
pub fn scores(
    kernels: &Kernels,
    queries: &[f32],
    weights: &[f32],
    heads: usize,
    keys: &[&Rows],
) -> Vec<f32> {
    let t = weights.len() / heads;
    let total: usize = keys.iter().map(|k| k.len()).sum();
    let mut out = vec![0.0; t * total];
    let mut done = 0;
    for matrix in keys.iter().filter_map(|k| k.matrix()) {
        let mut first = 0;
        while first < matrix.rows() {
            let tile = (matrix.rows() - first).min(KEY_TILE);
            let keys = matrix.row_range(first..first + tile);
            score_tile(kernels, &keys, queries, weights, heads, |row, s| {
                out[row * total + done..][..tile].copy_from_slice(s);
            });
            first += tile;
            done += tile;
        }
    }
    out
}

fn score_tile(
    kernels: &Kernels,
    keys: &Matrix<'_>,
    queries: &[f32],
    weights: &[f32],
    heads: usize,
    mut store: impl FnMut(usize, &[f32]),
) {
    let count = keys.rows();
    let mut products = vec![0.0; weights.len() * count];
    kernels.matmul(keys, queries, weights.len(), &mut products);
    let mut sums = vec![0.0f64; count];
    let mut scores = vec![0.0f32; count];
    let rows = products.chunks_exact(heads * count).zip(weights.chunks_exact(heads));
    for (row, (products, weights)) in rows.enumerate() {
        sums.fill(0.0);
        for (products, &w) in products.chunks_exact(count).zip(weights) {
            for (sum, &p) in sums.iter_mut().zip(products) {
                *sum += f64::from(bf16::round(bf16::round(p).max(0.0) * w));
            }
        }
        for (score, sum) in scores.iter_mut().zip(&sums) {
            *score = bf16::round(*sum as f32);
        }
        store(row, &scores);
    }
}

/// The candidate blocks of a query that sees the positions of `scores` (their number is what it
/// sees): one flag a block.
///
/// A block's score is its best position's; the block of the newest visible position is always
/// kept, then the best of the others, `topk` in all; ties to the earlier block. A block without
/// any score above -inf is not kept.
///
/// # Errors
/// If a score is NaN.
pub fn candidate_blocks(scores: &[f32], topk: usize, block: usize) -> Result<Vec<bool>, Error> {
    let best = |b: &[f32]| b.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s));
    if let Some(index) = scores.iter().position(|s| s.is_nan()) {
        return Err(Error::Nan { index });
    }
    let mut blocks: Vec<f32> = scores.chunks(block).map(best).collect();
    if let Some(newest) = blocks.last_mut() {
        *newest = f32::INFINITY;
    }
    let mut keep = vec![false; blocks.len()];
    for b in top_k(&blocks, topk)? {
        keep[b as usize] = blocks[b as usize] > f32::NEG_INFINITY;
    }
    Ok(keep)
}

/// The rows a query attends to, ascending: the best `topk` of the positions of `scores`, within
/// `candidates` (flags of blocks of `block` positions) if given.
///
/// # Errors
/// If a score is NaN.
pub fn select(
    scores: &[f32],
    topk: usize,
    candidates: Option<(&[bool], usize)>,
) -> Result<Vec<u32>, Error> {
    let mut picked = match candidates {
        None => top_k(scores, topk)?,
        Some((keep, block)) => {
            let allowed = |i: &u32| keep[*i as usize / block];
            let ids: Vec<u32> = (0..scores.len() as u32).filter(allowed).collect();
            let scores: Vec<f32> = ids.iter().map(|&i| scores[i as usize]).collect();
            top_k(&scores, topk)?.into_iter().map(|i| ids[i as usize]).collect()
        }
    };
    picked.sort_unstable();
    Ok(picked)
}
