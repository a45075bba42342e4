//! A loaded tokenizer: bytes in, ids out, bytes out. Not the readers of its files, not chat.
//!
//! Plain text never becomes a control token: [`Tokenizer::encode`] knows only ordinary tokens, and control
//! ids come from [`Piece::Control`] or, for text the caller trusts, from [`Tokenizer::encode_trusted`].

use crate::bpe::{Bpe, Scratch};
use crate::error::Error;
use crate::split::Splitter;
use rustc_hash::FxHashMap;

/// Largest tokenizer file that is read; callers may check before they read it.
pub const MAX_FILE_BYTES: usize = 64 << 20;
/// Longest token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 512;
/// Most ids.
pub const MAX_VOCAB: usize = 1 << 20;

/// The contents of the files that a tokenizer is made from; the caller reads those it finds.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenizerFiles<'a> {
    /// `tiktoken.model`
    pub tiktoken: Option<&'a [u8]>,
    /// `tokenizer_config.json`
    pub config: Option<&'a [u8]>,
    /// `tokenizer.json`
    pub tokenizer_json: Option<&'a [u8]>,
}

/// Whose tokenizer it is, which also decides the chat format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Kimi K3: tiktoken ranks and XTML chat.
    KimiK3,
    /// DeepSeek-V4.1: `tokenizer.json` and DeepSeek's chat.
    DeepseekV41,
}

/// A part of a prompt: text from anybody, or a control token that only a chat format may place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Encoded as plain text, by itself.
    Text(String),
    /// The control token of this spelling.
    Control(&'static str),
}

/// A tokenizer. Immutable; shared between threads freely.
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) family: Family,
    pub(crate) bpe: Bpe,
    pub(crate) vocab: Vocab,
}

/// The bytes of each id, and which ids are control tokens.
#[derive(Debug, Default)]
pub(crate) struct Vocab {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end in `bytes`.
    ends: Vec<usize>,
    control: Vec<bool>,
    by_spelling: FxHashMap<Box<str>, u32>,
    /// Lengths of control spellings, longest first, without repeats.
    lengths: Vec<usize>,
    /// The bytes that control spellings begin with.
    first_bytes: Vec<u8>,
}

impl Vocab {
    /// Appends the next id.
    pub fn push(&mut self, bytes: &[u8], control: bool) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.control.push(control);
    }

    /// Makes the index of control tokens; `Err` holds a spelling that two ids share.
    pub fn index_control(&mut self) -> Result<(), String> {
        for id in 0..self.len() as u32 {
            if self.control[id as usize] {
                let spelling =
                    String::from_utf8_lossy(self.get(id).unwrap_or_default()).into_owned();
                self.lengths.push(spelling.len());
                self.first_bytes.extend(spelling.bytes().next());
                if self.by_spelling.insert(spelling.clone().into(), id).is_some() {
                    return Err(spelling);
                }
            }
        }
        self.lengths.sort_unstable_by(|a, b| b.cmp(a));
        self.lengths.dedup();
        self.first_bytes.sort_unstable();
        self.first_bytes.dedup();
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        Some(&self.bytes[if id == 0 { 0 } else { self.ends[id - 1] }..end])
    }
}

impl Tokenizer {
    /// Makes the tokenizer whose files are there: `tiktoken.model` with `tokenizer_config.json` (Kimi K3),
    /// or `tokenizer.json` (DeepSeek-V4.1).
    ///
    /// # Errors
    /// Missing, ambiguous, broken or unsupported files; the message names file, line and field.
    pub fn from_files(files: &TokenizerFiles) -> Result<Self, Error> {
        for (file, bytes) in [
            ("tiktoken.model", files.tiktoken),
            ("tokenizer_config.json", files.config),
            ("tokenizer.json", files.tokenizer_json),
        ] {
            let Some(bytes) = bytes else { continue };
            if bytes.starts_with(b"version https://git-lfs") {
                let what = "a Git LFS pointer, not the file itself: run `git lfs pull`".to_owned();
                return Err(Error::File { file, what });
            }
            if bytes.len() > MAX_FILE_BYTES {
                return Err(Error::File {
                    file,
                    what: format!("larger than {MAX_FILE_BYTES} bytes"),
                });
            }
        }
        match (files.tiktoken, files.config, files.tokenizer_json) {
            (Some(_), _, Some(_)) => {
                Err(Error::Files("both tiktoken.model and tokenizer.json are there: remove one"))
            }
            (Some(ranks), Some(config), None) => crate::tiktoken::read(ranks, config),
            (Some(_), None, None) => {
                Err(Error::Files("tiktoken.model needs tokenizer_config.json beside it"))
            }
            (None, _, Some(json)) => crate::tokenizer_json::read(json),
            (None, _, None) => {
                Err(Error::Files("neither tiktoken.model nor tokenizer.json is there"))
            }
        }
    }

