//! Whole positions: the phases from `EMBEDDING` to `SAMPLING` (`planner::phase`) without a stop,
//! each matrix in one go. The forward pass in straight order; `inference.rs` is the same in pieces
//! that can stop anywhere.
//!
//! Writes every buffer that the phases write, in their order, so that what is left in the state is
//! what turns leave.

use super::Model;
use super::attention::Heads;
use super::team::{Task, Team};
use crate::arith::words::{I32, I64};
use crate::arith::{Backend, Overflow, Rows, plain};
use crate::planner::{ALLOWANCE, Chunk, Planner, phase};
use crate::state::{Buffers, Header};
use crate::{Error, sampler};
use std::vec::Vec;

/// Multiplications of a job below which sharing it out costs more than it saves. In debug builds
/// everything is shared, so that tests of small models try it.
const WORTH_SHARING: usize = if cfg!(debug_assertions) { 1 } else { 40_000 };

/// A whole operation, as the planner would name it.
const WHOLE: Chunk = Chunk { units: 1, done: true, matrix: None };

/// A run between two positions.
pub(super) struct Pass<'p, 's> {
    model: &'p Model<'s>,
    backend: Backend,
    /// Positions of the cache.
    positions: usize,
    pub header: Header,
    /// The state's buffers, but for keys and values, which the team has.
    pub buffers: Buffers<'s>,
    team: &'p Team<'s>,
    /// This position's key and value before they are known to fit the cache.
    key: Vec<I64>,
    value: Vec<I64>,
    /// Scores of heads whose scores need not stay.
    scores: Vec<I64>,
}

impl<'p, 's> Pass<'p, 's> {
    pub fn new(
        model: &'p Model<'s>,
        backend: Backend,
        positions: usize,
        header: Header,
        buffers: Buffers<'s>,
        team: &'p Team<'s>,
    ) -> Pass<'p, 's> {
        let word = std::vec![I64::default(); model.artifact.metadata.config.kv_dim()];
        let (key, value) = (word.clone(), word);
        let scores = std::vec![I64::default(); positions];
        Pass { model, backend, positions, header, buffers, team, key, value, scores }
    }

    /// Does the position at whose start the cursor stands; the token if it generates one.
    pub fn position(&mut self) -> Result<Option<u32>, Error> {
        let token = self.header.token as usize;
        plain::embed(self.model.embedding.range(token..token + 1), self.buffers.x);
        for layer in 0..self.model.layers.len() {
            self.attention(layer)?;
            self.feed_forward(layer);
        }
        let m = &self.model.artifact.metadata;
        let planner = Planner::new(m.config, self.header.request(), ALLOWANCE);
        let position = self.header.cursor.position;
        self.header.cursor.layer = m.config.layers() as u32 - 1;
        self.header.cursor.phase = phase::RESIDUAL;
        planner.advance(&mut self.header.cursor, &WHOLE);
        if self.header.cursor.phase == phase::EMBEDDING {
            let next = self.header.cursor.position as usize;
            self.header.token = u32::from_le_bytes(self.buffers.prompt_tokens[next]);
            return Ok(None);
        }

        let b = &mut self.buffers;
        self.backend.rms_norm_in_place(b.x, m.norm(2 * m.config.layers()));
        multiply(self.team, self.backend, b.x, [(self.model.classifier, &mut *b.logits)]);
        self.header.cursor.phase = phase::SAMPLING;
        let whole = Chunk { units: m.config.vocab() as u32, ..WHOLE };
        loop {
            let token = sampler::run(m, &mut self.header, &self.buffers, &whole);
            planner.advance(&mut self.header.cursor, &whole);
            if let Some(token) = token {
                sampler::emit(m, &mut self.header, &mut self.buffers, token, position)?;
                return Ok(Some(token));
            }
        }
    }

