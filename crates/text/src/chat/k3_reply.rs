//! The grammar of Kimi K3's replies: channels `think`, `response` and `tools`, tag by tag. Only control
//! ids make tags; text that spells one is text. Source: the released model's chat encoder.

use super::ToolCall;
use super::k3::{CLOSE, END, OPEN, SEP};
use super::reply::{Event, Finish, Step};
use crate::error::Error;
use crate::json;
use crate::tokenizer::Tokenizer;
use crate::utf8::Utf8Stream;

/// Longest tag with its attributes, in bytes.
const MAX_TAG_BYTES: usize = 1 << 14;

/// Parser of one reply.
#[derive(Debug)]
pub(super) struct Parser {
    open: u32,
    close: u32,
    sep: u32,
    end: u32,
    eos: u32,
    /// Where we are, outermost first. Empty between the channels of the message.
    stack: Vec<Element>,
    /// The tag being read: whether it closes, and its text so far.
    tag: Option<(bool, Vec<u8>)>,
    /// The last channel that was closed.
    after: After,
    text: Utf8Stream,
    called: bool,
}

#[derive(Debug)]
enum Element {
    Think,
    Response,
    Tools,
    /// A call, and the members of its arguments or the one JSON text in their place.
    Call {
        name: String,
        members: Vec<String>,
        json: Option<String>,
    },
    Argument {
        key: String,
        kind: String,
        value: String,
    },
    Json {
        text: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum After {
    Start,
    Think,
    Response,
    Tools,
    Message,
}

impl Element {
    fn tag(&self) -> &'static str {
        match self {
            Element::Think => "think",
            Element::Response => "response",
            Element::Tools => "tools",
            Element::Call { .. } => "call",
            Element::Argument { .. } => "argument",
            Element::Json { .. } => "json",
        }
    }

    fn holds_text(&self) -> bool {
        !matches!(self, Element::Tools | Element::Call { .. })
    }
}

fn malformed(what: impl Into<String>) -> Finish {
    Finish::Malformed(what.into())
}

impl Parser {
    /// A parser that begins inside the channel that the prompt opened.
    pub fn new(tokenizer: &Tokenizer, thinking: bool) -> Result<Self, Error> {
        let first = if thinking { Element::Think } else { Element::Response };
        Ok(Parser {
            open: tokenizer.control(OPEN)?,
            close: tokenizer.control(CLOSE)?,
            sep: tokenizer.control(SEP)?,
            end: tokenizer.control(END)?,
            eos: tokenizer.control("[EOS]")?,
            stack: vec![first],
            tag: None,
            after: After::Start,
            text: Utf8Stream::default(),
            called: false,
        })
    }

    /// Takes the next token.
    pub fn push(&mut self, id: u32, bytes: &[u8], control: bool, events: &mut Vec<Event>) -> Step {
        if id == self.end || id == self.eos {
            return Err(self.ended(events));
        }
        if let Some((closes, tag)) = &mut self.tag {
            if !control {
                tag.extend_from_slice(bytes);
                return if tag.len() > MAX_TAG_BYTES {
                    Err(malformed("a tag is too long"))
                } else {
                    Ok(())
                };
            }
            let (closes, tag) = (*closes, std::mem::take(tag));
            self.tag = None;
            if id != self.sep {
                return Err(self.stray(bytes, "a tag"));
            }
            let tag = String::from_utf8(tag).map_err(|_| malformed("a tag is not UTF-8"))?;
            return if closes { self.close(&tag, events) } else { self.open(&tag) };
        }
        if id == self.open || id == self.close {
            // What may contain nothing but text cannot open a tag.
            let text = self.stack.last().is_some_and(Element::holds_text);
            if text && id == self.open {
                return Err(self.stray(bytes, &self.place()));
            }
            let tail = self.text.finish();
            self.said(tail, events)?;
            self.tag = Some((id == self.close, Vec::new()));
            return Ok(());
        }
        if control {
            return Err(self.stray(bytes, &self.place()));
        }
        let text = self.text.push(bytes);
        self.said(text, events)
    }

    fn stray(&self, bytes: &[u8], place: &str) -> Finish {
        malformed(format!("control token {} in {place}", String::from_utf8_lossy(bytes)))
    }

    fn place(&self) -> String {
        match self.stack.last() {
            Some(element) => format!("the {} element", element.tag()),
            None => "the message, between its channels".to_owned(),
        }
    }

    /// Text belongs to the innermost element; elsewhere there may be none.
    fn said(&mut self, text: String, events: &mut Vec<Event>) -> Step {
        if text.is_empty() {
            return Ok(());
        }
        match self.stack.last_mut() {
            Some(Element::Think) => events.push(Event::Reasoning(text)),
            Some(Element::Response) => events.push(Event::Content(text)),
            Some(Element::Argument { value, .. }) => value.push_str(&text),
            Some(Element::Json { text: json }) => json.push_str(&text),
            _ => return Err(malformed(format!("text in {}: {text:?}", self.place()))),
        }
        Ok(())
    }

