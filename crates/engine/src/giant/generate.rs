//! From a prompt's ids to new ids: prefill in chunks, then as many tokens a step as it confirms
//! (one, unless drafts are asked for).

use std::time::{Duration, Instant};

use models::machine::{Acceptance, Choice, Logits};

use super::host::Counters;
use super::loaded::{Engine, SequenceId, Work};
use super::sampling::Sampler;
use crate::Error;

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

/// What a step cost. Of several tokens that one step confirmed, the first bears it.
#[derive(Clone, Copy, Debug, Default)]
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
        /// Cost of the step that led to it (nothing for the first token: the prefill's last
        /// chunk led to it and was heard of).
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
    /// Verify at most so many drafted tokens a step. Never changes a token.
    pub drafts: usize,
}

/// How a generation ended.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// What became of the drafts.
    pub drafts: Acceptance,
}

type Listener<'l> = dyn FnMut(Event<'_>) -> bool + 'l;

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
    listener: &mut Listener<'_>,
) -> Result<Finish, Error> {
    let mut drafts = Acceptance::default();
    let mut writing = Writing { request, sampler, listener, made: 0, last: 0, ended: None };
    if !prefill(engine, sequence, &mut writing)? {
        return Ok(Finish { reason: FinishReason::Cancelled, drafts });
    }
    loop {
        if let Some(reason) = writing.ended {
            return Ok(Finish { reason, drafts });
        }
        let mut mark = (Instant::now(), engine.counters());
        // Of the tokens still to be made the last is never a draft.
        let most = request.drafts.min(request.max_tokens - writing.made - 1);
        let round = engine.round(sequence, writing.last, most, &mut |logits, read| {
            let spent = Spent { time: mark.0.elapsed(), read: read.since(&mark.1) };
            mark = (Instant::now(), read);
            writing.choose(logits, spent)
        })?;
        drafts.add(&round);
    }
}

/// The tokens made so far and who hears of them.
struct Writing<'a, 'l> {
    request: &'a Request<'a>,
    sampler: &'a mut Sampler,
    listener: &'a mut Listener<'l>,
    made: usize,
    last: u32,
    ended: Option<FinishReason>,
}

impl Writing<'_, '_> {
    fn choose(&mut self, logits: &[f32], spent: Spent) -> Result<Choice, Error> {
        (self.listener)(Event::Logits(logits));
        let id = self.sampler.choose(logits)?;
        (self.made, self.last) = (self.made + 1, id);
        self.ended = if !(self.listener)(Event::Token { id, spent }) {
            Some(FinishReason::Cancelled)
        } else if self.request.end.contains(&id) {
            Some(FinishReason::Stop)
        } else if self.made >= self.request.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        };
        Ok(Choice { token: id, last: self.ended.is_some() })
    }
}

/// Processes the prompt and chooses the first token; whether the listener wants more.
fn prefill(
    engine: &mut dyn Engine,
    sequence: SequenceId,
    writing: &mut Writing<'_, '_>,
) -> Result<bool, Error> {
    let of = writing.request.prompt.len();
    if of == 0 {
        let why = "the prompt has no tokens: give some text or ids";
        return Err(Error::Refused(why.into()));
    }
    let mut done = 0;
    for tokens in writing.request.prompt.chunks(writing.request.chunk.max(1)) {
        done += tokens.len();
        let logits = if done == of { Logits::Last } else { Logits::None };
        let spent = prefill_step(engine, &Work { sequence, tokens, logits })?;
        if !(writing.listener)(Event::Prefilled { done, of, spent }) {
            return Ok(false);
        }
    }
    writing.choose(engine.logits(), Spent::default())?;
    Ok(true)
}

/// One step over some of a prompt, and its cost.
pub(super) fn prefill_step(engine: &mut dyn Engine, work: &Work<'_>) -> Result<Spent, Error> {
    let (before, began) = (engine.counters(), Instant::now());
    engine.step(std::slice::from_ref(work))?;
    Ok(Spent { time: began.elapsed(), read: engine.counters().since(&before) })
}
