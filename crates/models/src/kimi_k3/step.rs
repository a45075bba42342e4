//! A step as a machine: which weights come next, and what is computed when they come. The
//! arithmetic is in `layer.rs`.

use super::config::Config;
use super::layer::{self, Batch, Span, Stream};
use super::moe::Moe;
use super::state::{LayerState, State, recurrence_inputs};
use super::weights::{Expert, Weights};
use super::{KimiK3, mla};
use crate::machine::phases::{Phase, Phases};
use crate::machine::plain::{check, distinct, embed, head_rows, vector};
use crate::machine::{Chunk, Logits, Part, StepError};
use numerics::Kernels;
use std::ops::Range;

/// A step under way.
#[derive(Debug)]
pub struct Step<'a> {
    model: &'a KimiK3,
    phase: Phase,
    states: Vec<&'a mut State>,
    spans: Vec<Span>,
    /// Spans of the rows that are still computed: all, and from the last layer's feed-forward
    /// on only those that need logits.
    live: Vec<Span>,
    /// Tokens of all positions.
    tokens: Vec<u32>,
    /// Distinct tokens, ascending.
    ids: Vec<u64>,
    stream: Stream,
    /// Present from the router's choice to the layer's end.
    moe: Option<Moe>,
    /// Rows of the step that need logits, ascending.
    wanted: Vec<usize>,
    /// Input of the head for those, `[wanted, hidden]`, once known.
    normed: Vec<f32>,
    /// `[wanted, vocab]`.
    logits: Vec<f32>,
}

impl<'a> Step<'a> {
    pub(super) fn new(model: &'a KimiK3, chunks: Vec<Chunk<'a, State>>) -> Result<Self, StepError> {
        if chunks.is_empty() {
            return Err(StepError::Empty);
        }
        let mut step = Step {
            model,
            phase: Phase::Rows(0),
            states: Vec::new(),
            spans: Vec::new(),
            live: Vec::new(),
            tokens: Vec::new(),
            ids: Vec::new(),
            stream: Stream::default(),
            moe: None,
            wanted: Vec::new(),
            normed: Vec::new(),
            logits: Vec::new(),
        };
        for chunk in chunks {
            step.add(chunk)?;
        }
        step.live = step.spans.clone();
        step.ids = distinct(step.tokens.iter().map(|&id| u64::from(id)).collect());
        Ok(step)
    }

    /// Checks one sequence's share and appends its positions.
    fn add(&mut self, chunk: Chunk<'a, State>) -> Result<(), StepError> {
        let Chunk { state, tokens, logits } = chunk;
        let vocab = self.model.config.vocab;
        if tokens.is_empty() {
            return Err(StepError::Empty);
        }
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(StepError::Token { id, vocab });
        }
        if state.identity != self.model.identity {
            let (expected, got) = (self.model.identity.clone(), state.identity.clone());
            return Err(StepError::State { expected, got });
        }
        let needed = state.position.saturating_add(tokens.len());
        if needed > state.context {
            return Err(StepError::Context { needed, context: state.context });
        }
        let (first, len) = (self.tokens.len(), tokens.len());
        self.wanted.extend(match logits {
            Logits::None => 0..0,
            Logits::Last => first + len - 1..first + len,
            Logits::All => first..first + len,
        });
        // A dropped step may have left rows; they must be gone before new ones come.
        state.roll_back(&self.model.config);
        self.spans.push(Span { first, len, position: state.position });
        self.tokens.extend_from_slice(tokens);
        self.states.push(state);
        Ok(())
    }

    /// After the last attention nothing but logits depends on a row: the others are dropped.
    fn keep_wanted(&mut self) {
        self.stream.select(&self.wanted, self.model.config.hidden);
        let alone =
            |(first, &row): (usize, &usize)| Span { first, len: 1, position: self.position(row) };
        self.live = self.wanted.iter().enumerate().map(alone).collect();
    }

    /// The position in its sequence of a row of the step.
    fn position(&self, row: usize) -> usize {
        let span = self.spans.iter().rfind(|s| s.first <= row);
        span.map_or(row, |s| s.position + row - s.first)
    }

    fn after_layer(&mut self, l: usize) {
        self.phase = match l + 1 {
            next if next < self.model.config.layers => Phase::Layer(next, Part::Mix),
            _ => Phase::Head(0),
        };
    }

    /// The final aggregation, when the head's small tensors come.
    fn normalise(&mut self, kernels: &Kernels, tensors: &[&[u8]]) -> Result<(), StepError> {
        let c = &self.model.config;
        let b = Batch { config: c, kernels, spans: &self.live };
        let part = |i: usize| vector(&self.model.layout.head.tensors[i], tensors[i]);
        let h = self.stream.attn_res(&b, &part(0), &part(1));
        b.check_finite(c.layers, "the final aggregation", &h)?;
        self.normed = super::ops::rms_rows(kernels, &h, &part(2), c.rms_eps);
        self.logits = vec![0.0; self.wanted.len() * c.vocab];
        Ok(())
    }

    fn check_logits(&self) -> Result<(), StepError> {
        match self.logits.iter().position(|l| !l.is_finite()) {
            None => Ok(()),
            Some(i) => {
                let vocab = self.model.config.vocab;
                let position = self.position(self.wanted[i / vocab]);
                Err(StepError::Logit { token: i % vocab, position })
            }
        }
    }

    /// Everything is computed: only now do the states change.
    fn end(&mut self, kernels: &Kernels) -> Phase {
        for (state, span) in self.states.iter_mut().zip(&self.spans) {
            state.commit(&self.model.config, kernels, span.len);
        }
        self.stream = Stream::default();
        Phase::Done
    }
}

