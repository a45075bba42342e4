//! Encoding and decoding over the tokenizer in section zero: llama2.c's byte-pair scheme, done in
//! metered items so that a long prompt can take several turns.
//!
//! A prompt becomes token 1, a space, its characters (whole UTF-8 sequences if the vocabulary has
//! them, else one token a byte), and then, again and again, the leftmost pair with the highest
//! score is merged.

use core::cmp::Ordering;

use crate::Error;
use crate::format::Metadata;
use crate::planner::{CHUNK_COST, TOKENIZER_STEP_COST, TURN_COST, lookup_cost, phase};
use crate::state::{Buffers, Header};

/// The token every sequence opens with; generating it ends the run.
pub const OPENING: u32 = 1;
/// The token that closes a sequence.
pub const CLOSING: u32 = 2;
/// The token of byte `b` is `b + BYTE_TOKENS`.
pub const BYTE_TOKENS: u32 = 3;

/// The lowest id whose text is exactly `text`.
///
/// # Errors
/// [`Error::InvalidFormat`] for metadata that was never checked and does not hold together.
pub fn lookup(m: &Metadata<'_>, text: &[u8]) -> Result<Option<u32>, Error> {
    lookup_joined(m, text, &[])
}

/// [`lookup`] of two texts one after the other.
fn lookup_joined(m: &Metadata<'_>, left: &[u8], right: &[u8]) -> Result<Option<u32>, Error> {
    let (mut from, mut to) = (0, m.config.vocab());
    let mut found = None;
    while from < to {
        let middle = from + (to - from) / 2;
        let id = m.sorted_id(middle)?;
        let text = m.token_text(id)?;
        let (head, tail) = text.split_at(text.len().min(left.len()));
        match head.cmp(left).then_with(|| tail.cmp(right)) {
            Ordering::Less => from = middle + 1,
            Ordering::Greater => to = middle,
            // Keep going: of equal texts the first, which has the lowest id, counts.
            Ordering::Equal => (to, found) = (middle, Some(id)),
        }
    }
    Ok(found)
}

/// The text a generated token appends after `previous`: nothing for tokens 1 and 2, without its
/// leading space after the opening token, and one byte if it is written `<0xXX>`.
///
/// # Errors
/// [`Error::InvalidFormat`] for an id outside the vocabulary.
pub fn decode<'a>(m: &Metadata<'a>, previous: u32, token: u32) -> Result<&'a [u8], Error> {
    let mut text = m.token_text(token)?;
    if token == OPENING || token == CLOSING {
        return Ok(&[]);
    }
    if previous == OPENING {
        text = text.strip_prefix(b" ").unwrap_or(text);
    }
    let byte = match text {
        [b'<', b'0', b'x', high, low, b'>'] => hex(*high).zip(hex(*low)).map(|(h, l)| 16 * h + l),
        _ => None,
    };
    Ok(byte.map_or(text, |b| &BYTES[b..b + 1]))
}

fn hex(digit: u8) -> Option<usize> {
    (digit as char).to_digit(16).map(|d| d as usize)
}

/// Every byte, to borrow one from.
static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut i = 0;
    while i < 256 {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};

/// The character at the start of `prompt`: a byte and up to three continuation bytes after it.
fn character(prompt: &[u8]) -> &[u8] {
    let mut len = prompt.len().min(1);
    while len < 4 && prompt.get(len).is_some_and(|b| b & 0xC0 == 0x80) {
        len += 1;
    }
    &prompt[..len]
}

/// One metered item of work.
enum Item<'a> {
    Open,
    Character(&'a [u8]),
    CharactersDone,
    /// Looks up the texts of two tokens, joined.
    Pair(&'a [u8], &'a [u8]),
    Merge,
    MergesDone,
}

