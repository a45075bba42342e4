//! One layer over all positions of a step, in its parts. This is the model: read it with the
//! functions it names. Backbone layers and draft stages differ only in the attention they are
//! given (and in engram, which only backbone layers have).
//!
//! ```text
//! mix:     h = h + gate * value of the engram rows               [T, m, dim], engram layers only
//!          a = mixes of h (hc_attn): pre, post [T, m], comb [T, m, m]
//!          y = attention(rms(collapse(h, pre)))                  [T, dim]; pre: sub-block before
//!          h = expand(y, h, a.post, a.comb), pre = a.pre
//! route:   f = mixes of h (hc_ffn)
//!          x = rms(collapse(h, pre)), pre = f.pre                [T, dim]
//!          experts, weights = router of x                        [T, active]; then x rounded
//! rest:    shared = w2 swiglu(w1 x, w3 x)                        [T, dim]
//! experts: slot of each choice = w2 (swiglu(w1 x, w3 x) * weight)    [T, active, dim]
//! end:     y = sum of the slots by expert number + shared, h = expand(y, h, f.post, f.comb)
//! ```
//!
//! `route` is the second half of [`mix`]. `m` is `hc_mult`; `collapse`, `expand` and the mixes are
//! in `hc.rs`, the gate and the sums in `moe.rs`. The rounding to bf16 and, for quantised matrices,
//! to e4m3 is left out above.
//!
//! Every query attends to the last `window` rows of its own layer, and then:
//!
//! | role | ratio | attends further to | file |
//! |---|---|---|---|
//! | `Window` | 0 | nothing | `attention.rs` |
//! | `Full` | 2 or 1 | own compressed rows, picked by its indexer | `compressor.rs`, `indexer.rs` |
//! | `Reindex` | its source's | its source's rows, picked by its own indexer | `indexer.rs` |
//! | `Reuse` | its source's | its source's rows that a layer below picked last | `attention.rs` |
//!
//! A layer's source is the last `Full` layer below it. The layer `candidates.source` publishes
//! blocks of positions; indexers above it pick among those blocks only.

use super::attention::{Sequence, Shared, attention};
use super::cx::{Cx, Rotations};
use super::engram::{self, EngramWeights};
use super::hc::{self, Mixes};
use super::moe::{Expert, Gate, Routes, combine};
use super::weights::LayerView;
use crate::machine::StepError;

/// The activations of a step between layers.
#[derive(Debug, Default)]
pub struct Stream {
    /// The residual copies, `[T, m, dim]`, bf16.
    pub h: Vec<f32>,
    /// Weights of the copies for the next sub-block's input, `[T, m]`: those of the sub-block
    /// *before* it.
    pub pre: Vec<f32>,
}

impl Stream {
    /// The stream before the first layer: every copy is the embedding, the first is read.
    pub fn new(embedded: &[f32], mult: usize, dim: usize) -> Self {
        let h = embedded.chunks_exact(dim).flat_map(|e| std::iter::repeat_n(e, mult)).flatten();
        let one_hot = (0..embedded.len() / dim * mult).map(|i| f32::from(u8::from(i % mult == 0)));
        Stream { h: h.copied().collect(), pre: one_hot.collect() }
    }

    /// The collapsed stream, `[T, dim]`.
    pub fn collapse(&self, mult: usize, dim: usize) -> Vec<f32> {
        hc::collapse(&self.h, &self.pre, mult, dim)
    }
}

/// A layer's feed-forward from the router's choice to the layer's end.
#[derive(Debug)]
pub struct Moe {
    /// Experts that have not been fed, distinct, ascending.
    pub missing: Vec<u32>,
    routes: Routes,
    mixes: Mixes,
    /// Input of the experts as their matrices take it, `[T, dim]`.
    x: Vec<f32>,
    /// Outputs of the routed experts, `[T, active, dim]`, in order of `routes`.
    slots: Vec<f32>,
    /// Output of the shared expert, `[T, dim]`.
    shared: Vec<f32>,
    active: usize,
}

