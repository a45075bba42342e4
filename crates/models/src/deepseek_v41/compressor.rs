//! The compressor of a KV source: one latent row for each group of `ratio` tokens, from which
//! come the compressed key-and-value row and the index key.
//!
//! Groups are aligned: group `j` holds positions `j*ratio .. (j+1)*ratio`. The positions of a
//! group that is not complete yet wait in [`Partial`]; only *they* are state, so the state after
//! a position does not depend on how the sequence was cut into chunks.

use super::cache::{Packing, Rows};
use super::cx::{Cx, Rotations};
use super::reference::rotate;
use super::weights::LayerView;
use crate::machine::StepError;
use numerics::{Kernels, Matrix, bf16, elementary};

/// Projections of the positions of an incomplete group, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partial {
    /// `[positions, head_dim]`
    pub kv: Vec<f32>,
    /// `[positions, head_dim]`
    pub score: Vec<f32>,
}

/// The weights of a source's compressor.
#[derive(Debug)]
pub struct Compressor<'a> {
    /// `[head_dim, dim]`, bf16.
    pub wkv: Matrix<'a>,
    /// `[head_dim, dim]`, bf16; present when the ratio is above 1.
    pub wgate: Option<Matrix<'a>>,
    /// `[head_dim]`
    pub norm: Vec<f32>,
}

/// What the compressor projects each position to, before groups are formed: f32 with a gate,
/// bf16 without.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Projected {
    /// `[T, head_dim]`
    pub kv: Vec<f32>,
    /// `[T, head_dim]`; empty without a gate.
    pub score: Vec<f32>,
}

impl<'a> Compressor<'a> {
    /// The compressor of a source layer.
    pub fn bind(w: &LayerView<'a>, ratio: usize) -> Self {
        Compressor {
            wkv: w.matrix("attn.compressor.wkv.weight"),
            wgate: (ratio > 1).then(|| w.matrix("attn.compressor.wgate.weight")),
            norm: w.vector("attn.compressor.norm.weight"),
        }
    }

    /// Projects `t` rows of `x`.
    pub fn project(&self, kernels: &Kernels, x: &[f32], t: usize) -> Projected {
        let product = |m: &Matrix<'_>| {
            let mut out = vec![0.0; t * m.rows()];
            kernels.matmul(m, x, t, &mut out);
            out
        };
        let mut kv = product(&self.wkv);
        match &self.wgate {
            Some(gate) => Projected { kv, score: product(gate) },
            None => {
                bf16::round_all(&mut kv);
                Projected { kv, score: Vec::new() }
            }
        }
    }
}

/// Adds the projections of one sequence's next positions to its incomplete group and pools every
/// group that becomes complete: `[groups, width]` bf16 values, not yet normalised.
///
/// A group's row is, for each channel, the softmax over its scores times its values, weights and
/// sum as in [`pool`]; with a ratio of 1 the value itself.
pub fn group(
    partial: &mut Partial,
    kv: &[f32],
    score: &[f32],
    width: usize,
    ratio: usize,
) -> Vec<f32> {
    if ratio == 1 {
        return kv.to_vec();
    }
    let mut pooled = Vec::new();
    for (kv, score) in kv.chunks_exact(width).zip(score.chunks_exact(width)) {
        partial.kv.extend_from_slice(kv);
        partial.score.extend_from_slice(score);
        if partial.kv.len() == ratio * width {
            pooled.extend((0..width).map(|d| pool(partial, d, width)));
            partial.kv.clear();
            partial.score.clear();
        }
    }
    pooled
}

/// One channel of a complete group: `e_i = exp(s_i - max)` in f32, their sum and the weighted
/// sum of the values in f64 in order, the quotient rounded to f32 and bf16.
fn pool(group: &Partial, channel: usize, width: usize) -> f32 {
    let column = |x: &[f32]| x.iter().skip(channel).step_by(width).copied().collect::<Vec<f32>>();
    let score = column(&group.score);
    let max = score.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s));
    let (mut sum, mut weighted) = (0.0, 0.0);
    for (s, v) in score.iter().zip(column(&group.kv)) {
        let e = f64::from(elementary::exp(s - max));
        sum += e;
        weighted += e * f64::from(v);
    }
    bf16::round((weighted / sum) as f32)
}

/// The rows a source adds for one sequence in a step.
#[derive(Clone, Debug)]
pub struct SourceRows {
    /// Compressed keys-and-values.
    pub rows: Rows,
    /// Index keys.
    pub keys: Rows,
}

impl SourceRows {
    /// None yet.
    pub fn new(head_dim: usize, index_dim: usize) -> Self {
        SourceRows {
            rows: Rows::new(Packing::Fp4E4m3, head_dim),
            keys: Rows::new(Packing::Fp4E8m0, index_dim),
        }
    }
}

/// Turns normalised latents of one sequence (`[groups, head_dim]`, the first being group
/// `first`) into packed rows: the index key from the latent as it is, then the latent itself
/// rotated at its group's first position.
pub fn append(
    cx: &mut Cx<'_>,
    w: &LayerView<'_>,
    freqs: &[f32],
    latent: &mut [f32],
    first: usize,
    out: &mut SourceRows,
) -> Result<(), StepError> {
    let c = cx.config;
    let ratio = c.ratios[cx.layer];
    let groups = latent.len() / c.head_dim;
    let rotations = Rotations::new(freqs, (first..first + groups).map(|j| j * ratio));
    let keys = w.linear("attn.indexer.wk")?.apply_exact(cx.kernels, latent, groups);
    let mut keys = cx.rms(&keys, &w.vector("attn.indexer.k_norm.weight"));
    let damaged = |_| StepError::NonFinite {
        layer: cx.layer,
        what: "a compressed row",
        position: first * ratio,
    };
    for (j, key) in keys.chunks_exact_mut(c.index_dim).enumerate() {
        rotate(&mut key[c.index_dim - c.rope_dim..], rotations.at(j), false);
        out.keys.push(key).map_err(damaged)?;
    }
    for (j, row) in latent.chunks_exact_mut(c.head_dim).enumerate() {
        rotate(&mut row[c.head_dim - c.rope_dim..], rotations.at(j), false);
        out.rows.push(row).map_err(damaged)?;
    }
    Ok(())
}
