//! The outcome of a run for machines: the shape and names of OpenAI's text completions, and what
//! they have no name for under `facit`.

use serde::Serialize;

/// One completion; `F` is what only this kind of model has to say.
#[derive(Serialize)]
pub struct Completion<F> {
    object: &'static str,
    pub model: String,
    choices: [Choice; 1],
    pub usage: Usage,
    pub facit: F,
}

#[derive(Serialize)]
struct Choice {
    index: u32,
    text: String,
    finish_reason: Option<&'static str>,
    token_ids: Vec<u32>,
}

/// Counts of tokens.
#[derive(Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    total_tokens: usize,
}

impl<F> Completion<F> {
    /// A completion of `token_ids`, spelling `text`. Without a `finish_reason` it is not finished.
    pub fn of(
        model: String,
        prompt_tokens: usize,
        token_ids: Vec<u32>,
        text: String,
        finish_reason: Option<&'static str>,
        facit: F,
    ) -> Self {
        let completion_tokens = token_ids.len();
        Self {
            object: "text_completion",
            model,
            choices: [Choice { index: 0, text, finish_reason, token_ids }],
            usage: Usage {
                prompt_tokens,
                completion_tokens,
                total_tokens: prompt_tokens + completion_tokens,
            },
            facit,
        }
    }
}