impl<'a> Item<'a> {
    fn next(m: &Metadata<'a>, h: &Header, b: &Buffers<'a>) -> Result<Item<'a>, Error> {
        Ok(match h.cursor.phase {
            phase::OPEN => Item::Open,
            phase::CHARACTERS => match character(&b.prompt[h.next_byte as usize..]) {
                [] => Item::CharactersDone,
                text => Item::Character(text),
            },
            _ if h.pair + 1 < h.prompt_tokens => {
                let at = h.pair as usize;
                let text = |i: usize| m.token_text(u32::from_le_bytes(b.prompt_tokens[i]));
                Item::Pair(text(at)?, text(at + 1)?)
            }
            _ if h.best_key != 0 => Item::Merge,
            _ => Item::MergesDone,
        })
    }

    fn cost(&self, vocab: usize, h: &Header) -> u32 {
        CHUNK_COST
            + match self {
                Item::Open if h.prompt_len == 0 => TOKENIZER_STEP_COST,
                Item::Open => TOKENIZER_STEP_COST + lookup_cost(vocab, 1),
                Item::Character(text) => lookup_cost(vocab, text.len()),
                Item::Pair(left, right) => lookup_cost(vocab, left.len() + right.len()),
                Item::Merge => TOKENIZER_STEP_COST + 4 * h.prompt_tokens,
                Item::CharactersDone | Item::MergesDone => TOKENIZER_STEP_COST,
            }
    }
}

/// Runs a turn of phases 0 to 2 and returns the compute units really charged.
///
/// # Errors
/// [`Error::InvalidConfig`] if not even one item fits the allowance, [`Error::InvalidPrompt`] for a
/// byte outside the vocabulary, [`Error::ContextExceeded`].
pub(crate) fn run(
    m: &Metadata<'_>,
    h: &mut Header,
    b: &mut Buffers<'_>,
    allowance: u32,
) -> Result<u32, Error> {
    let vocab = m.config.vocab();
    let mut left = allowance - TURN_COST;
    let mut any = false;
    while h.cursor.phase < phase::EMBEDDING {
        let item = Item::next(m, h, b)?;
        let Some(after) = left.checked_sub(item.cost(vocab, h)) else {
            break;
        };
        left = after;
        any = true;
        apply(m, h, b, item)?;
    }
    if any { Ok(allowance - left) } else { Err(Error::InvalidConfig) }
}

fn apply(
    m: &Metadata<'_>,
    h: &mut Header,
    b: &mut Buffers<'_>,
    item: Item<'_>,
) -> Result<(), Error> {
    match item {
        Item::Open => {
            push(h, b, OPENING)?;
            if h.prompt_len > 0 {
                push_text(m, h, b, b" ")?;
            }
            h.cursor.phase = phase::CHARACTERS;
        }
        Item::Character(text) => {
            push_text(m, h, b, text)?;
            h.next_byte += text.len() as u32;
        }
        Item::CharactersDone => {
            h.cursor.phase = phase::MERGES;
            restart_scan(h);
        }
        Item::Pair(left, right) => {
            if let Some(id) = lookup_joined(m, left, right)? {
                let key = m.score_key(id)?;
                // Strictly greater: of equal scores the leftmost wins.
                if key > h.best_key {
                    (h.best_key, h.best_pos, h.best_id) = (key, h.pair, id);
                }
            }
            h.pair += 1;
        }
        Item::Merge => {
            let (at, count) = (h.best_pos as usize, h.prompt_tokens as usize);
            b.prompt_tokens[at] = h.best_id.to_le_bytes();
            b.prompt_tokens.copy_within(at + 2..count, at + 1);
            b.prompt_tokens[count - 1] = [0; 4];
            h.prompt_tokens -= 1;
            restart_scan(h);
        }
        Item::MergesDone => {
            if h.prompt_tokens + h.max_tokens - 1 > m.config.seq() as u32 {
                return Err(Error::ContextExceeded);
            }
            h.cursor.phase = phase::EMBEDDING;
            h.token = u32::from_le_bytes(b.prompt_tokens[0]);
            h.pair = 0;
        }
    }
    Ok(())
}

fn restart_scan(h: &mut Header) {
    (h.pair, h.best_pos, h.best_key, h.best_id) = (0, 0, 0, 0);
}

fn push(h: &mut Header, b: &mut Buffers<'_>, id: u32) -> Result<(), Error> {
    let room = b.prompt_tokens.get_mut(h.prompt_tokens as usize);
    *room.ok_or(Error::InvalidState)? = id.to_le_bytes();
    h.prompt_tokens += 1;
    Ok(())
}

/// Appends the token of a text, or one token for each of its bytes.
fn push_text(
    m: &Metadata<'_>,
    h: &mut Header,
    b: &mut Buffers<'_>,
    text: &[u8],
) -> Result<(), Error> {
    if let Some(id) = lookup(m, text)? {
        return push(h, b, id);
    }
    for byte in text {
        let id = *byte as u32 + BYTE_TOKENS;
        if id as usize >= m.config.vocab() {
            return Err(Error::InvalidPrompt);
        }
        push(h, b, id)?;
    }
    Ok(())
}
