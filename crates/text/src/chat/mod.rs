//! Chats: what a request and a reply are, whatever the model's format. Each format has a
//! file for its prompts and one for the grammar of its replies; sampling and sessions are the engine's.
//!
//! A request is rendered to [`Piece`]s, in which only the format's own markers are control tokens, and
//! [`Tokenizer::encode_pieces`] makes ids of them. A reply is parsed from ids, one at a time.

mod deepseek;
mod deepseek_reply;
pub mod history;
mod k3;
mod k3_reply;
mod reply;
mod request;

pub use reply::{Event, Finish, ReplyParser};
pub use request::{Effort, Message, Request, ResponseFormat, Role, Task, ToolCall, ToolChoice};

use crate::error::Error;
use crate::tokenizer::{Family, Piece, Tokenizer};

/// Renders a request in the format of a model family.
///
/// # Errors
/// What the format cannot express is refused with the message's place and the reason.
pub fn render(family: Family, request: &Request) -> Result<Vec<Piece>, Error> {
    if request.messages.is_empty() {
        return Err(Error::Request("there are no messages".into()));
    }
    match family {
        Family::KimiK3 => k3::render(request),
        Family::DeepseekV41 => deepseek::render(request),
    }
}

/// The ids of a request in the format of the tokenizer's model.
///
/// # Errors
/// As [`render`]; also a tokenizer without the format's control tokens.
pub fn encode(tokenizer: &Tokenizer, request: &Request) -> Result<Vec<u32>, Error> {
    tokenizer.encode_pieces(&render(tokenizer.family(), request)?)
}