/// A backbone layer up to its router: engram, then [`mix`].
///
/// `rows` are the dequantised engram rows of the layer, `[T, lookups * head_dim]`, empty where
/// the layer has none.
pub fn backbone_mix(
    cx: &mut Cx<'_>,
    w: &LayerView<'_>,
    stream: &mut Stream,
    rows: &[f32],
    (freqs, rotations): (&[f32], &Rotations),
    sequences: &mut [Sequence<'_>],
    shared: &mut Shared,
) -> Result<Moe, StepError> {
    let c = cx.config;
    if !rows.is_empty() {
        let weights = EngramWeights {
            wkv: w.linear("engram.wkv")?,
            q_weight: w.vector("engram.q_weight"),
            k_weight: w.vector("engram.k_weight"),
        };
        cx.see("engram_rows", rows);
        let run = engram::apply(cx.kernels, cx.regime, &weights, rows, &mut stream.h, c);
        let run = run.map_err(cx.refused("an engram row", rows))?;
        cx.see("engram_kv", &run.kv);
        cx.see("engram_gate", &run.gate);
        cx.see("engram_out", &stream.h);
    }
    if c.dspark.targets.contains(&cx.layer) {
        keep_hidden(cx, stream, sequences);
    }
    mix(cx, w, stream, (c.experts, c.active), |cx, x| {
        attention(cx, w, x, freqs, rotations, sequences, shared)
    })
}

/// Appends the mean over the copies to the hidden states the draft stages see. The layers of one
/// position must end up side by side, so each layer fills its own columns.
fn keep_hidden(cx: &Cx<'_>, stream: &Stream, sequences: &mut [Sequence<'_>]) {
    let c = cx.config;
    let at = c.dspark.targets.iter().position(|&l| l == cx.layer).expect("a target layer");
    for (span, s) in cx.spans.iter().zip(sequences) {
        if s.state.draft.is_none() {
            continue;
        }
        s.pending.hidden.resize(span.len * c.main_hidden(), 0.0);
        let copies = stream.h[span.first * c.stream()..].chunks_exact(c.stream());
        for (row, copies) in s.pending.hidden.chunks_exact_mut(c.main_hidden()).zip(copies) {
            for (d, out) in row[at * c.dim..(at + 1) * c.dim].iter_mut().enumerate() {
                let sum: f64 = (0..c.hc_mult).map(|i| f64::from(copies[i * c.dim + d])).sum();
                *out = numerics::bf16::round((sum / c.hc_mult as f64) as f32);
            }
        }
    }
}

/// A layer up to its router: attention and the choice of experts.
///
/// The stream's `pre` comes from the sub-block before: attention reads the previous
/// feed-forward's, the feed-forward this attention's, the next layer this feed-forward's.
pub fn mix<'c>(
    cx: &mut Cx<'c>,
    w: &LayerView<'_>,
    stream: &mut Stream,
    (experts, active): (usize, usize),
    attention: impl FnOnce(&mut Cx<'c>, &[f32]) -> Result<Vec<f32>, StepError>,
) -> Result<Moe, StepError> {
    let (c, t) = (cx.config, cx.positions());
    if let Some(probe) = &mut cx.probe {
        probe.enter(cx.layer, &mut stream.h, &mut stream.pre);
    }
    cx.see("h_in", &stream.h);
    cx.see("pre_mix_in", &stream.pre);
    let a = hc::mixes(cx.kernels, &w.hc("attn"), &stream.h, c);
    see_mixes(cx, ["attn_pre", "attn_post", "attn_comb"], &a);
    let x = cx.rms(&stream.collapse(c.hc_mult, c.dim), &w.vector("attn_norm.weight"));
    cx.check_finite("the attention input", &x)?;
    cx.see("attn_in", &x);
    let y = attention(cx, &x)?;
    stream.h = hc::expand(&y, &stream.h, &a, c.hc_mult, c.dim);
    stream.pre.clone_from(&a.pre);
    cx.see("h_mid", &stream.h);

    let f = hc::mixes(cx.kernels, &w.hc("ffn"), &stream.h, c);
    see_mixes(cx, ["ffn_pre", "ffn_post", "ffn_comb"], &f);
    let x = cx.rms(&stream.collapse(c.hc_mult, c.dim), &w.vector("ffn_norm.weight"));
    cx.check_finite("the feed-forward input", &x)?;
    cx.see("ffn_in", &x);
    stream.pre.clone_from(&f.pre);
    let gate = Gate {
        weight: w.matrix("ffn.gate.weight"),
        bias: w.vector("ffn.gate.bias"),
        active,
        temperature: c.gate_temp,
        normalise: c.norm_topk,
        scale: c.route_scale,
    };
    let routes = gate.route(cx.kernels, &x, t).map_err(cx.refused("a router score", &x))?;
    cx.see("moe_weights", &routes.weights);
    cx.see_ids("moe_indices", routes.experts.iter().copied());
    let mut missing = routes.experts.clone();
    missing.sort_unstable();
    missing.dedup();
    debug_assert!(missing.last().is_none_or(|&e| (e as usize) < experts));
    let rounded = cx.regime.input(&x, c.dim).map_err(cx.refused("the feed-forward input", &x))?;
    Ok(Moe {
        missing,
        slots: vec![0.0; t * active * c.dim],
        shared: Vec::new(),
        mixes: f,
        x: rounded.into_owned(),
        routes,
        active,
    })
}

