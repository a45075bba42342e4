//! Attention of one layer over all positions of a step, in the five layer roles: window only;
//! source of ratio 2 or 1 (own compressor and indexer); own indexer over a source's rows; reuse
//! of the rows a layer below selected.
//!
//! A query at position `p` attends to the window rows of positions `p-window+1 ..= p` and then to
//! the selected compressed rows, both ascending. Rows from before the step come from the
//! sequence's state, rows of the step from its pending part; the list is the same however the
//! sequence was cut into chunks.

use super::cache::Rows;
use super::compressor::{self, Compressor};
use super::config::{Candidates, Config, Role};
use super::cx::{Cx, Rotations, Span};
use super::indexer;
use super::linear::Linear;
use super::reference::{rotate, sink_softmax_inplace};
use super::state::{Pending, State};
use super::weights::LayerView;
use crate::machine::StepError;
use numerics::{Kernels, Matrix, Weights, bf16, quantize};

/// What layers publish for the layers above, for each position of the step.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Selected compressed rows, ascending.
    pub topk: Vec<Vec<u32>>,
    /// Candidate blocks of the candidate source.
    pub candidates: Vec<Vec<bool>>,
}

/// One sequence in a step: its state and what the step adds.
pub struct Sequence<'a> {
    pub state: &'a State,
    pub pending: &'a mut Pending,
}

/// Query, key-and-value projections and output of any layer, backbone or draft.
pub struct Projections<'a> {
    wq_a: Linear<'a>,
    q_norm: Vec<f32>,
    wq_b: Linear<'a>,
    wkv: Linear<'a>,
    kv_norm: Vec<f32>,
    sink: Vec<f32>,
    wo_a: Linear<'a>,
    wo_b: Linear<'a>,
}

impl<'a> Projections<'a> {
    /// Finds the tensors every layer has.
    pub fn bind(w: &LayerView<'a>) -> Result<Self, StepError> {
        Ok(Projections {
            wq_a: w.linear("attn.wq_a")?,
            q_norm: w.vector("attn.q_norm.weight"),
            wq_b: w.linear("attn.wq_b")?,
            wkv: w.linear("attn.wkv")?,
            kv_norm: w.vector("attn.kv_norm.weight"),
            sink: w.vector("attn.attn_sink"),
            wo_a: w.linear("attn.wo_a")?,
            wo_b: w.linear("attn.wo_b")?,
        })
    }

    /// The normalised low-rank query, `[T, q_rank]`.
    pub fn low_query(&self, cx: &mut Cx<'_>, x: &[f32], t: usize) -> Result<Vec<f32>, StepError> {
        let qa = self.wq_a.apply(cx.kernels, cx.regime, x, t);
        let qr = cx.rms(&qa.map_err(cx.refused("the attention input", x))?, &self.q_norm);
        cx.see("qr", &qr);
        Ok(qr)
    }

    /// Rotated queries, `[T, heads, head_dim]`.
    pub fn queries(
        &self,
        cx: &mut Cx<'_>,
        qr: &[f32],
        t: usize,
        rotations: &Rotations,
    ) -> Result<Vec<f32>, StepError> {
        let q = self.wq_b.apply(cx.kernels, cx.regime, qr, t);
        let mut q = q.map_err(cx.refused("the low-rank query", qr))?;
        rotate_heads(&mut q, cx.config.heads, cx.config, rotations, false);
        cx.see("sa_q", &q);
        Ok(q)
    }

    /// Rotated key-and-value rows, not yet rounded, `[T, head_dim]`.
    pub fn key_values(
        &self,
        cx: &Cx<'_>,
        x: &[f32],
        t: usize,
        rotations: &Rotations,
    ) -> Result<Vec<f32>, StepError> {
        let kv = self.wkv.apply(cx.kernels, cx.regime, x, t);
        let mut kv = cx.rms(&kv.map_err(cx.refused("the attention input", x))?, &self.kv_norm);
        rotate_heads(&mut kv, 1, cx.config, rotations, false);
        Ok(kv)
    }

    /// One query's attention over `rows` (`[rows, head_dim]`): `[heads, head_dim]`, bf16.
    /// See [`super::reference::sparse_attn`].
    pub fn attend(
        &self,
        kernels: &Kernels,
        query: &[f32],
        rows: &[f32],
        c: &Config,
        out: &mut [f32],
    ) {
        let count = rows.len() / c.head_dim;
        let rows =
            Matrix::new(count, c.head_dim, Weights::Floats(rows)).expect("a query sees itself");
        let scale = (1.0 / (c.head_dim as f64).sqrt()) as f32;
        let mut scores = vec![0.0; c.heads * count];
        kernels.matmul(&rows, query, c.heads, &mut scores);
        for (scores, &sink) in scores.chunks_exact_mut(count).zip(&self.sink) {
            scores.iter_mut().for_each(|s| *s *= scale);
            sink_softmax_inplace(scores, sink);
        }
        kernels.matmul_transposed(&rows, &scores, c.heads, out);
        bf16::round_all(out);
    }