    /// Whose tokenizer it is.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The number of ids, control tokens included; ids are `0..vocab_size`.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The ids of plain text; never a control token, whatever the text spells.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3);
        self.encode_into(text, &mut Scratch::default(), &mut out);
        out
    }

    /// The ids of plain bytes. Where they are not UTF-8, each invalid run is merged by itself, so decoding
    /// gives the same bytes back.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let (mut out, mut scratch) = (Vec::with_capacity(bytes.len() / 3), Scratch::default());
        for chunk in bytes.utf8_chunks() {
            self.encode_into(chunk.valid(), &mut scratch, &mut out);
            if !chunk.invalid().is_empty() {
                self.bpe.encode(chunk.invalid(), &mut scratch, &mut out);
            }
        }
        out
    }

    /// The ids of text in which control tokens may be spelled out: for text the caller trusts, such as a
    /// prompt copied from a model card. The longest spelling at the leftmost place counts.
    pub fn encode_trusted(&self, text: &str) -> Vec<u32> {
        let (mut out, mut scratch) = (Vec::new(), Scratch::default());
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            match self.control_at(text, at) {
                Some((id, end)) => {
                    self.encode_into(&text[start..at], &mut scratch, &mut out);
                    out.push(id);
                    (start, at) = (end, end);
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        self.encode_into(&text[start..], &mut scratch, &mut out);
        out
    }

    /// The longest control spelling that begins at `at`, with its end.
    fn control_at(&self, text: &str, at: usize) -> Option<(u32, usize)> {
        if !self.vocab.first_bytes.contains(&text.as_bytes()[at]) {
            return None;
        }
        self.vocab.lengths.iter().find_map(|length| {
            let spelling = text.get(at..at + length)?;
            self.vocab.by_spelling.get(spelling).map(|&id| (id, at + length))
        })
    }

    /// The ids of a rendered prompt, piece by piece.
    ///
    /// # Errors
    /// A control token that this tokenizer does not have.
    pub fn encode_pieces(&self, pieces: &[Piece]) -> Result<Vec<u32>, Error> {
        let (mut out, mut scratch) = (Vec::new(), Scratch::default());
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.encode_into(text, &mut scratch, &mut out),
                Piece::Control(spelling) => out.push(self.control(spelling)?),
            }
        }
        Ok(out)
    }

    fn encode_into(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let splitter = match self.family {
            Family::KimiK3 => Splitter::KimiK3,
            Family::DeepseekV41 => Splitter::Deepseek,
        };
        splitter.split(text, &mut |piece| self.bpe.encode(piece.as_bytes(), scratch, out));
    }

    /// The bytes of the tokens; control tokens give their spelling. May end inside a character: see
    /// [`crate::Utf8Stream`] for text as it comes.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, Error> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            out.extend_from_slice(self.token(id)?);
        }
        Ok(out)
    }

    /// The bytes of one token.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn token(&self, id: u32) -> Result<&[u8], Error> {
        self.vocab.get(id).ok_or(Error::UnknownId { id, vocab_size: self.vocab_size() })
    }

    /// The token as its vocabulary file writes it: for DeepSeek's in byte-level characters; else its text,
    /// with U+FFFD where it is no text.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn vocabulary_string(&self, id: u32) -> Result<String, Error> {
        let bytes = self.token(id)?;
        if self.family == Family::KimiK3 || self.is_control(id) {
            return Ok(String::from_utf8_lossy(bytes).into_owned());
        }
        let chars = crate::tokenizer_json::byte_chars();
        Ok(bytes.iter().map(|&b| chars[b as usize]).collect())
    }

    /// The id of a control token by its spelling.
    ///
    /// # Errors
    /// No such control token.
    pub fn control(&self, spelling: &str) -> Result<u32, Error> {
        let id = self.vocab.by_spelling.get(spelling);
        id.copied().ok_or_else(|| Error::NoControl(spelling.to_owned()))
    }

    /// Whether an id is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.control.get(id as usize).copied().unwrap_or(false)
    }

    /// The control tokens, by id.
    pub fn controls(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let ids = (0..self.vocab_size() as u32).filter(|&id| self.is_control(id));
        ids.filter_map(|id| Some((id, self.vocab.get(id)?)))
    }

    /// The ids after which a reply is over: `<|end_of_msg|>` and `[EOS]`, or DeepSeek's end of sentence.
    ///
    /// # Errors
    /// The tokenizer lacks them.
    pub fn end_ids(&self) -> Result<Vec<u32>, Error> {
        let spellings: &[&str] = match self.family {
            Family::KimiK3 => &["<|end_of_msg|>", "[EOS]"],
            Family::DeepseekV41 => &["<｜end▁of▁sentence｜>"],
        };
        spellings.iter().map(|s| self.control(s)).collect()
    }
}
