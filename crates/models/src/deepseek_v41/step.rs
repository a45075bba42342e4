//! A step as a machine: which weights come next, and what is computed when they come. The
//! arithmetic is in `layer.rs`.

use super::attention::{Sequence, Shared};
use super::config::Config;
use super::cx::{Cx, Probe, Rotations, Span};
use super::engram;
use super::layer::{self, Moe, Stream};
use super::model::DeepSeekV41;
use super::state::{Pending, State};
use super::weights::{self, LayerView};
use crate::machine::phases::{Phase, Phases};
use crate::machine::plain::{check, check_rows, distinct, embed, head_rows, vector};
use crate::machine::{Chunk, Logits, Part, StepError};
use numerics::Kernels;
use std::ops::Range;

/// A step under way.
pub struct Step<'a> {
    model: &'a DeepSeekV41,
    phase: Phase,
    states: Vec<&'a mut State>,
    pending: Vec<Pending>,
    spans: Vec<Span>,
    tokens: Vec<u32>,
    /// For each table of the layout, the distinct rows wanted, ascending.
    ids: Vec<Vec<u64>>,
    /// For each engram layer, the rows of every position, `[T, lookups]`.
    lookups: Vec<Vec<u64>>,
    /// For each engram layer, their values, until the layer has used them.
    engram: Vec<Vec<f32>>,
    /// Rotations of the window-only and of the compressed layers.
    rotations: [Rotations; 2],
    stream: Stream,
    shared: Shared,
    /// Present from the router's choice to the layer's end.
    moe: Option<Moe>,
    /// Rows of the step that need logits, ascending.
    wanted: Vec<usize>,
    /// Input of the head for those, `[wanted, dim]`.
    normed: Vec<f32>,
    /// `[wanted, vocab]`
    logits: Vec<f32>,
    /// Whether the caller commits.
    held: bool,
    probe: Option<&'a mut (dyn Probe + Send + 'a)>,
}

impl std::fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Step({} positions, {:?})", self.tokens.len(), self.phase)
    }
}

impl<'a> Step<'a> {
    pub(super) fn new(
        model: &'a DeepSeekV41,
        chunks: Vec<Chunk<'a, State>>,
    ) -> Result<Self, StepError> {
        if chunks.is_empty() {
            return Err(StepError::Empty);
        }
        let engrams = model.hashes.len();
        let mut step = Step {
            model,
            phase: Phase::Rows(0),
            states: Vec::new(),
            pending: Vec::new(),
            spans: Vec::new(),
            tokens: Vec::new(),
            ids: Vec::new(),
            lookups: vec![Vec::new(); engrams],
            engram: vec![Vec::new(); engrams],
            rotations: Default::default(),
            stream: Stream::default(),
            shared: Shared::default(),
            moe: None,
            wanted: Vec::new(),
            normed: Vec::new(),
            logits: Vec::new(),
            held: false,
            probe: None,
        };
        for chunk in chunks {
            step.add(chunk)?;
        }
        let tokens = step.tokens.iter().map(|&t| u64::from(t)).collect();
        step.ids =
            std::iter::once(tokens).chain(step.lookups.iter().cloned()).map(distinct).collect();
        let positions = || step.spans.iter().flat_map(|s| s.position..s.position + s.len);
        step.rotations = [
            Rotations::new(&model.window_freqs, positions()),
            Rotations::new(&model.compress_freqs, positions()),
        ];
        Ok(step)
    }

    /// Checks one sequence's share and appends its positions.
    fn add(&mut self, chunk: Chunk<'a, State>) -> Result<(), StepError> {
        let Chunk { state, tokens, logits } = chunk;
        let model = self.model;
        let vocab = model.config.vocab;
        if tokens.is_empty() {
            return Err(StepError::Empty);
        }
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(StepError::Token { id, vocab });
        }
        if state.identity != model.identity || state.draft.is_some() != model.options.drafts {
            let (expected, got) = (model.identity.clone(), state.identity.clone());
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
        let ids: Vec<u32> = tokens.iter().map(|&t| model.token_map[t as usize]).collect();
        for (lookups, hash) in self.lookups.iter_mut().zip(&model.hashes) {
            for i in 0..len {
                let recent = ids[..=i].iter().rev().chain(&state.recent).copied();
                let recent: Vec<u32> = recent.take(model.config.engram.max_ngram).collect();
                lookups.extend(engram::hash_rows(&recent, model.pad(), hash));
            }
        }
        self.pending.push(Pending::new(&model.config, ids));
        self.spans.push(Span { first, len, position: state.position });
        self.tokens.extend_from_slice(tokens);
        self.states.push(state);
        Ok(())
    }