fn see_mixes(cx: &mut Cx<'_>, names: [&'static str; 3], mixes: &Mixes) {
    cx.see(names[0], &mixes.pre);
    cx.see(names[1], &mixes.post);
    cx.see(names[2], &mixes.comb);
}

/// The part of a layer that needs no routed expert: the shared one.
pub fn rest(cx: &mut Cx<'_>, w: &LayerView<'_>, moe: &mut Moe) -> Result<(), StepError> {
    let ones = vec![1.0; cx.positions()];
    let limit = cx.config.swiglu_limit;
    let shared = w.shared_expert()?;
    let y = shared.apply(cx.kernels, cx.regime, &moe.x, &ones, limit);
    moe.shared =
        y.map_err(|_| cx.non_finite("the shared expert", first_bad(cx, &shared, &moe.x, &ones)))?;
    Ok(())
}

/// The row of `x` on which an expert fails; looked for only after it has failed on all of them.
fn first_bad(cx: &Cx<'_>, expert: &Expert<'_>, x: &[f32], weights: &[f32]) -> usize {
    let (dim, limit) = (cx.config.dim, cx.config.swiglu_limit);
    let fails = |&i: &usize| {
        let (x, weight) = (&x[i * dim..][..dim], &weights[i..=i]);
        expert.apply(cx.kernels, cx.regime, x, weight, limit).is_err()
    };
    (0..weights.len()).find(fails).unwrap_or(0)
}

/// One routed expert, for all positions that chose it. It must be among the missing ones.
pub fn expert(cx: &mut Cx<'_>, id: u32, w: &Expert<'_>, moe: &mut Moe) -> Result<(), StepError> {
    let dim = cx.config.dim;
    let chosen = moe.routes.experts.iter().enumerate().filter(|(_, e)| **e == id);
    let places: Vec<usize> = chosen.map(|(i, _)| i).collect();
    let weights: Vec<f32> = places.iter().map(|&i| moe.routes.weights[i]).collect();
    let rows = places.iter().flat_map(|i| &moe.x[i / moe.active * dim..][..dim]);
    let x: Vec<f32> = rows.copied().collect();
    let y = w.apply(cx.kernels, cx.regime, &x, &weights, cx.config.swiglu_limit);
    let y = y.map_err(|_| {
        let place = places[first_bad(cx, w, &x, &weights)];
        cx.non_finite("a routed expert", place / moe.active)
    })?;
    for (&place, y) in places.iter().zip(y.chunks_exact(dim)) {
        moe.slots[place * dim..(place + 1) * dim].copy_from_slice(y);
    }
    moe.missing.retain(|&e| e != id);
    Ok(())
}

/// The end of a layer, when no expert is missing: the experts' sum goes into the stream.
pub fn end(cx: &mut Cx<'_>, stream: &mut Stream, moe: &Moe) {
    let c = cx.config;
    let y = combine(&moe.routes, &moe.slots, &moe.shared, moe.active, c.dim);
    cx.see("ffn_out", &y);
    stream.h = hc::expand(&y, &stream.h, &moe.mixes, c.hc_mult, c.dim);
    cx.see("h_out", &stream.h);
    cx.see("pre_mix_out", &stream.pre);
}
