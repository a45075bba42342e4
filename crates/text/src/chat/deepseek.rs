//! DeepSeek-V4.1's chat format: requests to pieces. Source: the released `encoding.py`.
//!
//! The original renders one string and tokenizes it, control tokens and all. Here neighbouring text is
//! joined (so the ids agree), and only what the format itself writes becomes control tokens.

use super::{Effort, Message, Request, ResponseFormat, Role, Task, ToolChoice};
use crate::error::Error;
use crate::json::{self, Value};
use crate::tokenizer::Piece;

const BOS: &str = "<｜begin▁of▁sentence｜>";
pub(super) const EOS: &str = "<｜end▁of▁sentence｜>";
const SYSTEM: &str = "<｜System｜>";
const USER: &str = "<｜User｜>";
const ASSISTANT: &str = "<｜Assistant｜>";
const REMINDER: &str = "<｜latest_reminder｜>";
const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";
pub(super) const DSML: &str = "｜DSML｜";
/// Stands for an image in the original, which refuses it in text.
const IMAGE: &str = "<｜deepseek_image｜>";

const TOOLS: &str = r#"

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"#;
const TOOLS_END: &str = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

/// A turn: a message, or several of the user's side joined.
struct Turn<'r> {
    /// The message; of joined ones the first.
    message: &'r Message,
    role: Role,
    /// What a user turn says: texts and tool results.
    blocks: Vec<Block<'r>>,
    /// Where it came from, for messages about it.
    index: usize,
}

struct Block<'r> {
    text: String,
    /// Set for a tool result: its call's id and the message's index.
    result: Option<(Option<&'r str>, usize)>,
}

/// Renders a request.
pub(super) fn render(request: &Request) -> Result<Vec<Piece>, Error> {
    let request = with_own_system_message(request)?;
    let turns = turns(&request.messages)?;
    let asks = |i: usize| turns[i].role == Role::User || turns[i].role == Role::System && i > 0;
    let last_ask = (0..turns.len()).rev().find(|&i| asks(i));
    let has_tools = turns.iter().any(|t| !t.message.tools.is_empty());
    let keep = request.keep_reasoning || has_tools;
    // Whether the turn after turn `i` shows its reasoning, if it is an assistant turn.
    let opens_thinking =
        |i: usize| request.thinking && (keep || last_ask.is_none_or(|last| i >= last));

    let mut out = Writer::default();
    out.control(BOS);
    if request.thinking {
        out.control(SYSTEM);
        out.text(&format!(
            "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
            effort(request.effort)?
        ));
    }
    for (i, turn) in turns.iter().enumerate() {
        match turn.role {
            Role::System => {
                if i > 0 || !request.thinking {
                    out.control(SYSTEM);
                }
                out.system(turn)?;
            }
            Role::LatestReminder => {
                out.control(REMINDER);
                out.text(&only_text(turn.message, turn.index)?);
            }
            Role::Assistant => {
                let after_task = i > 0 && turns[i - 1].message.task.is_some();
                let shows = keep || last_ask.is_none_or(|last| i > last);
                if request.thinking && !after_task && shows {
                    out.text(turn.message.reasoning.as_deref().unwrap_or(""));
                    out.control(THINK_END);
                }
                out.assistant(turn)?;
            }
            _ => {
                out.control(USER);
                let texts: Vec<&str> = turn.blocks.iter().map(|b| b.text.as_str()).collect();
                out.text(&texts.join("\n\n"));
            }
        }
        let next = turns.get(i + 1).map(|t| t.role);
        if !matches!(next, None | Some(Role::Assistant | Role::LatestReminder))
            || next.is_none() && !request.generation_prompt
        {
            continue;
        }
        let think = if opens_thinking(i) { THINK } else { THINK_END };
        match turn.message.task {
            Some(Task::Action) => {
                // The action is taken in place of an answer, whichever mode earlier turns were in.
                out.control(ASSISTANT);
                out.control(if request.thinking { THINK } else { THINK_END });
                out.control(task(Task::Action));
            }
            Some(other) => out.control(task(other)),
            None if asks(i) => {
                out.control(ASSISTANT);
                out.control(think);
            }
            None => {}
        }
    }
    Ok(out.pieces)
}

