//! Requests: messages, tools and options, in the shape of the usual chat APIs. No format's rules.

use crate::error::Error;
use crate::json::Value;
use std::collections::HashMap;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
    /// A note on the present, such as the date (DeepSeek only).
    LatestReminder,
}

/// A special task that a DeepSeek prompt ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Task {
    Action,
    Query,
    Authority,
    Domain,
    Title,
    ReadUrl,
}

/// A call of a tool by the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// How results refer to it. The formats do not write it: a parsed reply has none, the server names it.
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// Its arguments: the text of a JSON object.
    pub arguments: String,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text, in one or more parts.
    pub content: Vec<String>,
    /// The speaker's name, or of a tool result the function's.
    pub name: Option<String>,
    /// What the assistant thought before it answered.
    pub reasoning: Option<String>,
    /// The assistant's calls.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool result answers.
    pub tool_call_id: Option<String>,
    /// Tools that a system message declares.
    pub tools: Vec<Value>,
    /// A schema that a system message asks to keep to (DeepSeek only).
    pub response_format: Option<Value>,
    /// What the message asks for instead of an answer (DeepSeek only).
    pub task: Option<Task>,
}

/// How long to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effort {
    /// The format's default: `max` for Kimi K3, 75 for DeepSeek.
    #[default]
    Default,
    /// Kimi K3 only: no word about it, as its encoder does when it is called without one.
    Unstated,
    /// Little.
    Low,
    /// Much.
    High,
    /// As much as it takes.
    Max,
    /// DeepSeek only: 1 to 100.
    Level(u8),
}

/// Whether the model may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// It must not.
    None,
    /// It must.
    Required,
}

/// What the answer must look like.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ResponseFormat {
    /// Text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(Value),
}

/// A chat to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// Tools declared for all of it.
    pub tools: Vec<Value>,
    /// Whether the model may call them.
    pub tool_choice: ToolChoice,
    /// What the answer must look like.
    pub response_format: ResponseFormat,
    /// Whether the model thinks before it answers.
    pub thinking: bool,
    /// How long.
    pub effort: Effort,
    /// DeepSeek only: earlier turns keep their reasoning (they always do where tools are declared).
    pub keep_reasoning: bool,
    /// Whether the prompt opens the assistant's next turn.
    pub generation_prompt: bool,
}

impl Message {
    /// A message of one part.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Message {
            role,
            content: vec![text.into()],
            name: None,
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            tools: Vec::new(),
            response_format: None,
            task: None,
        }
    }

    /// The parts joined.
    pub fn text(&self) -> String {
        self.content.concat()
    }

    /// Reads a message in the shape of the usual chat APIs.
    ///
    /// # Errors
    /// Unknown roles, fields and content parts (images among them) are refused by name.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let members = value.as_object().ok_or("a message must be an object")?;
        let role = text_of("role", value.get("role").ok_or("no `role`")?)?;
        let role = Role::from_name(&role).ok_or_else(|| {
            format!("role {role:?} is none of system, user, assistant, tool, latest_reminder")
        })?;
        let mut message = Message { content: Vec::new(), ..Message::new(role, "") };
        for (key, value) in members.iter().filter(|(_, v)| *v != Value::Null) {
            match key.as_str() {
                "role" => {}
                "content" => message.content = content(value)?,
                "name" | "tool" => message.name = Some(text_of(key, value)?),
                "reasoning_content" | "reasoning" => message.reasoning = Some(text_of(key, value)?),
                "tool_calls" => {
                    message.tool_calls =
                        array(key, value)?.iter().map(tool_call).collect::<Result<_, _>>()?;
                }
                "tool_call_id" => message.tool_call_id = Some(text_of(key, value)?),
                "tools" => message.tools = array(key, value)?.to_vec(),
                "response_format" => message.response_format = Some(value.clone()),
                "task" => {
                    let name = text_of(key, value)?;
                    message.task = Some(
                        Task::from_name(&name).ok_or_else(|| format!("unknown task {name:?}"))?,
                    );
                }
                _ => return Err(format!("field `{key}` is not supported")),
            }
        }
        Ok(message)
    }
}

impl Role {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            "latest_reminder" => Role::LatestReminder,
            _ => return None,
        })
    }

    /// The role's name in requests and history files.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::LatestReminder => "latest_reminder",
        }
    }
}

