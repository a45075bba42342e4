//! Chat history files: JSON lines of `{"role", "content"[, "reasoning_content"]}`, a system message first if
//! there is one, then user and assistant in turn. No files are opened here.

use super::{Message, Role};
use crate::error::Error;
use crate::json::{self, Value};

/// Reads a history. It may end with a user message, whose answer was never finished.
///
/// # Errors
/// Names the line: not JSON, an unknown or repeated field, a role out of turn.
pub fn parse(text: &str) -> Result<Vec<Message>, Error> {
    let mut messages: Vec<Message> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let bad = |what: String| Error::History { line: i + 1, what };
        let message = record(line).map_err(bad)?;
        let expected = match messages.last().map(|m| m.role) {
            None if message.role == Role::System => Role::System,
            None | Some(Role::System | Role::Assistant) => Role::User,
            _ => Role::Assistant,
        };
        if message.role != expected {
            let what = format!("role {} where {} is due", message.role.name(), expected.name());
            return Err(bad(what));
        }
        messages.push(message);
    }
    Ok(messages)
}

fn record(line: &str) -> Result<Message, String> {
    let value = json::parse(line).map_err(|e| format!("not JSON: {}", e.what))?;
    let members = value.as_object().ok_or("not an object")?;
    if let Some((key, _)) = members
        .iter()
        .find(|(k, _)| !["role", "content", "reasoning_content"].contains(&k.as_str()))
    {
        return Err(format!("unknown field {key:?}"));
    }
    if value.get("content").and_then(Value::as_str).is_none() {
        return Err("`content` must be a string".into());
    }
    let message = Message::from_json(&value)?;
    if message.reasoning.is_some() && message.role != Role::Assistant {
        return Err("only the assistant has `reasoning_content`".into());
    }
    Ok(message)
}

/// The line of one message, with its newline.
pub fn line(message: &Message) -> String {
    let mut members = vec![
        ("role".to_owned(), Value::String(message.role.name().into())),
        ("content".to_owned(), Value::String(message.text())),
    ];
    if let Some(reasoning) = &message.reasoning {
        members.push(("reasoning_content".into(), Value::String(reasoning.clone())));
    }
    json::dumps(&Value::Object(members)) + "\n"
}

/// Checks a system text given for a stored conversation, or puts it first in an empty one.
///
/// # Errors
/// A text that is not the stored one: the conversation was held under other instructions.
pub fn with_system(
    mut messages: Vec<Message>,
    system: Option<&str>,
) -> Result<Vec<Message>, Error> {
    let Some(system) = system else { return Ok(messages) };
    match messages.first() {
        None => messages.push(Message::new(Role::System, system)),
        Some(first) if first.role == Role::System && first.text() == system => {}
        Some(_) => {
            let what = "the given system text differs from the stored one: drop it, or begin another history";
            return Err(Error::History { line: 1, what: what.into() });
        }
    }
    Ok(messages)
}
