//! Tokenizers and chat formats: text in, ids out, and back. No files are opened here and nothing is printed.
//!
//! The property of this crate: **text never becomes a control token**. What a user, a tool or a document
//! writes is encoded with ordinary tokens whatever it spells, and only a chat format places control ids.
//!
//! - [`Tokenizer`]: Kimi K3 (tiktoken ranks) and DeepSeek-V4.1 (`tokenizer.json`)
//! - [`Utf8Stream`]: text as it is generated, whole characters only
//! - [`json`]: JSON as prompts need it, in Python's spelling

mod bpe;
mod class;
mod error;
pub mod json;
mod split;
mod tiktoken;
mod tokenizer;
mod tokenizer_json;
mod utf8;

pub use error::Error;
pub use tokenizer::{
    Family, MAX_FILE_BYTES, MAX_TOKEN_BYTES, MAX_VOCAB, Piece, Tokenizer, TokenizerFiles,
};
pub use utf8::Utf8Stream;