fn effort(effort: Effort) -> Result<u8, Error> {
    match effort {
        Effort::Low => Ok(50),
        Effort::Default | Effort::High => Ok(75),
        Effort::Max => Ok(100),
        Effort::Level(level @ 1..=100) => Ok(level),
        Effort::Level(_) => Err(Error::Request("DeepSeek's thinking effort is 1 to 100".into())),
        Effort::Unstated => {
            Err(Error::Request("DeepSeek's thinking mode always states its effort".into()))
        }
    }
}

fn task(task: Task) -> &'static str {
    match task {
        Task::Action => "<｜action｜>",
        Task::Query => "<｜query｜>",
        Task::Authority => "<｜authority｜>",
        Task::Domain => "<｜domain｜>",
        Task::Title => "<｜title｜>",
        Task::ReadUrl => "<｜read_url｜>",
    }
}

/// Moves the request's tools and response format to where this format has them: the leading system message.
fn with_own_system_message(request: &Request) -> Result<Request, Error> {
    let mut request = request.clone();
    if request.tool_choice != ToolChoice::Auto {
        return Err(Error::Request("DeepSeek-V4.1 has only the tool choice auto".into()));
    }
    let schema = match std::mem::take(&mut request.response_format) {
        ResponseFormat::Text => None,
        ResponseFormat::JsonSchema(schema) => Some(schema),
        ResponseFormat::JsonObject => {
            let what = "DeepSeek-V4.1 has no response format json_object: give a json_schema";
            return Err(Error::Request(what.into()));
        }
    };
    if request.tools.is_empty() && schema.is_none() {
        return Ok(request);
    }
    if request.messages[0].role != Role::System {
        request.messages.insert(0, Message::new(Role::System, ""));
    }
    let system = &mut request.messages[0];
    if !request.tools.is_empty() && !system.tools.is_empty()
        || schema.is_some() && system.response_format.is_some()
    {
        let what = "the system message and the request both declare tools or a response format";
        return Err(Error::Request(what.into()));
    }
    system.tools.append(&mut request.tools);
    system.response_format = schema.or(system.response_format.take());
    Ok(request)
}

/// Joins tool results and user messages that follow each other into one user turn, results in the order of
/// the calls they answer.
fn turns(messages: &[Message]) -> Result<Vec<Turn<'_>>, Error> {
    let mut turns: Vec<Turn> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        check(message, index)?;
        if !matches!(message.role, Role::User | Role::Tool) {
            turns.push(Turn { message, role: message.role, blocks: Vec::new(), index });
            continue;
        }
        let blocks = blocks(message, index);
        match turns.last_mut().filter(|t| t.role == Role::User && t.message.task.is_none()) {
            Some(turn) if message.task.is_none() => turn.blocks.extend(blocks),
            Some(_) => {
                let what = "a task needs a user turn of its own, not one after other user messages";
                return Err(Error::Message { index, what: what.into() });
            }
            None => turns.push(Turn { message, role: Role::User, blocks, index }),
        }
    }
    let mut calls: &[super::ToolCall] = &[];
    for turn in &mut turns {
        if !turn.message.tool_calls.is_empty() {
            calls = &turn.message.tool_calls;
        }
        sort_results(&mut turn.blocks, calls)?;
    }
    Ok(turns)
}

fn check(message: &Message, index: usize) -> Result<(), Error> {
    let refuse = |what: &str| Err(Error::Message { index, what: what.to_owned() });
    let user_side = matches!(message.role, Role::User | Role::Tool);
    if message.name.is_some() && message.role != Role::Tool {
        return refuse("DeepSeek-V4.1 messages have no names");
    }
    if message.role != Role::System
        && (!message.tools.is_empty() || message.response_format.is_some())
    {
        return refuse("only a system message can declare tools or a response format");
    }
    if message.role != Role::Assistant && !message.tool_calls.is_empty() {
        return refuse("only the assistant calls tools");
    }
    if message.task.is_some() && !matches!(message.role, Role::User | Role::Assistant) {
        return refuse("a task goes with a user or assistant message");
    }
    if user_side && message.content.iter().any(|part| part.contains(IMAGE)) {
        return refuse(
            "the text contains <｜deepseek_image｜>: this engine reads text only, images are refused",
        );
    }
    Ok(())
}

fn blocks(message: &Message, index: usize) -> Vec<Block<'_>> {
    if message.role == Role::Tool {
        let text = format!("<tool_result>{}</tool_result>", message.text());
        return vec![Block { text, result: Some((message.tool_call_id.as_deref(), index)) }];
    }
    let texts =
        if message.content.is_empty() { vec![String::new()] } else { message.content.clone() };
    texts.into_iter().map(|text| Block { text, result: None }).collect()
}

