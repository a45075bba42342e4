//! A conversation on one sequence: each turn is the rendering of the whole conversation, of which
//! only what the sequence has not seen is fed.
//!
//! What a reply is depends on the conversation alone, never on what was kept: after a turn the
//! next rendering is compared with the ids that the sequence has seen, and where they differ
//! (DeepSeek's format drops earlier reasoning; a text may have been spelled with other tokens
//! than it is encoded to) the sequence goes back to a state kept from before that place.

use text::Tokenizer;
use text::chat::{self, Message, ReplyParser, Role};

use super::generate::{self, FinishReason, Request, generate};
use super::{Engine, Sampler, SequenceId, Work};
use crate::Error;

/// How a chat is run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Positions the conversation may grow to.
    pub context: usize,
    /// Prefill at most so many positions a step.
    pub chunk: usize,
    /// Verify at most so many drafted tokens a step. Never changes a token.
    pub drafts: usize,
}

/// What a listener hears while a reply is made.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// What generation tells: progress of the prefill, ids and their cost.
    Step(generate::Event<'a>),
    /// What the reply says.
    Said(&'a chat::Event),
}

/// A finished reply.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What was said, as it goes into the conversation.
    pub message: Message,
    /// How it ended in the format's grammar.
    pub finish: chat::Finish,
    /// Why no more tokens were made.
    pub reason: FinishReason,
    /// The ids that were made.
    pub ids: Vec<u32>,
    /// Ids of the rendered conversation.
    pub prompt: usize,
    /// Of these, how many the kept state had seen.
    pub reused: usize,
}

/// A state to which the sequence can go back.
struct Mark {
    position: usize,
    state: Vec<u8>,
}

/// One conversation and the engine it has to itself.
pub struct Chat<'t> {
    engine: Box<dyn Engine>,
    tokenizer: &'t Tokenizer,
    settings: Settings,
    end: Vec<u32>,
    sequence: SequenceId,
    /// Ids the sequence has seen.
    seen: Vec<u32>,
    /// Not further than `seen`.
    mark: Option<Mark>,
}

impl<'t> Chat<'t> {
    /// An empty conversation. The engine's plan must have room for two sequences: the second is
    /// the state that is kept to go back to.
    ///
    /// # Errors
    /// Not enough memory; a tokenizer without the format's control tokens.
    pub fn new(
        mut engine: Box<dyn Engine>,
        tokenizer: &'t Tokenizer,
        settings: Settings,
    ) -> Result<Self, Error> {
        let end = tokenizer.end_ids()?;
        let sequence = engine.open(settings.context)?;
        Ok(Chat { engine, tokenizer, settings, end, sequence, seen: Vec::new(), mark: None })
    }

    /// The engine, to ask what it read.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// The ids that the sequence has seen.
    pub fn seen(&self) -> &[u32] {
        &self.seen
    }