    /// The inverse rotation of every head and the grouped output projection, `[T, dim]`.
    pub fn output(
        &self,
        cx: &mut Cx<'_>,
        mut o: Vec<f32>,
        t: usize,
        rotations: &Rotations,
    ) -> Result<Vec<f32>, StepError> {
        let c = cx.config;
        cx.see("sa_o", &o);
        rotate_heads(&mut o, c.heads, c, rotations, true);
        cx.see("o_rot", &o);
        let (width, group) = (c.heads * c.head_dim, c.heads * c.head_dim / c.o_groups);
        let mut low = vec![0.0; t * c.o_groups * c.o_rank];
        for g in 0..c.o_groups {
            let part: Vec<f32> = o
                .chunks_exact(width)
                .flat_map(|row| &row[g * group..(g + 1) * group])
                .copied()
                .collect();
            // The released model multiplies this matrix in bf16: its input is never rounded to fp8.
            let matrix = self.wo_a.matrix.row_range(g * c.o_rank..(g + 1) * c.o_rank);
            let y = Linear { matrix, quantised: false }.apply_exact(cx.kernels, &part, t);
            for (row, y) in
                low.chunks_exact_mut(c.o_groups * c.o_rank).zip(y.chunks_exact(c.o_rank))
            {
                row[g * c.o_rank..(g + 1) * c.o_rank].copy_from_slice(y);
            }
        }
        cx.see("o_low", &low);
        let out = self.wo_b.apply(cx.kernels, cx.regime, &low, t);
        let out = out.map_err(cx.refused("the attention output", &low))?;
        cx.see("attn_out", &out);
        Ok(out)
    }
}

/// Rotates the last values of every head of every position.
fn rotate_heads(x: &mut [f32], heads: usize, c: &Config, rotations: &Rotations, inverse: bool) {
    let per_position = x.len() / (x.len() / heads / c.head_dim);
    for (i, position) in x.chunks_exact_mut(per_position).enumerate() {
        for head in position.chunks_exact_mut(c.head_dim) {
            rotate(&mut head[c.head_dim - c.rope_dim..], rotations.at(i), inverse);
        }
    }
}

/// Attention of a backbone layer: `x` `[T, dim]` (normalised) to `[T, dim]`.
///
/// `freqs` and `rotations` are those of the layer's kind (window only, or compressed).
pub fn attention(
    cx: &mut Cx<'_>,
    w: &LayerView<'_>,
    x: &[f32],
    freqs: &[f32],
    rotations: &Rotations,
    sequences: &mut [Sequence<'_>],
    shared: &mut Shared,
) -> Result<Vec<f32>, StepError> {
    let (c, layer, t) = (cx.config, cx.layer, cx.positions());
    let p = Projections::bind(w)?;
    let qr = p.low_query(cx, x, t)?;
    let q = p.queries(cx, &qr, t, rotations)?;
    let kv = p.key_values(cx, x, t, rotations)?;
    for (span, s) in cx.spans.iter().zip(sequences.iter_mut()) {
        for (i, row) in
            kv[span.first * c.head_dim..].chunks_exact(c.head_dim).take(span.len).enumerate()
        {
            let pushed = s.pending.windows[layer].push(row);
            pushed.map_err(|_| cx.non_finite("a key-value row", span.first + i))?;
        }
    }
    let role = c.role(layer);
    if role == Role::Full {
        compress(cx, w, x, freqs, sequences)?;
    }
    if matches!(role, Role::Full | Role::Reindex) {
        index(cx, w, x, &qr, rotations, sequences, shared)?;
    }
    let mut o = vec![0.0; q.len()];
    let width = c.heads * c.head_dim;
    let mut rows = Vec::new();
    for (span, s) in cx.spans.iter().zip(sequences.iter()) {
        let window = window_rows(c, layer, s, span);
        for i in 0..span.len {
            let row = span.first + i;
            // `window` ends with the chunk's rows; a query sees up to its own.
            let end = window.len() - (span.len - 1 - i) * c.head_dim;
            let begin = end.saturating_sub(c.window * c.head_dim);
            rows.clear();
            rows.extend_from_slice(&window[begin..end]);
            if let Some(source) = c.source(layer) {
                for &j in &shared.topk[row] {
                    s.compressed(source).unpack(j as usize, &mut rows);
                }
            }
            let query = &q[row * width..(row + 1) * width];
            p.attend(cx.kernels, query, &rows, c, &mut o[row * width..(row + 1) * width]);
        }
    }
    p.output(cx, o, t, rotations)
}

/// Rows before the chunk that its first query still sees, then the chunk's, unpacked.
fn window_rows(c: &Config, layer: usize, s: &Sequence<'_>, span: &Span) -> Vec<f32> {
    let before = (c.window - 1).min(span.position);
    let mut rows = Vec::with_capacity((before + span.len) * c.head_dim);
    for p in span.position - before..span.position {
        s.state.windows[layer].unpack(p % c.window, &mut rows);
    }
    for i in 0..span.len {
        s.pending.windows[layer].unpack(i, &mut rows);
    }
    rows
}

/// Compressed rows of one source: those of the state, then the step's.
pub struct Compressed<'a> {
    before: &'a Rows,
    step: &'a Rows,
}

