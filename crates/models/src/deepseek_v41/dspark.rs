//! DSpark: a few small layers that draft the next tokens from the backbone's hidden states, and
//! decoding with them. Drafts are verified by the backbone in one step of many positions, so
//! they never change the output, only how many tokens a step gives.
//!
//! A draft of a sequence whose last processed position is `p` and whose next token is `token`:
//! the block `[token, noise, noise, ...]` at positions `p+1..` goes through the stages. Each
//! stage attends to a window of rows made from the backbone's hidden states (up to `p`) and to
//! the whole block, without a causal mask inside it. Then tokens are picked one after the other:
//! the logits of place `i` plus a low-rank function of the token before it.

use super::attention::Projections;
use super::cache::{Packing, Rows};
use super::cx::{Cx, Probe, Rotations, Span};
use super::layer::{self, Moe, Stream};
use super::model::DeepSeekV41;
use super::state::{State, fill_ring};
use super::weights::{self, LayerView};
use crate::machine::phases::{Phase, Phases};
use crate::machine::plain::{check, distinct, embed, head_rows};
use crate::machine::{self, Choice, Chunk, Logits, Model, Part, Round, StepError};
use numerics::{Kernels, argmax};
use std::ops::Range;

/// A draft under way; a [`machine::Step`] whose layers are the draft stages: those
/// after the backbone's.
pub struct Draft<'a> {
    model: &'a DeepSeekV41,
    phase: Phase,
    state: &'a mut State,
    block_tokens: Vec<u32>,
    ids: Vec<u64>,
    span: [Span; 1],
    /// Rotations of the block.
    block: Rotations,
    /// Positions whose hidden states are not in the rings yet, and their rotations.
    waiting: std::ops::Range<usize>,
    rotations: Rotations,
    /// The hidden states as the stages read them, `[waiting, dim]`.
    main: Vec<f32>,
    /// Each stage's rows of the waiting positions.
    rows: Vec<Rows>,
    stream: Stream,
    moe: Option<Moe>,
    /// Norm of the last stage, kept for the head.
    norm: Vec<f32>,
    /// The collapsed stream after the last stage, `[block, dim]`.
    hidden: Vec<f32>,
    normed: Vec<f32>,
    logits: Vec<f32>,
    drafted: Vec<u32>,
    confidence: Vec<f32>,
    probe: Option<&'a mut (dyn Probe + Send + 'a)>,
}

impl std::fmt::Debug for Draft<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Draft({:?})", self.phase)
    }
}

impl DeepSeekV41 {
    /// Begins a draft of the tokens after `token`, which follows what `state` has seen but has
    /// not been processed. Only the state's draft rings change, when the draft has ended.
    ///
    /// # Errors
    /// If the model was bound without drafts, the state is empty or another model's, or the
    /// token is unknown.
    pub fn draft<'a>(&'a self, state: &'a mut State, token: u32) -> Result<Draft<'a>, StepError> {
        let c = &self.config;
        if token as usize >= c.vocab {
            return Err(StepError::Token { id: token, vocab: c.vocab });
        }
        if !self.options.drafts || state.draft.is_none() {
            let (expected, got) = ("one with draft stages".into(), "one without".into());
            return Err(StepError::State { expected, got });
        }
        let Some(draft) = state.draft.as_ref().filter(|_| state.identity == self.identity) else {
            let (expected, got) = (self.identity.clone(), state.identity.clone());
            return Err(StepError::State { expected, got });
        };
        let count = draft.hidden.len() / c.main_hidden();
        if count == 0 {
            return Err(StepError::Empty);
        }
        let mut tokens = vec![c.dspark.noise_id; c.dspark.block];
        tokens[0] = token;
        let ids = distinct(tokens.iter().map(|&t| u64::from(t)).collect());
        let at = state.position;
        let waiting = at - count..at;
        Ok(Draft {
            model: self,
            phase: Phase::Rows(0),
            block_tokens: tokens,
            ids,
            span: [Span { first: 0, len: c.dspark.block, position: at }],
            block: Rotations::new(&self.window_freqs, at..at + c.dspark.block),
            rotations: Rotations::new(&self.window_freqs, waiting.clone()),
            waiting,
            main: Vec::new(),
            rows: vec![Rows::new(Packing::Fp8, c.head_dim); c.dspark.stages],
            stream: Stream::default(),
            moe: None,
            norm: Vec::new(),
            hidden: Vec::new(),
            normed: Vec::new(),
            logits: Vec::new(),
            drafted: Vec::new(),
            confidence: Vec::new(),
            probe: None,
            state,
        })
    }
}

