//! Kimi K3's chat format, XTML: requests to pieces. Source: the released model's chat encoder.
//!
//! The official encoder encodes every attribute, quote and content by itself; the pieces follow its cuts,
//! since merging neighbours would change ids.

use super::{Effort, Message, Request, ResponseFormat, Role, ToolCall, ToolChoice};
use crate::error::Error;
use crate::json::{self, Value};
use crate::tokenizer::Piece;

pub(super) const OPEN: &str = "<|open|>";
pub(super) const CLOSE: &str = "<|close|>";
pub(super) const SEP: &str = "<|sep|>";
pub(super) const END: &str = "<|end_of_msg|>";

/// Renders a request.
pub(super) fn render(request: &Request) -> Result<Vec<Piece>, Error> {
    let mut out = Writer::default();
    if !request.tools.is_empty() {
        out.declare_tools(TOOLS, &request.tools);
    }
    if let Some(effort) = effort(request)? {
        let text = format!(
            "`thinking_effort` guides on how much to think in your thinking channel (not including the \
             response channel), supported values include `low`, `medium`, `high`, and `max`.\n\
             Now the system is invoked with `thinking_effort={effort}`."
        );
        out.system("thinking-effort", &text);
    }
    conversation(&mut out, request)?;
    match request.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::Required => out.system(
            "tool-choice",
            "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
        ),
        ToolChoice::None => out.system(
            "tool-choice",
            "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
        ),
    }
    out.response_format(&request.response_format);
    if request.generation_prompt {
        out.open("message", &[("role", "assistant")]);
        out.open(if request.thinking { "think" } else { "response" }, &[]);
    }
    Ok(out.pieces)
}

/// The effort to state, if any.
fn effort(request: &Request) -> Result<Option<&'static str>, Error> {
    let effort = match request.effort {
        Effort::Unstated => return Ok(None),
        Effort::Default | Effort::Max => "max",
        Effort::Low => "low",
        Effort::High => "high",
        Effort::Level(_) => {
            return Err(Error::Request(
                "Kimi K3 has the thinking efforts low, high and max, no numbers".into(),
            ));
        }
    };
    Ok(request.thinking.then_some(effort))
}

fn conversation(out: &mut Writer, request: &Request) -> Result<(), Error> {
    let mut calls: &[ToolCall] = &[];
    let mut result = 0;
    let order = reading_order(&request.messages);
    for (index, call) in order {
        let message = &request.messages[index];
        let refuse = |what: &str| Err(Error::Message { index, what: what.to_owned() });
        if message.task.is_some() || message.response_format.is_some() {
            return refuse("Kimi K3 messages have no task and no response_format of their own");
        }
        if !message.tools.is_empty() && message.role != Role::System {
            return refuse("only a system message can declare tools");
        }
        match message.role {
            Role::System if !message.tools.is_empty() => {
                if message.content.iter().any(|part| !part.is_empty()) {
                    return refuse("a system message declares tools or has content, not both");
                }
                out.declare_tools(MORE_TOOLS, &message.tools);
            }
            Role::System | Role::User => out.message(message, |out| out.content(message)),
            Role::Assistant => {
                (calls, result) = (&message.tool_calls, 0);
                out.message(message, |out| out.assistant(message, request.thinking));
            }
            Role::Tool => {
                // Results are numbered since the last assistant message, whatever they answer.
                let by_place = calls.get(result).map(|c| c.name.as_str());
                result += 1;
                let Some(name) = call.or(message.name.as_deref()).or(by_place) else {
                    return refuse(
                        "a tool result needs a name, or a call before it that it answers",
                    );
                };
                let number = result.to_string();
                out.open("message", &[("role", "tool"), ("tool", name), ("index", &number)]);
                out.content(message);
                out.end_message();
            }
            Role::LatestReminder => return refuse("Kimi K3 has no role latest_reminder"),
        }
    }
    Ok(())
}

