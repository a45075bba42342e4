//! Many prompts in lockstep: one step carries a chunk of some prompts and a token of others, so
//! that a layer read from disk serves all of them. Every result is that of the prompt run alone.

use std::collections::VecDeque;

use models::machine::Logits;

use super::generate::FinishReason;
use super::loaded::{Engine, SequenceId, Work};
use super::sampling::{Sampler, Sampling};
use crate::Error;

/// One prompt.
#[derive(Clone, Debug)]
pub struct Item {
    /// Ids, at least one.
    pub prompt: Vec<u32>,
    /// At most this many new tokens, at least one.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

impl Item {
    /// Positions of the prompt and its continuation.
    pub fn context(&self) -> usize {
        self.prompt.len().saturating_add(self.max_tokens)
    }
}

/// What became of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which item.
    pub item: usize,
    /// The new tokens.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub reason: FinishReason,
}

/// What a listener hears after every step.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Items that ended with this step.
    pub finished: &'a [Finished],
    /// Tokens chosen in this step.
    pub tokens: usize,
    /// Prompt positions processed in this step.
    pub prefilled: usize,
}

/// How many go together.
#[derive(Clone, Copy, Debug)]
pub struct Width {
    /// Sequences at a time.
    pub sequences: usize,
    /// Positions of a step, of all sequences.
    pub positions: usize,
}

/// One sequence under way.
struct Running {
    item: usize,
    sequence: SequenceId,
    sampler: Sampler,
    /// Positions of the prompt that have been processed.
    done: usize,
    ids: Vec<u32>,
}

/// Runs `todo` (indices into `items`) until all have ended or the listener, which hears of every
/// step, says no. Ids in `end` end an item.
///
/// # Errors
/// The first failed step or whatever the listener returns. Items that had ended were heard of.
pub fn batch(
    engine: &mut dyn Engine,
    items: &[Item],
    todo: &[usize],
    end: &[u32],
    width: Width,
    listener: &mut dyn FnMut(Progress<'_>) -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut waiting: VecDeque<usize> = todo.iter().copied().collect();
    let mut running: Vec<Running> = Vec::new();
    let mut next = || {
        fill(engine, items, &mut waiting, &mut running, width.sequences)?;
        if running.is_empty() {
            return Ok(false);
        }
        let (prefilled, tokens) = step(engine, items, &mut running, width.positions)?;
        let finished = finished(&mut running, items, end, engine);
        listener(Progress { finished: &finished, tokens, prefilled })
    };
    let result = loop {
        match next() {
            Ok(true) => (),
            Ok(false) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    running.iter().for_each(|r| engine.close(r.sequence));
    result
}

/// Begins sequences for those who wait, as far as there is room.
fn fill(
    engine: &mut dyn Engine,
    items: &[Item],
    waiting: &mut VecDeque<usize>,
    running: &mut Vec<Running>,
    sequences: usize,
) -> Result<(), Error> {
    while running.len() < sequences.max(1) {
        let Some(item) = waiting.pop_front() else { break };
        let sampler = Sampler::new(items[item].sampling, 0)?;
        let sequence = engine.open(items[item].context())?;
        running.push(Running { item, sequence, sampler, done: 0, ids: Vec::new() });
    }
    Ok(())
}

/// One step of all that fit: first everyone who waits for one token, then prompts in order.
/// Returns the prompt positions processed and the tokens chosen.
fn step(
    engine: &mut dyn Engine,
    items: &[Item],
    running: &mut [Running],
    positions: usize,
) -> Result<(usize, usize), Error> {
    let decoding = running.iter().filter(|r| !r.ids.is_empty()).count();
    // A prompt goes on even if the tokens of others fill the step.
    let mut room = positions.saturating_sub(decoding).max(1);
    let mut work = Vec::with_capacity(running.len());
    let mut shares = Vec::with_capacity(running.len());
    for r in running.iter() {
        let prompt = &items[r.item].prompt[r.done..];
        let share = prompt.len().min(room);
        room -= share;
        let (tokens, logits) = match r.ids.last() {
            Some(last) => (std::slice::from_ref(last), Logits::Last),
            None if share == prompt.len() => (prompt, Logits::Last),
            None => (&prompt[..share], Logits::None),
        };
        shares.push((share, !tokens.is_empty() && logits == Logits::Last));
        if !tokens.is_empty() {
            work.push(Work { sequence: r.sequence, tokens, logits });
        }
    }
    let vocab = engine.vocab();
    let mut rows = engine.step(&work)?.chunks_exact(vocab);
    let (mut prefilled, mut tokens) = (0, 0);
    for (r, (share, chooses)) in running.iter_mut().zip(shares) {
        r.done += share;
        prefilled += share;
        if chooses {
            let logits = rows.next().expect("a row for each position with logits");
            r.ids.push(r.sampler.choose(logits)?);
            tokens += 1;
        }
    }
    Ok((prefilled, tokens))
}

/// Takes out and closes what has ended.
fn finished(
    running: &mut Vec<Running>,
    items: &[Item],
    end: &[u32],
    engine: &mut dyn Engine,
) -> Vec<Finished> {
    let ended = |r: &Running| match r.ids.last() {
        Some(last) if end.contains(last) => Some(FinishReason::Stop),
        Some(_) if r.ids.len() >= items[r.item].max_tokens => Some(FinishReason::Length),
        _ => None,
    };
    let mut out = Vec::new();
    running.retain_mut(|r| match ended(r) {
        None => true,
        Some(reason) => {
            engine.close(r.sequence);
            out.push(Finished { item: r.item, ids: std::mem::take(&mut r.ids), reason });
            false
        }
    });
    out
}