    fn open(&mut self, tag: &str) -> Step {
        let (name, attributes) =
            attributes(tag).ok_or_else(|| malformed(format!("bad tag {tag:?}")))?;
        let get = |key: &str| {
            let found = attributes.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
            found.ok_or_else(|| malformed(format!("tag {tag:?} has no {key}")))
        };
        let element = match (self.stack.last_mut(), name, self.after) {
            (None, "response", After::Think) => Element::Response,
            (None, "tools", After::Response) => Element::Tools,
            (Some(Element::Tools), "call", _) => {
                Element::Call { name: get("tool")?, members: Vec::new(), json: None }
            }
            (Some(Element::Call { json: None, .. }), "argument", _) => {
                Element::Argument { key: get("key")?, kind: get("type")?, value: String::new() }
            }
            (Some(Element::Call { members, json: None, .. }), "json", _) if members.is_empty() => {
                Element::Json { text: String::new() }
            }
            _ => return Err(malformed(format!("{tag:?} opens in {}", self.place()))),
        };
        self.stack.push(element);
        Ok(())
    }

    fn close(&mut self, tag: &str, events: &mut Vec<Event>) -> Step {
        let innermost = self.stack.last().map(Element::tag);
        if tag == "message"
            && innermost.is_none()
            && matches!(self.after, After::Response | After::Tools)
        {
            self.after = After::Message;
            return Ok(());
        }
        if innermost != Some(tag) {
            return Err(malformed(format!("{tag:?} closes in {}", self.place())));
        }
        let element = self.stack.pop();
        match (element, self.stack.last_mut()) {
            (Some(Element::Think), _) => self.after = After::Think,
            (Some(Element::Response), _) => self.after = After::Response,
            (Some(Element::Tools), _) => self.after = After::Tools,
            (Some(Element::Call { name, members, json }), _) => {
                let arguments = json.unwrap_or_else(|| format!("{{{}}}", members.join(", ")));
                self.called = true;
                events.push(Event::ToolCall(ToolCall { id: None, name, arguments }));
            }
            (Some(Element::Argument { key, kind, value }), Some(Element::Call { members, .. })) => {
                members.push(member(&key, &kind, &value)?);
            }
            (Some(Element::Json { text }), Some(Element::Call { json, .. })) => *json = Some(text),
            _ => return Err(malformed(format!("{tag:?} closes where it cannot be open"))),
        }
        Ok(())
    }

    /// The reply's end token came.
    fn ended(&mut self, events: &mut Vec<Event>) -> Finish {
        match self.after {
            After::Message if self.tag.is_none() && self.called => Finish::ToolCalls,
            After::Message if self.tag.is_none() => Finish::Stop,
            _ => self.cut_off(events),
        }
    }

    /// Gives what was held back and says where the reply broke off.
    pub fn cut_off(&mut self, events: &mut Vec<Event>) -> Finish {
        let tail = if self.tag.is_some() { String::new() } else { self.text.finish() };
        if let Err(finish) = self.said(tail, events) {
            return finish;
        }
        match (&self.tag, self.stack.last()) {
            (Some(_), _) => Finish::Unfinished("the reply ends inside a tag".into()),
            (None, Some(_)) => {
                Finish::Unfinished(format!("the reply ends inside {}", self.place()))
            }
            (None, None) => {
                Finish::Unfinished("the reply ends before its message is closed".into())
            }
        }
    }
}

/// An argument as a member of a JSON object.
fn member(key: &str, kind: &str, value: &str) -> Result<String, Finish> {
    if kind == "string" {
        return Ok(format!("{}: {}", json::quote(key), json::quote(value)));
    }
    let parsed = json::parse(value).ok().filter(|v| v.type_name() == kind);
    let fits = parsed.is_some();
    if !fits {
        return Err(malformed(format!("argument {key:?} is not a JSON {kind}: {value:?}")));
    }
    Ok(format!("{}: {value}", json::quote(key)))
}

/// A tag's name and attributes: ` key="value"`, with `&quot;` and `&amp;` for what they stand for.
fn attributes(tag: &str) -> Option<(&str, Vec<(String, String)>)> {
    let (name, mut rest) = tag.split_at(tag.find(' ').unwrap_or(tag.len()));
    let mut attributes = Vec::new();
    while let Some(attribute) = rest.strip_prefix(' ') {
        let (key, after) = attribute.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        attributes.push((key.to_owned(), value.replace("&quot;", "\"").replace("&amp;", "&")));
        rest = after;
    }
    (rest.is_empty() && !name.is_empty()).then_some((name, attributes))
}