    /// The sequence, for tests of its state.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Makes the reply to a conversation, at most `max_tokens` long. `listener` hears everything
    /// and returns whether to go on; a reply that is stopped is an answer too.
    ///
    /// # Errors
    /// A conversation that the format cannot express or that leaves no room in the context; a
    /// failed step. The next call may be the same again.
    pub fn reply(
        &mut self,
        request: &chat::Request,
        max_tokens: usize,
        sampler: &mut Sampler,
        listener: &mut dyn FnMut(Event<'_>) -> bool,
    ) -> Result<Answer, Error> {
        let ids = chat::encode(self.tokenizer, request)?;
        let room = self.settings.context.saturating_sub(ids.len());
        if room == 0 {
            return Err(Error::Refused(format!(
                "the conversation has {} ids and the context {} positions: begin another, or \
                 allow a longer context",
                ids.len(),
                self.settings.context
            )));
        }
        let rewound = self.rewind(&ids)?;
        let reused = self.seen.len();
        let stable = stable_prefix(self.tokenizer, request, &ids)?;
        // A step more than needed reads every layer once more, so it is taken only where the
        // next turn would otherwise go back a whole turn.
        let mark = if rewound || stable < ids.len() { stable.min(ids.len() - 1) } else { reused };
        let mut go_on = true;
        if mark > reused {
            go_on = self.feed(&ids[reused..mark], ids.len() - reused, listener)?;
        }
        if go_on {
            self.keep();
        }
        let mut made = Making {
            parser: ReplyParser::new(self.tokenizer, request.thinking)?,
            tokenizer: self.tokenizer,
            said: Vec::new(),
            ids: Vec::new(),
            failed: None,
        };
        let mut reason = FinishReason::Cancelled;
        if go_on {
            let (fed, of) = (self.seen.len() - reused, ids.len() - reused);
            let request = Request {
                prompt: &ids[self.seen.len()..],
                max_tokens: max_tokens.min(room),
                end: &self.end,
                chunk: self.settings.chunk,
                drafts: self.settings.drafts,
            };
            let engine = &mut *self.engine;
            let finish = generate(engine, self.sequence, &request, sampler, &mut |mut event| {
                if let generate::Event::Prefilled { done, of: all, .. } = &mut event {
                    // Of this turn, not of this call.
                    (*done, *all) = (*done + fed, of);
                }
                made.hear(event, listener)
            });
            // Whatever happened, the sequence has seen a beginning of these.
            let mut all = [&ids[..], &made.ids].concat();
            all.truncate(self.engine.position(self.sequence));
            self.seen = all;
            reason = finish?.reason;
        }
        let (prompt, ids) = (ids.len(), std::mem::take(&mut made.ids));
        let (message, finish) = made.end(listener)?;
        Ok(Answer { message, finish, reason, ids, prompt, reused })
    }

    /// Goes back to where the sequence has seen nothing but a beginning of `ids`, and not all of
    /// it: the last id's logits are needed. Whether it went back.
    fn rewind(&mut self, ids: &[u32]) -> Result<bool, Error> {
        let common = common(&self.seen, ids);
        if common == self.seen.len() && common < ids.len() {
            return Ok(false);
        }
        self.engine.close(self.sequence);
        let mark = self.mark.take().filter(|m| m.position <= common && m.position < ids.len());
        self.seen.truncate(mark.as_ref().map_or(0, |m| m.position));
        self.sequence = match &mark {
            None => self.engine.open(self.settings.context)?,
            Some(mark) => self.engine.restore(&mark.state, self.settings.context)?,
        };
        self.mark = mark;
        Ok(true)
    }

    /// Feeds ids without asking for logits; whether the listener wants more.
    fn feed(
        &mut self,
        ids: &[u32],
        of: usize,
        listener: &mut dyn FnMut(Event<'_>) -> bool,
    ) -> Result<bool, Error> {
        let mut done = 0;
        for tokens in ids.chunks(self.settings.chunk.max(1)) {
            let spent = generate::prefill_step(
                &mut *self.engine,
                &Work { sequence: self.sequence, tokens, logits: models::machine::Logits::None },
            )?;
            self.seen.extend_from_slice(tokens);
            done += tokens.len();
            if !listener(Event::Step(generate::Event::Prefilled { done, of, spent })) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Keeps the state as it is now.
    fn keep(&mut self) {
        let position = self.seen.len();
        if position > 0 && self.mark.as_ref().is_none_or(|m| m.position != position) {
            // The old one first: there is room for one.
            self.mark = None;
            let state = self.engine.save(self.sequence).write();
            self.mark = Some(Mark { position, state });
        }
    }
}

/// Length of the beginning that both have.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// How much of the ids of `request` the rendering of any later turn begins with.
fn stable_prefix(
    tokenizer: &Tokenizer,
    request: &chat::Request,
    ids: &[u32],
) -> Result<usize, Error> {
    let mut later = request.clone();
    let mut reply = Message::new(Role::Assistant, "a");
    reply.reasoning = Some("r".into());
    later.messages.extend([reply, Message::new(Role::User, "u")]);
    Ok(common(&chat::encode(tokenizer, &later)?, ids))
}

/// A reply under way.
struct Making<'t> {
    parser: ReplyParser,
    tokenizer: &'t Tokenizer,
    said: Vec<chat::Event>,
    ids: Vec<u32>,
    failed: Option<Error>,
}

impl Making<'_> {
    fn hear(
        &mut self,
        event: generate::Event<'_>,
        listener: &mut dyn FnMut(Event<'_>) -> bool,
    ) -> bool {
        let mut go_on = listener(Event::Step(event));
        let generate::Event::Token { id, .. } = event else { return go_on };
        self.ids.push(id);
        match self.parser.push(self.tokenizer, id) {
            Ok(said) => {
                for event in &said {
                    go_on &= listener(Event::Said(event));
                }
                self.said.extend(said);
            }
            Err(e) => self.failed = Some(e.into()),
        }
        // What follows the end of a reply, or breaks its grammar, says nothing.
        go_on && self.failed.is_none() && self.parser.finished().is_none()
    }

    fn end(
        self,
        listener: &mut dyn FnMut(Event<'_>) -> bool,
    ) -> Result<(Message, chat::Finish), Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let (rest, finish) = self.parser.end();
        for event in &rest {
            listener(Event::Said(event));
        }
        Ok((Message::from_events(self.said.iter().chain(&rest)), finish))
    }
}