    /// From `ATTENTION_NORM` to `FEED_FORWARD_NORM`.
    fn attention(&mut self, layer: usize) -> Result<(), Error> {
        let (m, b) = (&self.model.artifact.metadata, &mut self.buffers);
        let (config, rows) = (&m.config, &self.model.layers[layer]);
        let position = self.header.cursor.position as usize;
        let cache = layer * self.positions * config.kv_dim();
        let at = cache + position * config.kv_dim();

        self.backend.rms_norm(b.x, m.norm(2 * layer), b.n);
        let outputs = [
            (rows.query, &mut *b.q),
            (rows.key, &mut self.key[..]),
            (rows.value, &mut self.value[..]),
        ];
        multiply(self.team, self.backend, b.n, outputs);
        let heads = Heads {
            count: config.heads(),
            group: config.heads() / config.kv_heads(),
            size: config.head_size(),
            stride: config.kv_dim(),
            cache,
            positions: position + 1,
            inv_sqrt: m.inv_sqrt(),
            table: m.exponential(),
        };
        let angles = m.rotary(position);
        plain::rotate(b.q, angles);
        let mut work = self.team.work();
        let at = at..at + config.kv_dim();
        store(&self.key, &mut work.keys[at.clone()])
            .and_then(|()| store(&self.value, &mut work.values[at.clone()]))
            .and_then(|()| plain::rotate_cache(&mut work.keys[at], angles))
            .map_err(|Overflow| Error::Arithmetic)?;
        work.q.copy_from_slice(b.q);
        work.task = Task::Heads(heads);
        drop(work);
        self.heads(heads);

        let b = &mut self.buffers;
        multiply(self.team, self.backend, b.n, [(rows.attention_output, &mut *b.o)]);
        plain::add(b.x, b.o);
        self.backend.rms_norm(b.x, m.norm(2 * layer + 1), b.n);
        Ok(())
    }

    /// `ATTENTION`: all heads into `n`; scores, largest score and total are left as the last head
    /// has them.
    fn heads(&mut self, heads: Heads<'s>) {
        let b = &mut self.buffers;
        let elements =
            |range: std::ops::Range<usize>| range.start * heads.size..range.end * heads.size;
        // A score takes about as long as four more multiplications, and these are slower than those
        // of matrix rows.
        let worth = heads.count * heads.positions * (heads.size + 4) * 4 >= WORTH_SHARING;
        let mut job = self.team.start(worth);
        let mut last = None;
        while let Some(share) = job.next() {
            let range = share.heads(heads.count);
            // The first share is the one with the last head; what it leaves has to stay.
            let scores = if last.is_none() { &mut *b.scores } else { &mut self.scores };
            let out = &mut b.n[elements(range.clone())];
            let left = heads.attend(self.backend, &self.team.read(), range, scores, out);
            last = last.or(Some(left));
        }
        if let Some(last) = last {
            (self.header.largest, self.header.total) = last;
        }
        job.finish(|share, result| {
            let out = &mut b.n[elements(share.heads(heads.count))];
            let len = out.len();
            out.copy_from_slice(&result[..len]);
        });
    }

    /// From `GATE` to `RESIDUAL`.
    fn feed_forward(&mut self, layer: usize) {
        let (rows, b) = (&self.model.layers[layer], &mut self.buffers);
        let outputs = [(rows.gate, &mut *b.gate), (rows.up, &mut *b.up)];
        multiply(self.team, self.backend, b.n, outputs);
        plain::silu_times(self.model.artifact.metadata.silu(), b.gate, b.up);
        multiply(self.team, self.backend, b.gate, [(rows.down, &mut *b.o)]);
        plain::add(b.x, b.o);
    }
}

/// Each matrix times `x` into its output, by the whole team.
fn multiply<'s, const N: usize>(
    team: &Team<'s>,
    backend: Backend,
    x: &[I64],
    mut outputs: [(Rows<'s>, &mut [I64]); N],
) {
    let mut work = team.work();
    work.input.prepare(backend, x);
    let mut matrices = [None; 3];
    for (matrix, (rows, _)) in matrices.iter_mut().zip(&outputs) {
        *matrix = Some(*rows);
    }
    work.task = Task::Rows(matrices);
    drop(work);
    let weights: usize = outputs.iter().map(|(rows, _)| rows.weights.len()).sum();
    let mut job = team.start(weights >= WORTH_SHARING);
    while let Some(share) = job.next() {
        let work = team.read();
        for (rows, out) in &mut outputs {
            let range = share.rows(*rows);
            work.input.rows(rows.range(range.clone()), &mut out[range]);
        }
    }
    job.finish(|share, result| {
        let mut from = 0;
        for (rows, out) in &mut outputs {
            let range = share.rows(*rows);
            let to = from + range.len();
            out[range].copy_from_slice(&result[from..to]);
            from = to;
        }
    });
}

/// A key or value into its place of the cache.
fn store(values: &[I64], cache: &mut [I32]) -> Result<(), Overflow> {
    for (value, word) in values.iter().zip(cache) {
        word.set(i32::try_from(value.get()).map_err(|_| Overflow)?);
    }
    Ok(())
}
