//! The grammar of DeepSeek-V4.1's replies: reasoning to `</think>`, content to a block of calls or the end.
//! Only control ids count as markers; text that spells one is text. Source: the released
//! `encoding.py`.

use super::ToolCall;
use super::deepseek::{DSML, EOS, THINK_END};
use super::reply::{Event, Finish, Step};
use crate::error::Error;
use crate::json;
use crate::tokenizer::Tokenizer;
use crate::utf8::Utf8Stream;

/// What comes before the marker that begins the calls; held back from the content until it is clear.
const BEFORE_CALLS: &str = "\n\n<";
/// Longest text between two markers of the calls, in bytes: a parameter's value.
const MAX_SEGMENT_BYTES: usize = 16 << 20;

/// Parser of one reply.
#[derive(Debug)]
pub(super) struct Parser {
    think_end: u32,
    eos: u32,
    dsml: u32,
    state: State,
    text: Utf8Stream,
    /// The end of the content that may be the beginning of [`BEFORE_CALLS`].
    held: String,
    /// Inside the calls: the text since the last marker.
    segment: Vec<u8>,
    calls: Calls,
    called: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Reasoning,
    Content,
    Calls,
}

/// Where in the block of calls the next marker finds us.
#[derive(Debug)]
enum Calls {
    /// After `<` of the block itself.
    Begin,
    /// In the block, after `<` (a call) or `</` (the block's end).
    Block { closes: bool },
    /// In a call, after `<` (a parameter) or `</` (the call's end).
    Invoke { closes: bool, name: String, members: Vec<String> },
    /// After a parameter's value and its `</`.
    Parameter { name: String, members: Vec<String> },
    /// After the block.
    Done,
}

fn malformed(what: impl Into<String>) -> Finish {
    Finish::Malformed(what.into())
}

impl Parser {
    /// A parser that begins where the prompt ended: after `<think>` or after `</think>`.
    pub fn new(tokenizer: &Tokenizer, thinking: bool) -> Result<Self, Error> {
        Ok(Parser {
            think_end: tokenizer.control(THINK_END)?,
            eos: tokenizer.control(EOS)?,
            dsml: tokenizer.control(DSML)?,
            state: if thinking { State::Reasoning } else { State::Content },
            text: Utf8Stream::default(),
            held: String::new(),
            segment: Vec::new(),
            calls: Calls::Begin,
            called: false,
        })
    }

    /// Takes the next token.
    pub fn push(&mut self, id: u32, bytes: &[u8], control: bool, events: &mut Vec<Event>) -> Step {
        if id == self.eos {
            return Err(self.ended(events));
        }
        let begins_calls =
            self.state == State::Content && id == self.dsml && self.begins_calls(events);
        match self.state {
            State::Content if begins_calls => {
                self.state = State::Calls;
                Ok(())
            }
            State::Calls if id == self.dsml => self.marker(events),
            State::Calls if !control => {
                self.segment.extend_from_slice(bytes);
                if self.segment.len() > MAX_SEGMENT_BYTES {
                    return Err(malformed("a tool call is too long"));
                }
                Ok(())
            }
            State::Reasoning if id == self.think_end => {
                let tail = self.text.finish();
                self.said(&tail, events);
                self.state = State::Content;
                Ok(())
            }
            // Talk about the marker, as in the original, which looks only for a whole block.
            State::Reasoning | State::Content if !control || id == self.dsml => {
                let text = self.text.push(bytes);
                self.said(&text, events);
                Ok(())
            }
            _ => Err(malformed(format!(
                "control token {} in the reply",
                String::from_utf8_lossy(bytes)
            ))),
        }
    }

    /// Whether the content so far ends in what comes before a block of calls; takes that away.
    fn begins_calls(&mut self, events: &mut Vec<Event>) -> bool {
        let tail = self.text.finish();
        self.said(&tail, events);
        let begins = self.held == BEFORE_CALLS;
        if begins {
            self.held.clear();
        }
        begins
    }

    fn said(&mut self, text: &str, events: &mut Vec<Event>) {
        if self.state == State::Reasoning {
            if !text.is_empty() {
                events.push(Event::Reasoning(text.to_owned()));
            }
            return;
        }
        self.held.push_str(text);
        let keep =
            (0..=BEFORE_CALLS.len()).rev().find(|&n| self.held.ends_with(&BEFORE_CALLS[..n]));
        let certain = self.held.len() - keep.unwrap_or(0);
        if certain > 0 {
            events.push(Event::Content(self.held.drain(..certain).collect()));
        }
    }