/// Sorts the tool results among themselves; texts between them stay where they are.
fn sort_results(blocks: &mut [Block], calls: &[super::ToolCall]) -> Result<(), Error> {
    let ranks = super::request::places_by_id(calls);
    let mut results = Vec::new();
    for (place, block) in blocks.iter().enumerate() {
        if let Some((id, index)) = block.result {
            results.push((place, id, index));
        }
    }
    if results.len() < 2 || ranks.is_empty() {
        return Ok(());
    }
    let mut sorted = Vec::new();
    for &(place, id, index) in &results {
        let rank = id.and_then(|id| ranks.get(id)).ok_or_else(|| Error::Message {
            index,
            what: format!("tool_call_id {id:?} is none of the calls of the assistant's turn"),
        })?;
        sorted.push((*rank, std::mem::take(&mut blocks[place].text)));
    }
    sorted.sort_by_key(|(rank, _)| *rank);
    for (&(place, ..), (_, text)) in results.iter().zip(sorted) {
        blocks[place].text = text;
    }
    Ok(())
}

fn only_text(message: &Message, index: usize) -> Result<String, Error> {
    if message.content.len() > 1 {
        let what = format!("a {} message has one part of text in this format", message.role.name());
        return Err(Error::Message { index, what });
    }
    Ok(message.text())
}

#[derive(Default)]
struct Writer {
    pieces: Vec<Piece>,
}

impl Writer {
    fn control(&mut self, spelling: &'static str) {
        self.pieces.push(Piece::Control(spelling));
    }

    /// Text of anybody, joined to text before it.
    fn text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Text(before)) => before.push_str(text),
            _ if text.is_empty() => {}
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    /// Text of the format itself, whose markers are control tokens.
    fn template(&mut self, text: &str) {
        let mut rest = text;
        let first = |text: &str| {
            let found = [DSML, THINK, THINK_END].map(|m| text.find(m).map(|at| (at, m)));
            found.into_iter().flatten().min()
        };
        while let Some((at, marker)) = first(rest) {
            self.text(&rest[..at]);
            self.control(marker);
            rest = &rest[at + marker.len()..];
        }
        self.text(rest);
    }

    fn system(&mut self, turn: &Turn) -> Result<(), Error> {
        let (message, index) = (turn.message, turn.index);
        self.text(&only_text(message, index)?);
        if !message.tools.is_empty() {
            self.template(TOOLS);
            for (i, tool) in message.tools.iter().enumerate() {
                let function = tool.get("function").ok_or_else(|| Error::Message {
                    index,
                    what: format!("tool {i} has no `function`"),
                })?;
                self.text(if i > 0 { "\n" } else { "" });
                self.text(&json::dumps(function));
            }
            self.template(TOOLS_END);
        }
        if let Some(schema) = &message.response_format {
            self.text("\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
            self.text(&json::dumps(schema));
        }
        Ok(())
    }

    fn assistant(&mut self, turn: &Turn) -> Result<(), Error> {
        let (message, index) = (turn.message, turn.index);
        self.text(&only_text(message, index)?);
        if !message.tool_calls.is_empty() {
            self.template("\n\n<｜DSML｜ calls>\n");
            for call in &message.tool_calls {
                let members = json::parse(&call.arguments).ok().filter(|a| a.as_object().is_some());
                let members = members.ok_or_else(|| Error::Message {
                    index,
                    what: format!("the arguments of {:?} are not a JSON object", call.name),
                })?;
                self.call(&call.name, members.as_object().unwrap_or_default());
            }
            self.template("</｜DSML｜ calls>");
        }
        self.control(EOS);
        Ok(())
    }

    fn call(&mut self, name: &str, arguments: &[(String, Value)]) {
        self.template("<｜DSML｜ invoke name=\"");
        self.text(name);
        self.text("\">\n");
        for (i, (key, value)) in arguments.iter().enumerate() {
            self.text(if i > 0 { "\n" } else { "" });
            self.template("<｜DSML｜ parameter name=\"");
            self.text(key);
            self.text(&format!("\" string=\"{}\">", value.as_str().is_some()));
            match value {
                Value::String(text) => self.text(text),
                other => self.text(&json::dumps(other)),
            }
            self.template("</｜DSML｜ parameter>");
        }
        self.template("\n</｜DSML｜ invoke>\n");
    }
}