    /// Lets `probe` see (and replace) intermediates.
    pub fn with_probe(mut self, probe: &'a mut (dyn Probe + Send + 'a)) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Keeps the states unchanged at the step's end until [`Step::commit`] says how many
    /// positions of each sequence count.
    pub fn hold(mut self) -> Self {
        self.held = true;
        self
    }

    /// Makes the first `counts[i]` positions of each sequence part of its state, as if only
    /// their tokens had been in the step.
    ///
    /// # Errors
    /// If the step has not ended or was not held, or a count is more than the chunk's length.
    pub fn commit(mut self, counts: &[usize]) -> Result<(), StepError> {
        let fits = counts.len() == self.spans.len()
            && counts.iter().zip(&self.spans).all(|(count, span)| *count <= span.len);
        if self.phase != Phase::Done || !self.held || !fits {
            return Err(StepError::Unexpected {
                wanted: "the end of a held step, a count for each sequence".into(),
                fed: format!("a commit of {counts:?} positions"),
            });
        }
        self.write(counts);
        Ok(())
    }

    fn write(&mut self, counts: &[usize]) {
        for ((state, pending), &count) in self.states.iter_mut().zip(&self.pending).zip(counts) {
            state.commit(&self.model.config, pending, count);
        }
    }

    fn check_logits(&self) -> Result<(), StepError> {
        let Some(i) = self.logits.iter().position(|l| !l.is_finite()) else { return Ok(()) };
        let vocab = self.model.config.vocab;
        let row = self.wanted[i / vocab];
        let span = self.spans.iter().rfind(|s| s.first <= row);
        let position = span.map_or(row, |s| s.position + row - s.first);
        Err(StepError::Logit { token: i % vocab, position })
    }

    /// Everything is computed: only now do the states change.
    fn end(&mut self) -> Phase {
        if !self.held {
            let counts: Vec<usize> = self.spans.iter().map(|s| s.len).collect();
            self.write(&counts);
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

    fn ids(&self, table: usize) -> &[u64] {
        &self.ids[table]
    }

    fn missing(&self) -> &[u32] {
        self.moe.as_ref().map_or(&[], |m| &m.missing)
    }

    fn computed(&self) -> &[f32] {
        &self.logits
    }

    fn rows(&mut self, table: usize, rows: &[&[u8]]) -> Result<(), StepError> {
        let specs = &self.model.layout.tables[table].tensors;
        let ids = &self.ids[table];
        let at = |id: u64| ids.binary_search(&id).expect("ids are those of the positions");
        let c = &self.model.config;
        match table.checked_sub(1) {
            None => {
                let embedded = embed(&specs[0], ids, &self.tokens, rows)?;
                self.stream = Stream::new(&embedded, c.hc_mult, c.dim);
            }
            Some(layer) => {
                check_rows(specs, ids, rows)?;
                let mut values = Vec::with_capacity(self.lookups[layer].len() * c.engram.head_dim);
                for &id in &self.lookups[layer] {
                    let (codes, scales) = (rows[2 * at(id)], rows[2 * at(id) + 1]);
                    weights::engram_row(codes, scales, &specs[1].name, &mut values)?;
                }
                self.engram[layer] = values;
            }
        }
        self.phase = match table + 1 {
            next if next < self.ids.len() => Phase::Rows(next),
            _ => Phase::Layer(0, Part::Mix),
        };
        Ok(())
    }

    /// Splits the step into what a layer sees and what it changes.
    fn layer(
        &mut self,
        kernels: &Kernels,
        l: usize,
        part: Part,
        tensors: &[&[u8]],
    ) -> Result<(), StepError> {
        let model = self.model;
        let w = LayerView::new(&model.prefixes[l], &model.layout.layers[l].tensors, tensors)?;
        let mut cx = Cx {
            config: &model.config,
            kernels,
            regime: model.options.regime,
            spans: &self.spans,
            layer: l,
            probe: self.probe.as_deref_mut().map(|p| p as _),
        };
        if part == Part::Rest {
            layer::rest(&mut cx, &w, self.moe.as_mut().expect("the router has spoken"))?;
            self.phase = Phase::Experts(l);
            return Ok(());
        }
        let mut sequences: Vec<Sequence<'_>> = self
            .states
            .iter()
            .zip(&mut self.pending)
            .map(|(state, pending)| Sequence { state, pending })
            .collect();
        let rows = model.config.engram_at(l).map(|i| std::mem::take(&mut self.engram[i]));
        let rope = match model.config.ratios[l] {
            0 => (model.window_freqs.as_slice(), &self.rotations[0]),
            _ => (model.compress_freqs.as_slice(), &self.rotations[1]),
        };
        let moe = layer::backbone_mix(
            &mut cx,
            &w,
            &mut self.stream,
            &rows.unwrap_or_default(),
            rope,
            &mut sequences,
            &mut self.shared,
        )?;
        self.moe = Some(moe);
        self.phase = Phase::Layer(l, Part::Rest);
        Ok(())
    }

    fn expert(
        &mut self,
        kernels: &Kernels,
        l: usize,
        id: u32,
        tensors: &[&[u8]],
    ) -> Result<(), StepError> {
        let model = self.model;
        let mut cx = Cx {
            config: &model.config,
            kernels,
            regime: model.options.regime,
            spans: &self.spans,
            layer: l,
            probe: self.probe.as_deref_mut().map(|p| p as _),
        };
        let moe = self.moe.as_mut().expect("the router has spoken");
        let w = weights::expert(&model.layout.layers[l], id, tensors)?;
        layer::expert(&mut cx, id, &w, moe)?;
        if moe.missing.is_empty() {
            layer::end(&mut cx, &mut self.stream, moe);
            self.moe = None;
            self.phase = match l + 1 {
                next if next < model.config.layers => Phase::Layer(next, Part::Mix),
                _ if self.wanted.is_empty() => self.end(),
                _ => Phase::Head(0),
            };
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
        let (c, head) = (&self.model.config, &self.model.layout.head);
        check(|| "the head".into(), &head.tensors, tensors)?;
        if done == 0 {
            let cx = Cx {
                config: c,
                kernels,
                regime: self.model.options.regime,
                spans: &self.spans,
                layer: c.layers,
                probe: None,
            };
            let x = cx.rms(
                &self.stream.collapse(c.hc_mult, c.dim),
                &vector(&head.tensors[0], tensors[0]),
            );
            cx.check_finite("the head's input", &x)?;
            let rows = self.wanted.iter().flat_map(|&row| &x[row * c.dim..(row + 1) * c.dim]);
            self.normed = rows.copied().collect();
            self.logits = vec![0.0; self.wanted.len() * c.vocab];
        }
        let n = head_rows(kernels, &head.matrix, rows, done, &self.normed, &mut self.logits)?;
        self.phase = match done + n {
            all if all == c.vocab => {
                self.check_logits()?;
                self.end()
            }
            some => Phase::Head(some),
        };
        Ok(())
    }
}

/// Upper bound of what a step allocates: activations at their widest, for planning.
pub(super) fn bytes(c: &Config, positions: usize, context: usize, logits: usize) -> usize {
    let t = positions;
    let width = c.heads * c.head_dim;
    let mixes = (2 + c.hc_mult) * c.hc_mult;
    let stream = 2 * c.stream() + 4 * c.dim + 4 * mixes;
    let attention = 3 * width + 2 * c.q_rank + 2 * c.head_dim + 2 * c.o_groups * c.o_rank;
    let engram = c.engram.lookups() * c.engram.head_dim * (c.engram.layers.len() + 1)
        + (c.hc_mult + 1) * c.dim;
    let moe = (c.active + 3) * c.dim + c.active * 3 * c.moe_dim + 2 * c.experts;
    let index = c.index_heads * (c.index_dim + 2) + 3 * context;
    let tile = c.index_heads * context.min(1024);
    let rows =
        (2 * (c.window + t) + c.index_topk) * c.head_dim + c.heads * (c.window + c.index_topk);
    let pending = c.layers * c.head_dim + c.main_hidden() + 4 * c.head_dim;
    let head = logits * (2 * c.vocab + c.dim);
    4 * (t * (stream + attention + engram + moe + index + tile + pending) + rows + head)
}
