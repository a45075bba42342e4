//! One layer over all positions of a step, in its three parts. This is the model: read it with
//! the functions it names.
//!
//! ```text
//! mix:     h = layer 0: r; else attn_res(snapshots, r)           [t, hidden]
//!          layer % block == 0: r becomes a snapshot, and r begins anew
//!          a = KDA or MLA of rms(h)                              [t, hidden]
//!          r = r + a                                             (a, where r begins anew)
//! route:   x = rms(attn_res(snapshots, r))                       [t, hidden]
//!          s = sigmoid(router x) [t, experts]; picks = top_k(s + bias), weights from s
//! rest:    shared = down(situ(gate x, up x))                     [t, hidden]
//!          z = routed_expert_down_proj x                         [t, latent]
//! experts: y of each pick = w2 situ(w1 z, w3 z)                  [t, top_k, latent]
//! join:    r = r + (routed_expert_up_proj rms(sum of weight * y) + shared)
//! ```
//!
//! `route` is computed with `mix`, before the host is asked for anything else. A dense layer has
//! no experts: its `rest` adds its whole feed-forward to `r` and ends the layer.
//!
//! `attn_res` is the attention residual (`ops.rs`): a softmax-weighted sum over sources, the
//! snapshots in order and then `r`, with weights of its own at each place it is used. The first
//! snapshot is the embedding; each later one is the sum of what the layers of one block of `block`
//! layers added. `r` is that sum for the block under way.

use super::config::Config;
use super::moe::Moe;
use super::ops::{attn_res, project, rms_rows, situ};
use super::state::LayerState;
use super::weights::Weights;
use super::{kda, mla};
use crate::machine::StepError;
use numerics::Kernels;

/// What a layer needs to know about the step it computes.
pub struct Batch<'a> {
    pub config: &'a Config,
    pub kernels: &'a Kernels,
    pub spans: &'a [Span],
}

/// The positions of one sequence: `len` rows of the step from row `first` on; the first row is
/// position `position` of its sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub first: usize,
    pub len: usize,
    pub position: usize,
}

impl Batch<'_> {
    /// The first row whose values are not all finite becomes an error.
    pub fn check_finite(
        &self,
        layer: usize,
        what: &'static str,
        x: &[f32],
    ) -> Result<(), StepError> {
        // One cheap pass over everything; the place is looked for only if there is one.
        if x.iter().all(|v| v.is_finite()) {
            return Ok(());
        }
        let width = x.len() / self.spans.iter().map(|s| s.len).sum::<usize>();
        let bad = x.iter().position(|v| !v.is_finite()).map_or(0, |i| i / width);
        Err(self.non_finite(layer, what, bad))
    }

    /// The error for a row of the step.
    pub fn non_finite(&self, layer: usize, what: &'static str, row: usize) -> StepError {
        let span = self.spans.iter().rfind(|s| s.first <= row);
        let position = span.map_or(row, |s| s.position + row - s.first);
        StepError::NonFinite { layer, what, position }
    }
}

/// The activations of a step between layers, all `[t, hidden]`.
#[derive(Debug, Default)]
pub struct Stream {
    /// Running residual: the embedding, then what the layers of this block have added.
    pub r: Vec<f32>,
    /// `r` as it was when each block began: the embedding, then the sum of each finished block.
    pub snapshots: Vec<Vec<f32>>,
    /// Normalised input of the layer's feed-forward.
    pub x: Vec<f32>,
    /// Shared experts' output of the layer.
    shared: Vec<f32>,
}

impl Stream {
    /// The stream before layer 0.
    pub fn new(embedded: Vec<f32>) -> Stream {
        Stream { r: embedded, ..Stream::default() }
    }

    /// Keeps only these rows (ascending) of `width` values.
    pub fn select(&mut self, rows: &[usize], width: usize) {
        for x in self.snapshots.iter_mut().chain([&mut self.r]) {
            for (i, &row) in rows.iter().enumerate() {
                x.copy_within(row * width..(row + 1) * width, i * width);
            }
            x.truncate(rows.len() * width);
        }
    }