impl Task {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "action" => Task::Action,
            "query" => Task::Query,
            "authority" => Task::Authority,
            "domain" => Task::Domain,
            "title" => Task::Title,
            "read_url" => Task::ReadUrl,
            _ => return None,
        })
    }
}

impl Effort {
    /// Reads `low`, `high`, `max` or a number from 1 to 100.
    ///
    /// # Errors
    /// Anything else; `medium` too, which Kimi K3's own prompt mentions and its encoder refuses.
    pub fn from_name(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "low" => Effort::Low,
            "high" => Effort::High,
            "max" => Effort::Max,
            _ => match name.parse() {
                Ok(level @ 1..=100) => Effort::Level(level),
                _ => {
                    let what =
                        format!("thinking effort {name:?} is none of low, high, max, 1 to 100");
                    return Err(Error::Request(what));
                }
            },
        })
    }
}

impl ResponseFormat {
    /// Reads `{"type": "text" | "json_object" | "json_schema", "json_schema": ...}`.
    ///
    /// # Errors
    /// Another type, or a schema that is missing.
    pub fn from_json(value: &Value) -> Result<Self, Error> {
        match value.get("type").and_then(Value::as_str) {
            Some("text") => Ok(ResponseFormat::Text),
            Some("json_object") => Ok(ResponseFormat::JsonObject),
            Some("json_schema") => {
                let given = value.get("json_schema").filter(|s| s.as_object().is_some());
                let given = given
                    .ok_or_else(|| Error::Request("response_format has no json_schema".into()))?;
                Ok(ResponseFormat::JsonSchema(given.get("schema").unwrap_or(given).clone()))
            }
            _ => Err(Error::Request(
                "response_format type is none of text, json_object, json_schema".into(),
            )),
        }
    }
}

impl Request {
    /// A request with the defaults: thinking on, nothing said about tools.
    pub fn new(messages: Vec<Message>) -> Self {
        Request {
            messages,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            response_format: ResponseFormat::Text,
            thinking: true,
            effort: Effort::Default,
            keep_reasoning: false,
            generation_prompt: true,
        }
    }

    /// Reads messages in the shape of the usual chat APIs.
    ///
    /// # Errors
    /// As [`Message::from_json`], with the message's place.
    pub fn messages_from_json(messages: &Value) -> Result<Vec<Message>, Error> {
        let messages = messages
            .as_array()
            .ok_or_else(|| Error::Request("`messages` must be an array".into()))?;
        let parsed = messages.iter().enumerate().map(|(index, message)| {
            Message::from_json(message).map_err(|what| Error::Message { index, what })
        });
        parsed.collect()
    }
}

/// The places of calls by their ids; of a repeated id the first.
pub(super) fn places_by_id(calls: &[ToolCall]) -> HashMap<&str, usize> {
    let ids = calls.iter().enumerate().rev();
    ids.filter_map(|(place, call)| Some((call.id.as_deref()?, place))).collect()
}

fn text_of(key: &str, value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("`{key}` must be a string"))
}

fn array<'v>(key: &str, value: &'v Value) -> Result<&'v [Value], String> {
    value.as_array().ok_or_else(|| format!("`{key}` must be an array"))
}

/// A string, or an array of text parts.
fn content(value: &Value) -> Result<Vec<String>, String> {
    if let Value::String(text) = value {
        return Ok(vec![text.clone()]);
    }
    let parts = value.as_array().ok_or("`content` must be a string or an array of parts")?;
    let text = |part: &Value| {
        if let Value::String(text) = part {
            return Ok(text.clone());
        }
        match part.get("type").and_then(Value::as_str) {
            Some("text") => text_of("text", part.get("text").ok_or("a text part without `text`")?),
            Some(kind) if kind.contains("image") => Err(format!(
                "content part `{kind}`: this engine reads text only, images are refused"
            )),
            Some(kind) => Err(format!("content part `{kind}` is not supported, only text")),
            None => Err("a content part without `type`".to_owned()),
        }
    };
    parts.iter().map(text).collect()
}

fn tool_call(value: &Value) -> Result<ToolCall, String> {
    let function = value.get("function").ok_or("a tool call without `function`")?;
    let name = text_of("name", function.get("name").ok_or("a tool call without a name")?)?;
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) => crate::json::dumps(object),
        Some(other) => {
            return Err(format!("arguments of {name:?} are a JSON {}", other.type_name()));
        }
    };
    let id = value.get("id").and_then(Value::as_str).map(str::to_owned);
    Ok(ToolCall { id, name, arguments })
}