impl Phases for Step<'_> {
    fn phase(&self) -> Phase {
        self.phase
    }

    fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }

    fn layers(&self) -> Range<usize> {
        0..self.model.config.layers
    }

    fn wants_head(&self) -> bool {
        !self.wanted.is_empty()
    }

    fn ids(&self, _: usize) -> &[u64] {
        &self.ids
    }

    fn missing(&self) -> &[u32] {
        self.moe.as_ref().map_or(&[], |m| &m.missing)
    }

    fn computed(&self) -> &[f32] {
        &self.logits
    }

    fn rows(&mut self, _: usize, rows: &[&[u8]]) -> Result<(), StepError> {
        let table = &self.model.layout.tables[0].tensors[0];
        self.stream = Stream::new(embed(table, &self.ids, &self.tokens, rows)?);
        self.phase = Phase::Layer(0, Part::Mix);
        Ok(())
    }

    fn layer(
        &mut self,
        kernels: &Kernels,
        l: usize,
        part: Part,
        tensors: &[&[u8]],
    ) -> Result<(), StepError> {
        let model = self.model;
        let specs = &model.layout.layers[l].tensors;
        let w = Weights::new(|| format!("layer {l}"), &model.keys[l], specs, tensors)?;
        let live = self.live.clone();
        let b = Batch { config: &model.config, kernels, spans: &live };
        match part {
            Part::Mix => {
                let mut states: Vec<&mut LayerState> =
                    self.states.iter_mut().map(|s| &mut s.layers[l]).collect();
                layer::mix(&b, l, &w, &mut self.stream, &mut states)?;
                if l + 1 == model.config.layers {
                    self.keep_wanted();
                }
                if self.live.is_empty() {
                    self.phase = self.end(kernels);
                    return Ok(());
                }
                let b = Batch { spans: &self.live, ..b };
                self.moe = layer::route(&b, l, &w, &mut self.stream)?;
                self.phase = Phase::Layer(l, Part::Rest);
            }
            Part::Rest => {
                layer::rest(&b, l, &w, &mut self.stream, self.moe.as_mut())?;
                match self.moe {
                    Some(_) => self.phase = Phase::Experts(l),
                    None => self.after_layer(l),
                }
            }
            Part::Join => {
                let moe = self.moe.take().expect("a layer with experts");
                layer::join(&b, l, &w, &mut self.stream, &moe)?;
                self.after_layer(l);
            }
        }
        Ok(())
    }

    fn expert(
        &mut self,
        kernels: &Kernels,
        l: usize,
        id: u32,
        tensors: &[&[u8]],
    ) -> Result<(), StepError> {
        let b = Batch { config: &self.model.config, kernels, spans: &self.live };
        let moe = self.moe.as_mut().expect("the router has spoken");
        moe.expert(&b, id, &Expert::new(b.config, &self.model.layout.layers[l], id, tensors)?);
        if moe.missing.is_empty() {
            self.phase = Phase::Layer(l, Part::Join);
        }
        Ok(())
    }

    fn head(
        &mut self,
        kernels: &Kernels,
        done: usize,
        tensors: &[&[u8]],
        rows: &[u8],
    ) -> Result<(), StepError> {
        let head = &self.model.layout.head;
        check(|| "the head".into(), &head.tensors, tensors)?;
        if done == 0 {
            self.normalise(kernels, tensors)?;
        }
        let n = head_rows(kernels, &head.matrix, rows, done, &self.normed, &mut self.logits)?;
        self.phase = match done + n {
            all if all == head.matrix.shape[0] => {
                self.check_logits()?;
                self.end(kernels)
            }
            some => Phase::Head(some),
        };
        Ok(())
    }
}