    /// Every snapshot and then the running residual, weighted by a softmax.
    pub fn attn_res(&self, b: &Batch, norm: &[f32], proj: &[f32]) -> Vec<f32> {
        let mut sources: Vec<&[f32]> = self.snapshots.iter().map(Vec::as_slice).collect();
        sources.push(&self.r);
        attn_res(b.kernels, &sources, norm, proj, b.config.rms_eps)
    }
}

/// Attention over all positions, into the running residual.
pub fn mix(
    b: &Batch,
    layer: usize,
    w: &Weights,
    s: &mut Stream,
    states: &mut [&mut LayerState],
) -> Result<(), StepError> {
    let c = b.config;
    let h = match s.snapshots.is_empty() {
        true => s.r.clone(),
        false => residual(b, w, s, "self_attention"),
    };
    let starts_block = layer.is_multiple_of(c.block);
    if starts_block {
        s.snapshots.push(std::mem::take(&mut s.r));
    }
    let x = rms_rows(b.kernels, &h, &w.vector("input_layernorm.weight"), c.rms_eps);
    let a = match c.full_attention[layer] {
        true => mla::attention(b, w, &x, &mut LayerState::mla(states)),
        false => kda::attention(b, w, &x, &mut LayerState::kda(states)),
    };
    b.check_finite(layer, "the attention's output", &a)?;
    match starts_block {
        true => s.r = a,
        false => add(&mut s.r, &a),
    }
    Ok(())
}

/// The feed-forward's input, and the router's choice where there is one.
pub fn route(
    b: &Batch,
    layer: usize,
    w: &Weights,
    s: &mut Stream,
) -> Result<Option<Moe>, StepError> {
    let c = b.config;
    let h = residual(b, w, s, "mlp");
    s.x = rms_rows(b.kernels, &h, &w.vector("post_attention_layernorm.weight"), c.rms_eps);
    if c.is_dense(layer) {
        return Ok(None);
    }
    match Moe::route(b, w, &s.x) {
        Ok(moe) => Ok(Some(moe)),
        Err(row) => Err(b.non_finite(layer, "the router's score", row)),
    }
}

/// The attention residual with the layer's weights for `part`.
fn residual(b: &Batch, w: &Weights, s: &Stream, part: &str) -> Vec<f32> {
    let norm = w.vector(&format!("{part}_res_norm.weight"));
    s.attn_res(b, &norm, &w.vector(&format!("{part}_res_proj.weight")))
}

/// What needs no routed expert: a dense layer's whole feed-forward, which ends the layer, or
/// the shared experts and the routed experts' input.
pub fn rest(
    b: &Batch,
    layer: usize,
    w: &Weights,
    s: &mut Stream,
    moe: Option<&mut Moe>,
) -> Result<(), StepError> {
    let k = b.kernels;
    let feed_forward = |prefix: &str| {
        let of = |part: &str| w.matrix(&format!("{prefix}.{part}_proj.weight"));
        let mut gate = project(k, &of("gate"), &s.x);
        let up = project(k, &of("up"), &s.x);
        situ(k, &mut gate, &up, b.config.situ_beta, b.config.situ_linear_beta);
        project(k, &of("down"), &gate)
    };
    let Some(moe) = moe else {
        let m = feed_forward("mlp");
        add(&mut s.r, &m);
        return b.check_finite(layer, "the layer's output", &s.r);
    };
    // On the original input, unweighted.
    s.shared = feed_forward("block_sparse_moe.shared_experts");
    moe.z = project(k, &w.matrix("block_sparse_moe.routed_expert_down_proj.weight"), &s.x);
    Ok(())
}

/// After the experts: norm of their *sum*, up-projection, shared experts, residual.
pub fn join(
    b: &Batch,
    layer: usize,
    w: &Weights,
    s: &mut Stream,
    moe: &Moe,
) -> Result<(), StepError> {
    let (c, k) = (b.config, b.kernels);
    let sum = moe.combine(c.top_k, c.latent);
    let norm = w.vector("block_sparse_moe.routed_expert_norm.weight");
    let sum = rms_rows(k, &sum, &norm, c.rms_eps);
    let mut m = project(k, &w.matrix("block_sparse_moe.routed_expert_up_proj.weight"), &sum);
    add(&mut m, &s.shared);
    add(&mut s.r, &m);
    b.check_finite(layer, "the layer's output", &s.r)
}

fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}
