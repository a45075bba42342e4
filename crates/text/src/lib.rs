//! Tokenizers and chat formats: text in, ids out, and back. No files are opened here and nothing is printed.
//!
//! The property of this crate: **text never becomes a control token**. What a user, a tool or a document
//! writes is encoded with ordinary tokens whatever it spells, and only a chat format places control ids.
//!
//! - [`Tokenizer`]: Kimi K3 (tiktoken ranks) and DeepSeek-V4.1 (`tokenizer.json`)
//! - [`chat`]: requests to prompts, replies to events, history files
//! - [`Utf8Stream`]: text as it is generated, whole characters only
//! - [`StopStrings`]: where generated text must end
//! - [`engram`]: DeepSeek's map of ids to compressed ids
//! - [`json`]: JSON as prompts need it, in Python's spelling

mod bpe;
pub mod chat;
mod class;
pub mod engram;
mod error;
pub mod json;
mod split;
mod stop;
mod tiktoken;
mod tokenizer;
mod tokenizer_json;
mod utf8;

pub use error::Error;
pub use stop::{MAX_BYTES as MAX_STOP_BYTES, MAX_STRINGS as MAX_STOP_STRINGS, StopStrings};
pub use tokenizer::{
    Family, MAX_FILE_BYTES, MAX_TOKEN_BYTES, MAX_VOCAB, Piece, Tokenizer, TokenizerFiles,
};
pub use utf8::Utf8Stream;
