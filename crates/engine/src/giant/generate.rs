//! From a prompt's ids to new ids: prefill in chunks, then one token a step.

use std::time::{Duration, Instant};

use models::machine::Logits;

use super::host::Counters;
use super::loaded::{Engine, SequenceId, Work};
use super::sampling::Sampler;
use crate::Error;

/// Positions of a prefill step when nothing else limits it.
pub const DEFAULT_CHUNK: usize = 256;

/// What ended a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// One of the end ids was chosen.
    Stop,
    /// `max_tokens` were made.
    Length,
    /// The listener asked to stop.
    Cancelled,
}

impl FinishReason {
    /// OpenAI's name for it in `finish_reason`; theirs has none for a cancelled one.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// One step's cost.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Wall time.
    pub time: Duration,
    /// What was read.
    pub read: Counters,
}

/// What a listener hears.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A chunk of the prompt has been processed: positions done, of all.
    Prefilled {
        /// Positions done.
        done: usize,
        /// Positions of the prompt.
        of: usize,
        /// Cost of this chunk.
        spent: Spent,
    },
    /// Logits from which the next token is about to be chosen.
    Logits(&'a [f32]),
    /// A token was chosen.
    Token {
        /// Its id.
        id: u32,
        /// Cost of the step that led to it (for the first token, of the prefill's last chunk).
        spent: Spent,
    },
}

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Ids that follow what the sequence has seen; at least one.
    pub prompt: &'a [u32],
    /// At most this many new tokens.
    pub max_tokens: usize,
    /// Ids that end the generation (they are reported and counted, like any token).
    pub end: &'a [u32],
    /// Prefill at most so many positions a step.
    pub chunk: usize,
}

/// Generates; `listener` hears every event and returns whether to go on.
///
/// The sequence afterwards has seen the prompt and every new token but the last, which has been
/// chosen and not yet processed.
///
/// # Errors
/// The first failed step; the sequence is as before that step.
pub fn generate(
    engine: &mut dyn Engine,
    sequence: SequenceId,
    request: &Request<'_>,
    sampler: &mut Sampler,
    listener: &mut dyn FnMut(Event<'_>) -> bool,
) -> Result<FinishReason, Error> {
    let mut spent = prefill(engine, sequence, request, sampler, listener)?;
    let Some((mut id, mut last)) = spent.take() else { return Ok(FinishReason::Cancelled) };
    let mut made = 0;
    loop {
        made += 1;
        if !listener(Event::Token { id, spent: last }) {
            return Ok(FinishReason::Cancelled);
        }
        if request.end.contains(&id) {
            return Ok(FinishReason::Stop);
        }
        if made >= request.max_tokens {
            return Ok(FinishReason::Length);
        }
        let work = Work { sequence, tokens: &[id], logits: Logits::Last };
        (id, last) = step(engine, &work, sampler, listener)?;
    }
}

/// Processes the prompt and chooses the first token; `None` if the listener stopped it.
fn prefill(
    engine: &mut dyn Engine,
    sequence: SequenceId,
    request: &Request<'_>,
    sampler: &mut Sampler,
    listener: &mut dyn FnMut(Event<'_>) -> bool,
) -> Result<Option<(u32, Spent)>, Error> {
    let of = request.prompt.len();
    let chunks = request.prompt.chunks(request.chunk.max(1));
    let last = chunks
        .len()
        .checked_sub(1)
        .ok_or_else(|| Error::Refused("the prompt has no tokens: give some text or ids".into()))?;
    let mut done = 0;
    for (i, tokens) in chunks.enumerate() {
        done += tokens.len();
        if i == last {
            let work = Work { sequence, tokens, logits: Logits::Last };
            let (id, spent) = step(engine, &work, sampler, listener)?;
            return Ok(listener(Event::Prefilled { done, of, spent }).then_some((id, spent)));
        }
        let (before, began) = (engine.counters(), Instant::now());
        engine.step(&[Work { sequence, tokens, logits: Logits::None }])?;
        let read = engine.counters().since(&before);
        if !listener(Event::Prefilled { done, of, spent: Spent { time: began.elapsed(), read } }) {
            return Ok(None);
        }
    }
    unreachable!("the last chunk returns")
}

fn step(
    engine: &mut dyn Engine,
    work: &Work<'_>,
    sampler: &mut Sampler,
    listener: &mut dyn FnMut(Event<'_>) -> bool,
) -> Result<(u32, Spent), Error> {
    let (before, began) = (engine.counters(), Instant::now());
    let logits = engine.step(std::slice::from_ref(work))?;
    listener(Event::Logits(logits));
    let id = sampler.choose(logits)?;
    let read = engine.counters().since(&before);
    Ok((id, Spent { time: began.elapsed(), read }))
}