/// Upper bound of what a step allocates, for planning: what lives through a layer, and the
/// widest moment of any of its parts. In f32 values a position unless said otherwise.
pub(super) fn bytes(c: &Config, positions: usize, context: usize, logits: usize) -> usize {
    let (e, p, l) = (c.hidden, c.kda_width(), c.latent);
    // Snapshots; residual, feed-forward input, shared output; two more while one is made.
    let stream = (c.layers.div_ceil(c.block) + 5) * e;
    // Six projections; heads' outputs before and after they are put in order.
    let kda = 6 * p + c.kda_head_dim + c.kda_heads + 2 * p + e;
    // Compressed query twice, query, cache row; latents in and out; head outputs and gate.
    let mla = 2 * c.q_lora
        + c.heads * (c.qk() + 2 * c.kv_lora + c.qk_nope + 2 * c.v_head)
        + c.cache_width()
        + e;
    let rest = 2 * c.shared_width().max(if c.dense_layers > 0 { c.dense_width } else { 0 }) + l + e;
    // Every chosen expert's output; one expert's temporaries, should all positions choose it.
    let experts = c.top_k * (l + 3) + 3 * l + 2 * c.expert_width + c.experts + e;
    let widest = kda.max(mla).max(rest).max(experts);

    // Bounded by constants, whatever the number of positions.
    let queries = mla::MAX_QUERIES.min(positions * c.heads);
    let scores = mla::MAX_SCORES.min(queries * context).max(context);
    let attention = scores + queries * (c.cache_width() + c.kv_lora);
    // The kernels' f64 copy of the widest input.
    let inputs = e.max(p).max(c.dense_width).max(c.shared_width()).max(c.v_width());
    let kernels = 2 * KERNEL_POSITIONS.min(positions) * inputs;
    // Vectors of a layer, widened.
    let vectors = 8 * e + (3 * c.conv_kernel + 2) * p + 4 * l + c.experts + SMALL;
    let head = logits * (2 * c.vocab + 2 * e);
    // What becomes of the KDA matrices: inputs of the positions or a copy for every sequence, in
    // all layers; and a head's matrix for each of a few threads.
    let d = c.kda_head_dim;
    let inputs = c.kda_heads * positions * recurrence_inputs(d);
    let next = inputs.min(logits.max(1) * c.kda_heads * d * d);
    let kda_layers = c.full_attention.iter().filter(|&&full| !full).count();
    let next = kda_layers * next + MAX_THREADS * d * d;
    4 * (positions * (stream + widest) + attention + kernels + vectors + head + next)
}

/// Threads whose scratch is planned for.
const MAX_THREADS: usize = 64;

/// Positions the kernels widen at once.
const KERNEL_POSITIONS: usize = 64;

/// Room for lists of tasks and ids, and for rows of weights that kernels widen.
const SMALL: usize = 1 << 15;
