//! Reads Kimi K3's tokenizer files: `tiktoken.model` (a line `base64(bytes) rank` a token) and the
//! `added_tokens_decoder` of `tokenizer_config.json`, as released with the model.

use crate::bpe::{Bpe, Merge, key};
use crate::error::Error;
use crate::json;
use crate::tokenizer::{Family, MAX_TOKEN_BYTES, MAX_VOCAB, Tokenizer, Vocab};
use base64::Engine;
use rustc_hash::FxHashMap;

const RANKS: &str = "tiktoken.model";
const CONFIG: &str = "tokenizer_config.json";
/// Most added tokens: ids may reach this far beyond the ranks.
const MAX_ADDED: usize = 1 << 12;

/// Makes the tokenizer of the two files' contents.
pub(crate) fn read(ranks: &[u8], config: &[u8]) -> Result<Tokenizer, Error> {
    let tokens = read_ranks(ranks)?;
    let bpe = merges(&tokens)?;
    let added = read_added(config, tokens.len())?;
    let mut vocab = Vocab::default();
    tokens.iter().for_each(|token| vocab.push(token, false));
    for (i, spelling) in added.iter().enumerate() {
        let id = tokens.len() + i;
        // An id between the listed ones is reserved; the released code names it so.
        let reserved = || format!("<|reserved_token_{id}|>");
        vocab.push(spelling.clone().unwrap_or_else(reserved).as_bytes(), true);
    }
    vocab.index_control().map_err(|s| file(CONFIG, format!("two added tokens are {s:?}")))?;
    Ok(Tokenizer { family: Family::KimiK3, bpe, vocab })
}

fn file(file: &'static str, what: impl Into<String>) -> Error {
    Error::File { file, what: what.into() }
}

/// The token bytes by rank.
fn read_ranks(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|&b| b == b'\n');
    for (i, line) in lines.enumerate() {
        let bad = |what: String| Error::Line { file: RANKS, line: i + 1, what };
        let (token, rank) = read_line(line).map_err(|what| bad(what.to_owned()))?;
        if rank >= MAX_VOCAB {
            return Err(bad(format!("rank {rank} is beyond the limit of {MAX_VOCAB}")));
        }
        if tokens.len() <= rank {
            tokens.resize(rank + 1, None);
        }
        if tokens[rank].replace(token).is_some() {
            return Err(bad(format!("rank {rank} was given before")));
        }
    }
    let missing = tokens.iter().position(Option::is_none);
    let tokens: Option<Vec<Vec<u8>>> = tokens.into_iter().collect();
    tokens.ok_or_else(|| file(RANKS, format!("rank {} is missing", missing.unwrap_or(0))))
}

fn read_line(line: &[u8]) -> Result<(Vec<u8>, usize), &'static str> {
    const SHAPE: &str = "expected base64 bytes, one space and a rank";
    let space = line.iter().position(|&b| b == b' ').ok_or(SHAPE)?;
    let (code, rank) = (&line[..space], &line[space + 1..]);
    if code.len() > MAX_TOKEN_BYTES.div_ceil(3) * 4 {
        return Err("the token is too long");
    }
    let token = base64::engine::general_purpose::STANDARD.decode(code).map_err(|_| "bad base64")?;
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
        return Err("the token is empty or too long");
    }
    if rank.is_empty() || rank.len() > 9 || !rank.iter().all(u8::is_ascii_digit) {
        return Err(SHAPE);
    }
    let rank = rank.iter().fold(0, |n, digit| n * 10 + usize::from(digit - b'0'));
    Ok((token, rank))
}

/// The merge table that ranks stand for: two tokens whose bytes joined are a token merge into it, at its
/// rank. A piece that is a token as it stands is not merged at all.
fn merges(tokens: &[Vec<u8>]) -> Result<Bpe, Error> {
    let mut whole: FxHashMap<Box<[u8]>, u32> = FxHashMap::default();
    whole.reserve(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(before) = whole.insert(token.as_slice().into(), id as u32) {
            return Err(file(RANKS, format!("ranks {before} and {id} are the same bytes")));
        }
    }
    let byte = |b: u8| {
        whole.get([b].as_slice()).copied().ok_or_else(|| {
            file(RANKS, format!("no token for the single byte {b}: some text could not be encoded"))
        })
    };
    let bytes = (0..=255).map(byte).collect::<Result<_, _>>()?;
    let mut merges = FxHashMap::default();
    for (id, token) in tokens.iter().enumerate() {
        for cut in 1..token.len() {
            let (left, right) = (whole.get(&token[..cut]), whole.get(&token[cut..]));
            if let (Some(&left), Some(&right)) = (left, right) {
                merges.insert(key(left, right), Merge { rank: id as u32, id: id as u32 });
            }
        }
    }
    Ok(Bpe { bytes, merges, whole })
}

/// The added tokens' spellings from id `first` on.
fn read_added(config: &[u8], first: usize) -> Result<Vec<Option<String>>, Error> {
    let text = std::str::from_utf8(config).map_err(|_| file(CONFIG, "not UTF-8"))?;
    let json =
        json::parse(text).map_err(|e| Error::Line { file: CONFIG, line: e.line, what: e.what })?;
    let listed = json.get("added_tokens_decoder").and_then(json::Value::as_object);
    let listed = listed.ok_or_else(|| file(CONFIG, "no object `added_tokens_decoder`"))?;
    let mut added: Vec<Option<String>> = Vec::new();
    for (id, token) in listed {
        let place = id.parse::<usize>().ok().and_then(|id| id.checked_sub(first));
        let place = place.filter(|&p| p < MAX_ADDED).ok_or_else(|| {
            let last = first + MAX_ADDED - 1;
            file(
                CONFIG,
                format!("added token id {id:?} is not within {first} to {last}: wrong ranks file?"),
            )
        })?;
        let content = token.get("content").and_then(json::Value::as_str).unwrap_or("");
        if content.is_empty() || content.len() > MAX_TOKEN_BYTES {
            return Err(file(CONFIG, format!("added token {id} has no usable `content`")));
        }
        if added.len() <= place {
            added.resize(place + 1, None);
        }
        if added[place].replace(content.to_owned()).is_some() {
            return Err(file(CONFIG, format!("added token id {id} is listed twice")));
        }
    }
    Ok(added)
}