impl Compressed<'_> {
    fn unpack(&self, j: usize, out: &mut Vec<f32>) {
        match j.checked_sub(self.before.len()) {
            None => self.before.unpack(j, out),
            Some(j) => self.step.unpack(j, out),
        }
    }
}

impl Sequence<'_> {
    fn compressed(&self, source: usize) -> Compressed<'_> {
        Compressed {
            before: &self.state.sources[source].rows.rows,
            step: &self.pending.sources[source].rows.rows,
        }
    }
}

/// The compressor of a source layer, for every sequence.
fn compress(
    cx: &mut Cx<'_>,
    w: &LayerView<'_>,
    x: &[f32],
    freqs: &[f32],
    sequences: &mut [Sequence<'_>],
) -> Result<(), StepError> {
    let c = cx.config;
    let source = c.source(cx.layer).expect("a source layer");
    let (ratio, width) = (c.source_ratio(source), c.head_dim);
    let compressor = Compressor::bind(w, ratio);
    let projected = compressor.project(cx.kernels, x, cx.positions());
    let mut all = Vec::new();
    for (span, s) in cx.spans.iter().zip(sequences.iter_mut()) {
        let part = |x: &[f32]| {
            x.get(span.first * width..(span.first + span.len) * width).unwrap_or(&[]).to_vec()
        };
        let pending = &mut s.pending.sources[source];
        pending.projected.kv = part(&projected.kv);
        pending.projected.score = part(&projected.score);
        let mut partial = s.state.sources[source].partial.clone();
        let p = &pending.projected;
        let pooled = compressor::group(&mut partial, &p.kv, &p.score, width, ratio);
        let mut latent = cx.rms(&pooled, &compressor.norm);
        all.extend_from_slice(&latent);
        let first = s.state.sources[source].rows.rows.len();
        compressor::append(cx, w, freqs, &mut latent, first, &mut pending.rows)?;
    }
    cx.see("latent", &all);
    Ok(())
}

/// The indexer of a layer: publishes the selected rows of every position.
fn index(
    cx: &mut Cx<'_>,
    w: &LayerView<'_>,
    x: &[f32],
    qr: &[f32],
    rotations: &Rotations,
    sequences: &[Sequence<'_>],
    shared: &mut Shared,
) -> Result<(), StepError> {
    let (c, t) = (cx.config, cx.positions());
    let source = c.source(cx.layer).expect("an indexer has a source");
    let (heads, dim, ratio) = (c.index_heads, c.index_dim, c.source_ratio(source));
    let q = w.linear("attn.indexer.wq_b")?.apply(cx.kernels, cx.regime, qr, t);
    let mut q = q.map_err(cx.refused("the low-rank query", qr))?;
    for (i, head) in q.chunks_exact_mut(dim).enumerate() {
        rotate(&mut head[dim - c.rope_dim..], rotations.at(i / heads), false);
        quantize::fp4_round_trip(head).map_err(|_| cx.non_finite("an index query", i / heads))?;
    }
    let mut weights = w.linear("attn.indexer.weights_proj")?.apply_exact(cx.kernels, x, t);
    let scale = (1.0 / (dim as f64).sqrt() / (heads as f64).sqrt()) as f32;
    weights.iter_mut().for_each(|v| *v = bf16::round(*v * scale));
    cx.see("index_q", &q);
    cx.see("index_weights", &weights);
    shared.topk.resize(t, Vec::new());
    if cx.layer == c.candidates.source {
        shared.candidates.resize(t, Vec::new());
    }
    for (span, s) in cx.spans.iter().zip(sequences) {
        let (first, end) = (span.first, span.first + span.len);
        let keys = [&s.state.sources[source].rows.keys, &s.pending.sources[source].rows.keys];
        let total = keys[0].len() + keys[1].len();
        let (q, weights) =
            (&q[first * heads * dim..end * heads * dim], &weights[first * heads..end * heads]);
        let scores = indexer::scores(cx.kernels, q, weights, heads, &keys);
        cx.see("index_score", &scores);
        for i in 0..span.len {
            let visible = (span.position + i + 1) / ratio;
            let scores = &scores[i * total..i * total + visible];
            let nan = |_| cx.non_finite("an index score", first + i);
            if cx.layer == c.candidates.source {
                let Candidates { topk_blocks, block, .. } = c.candidates;
                shared.candidates[first + i] =
                    indexer::candidate_blocks(scores, topk_blocks, block).map_err(nan)?;
            }
            let among = c.uses_candidates(cx.layer);
            let among =
                among.then(|| (shared.candidates[first + i].as_slice(), c.candidates.block));
            shared.topk[first + i] = indexer::select(scores, c.index_topk, among).map_err(nan)?;
        }
    }
    // Position after position, each list ended by a number no row has.
    let lists = shared.topk.iter().flat_map(|rows| rows.iter().copied().chain([u32::MAX]));
    cx.see_ids("selected", lists);
    Ok(())
}
