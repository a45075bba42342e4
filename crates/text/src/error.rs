//! What can go wrong with tokenizer files, chats and ids. Not I/O: the caller reads the files.

/// An error of this crate. The message says what was wrong and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tokenizer file has a bad line.
    #[error("{file}, line {line}: {what}")]
    Line {
        /// The file's usual name.
        file: &'static str,
        /// Line number, from 1.
        line: usize,
        /// What is wrong with the line.
        what: String,
    },
    /// A tokenizer file as a whole cannot be used.
    #[error("{file}: {what}")]
    File {
        /// The file's usual name.
        file: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A tokenizer file asks for a step that is not implemented.
    #[error("{file}: {field} is {got}, only {supported} is supported")]
    Unsupported {
        /// The file's usual name.
        file: &'static str,
        /// The field, as a path.
        field: &'static str,
        /// What the file asks for.
        got: String,
        /// What would be accepted.
        supported: &'static str,
    },
    /// The files at hand do not say which tokenizer this is.
    #[error("no tokenizer: {0}")]
    Files(&'static str),
    /// Text is not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] crate::json::Error),
    /// An id that the vocabulary does not have.
    #[error("token id {id} is outside the vocabulary of {vocab_size} ids")]
    UnknownId {
        /// The id.
        id: u32,
        /// The number of ids, so the largest is one less.
        vocab_size: usize,
    },
    /// A chat format needs a control token that the tokenizer lacks.
    #[error("the tokenizer has no control token {0:?}: it belongs to another model")]
    NoControl(String),
    /// A chat request that cannot be rendered.
    #[error("chat: {0}")]
    Request(String),
    /// A message of a chat request that cannot be rendered.
    #[error("message {index}: {what}")]
    Message {
        /// Its place in the request, from 0.
        index: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A history file has a bad line.
    #[error("history, line {line}: {what}")]
    History {
        /// Line number, from 1.
        line: usize,
        /// What is wrong with the line.
        what: String,
    },
    /// Stop strings that cannot be used.
    #[error("stop strings: {0}")]
    Stop(String),
}