impl<'a> Draft<'a> {
    /// Lets `probe` see intermediates; stages are layers `num_hidden_layers..`.
    pub fn with_probe(mut self, probe: &'a mut (dyn Probe + Send + 'a)) -> Self {
        self.probe = Some(probe);
        self
    }

    /// The drafted tokens, best first guess at each place; empty until the draft has ended.
    pub fn drafted(&self) -> &[u32] {
        &self.drafted
    }

    /// The confidence logit of each drafted token.
    pub fn confidence(&self) -> &[f32] {
        &self.confidence
    }

    /// Picks the tokens one after the other, then lets the rings have the waiting rows.
    fn pick(&mut self, kernels: &Kernels, w: &LayerView<'_>) -> Result<(), StepError> {
        let c = &self.model.config;
        let (embed, head) =
            (w.matrix("markov_head.embed.weight"), w.matrix("markov_head.head.weight"));
        let confidence = w.vector("confidence_head.proj.weight");
        let mut previous = self.block_tokens[0];
        let mut low = vec![0.0; c.dspark.markov_rank];
        let mut bias = vec![0.0; c.vocab];
        for (i, logits) in self.logits.chunks_exact_mut(c.vocab).enumerate() {
            embed.widen_row(previous as usize, &mut low).expect("bf16 rows widen exactly");
            kernels.matmul(&head, &low, 1, &mut bias);
            logits.iter_mut().zip(&bias).for_each(|(l, b)| *l += b);
            let position = self.span[0].position + i;
            let logit = |token| StepError::Logit { token, position };
            if let Some(token) = logits.iter().position(|l| !l.is_finite()) {
                return Err(logit(token));
            }
            previous = argmax(logits).ok().flatten().ok_or_else(|| logit(0))?;
            self.drafted.push(previous);
            let input = [&self.hidden[i * c.dim..(i + 1) * c.dim], &low].concat();
            self.confidence.push(numerics::dot(&input, &confidence));
        }
        if let Some(draft) = &mut self.state.draft {
            for (ring, rows) in draft.rings.iter_mut().zip(&self.rows) {
                for (i, position) in self.waiting.clone().enumerate() {
                    fill_ring(ring, rows, i, position, c.window);
                }
            }
            draft.hidden.clear();
        }
        self.phase = Phase::Done;
        Ok(())
    }
}

impl Phases for Draft<'_> {
    const RETURNS: bool = true;

    fn phase(&self) -> Phase {
        self.phase
    }

    fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }

    fn layers(&self) -> Range<usize> {
        let c = &self.model.config;
        c.layers..c.layers + c.dspark.stages
    }

    fn wants_head(&self) -> bool {
        !matches!(self.phase, Phase::Layer(_, Part::Join))
    }

    fn ids(&self, _: usize) -> &[u64] {
        &self.ids
    }

    fn missing(&self) -> &[u32] {
        self.moe.as_ref().map_or(&[], |m| &m.missing)
    }

    /// Logits of each place of the block, `[block, vocab]`, with the token before it counted in.
    fn computed(&self) -> &[f32] {
        &self.logits
    }

    fn rows(&mut self, _: usize, rows: &[&[u8]]) -> Result<(), StepError> {
        let c = &self.model.config;
        let table = &self.model.layout.tables[0].tensors[0];
        let embedded = embed(table, &self.ids, &self.block_tokens, rows)?;
        self.stream = Stream::new(&embedded, c.hc_mult, c.dim);
        self.phase = Phase::Layer(c.layers, Part::Mix);
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
        let c = &model.config;
        let stage = l - c.layers;
        let w = LayerView::new(&model.prefixes[l], &model.layout.layers[l].tensors, tensors)?;
        if part == Part::Join {
            return self.pick(kernels, &w);
        }
        let mut cx = Cx {
            config: c,
            kernels,
            regime: model.options.regime,
            spans: &self.span,
            layer: l,
            probe: self.probe.as_deref_mut().map(|p| p as _),
        };
        if part == Part::Rest {
            layer::rest(&mut cx, &w, self.moe.as_mut().expect("the router has spoken"))?;
            if stage + 1 == c.dspark.stages {
                self.norm = w.vector("norm.weight");
            }
            self.phase = Phase::Experts(l);
            return Ok(());
        }
        let p = Projections::bind(&w)?;
        if stage == 0 {
            let hidden = &self.state.draft.as_ref().expect("checked at the start").hidden;
            let x = w.linear("main_proj")?.apply(kernels, cx.regime, hidden, self.waiting.len());
            let x = x.map_err(|_| cx.non_finite("a hidden state of the draft", 0))?;
            self.main = cx.rms(&x, &w.vector("main_norm.weight"));
        }
        let kv = p.key_values(&cx, &self.main, self.waiting.len(), &self.rotations)?;
        push(&cx, &kv, &mut self.rows[stage])?;
        let mut window = Vec::new();
        let ring = &self.state.draft.as_ref().expect("checked at the start").rings[stage];
        let first = self.state.position.saturating_sub(c.window);
        (first..self.waiting.start).for_each(|p| ring.unpack(p % c.window, &mut window));
        (0..self.waiting.len()).for_each(|i| self.rows[stage].unpack(i, &mut window));
        let block = &self.block;
        let attention = |cx: &mut Cx<'_>, x: &[f32]| block_attention(cx, &p, x, block, window);
        let experts = (c.dspark.experts, c.dspark.active);
        self.moe = Some(layer::mix(&mut cx, &w, &mut self.stream, experts, attention)?);
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
        let c = &model.config;
        let mut cx = Cx {
            config: c,
            kernels,
            regime: model.options.regime,
            spans: &self.span,
            layer: l,
            probe: self.probe.as_deref_mut().map(|p| p as _),
        };
        let moe = self.moe.as_mut().expect("the router has spoken");
        let w = weights::expert(&model.layout.layers[l], id, tensors)?;
        layer::expert(&mut cx, id, &w, moe)?;
        if !moe.missing.is_empty() {
            return Ok(());
        }
        layer::end(&mut cx, &mut self.stream, moe);
        self.moe = None;
        self.phase = Phase::Layer(l + 1, Part::Mix);
        if l + 1 == c.layers + c.dspark.stages {
            self.hidden = self.stream.collapse(c.hc_mult, c.dim);
            self.normed = cx.rms(&self.hidden, &self.norm);
            cx.check_finite("the draft head's input", &self.normed)?;
            self.logits = vec![0.0; c.dspark.block * c.vocab];
            self.phase = Phase::Head(0);
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
        let n = head_rows(kernels, &head.matrix, rows, done, &self.normed, &mut self.logits)?;
        self.phase = match done + n {
            all if all == self.model.config.vocab => {
                Phase::Layer(self.layers().end - 1, Part::Join)
            }
            some => Phase::Head(some),
        };
        Ok(())
    }
}