    /// A marker inside the block: what was said since the last one is the rest of a tag, and what follows
    /// the tag up to this marker's own `<` or `</`.
    fn marker(&mut self, events: &mut Vec<Event>) -> Step {
        let segment = String::from_utf8(std::mem::take(&mut self.segment))
            .map_err(|_| malformed("a tool call is not UTF-8"))?;
        let bad = || malformed(format!("unexpected in a tool call: {segment:?}"));
        let calls = std::mem::replace(&mut self.calls, Calls::Done);
        self.calls = match calls {
            Calls::Begin => Calls::Block { closes: between(&segment, " calls>").ok_or_else(bad)? },
            Calls::Block { closes: false } => {
                let rest = segment.strip_prefix(" invoke name=\"").ok_or_else(bad)?;
                let (name, rest) = rest.split_once("\">").ok_or_else(bad)?;
                let closes = between(rest, "").ok_or_else(bad)?;
                Calls::Invoke { closes, name: name.to_owned(), members: Vec::new() }
            }
            Calls::Invoke { closes: false, name, mut members } => {
                members.push(parameter(&segment).ok_or_else(bad)??);
                Calls::Parameter { name, members }
            }
            Calls::Parameter { name, members } => {
                let closes = between(&segment, " parameter>").ok_or_else(bad)?;
                Calls::Invoke { closes, name, members }
            }
            Calls::Invoke { closes: true, name, members } => {
                let closes = between(&segment, " invoke>").ok_or_else(bad)?;
                let arguments = format!("{{{}}}", members.join(", "));
                events.push(Event::ToolCall(ToolCall { id: None, name, arguments }));
                self.called = true;
                Calls::Block { closes }
            }
            Calls::Block { closes: true } | Calls::Done => return Err(bad()),
        };
        Ok(())
    }

    /// The end token came.
    fn ended(&mut self, events: &mut Vec<Event>) -> Finish {
        match self.state {
            State::Content => {
                self.flush(events);
                Finish::Stop
            }
            State::Calls if self.called && self.closed() => Finish::ToolCalls,
            _ => self.cut_off(events),
        }
    }

    /// Whether the text since the last marker closes the block.
    fn closed(&self) -> bool {
        let rest = String::from_utf8_lossy(&self.segment);
        matches!(self.calls, Calls::Block { closes: true })
            && rest.strip_prefix(" calls>").is_some_and(|after| after.trim().is_empty())
    }

    fn flush(&mut self, events: &mut Vec<Event>) {
        let tail = self.text.finish();
        self.said(&tail, events);
        if !self.held.is_empty() {
            events.push(Event::Content(std::mem::take(&mut self.held)));
        }
    }

    /// Gives what was held back and says where the reply broke off.
    pub fn cut_off(&mut self, events: &mut Vec<Event>) -> Finish {
        let place = match self.state {
            State::Reasoning => "the reasoning",
            State::Content => "the content",
            State::Calls => "the tool calls",
        };
        if self.state != State::Calls {
            self.flush(events);
        }
        Finish::Unfinished(format!("the reply ends inside {place}"))
    }
}

/// What follows `tag` up to a marker: blanks and `<`, or blanks and `</` (then `true`).
fn between(segment: &str, tag: &str) -> Option<bool> {
    match segment.strip_prefix(tag)?.trim_start() {
        "<" => Some(false),
        "</" => Some(true),
        _ => None,
    }
}

/// ` parameter name="k" string="true">value</` as a member of a JSON object.
fn parameter(segment: &str) -> Option<Result<String, Finish>> {
    let rest = segment.strip_prefix(" parameter name=\"")?;
    let (key, rest) = rest.split_once("\" string=\"")?;
    let (is_string, rest) = rest.split_once("\">")?;
    let value = rest.strip_suffix("</")?;
    let key = json::quote(key);
    match is_string {
        "true" => Some(Ok(format!("{key}: {}", json::quote(value)))),
        "false" if json::parse(value).is_ok() => Some(Ok(format!("{key}: {}", value.trim()))),
        "false" => Some(Err(malformed(format!("parameter {key} is not JSON: {value:?}")))),
        _ => None,
    }
}
