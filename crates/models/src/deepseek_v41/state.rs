//! What a sequence leaves behind, and what a step would add to it.
//!
//! A step never changes a state while it runs: it fills a [`Pending`] beside it, and only when
//! everything is computed is the pending part (or a prefix of its positions, when a draft was
//! accepted in part) made state.

use super::cache::{GROWTH, Packing, Rows};
use super::compressor::{Partial, Projected, SourceRows};
use super::config::Config;
use crate::machine::StepError;

/// Compressed rows of one KV source and its incomplete group.
#[derive(Clone, Debug)]
pub struct Source {
    /// Rows and index keys of complete groups.
    pub rows: SourceRows,
    /// Projections of the incomplete group's positions.
    pub partial: Partial,
}

/// What the draft stages keep of a sequence.
#[derive(Clone, Debug)]
pub struct DraftState {
    /// Ring of each stage, slot `position % window`.
    pub rings: Vec<Rows>,
    /// Hidden states of the last positions that are not in the rings yet, `[n, main_hidden]`,
    /// ending with the state's last position; at most a window of them.
    pub hidden: Vec<f32>,
}

/// The state of one sequence.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) identity: String,
    pub(super) position: usize,
    pub(super) context: usize,
    /// Compressed ids of the last positions, newest first, at most one fewer than the n-grams'
    /// length.
    pub(super) recent: Vec<u32>,
    /// Ring of each backbone layer, slot `position % window`.
    pub(super) windows: Vec<Rows>,
    /// One for each KV source.
    pub(super) sources: Vec<Source>,
    /// Present if the model was bound with its draft stages.
    pub(super) draft: Option<DraftState>,
}

/// What a step adds for one source.
#[derive(Clone, Debug)]
pub struct PendingSource {
    /// Rows of groups that became complete.
    pub rows: SourceRows,
    /// Projections of the step's positions.
    pub projected: Projected,
}

/// What a step adds to one sequence.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Compressed ids of the step's positions.
    pub ids: Vec<u32>,
    /// Window rows of each layer.
    pub windows: Vec<Rows>,
    /// One for each KV source.
    pub sources: Vec<PendingSource>,
    /// Hidden states for the draft, `[positions, main_hidden]`.
    pub hidden: Vec<f32>,
}

impl Pending {
    pub(super) fn new(c: &Config, ids: Vec<u32>) -> Pending {
        let source = PendingSource {
            rows: SourceRows::new(c.head_dim, c.index_dim),
            projected: Projected::default(),
        };
        Pending {
            ids,
            windows: vec![Rows::new(Packing::Fp8, c.head_dim); c.layers],
            sources: vec![source; c.kv_sources.len()],
            hidden: Vec::new(),
        }
    }
}

impl State {
    /// An empty sequence that may grow to `context` positions.
    pub(super) fn new(
        c: &Config,
        identity: &str,
        context: usize,
        drafts: bool,
    ) -> Result<State, StepError> {
        if context > c.max_positions {
            return Err(StepError::Context { needed: context, context: c.max_positions });
        }
        let ring = Rows::new(Packing::Fp8, c.head_dim);
        let source =
            Source { rows: SourceRows::new(c.head_dim, c.index_dim), partial: Partial::default() };
        let draft = DraftState { rings: vec![ring.clone(); c.dspark.stages], hidden: Vec::new() };
        Ok(State {
            identity: identity.to_owned(),
            position: 0,
            context,
            recent: Vec::new(),
            windows: vec![ring; c.layers],
            sources: vec![source; c.kv_sources.len()],
            draft: drafts.then_some(draft),
        })
    }

    /// Positions the sequence has.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Positions the sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes of a state grown to `context` positions.
    pub(super) fn bytes(c: &Config, context: usize, drafts: bool) -> usize {
        // Room is made for some rows at once, and for an eighth more of many (see `cache.rs`).
        let rows = |n: usize, row: usize| (n + (n / 8).max(GROWTH)) * row;
        let size = |packing: Packing, width| {
            let (codes, scales) = packing.row_bytes(width);
            codes + scales
        };
        let ring = rows(c.window.min(context), size(Packing::Fp8, c.head_dim));
        let source = size(Packing::Fp4E4m3, c.head_dim) + size(Packing::Fp4E8m0, c.index_dim);
        let sources: usize = (0..c.kv_sources.len())
            .map(|s| {
                let ratio = c.source_ratio(s);
                rows(context / ratio, source) + 2 * 4 * ratio * c.head_dim
            })
            .sum();
        let hidden = 4 * c.window.min(context) * c.main_hidden();
        let draft = if drafts { c.dspark.stages * ring + hidden } else { 0 };
        c.layers * ring + sources + draft
    }

    /// Makes the first `count` positions of `pending` part of the state.
    pub(super) fn commit(&mut self, c: &Config, pending: &Pending, count: usize) {
        for (ring, rows) in self.windows.iter_mut().zip(&pending.windows) {
            // Rows that the same commit would overwrite need not be written.
            for i in count.saturating_sub(c.window)..count {
                fill_ring(ring, rows, i, self.position + i, c.window);
            }
        }
        for (s, (source, pending)) in self.sources.iter_mut().zip(&pending.sources).enumerate() {
            let ratio = c.source_ratio(s);
            let complete = (self.position + count) / ratio - source.rows.rows.len();
            for j in 0..complete {
                let at = source.rows.rows.len();
                source.rows.rows.copy_row(&pending.rows.rows, j, at);
                source.rows.keys.copy_row(&pending.rows.keys, j, at);
            }
            let left = (self.position + count) % ratio * c.head_dim;
            // The incomplete group's positions: the last of old and new together.
            let keep = |old: &mut Vec<f32>, new: &[f32]| {
                let new = &new[..count * c.head_dim];
                let new = &new[new.len().saturating_sub(left)..];
                old.drain(..old.len() - (left - new.len()));
                old.extend_from_slice(new);
            };
            if ratio > 1 {
                keep(&mut source.partial.kv, &pending.projected.kv);
                keep(&mut source.partial.score, &pending.projected.score);
            }
        }
        let newest = pending.ids[..count].iter().rev().chain(&self.recent).copied();
        self.recent = newest.take(c.engram.max_ngram - 1).collect();
        self.position += count;
        if let Some(draft) = &mut self.draft {
            // Of old and new together, the last window of positions; the old go first, so that
            // a long step does not leave a long vector behind.
            let (width, most) = (c.main_hidden(), c.window * c.main_hidden());
            let new = &pending.hidden[count.saturating_sub(c.window) * width..count * width];
            let old = draft.hidden.len().min(most - new.len());
            draft.hidden.drain(..draft.hidden.len() - old);
            draft.hidden.reserve_exact(new.len());
            draft.hidden.extend_from_slice(new);
        }
    }
}

/// Puts row `i` of `rows`, that of `position`, into its slot. A ring that has skipped positions
/// (more came at once than it holds) is filled in order of its slots first.
pub(super) fn fill_ring(ring: &mut Rows, rows: &Rows, i: usize, position: usize, window: usize) {
    let slot = position % window;
    while ring.len() < slot {
        // Overwritten below: every slot is written when a window of rows comes at once.
        let at = ring.len();
        ring.copy_row(rows, i, at);
    }
    ring.copy_row(rows, i, slot);
}