/// Rounds and packs rows.
fn push(cx: &Cx<'_>, rows: &[f32], out: &mut Rows) -> Result<(), StepError> {
    let mut rows = rows.chunks_exact(cx.config.head_dim);
    rows.try_for_each(|row| out.push(row)).map_err(|_| cx.non_finite("a key-value row", 0))
}

/// Attention of a stage: every place of the block sees the window and the whole block.
fn block_attention(
    cx: &mut Cx<'_>,
    p: &Projections<'_>,
    x: &[f32],
    block: &Rotations,
    mut rows: Vec<f32>,
) -> Result<Vec<f32>, StepError> {
    let (c, t) = (cx.config, cx.positions());
    let qr = p.low_query(cx, x, t)?;
    let q = p.queries(cx, &qr, t, block)?;
    let mut own = Rows::new(Packing::Fp8, c.head_dim);
    push(cx, &p.key_values(cx, x, t, block)?, &mut own)?;
    (0..t).for_each(|i| own.unpack(i, &mut rows));
    let mut o = vec![0.0; q.len()];
    let width = c.heads * c.head_dim;
    for (q, o) in q.chunks_exact(width).zip(o.chunks_exact_mut(width)) {
        p.attend(cx.kernels, q, &rows, c, o);
    }
    p.output(cx, o, t, block)
}

/// [`Model::round`] with drafts: verifies all of them in one backbone step, and keeps the positions
/// up to the first draft that is not the token `choose` picks from the backbone's own logits.
///
/// On an error the state is as before the round, except that the draft rings may be further.
pub(super) fn round<E: From<StepError>>(
    model: &DeepSeekV41,
    state: &mut State,
    token: u32,
    most: usize,
    mut run: impl FnMut(&mut dyn machine::Step) -> Result<(), E>,
    mut choose: impl FnMut(&[f32]) -> Result<Choice, E>,
) -> Result<Round, E> {
    // A verified draft takes a position after the token's own.
    let room = state.context().saturating_sub(state.position() + 1);
    let mut tokens = vec![token];
    if most.min(room) > 0 && state.can_draft() {
        let mut draft = model.draft(state, token)?;
        run(&mut draft)?;
        tokens.extend(draft.drafted().iter().take(most.min(room)));
    }
    let drafted = tokens.len() - 1;
    let chunk = Chunk { state, tokens: &tokens, logits: Logits::All };
    let mut step = model.step(vec![chunk])?.hold();
    run(&mut step)?;
    let mut chosen = Vec::new();
    for (i, logits) in machine::Step::logits(&step).chunks_exact(model.vocab()).enumerate() {
        let choice = choose(logits)?;
        chosen.push(choice.token);
        if choice.last || tokens.get(i + 1) != Some(&choice.token) {
            break;
        }
    }
    step.commit(&[chosen.len()])?;
    Ok(Round { tokens: chosen, drafted })
}

impl State {
    /// Whether tokens can be drafted from here: the model was bound with drafts and the backbone
    /// has seen a position since the last draft.
    pub fn can_draft(&self) -> bool {
        self.draft.as_ref().is_some_and(|d| !d.hidden.is_empty())
    }
}
