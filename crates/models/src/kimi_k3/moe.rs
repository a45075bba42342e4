//! The routed experts of one layer: the router's choice, each expert's output kept by
//! (position, slot) in whatever order experts come, the sum taken in order of selection.

use super::layer::Batch;
use super::ops::{project, situ};
use super::weights::{Expert, Weights};
use numerics::elementary::sigmoid;
use numerics::{Error, top_k};

/// Added to the sum of the chosen scores before dividing by it.
const RENORM_EPS: f32 = 1e-20;

/// Choice and outputs of a layer's experts for all positions of a step.
#[derive(Debug, Default)]
pub struct Moe {
    /// Chosen experts `[t, top_k]`, by descending selection score.
    picks: Vec<u32>,
    /// Their combining weights `[t, top_k]`.
    weights: Vec<f32>,
    /// Chosen experts that have not come yet, distinct, ascending.
    pub missing: Vec<u32>,
    /// The experts' input `[t, latent]`.
    pub z: Vec<f32>,
    /// Outputs `[t, top_k, latent]`.
    outputs: Vec<f32>,
}

impl Moe {
    /// Routes every position of `x` (`[t, hidden]`). `Err` is the position whose score is NaN.
    pub fn route(b: &Batch, w: &Weights, x: &[f32]) -> Result<Moe, usize> {
        let c = b.config;
        let mut scores = project(b.kernels, &w.matrix("block_sparse_moe.gate.weight"), x);
        scores.iter_mut().for_each(|s| *s = sigmoid(*s));
        let bias = w.vector("block_sparse_moe.gate.e_score_correction_bias");
        let mut moe = Moe::default();
        for (t, scores) in scores.chunks_exact(c.experts).enumerate() {
            let (picks, weights) = choose(scores, &bias, c.top_k, c.routed_scale).map_err(|_| t)?;
            moe.picks.extend(picks);
            moe.weights.extend(weights);
        }
        moe.missing = moe.picks.clone();
        moe.missing.sort_unstable();
        moe.missing.dedup();
        Ok(moe)
    }

    /// Computes one expert for every position that chose it.
    pub fn expert(&mut self, b: &Batch, id: u32, e: &Expert) {
        let (c, k) = (b.config, b.kernels);
        let l = c.latent;
        if self.outputs.is_empty() {
            self.outputs = vec![0.0; self.picks.len() * l];
        }
        let slots: Vec<usize> = (0..self.picks.len()).filter(|&i| self.picks[i] == id).collect();
        let mut x = Vec::with_capacity(slots.len() * l);
        for &slot in &slots {
            x.extend_from_slice(&self.z[slot / c.top_k * l..][..l]);
        }
        let mut gate = project(k, &e.w1, &x);
        situ(k, &mut gate, &project(k, &e.w3, &x), c.situ_beta, c.situ_linear_beta);
        let y = project(k, &e.w2, &gate);
        for (&slot, y) in slots.iter().zip(y.chunks_exact(l)) {
            self.outputs[slot * l..][..l].copy_from_slice(y);
        }
        self.missing.retain(|&m| m != id);
    }

    /// The weighted sum of each position's experts in order of selection: `[t, latent]`.
    pub fn combine(&self, top_k: usize, latent: usize) -> Vec<f32> {
        assert!(self.missing.is_empty(), "combined before every expert came");
        let mut sum = vec![0.0; self.picks.len() / top_k * latent];
        for (slot, (y, w)) in self.outputs.chunks_exact(latent).zip(&self.weights).enumerate() {
            for (s, y) in sum[slot / top_k * latent..][..latent].iter_mut().zip(y) {
                *s += w * y;
            }
        }
        sum
    }
}

/// Experts of one position by descending `score + bias` (ties: lower index first) and their
/// weights. The bias steers selection only; the weights come from the scores alone.
pub fn choose(
    scores: &[f32],
    bias: &[f32],
    k: usize,
    scale: f32,
) -> Result<(Vec<u32>, Vec<f32>), Error> {
    let steered: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| s + b).collect();
    let picks = top_k(&steered, k)?;
    let mut sum = 0.0;
    for &e in &picks {
        sum += scores[e as usize];
    }
    let weights = picks.iter().map(|&e| scores[e as usize] / (sum + RENORM_EPS) * scale).collect();
    Ok((picks, weights))
}
