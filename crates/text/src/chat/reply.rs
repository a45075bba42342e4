//! Replies as they are generated: ids in, events out. The grammars are in `k3_reply` and `deepseek_reply`.

use super::{Message, Role, ToolCall, deepseek_reply, k3_reply};
use crate::error::Error;
use crate::tokenizer::{Family, Tokenizer};

/// Something a reply said. Text comes in whole characters, as soon as it is certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of its answer.
    Content(String),
    /// A complete tool call.
    ToolCall(ToolCall),
}

/// How a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// With an answer.
    Stop,
    /// With tool calls to make.
    ToolCalls,
    /// In the middle: generation was cut off, or the model ended it there. Says where.
    Unfinished(String),
    /// Against the format's grammar. Says how; what was said before is kept, what follows is ignored.
    Malformed(String),
}

/// Parses one reply. It begins where the prompt of [`super::render`] ends.
#[derive(Debug)]
pub struct ReplyParser {
    grammar: Grammar,
    finish: Option<Finish>,
}

#[derive(Debug)]
enum Grammar {
    K3(k3_reply::Parser),
    Deepseek(deepseek_reply::Parser),
}

/// What a grammar made of a token: it goes on, or it is over.
pub(super) type Step = Result<(), Finish>;

impl ReplyParser {
    /// A parser for a reply to a prompt that did or did not ask for thinking.
    ///
    /// # Errors
    /// A tokenizer without the format's control tokens.
    pub fn new(tokenizer: &Tokenizer, thinking: bool) -> Result<Self, Error> {
        let grammar = match tokenizer.family() {
            Family::KimiK3 => Grammar::K3(k3_reply::Parser::new(tokenizer, thinking)?),
            Family::DeepseekV41 => {
                Grammar::Deepseek(deepseek_reply::Parser::new(tokenizer, thinking)?)
            }
        };
        Ok(ReplyParser { grammar, finish: None })
    }

    /// Takes the next id. After the end of the reply ids are ignored.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        let bytes = tokenizer.token(id)?;
        if self.finish.is_some() {
            return Ok(events);
        }
        let control = tokenizer.is_control(id);
        let step = match &mut self.grammar {
            Grammar::K3(parser) => parser.push(id, bytes, control, &mut events),
            Grammar::Deepseek(parser) => parser.push(id, bytes, control, &mut events),
        };
        self.finish = step.err();
        Ok(events)
    }

    /// How the reply ended, once it has.
    pub fn finished(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// Ends the reply where it is, and gives what was still held back.
    pub fn end(mut self) -> (Vec<Event>, Finish) {
        let mut events = Vec::new();
        let finish = self.finish.take().unwrap_or_else(|| match &mut self.grammar {
            Grammar::K3(parser) => parser.cut_off(&mut events),
            Grammar::Deepseek(parser) => parser.cut_off(&mut events),
        });
        (events, finish)
    }
}

impl Message {
    /// The assistant's message that a reply's events make, for the next turn's request.
    pub fn from_events<'e>(events: impl IntoIterator<Item = &'e Event>) -> Self {
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut message = Message::new(Role::Assistant, "");
        for event in events {
            match event {
                Event::Reasoning(text) => reasoning.push_str(text),
                Event::Content(text) => content.push_str(text),
                Event::ToolCall(call) => message.tool_calls.push(call.clone()),
            }
        }
        message.content = vec![content];
        message.reasoning = Some(reasoning).filter(|r| !r.is_empty());
        message
    }
}