/// The order in which messages are written: results of one turn that all answer its calls by id come in
/// the order of the calls (and take their names), everything else as it is.
fn reading_order(messages: &[Message]) -> Vec<(usize, Option<&str>)> {
    let mut order = Vec::with_capacity(messages.len());
    let (mut calls, mut at): (&[ToolCall], _) = (&[], 0);
    let mut places = super::request::places_by_id(calls);
    while at < messages.len() {
        if messages[at].role != Role::Tool {
            if messages[at].role == Role::Assistant {
                calls = &messages[at].tool_calls;
                places = super::request::places_by_id(calls);
            }
            order.push((at, None));
            at += 1;
            continue;
        }
        let run = messages[at..].iter().take_while(|m| m.role == Role::Tool).count();
        let answered = |i: usize| {
            let id = messages[i].tool_call_id.as_deref()?;
            places.get(id).map(|&place| (place, i))
        };
        let matched: Option<Vec<(usize, usize)>> = (at..at + run).map(answered).collect();
        match matched {
            Some(mut places) => {
                places.sort();
                order
                    .extend(places.iter().map(|&(place, i)| (i, Some(calls[place].name.as_str()))));
            }
            None => order.extend((at..at + run).map(|i| (i, None))),
        }
        at += run;
    }
    order
}

const TOOLS: &str = "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
const MORE_TOOLS: &str = "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n\
    You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n";

#[derive(Default)]
struct Writer {
    pieces: Vec<Piece>,
}

impl Writer {
    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.pieces.push(Piece::Text(text.to_owned()));
        }
    }

    fn open(&mut self, tag: &str, attributes: &[(&str, &str)]) {
        self.pieces.push(Piece::Control(OPEN));
        self.text(tag);
        for (key, value) in attributes {
            self.text(&format!(" {key}"));
            self.text("=\"");
            self.text(&value.replace('&', "&amp;").replace('"', "&quot;"));
            self.text("\"");
        }
        self.pieces.push(Piece::Control(SEP));
    }

    fn close(&mut self, tag: &str) {
        self.pieces.push(Piece::Control(CLOSE));
        self.text(tag);
        self.pieces.push(Piece::Control(SEP));
    }

    fn end_message(&mut self) {
        self.close("message");
        self.pieces.push(Piece::Control(END));
    }

    /// A message of a role that may have a name.
    fn message(&mut self, message: &Message, body: impl FnOnce(&mut Self)) {
        let mut attributes = vec![("role", message.role.name())];
        attributes.extend(message.name.as_deref().filter(|n| !n.is_empty()).map(|n| ("name", n)));
        self.open("message", &attributes);
        body(self);
        self.end_message();
    }

    fn content(&mut self, message: &Message) {
        message.content.iter().for_each(|part| self.text(part));
    }

    /// A message of the system's own kind.
    fn system(&mut self, kind: &str, text: &str) {
        self.open("message", &[("role", "system"), ("type", kind)]);
        self.text(text);
        self.end_message();
    }

    fn declare_tools(&mut self, introduction: &str, tools: &[Value]) {
        let list = json::dumps_sorted(&Value::Array(tools.to_vec()));
        self.system("tool-declare", &format!("{introduction}```json\n{list}\n```"));
    }

    fn response_format(&mut self, format: &ResponseFormat) {
        let raw = "Your response must be raw JSON data without markdown code blocks (```json) or any additional \
                   formatting.";
        let start = "The system is invoked with `response_format=";
        match format {
            ResponseFormat::Text => {}
            ResponseFormat::JsonObject => {
                self.system("response-format", &format!("{start}json_object`.\n{raw}"))
            }
            ResponseFormat::JsonSchema(schema) => {
                let schema = json::dumps_sorted(schema);
                let text = format!(
                    "{start}json_schema`.\n{raw}\nThe JSON data must match the following schema:\n\
                     ```json\n{schema}\n```"
                );
                self.system("response-format", &text);
            }
        }
    }

    fn assistant(&mut self, message: &Message, thinking: bool) {
        if thinking {
            self.open("think", &[]);
            self.text(message.reasoning.as_deref().unwrap_or(""));
            self.close("think");
        }
        self.open("response", &[]);
        self.content(message);
        self.close("response");
        if message.tool_calls.is_empty() {
            return;
        }
        self.open("tools", &[]);
        for (i, call) in message.tool_calls.iter().enumerate() {
            self.open("call", &[("tool", &call.name), ("index", &(i + 1).to_string())]);
            self.arguments(&call.arguments);
            self.close("call");
        }
        self.close("tools");
    }

    /// One element a member, values as they were written; what is not a JSON object is passed on as it is.
    fn arguments(&mut self, arguments: &str) {
        if arguments.is_empty() {
            return;
        }
        let Ok(members) = json::parse_members(arguments) else {
            self.open("json", &[("type", "object")]);
            self.text(arguments);
            return self.close("json");
        };
        for (key, value, written) in members {
            self.open("argument", &[("key", &key), ("type", value.type_name())]);
            self.text(value.as_str().unwrap_or(written));
            self.close("argument");
        }
    }
}
