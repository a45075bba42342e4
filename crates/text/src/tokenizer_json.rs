//! Reads DeepSeek's `tokenizer.json` (the Hugging Face format): byte-level BPE behind DeepSeek's chain of
//! splits. Any other pipeline is refused by name. Source: the released `tokenizer.json` itself.

use crate::bpe::{Bpe, Merge, Scratch, key};
use crate::error::Error;
use crate::json::{self, Value};
use crate::tokenizer::{Family, MAX_TOKEN_BYTES, MAX_VOCAB, Tokenizer, Vocab};
use rustc_hash::FxHashMap;

const FILE: &str = "tokenizer.json";

/// The patterns of the chain, which [`crate::split`] implements by hand.
pub(crate) const SPLITS: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];

/// Makes the tokenizer of the file's content.
pub(crate) fn read(bytes: &[u8]) -> Result<Tokenizer, Error> {
    let text = std::str::from_utf8(bytes).map_err(|_| file("not UTF-8"))?;
    let json =
        json::parse(text).map_err(|e| Error::Line { file: FILE, line: e.line, what: e.what })?;
    pipeline(&json)?;
    let model = json.get("model").ok_or_else(|| file("no object `model`"))?;
    plain_bpe(model)?;
    let tokens = vocabulary(&json, model)?;
    let bpe = merges(model, &tokens)?;
    let mut vocab = Vocab::default();
    tokens.iter().for_each(|token| vocab.push(&token.bytes, token.control));
    vocab.index_control().map_err(|s| file(format!("two added tokens are {s:?}")))?;
    Ok(Tokenizer { family: Family::DeepseekV41, bpe, vocab })
}

fn file(what: impl Into<String>) -> Error {
    Error::File { file: FILE, what: what.into() }
}

fn unsupported(field: &'static str, got: String, supported: &'static str) -> Error {
    Error::Unsupported { file: FILE, field, got, supported }
}

/// What a step of the pipeline calls itself, for messages.
fn kind(step: &Value) -> String {
    let kind = step.get("type").and_then(Value::as_str);
    kind.map_or_else(|| json::dumps(step).chars().take(60).collect(), |k| format!("`{k}`"))
}

fn absent(value: Option<&Value>) -> bool {
    matches!(value, None | Some(Value::Null))
}

/// Everything around the model must be what this reader implements.
fn pipeline(json: &Value) -> Result<(), Error> {
    for field in ["normalizer", "truncation", "padding"] {
        if let Some(step) = json.get(field).filter(|s| **s != Value::Null) {
            return Err(unsupported(field, kind(step), "null"));
        }
    }
    // As a post-processor ByteLevel only moves offsets, which nobody here asks for.
    for (field, optional) in [("post_processor", true), ("decoder", false)] {
        let step = json.get(field).unwrap_or(&Value::Null);
        let byte_level = step.get("type").and_then(Value::as_str) == Some("ByteLevel");
        if !(byte_level || optional && *step == Value::Null) {
            return Err(unsupported(field, kind(step), "ByteLevel"));
        }
    }
    let pre = json.get("pre_tokenizer").unwrap_or(&Value::Null);
    let steps = pre.get("pretokenizers").and_then(Value::as_array);
    let Some(steps) = steps.filter(|_| kind(pre) == "`Sequence`") else {
        return Err(unsupported("pre_tokenizer", kind(pre), "DeepSeek's Sequence"));
    };
    let [splits @ .., byte_level] = steps else {
        return Err(unsupported(
            "pre_tokenizer",
            "an empty Sequence".into(),
            "DeepSeek's Sequence",
        ));
    };
    if splits.len() != SPLITS.len() {
        let got = format!("a Sequence of {}", steps.len());
        return Err(unsupported("pre_tokenizer", got, "DeepSeek's Sequence of four"));
    }
    splits.iter().zip(SPLITS).try_for_each(|(split, regex)| check_split(split, regex))?;
    let plain = |key| byte_level.get(key).and_then(Value::as_bool) == Some(false);
    if kind(byte_level) != "`ByteLevel`" || !plain("add_prefix_space") || !plain("use_regex") {
        let got = json::dumps(byte_level);
        return Err(unsupported("pre_tokenizer", got, "ByteLevel without prefix space and regex"));
    }
    Ok(())
}

fn check_split(split: &Value, regex: &str) -> Result<(), Error> {
    if kind(split) != "`Split`" {
        return Err(unsupported("pre_tokenizer", kind(split), "Split"));
    }
    let got = split.get("pattern").and_then(|p| p.get("Regex")).and_then(Value::as_str);
    if got != Some(regex) {
        let got = format!("Split by {}", got.unwrap_or("something that is not a Regex"));
        return Err(unsupported("pre_tokenizer", got, "DeepSeek's patterns"));
    }
    let isolated = split.get("behavior").and_then(Value::as_str) == Some("Isolated");
    if !isolated || split.get("invert").and_then(Value::as_bool) != Some(false) {
        return Err(unsupported(
            "pre_tokenizer",
            json::dumps(split),
            "Split that is Isolated, not inverted",
        ));
    }
    Ok(())
}

/// The model must be BPE without any of the format's options.
fn plain_bpe(model: &Value) -> Result<(), Error> {
    if model.get("type").is_some_and(|t| t.as_str() != Some("BPE")) {
        return Err(unsupported("model", kind(model), "BPE"));
    }
    for field in ["dropout", "unk_token"] {
        if !absent(model.get(field)) {
            return Err(unsupported("model", format!("BPE with {field}"), "BPE without it"));
        }
    }
    for field in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if !absent(model.get(field)) && model.get(field).and_then(Value::as_str) != Some("") {
            return Err(unsupported("model", format!("BPE with {field}"), "BPE without it"));
        }
    }
    for field in ["fuse_unk", "byte_fallback", "ignore_merges"] {
        if !absent(model.get(field)) && model.get(field).and_then(Value::as_bool) != Some(false) {
            return Err(unsupported("model", format!("BPE with {field}"), "BPE without it"));
        }
    }
    Ok(())
}

struct Token {
    bytes: Vec<u8>,
    control: bool,
}

/// The tokens by id, from `model.vocab` and `added_tokens`; every id from 0 on must be there.
fn vocabulary(json: &Value, model: &Value) -> Result<Vec<Token>, Error> {
    let base = model
        .get("vocab")
        .and_then(Value::as_object)
        .ok_or_else(|| file("no object `model.vocab`"))?;
    let added = json.get("added_tokens").and_then(Value::as_array).unwrap_or_default();
    if base.len() + added.len() > MAX_VOCAB {
        return Err(file(format!("more than {MAX_VOCAB} tokens")));
    }
    let mut tokens: Vec<Option<Token>> = Vec::new();
    tokens.resize_with(base.len() + added.len(), || None);
    for token in added {
        let (id, content) = added_token(token)?;
        let slot =
            tokens.get_mut(id).ok_or_else(|| file(format!("added token id {id} leaves a gap")))?;
        if slot.replace(Token { bytes: content.into(), control: true }).is_some() {
            return Err(file(format!("added token id {id} is listed twice")));
        }
    }
    let alphabet = alphabet();
    let mut shared = 0;
    for (name, id) in base {
        let id =
            id.as_u32().ok_or_else(|| file(format!("vocab entry {name:?} has no usable id")))?
                as usize;
        let slot =
            tokens.get_mut(id).ok_or_else(|| file(format!("id {id} of {name:?} leaves a gap")))?;
        match slot {
            Some(t) if t.control && t.bytes == name.as_bytes() => shared += 1,
            Some(_) => return Err(file(format!("id {id} of {name:?} is taken"))),
            None => *slot = Some(Token { bytes: base_bytes(name, &alphabet)?, control: false }),
        }
    }
    tokens.truncate(tokens.len() - shared);
    let missing = tokens.iter().position(Option::is_none);
    let tokens: Option<Vec<Token>> = tokens.into_iter().collect();
    tokens.ok_or_else(|| file(format!("no token has id {}", missing.unwrap_or(0))))
}

/// Id and spelling of an added token, which must be matched as it is spelled.
fn added_token(token: &Value) -> Result<(usize, &str), Error> {
    let id = token.get("id").and_then(Value::as_u32);
    let content = token.get("content").and_then(Value::as_str);
    let (Some(id), Some(content)) = (id, content) else {
        return Err(file("an added token without `id` and `content`"));
    };
    if content.is_empty() || content.len() > MAX_TOKEN_BYTES {
        return Err(file(format!("added token {id} is empty or too long")));
    }
    for flag in ["single_word", "lstrip", "rstrip", "normalized"] {
        // Without a normalizer `normalized` means nothing.
        if flag != "normalized" && token.get(flag).and_then(Value::as_bool) == Some(true) {
            return Err(unsupported(
                "added_tokens",
                format!("{content:?} with {flag}"),
                "plain tokens",
            ));
        }
    }
    Ok((id as usize, content))
}

fn base_bytes(name: &str, alphabet: &FxHashMap<char, u8>) -> Result<Vec<u8>, Error> {
    let bytes: Option<Vec<u8>> = name.chars().map(|c| alphabet.get(&c).copied()).collect();
    let bytes = bytes
        .ok_or_else(|| file(format!("vocab entry {name:?} is neither byte-level nor added")))?;
    if bytes.is_empty() || bytes.len() > MAX_TOKEN_BYTES {
        return Err(file(format!("vocab entry {name:?} is empty or too long")));
    }
    Ok(bytes)
}

/// The merges in rank order, `["a", "b"]` or `"a b"`, as pairs of ids.
fn merges(model: &Value, tokens: &[Token]) -> Result<Bpe, Error> {
    let mut ids: FxHashMap<&[u8], u32> = FxHashMap::default();
    for (id, token) in tokens.iter().enumerate().filter(|(_, t)| !t.control) {
        if ids.insert(&token.bytes, id as u32).is_some() {
            return Err(file(format!("id {id} repeats the bytes of another")));
        }
    }
    let byte = |b: u8| {
        ids.get([b].as_slice()).copied().ok_or_else(|| {
            file(format!("no token for the single byte {b}: some text could not be encoded"))
        })
    };
    let mut bpe = Bpe { bytes: (0..=255).map(byte).collect::<Result<_, _>>()?, ..Bpe::default() };
    let list = model
        .get("merges")
        .and_then(Value::as_array)
        .ok_or_else(|| file("no array `model.merges`"))?;
    let alphabet = alphabet();
    for (rank, merge) in list.iter().enumerate() {
        let bad = || file(format!("merge {rank} is not two tokens whose bytes joined are a token"));
        let (left, right) = match merge {
            Value::String(s) => s.split_once(' ').ok_or_else(bad)?,
            pair => match pair.as_array() {
                Some([Value::String(l), Value::String(r)]) => (l.as_str(), r.as_str()),
                _ => return Err(bad()),
            },
        };
        let (left, right) = (base_bytes(left, &alphabet)?, base_bytes(right, &alphabet)?);
        let find = |bytes: &[u8]| ids.get(bytes).copied().ok_or_else(bad);
        let merged = Merge { rank: rank as u32, id: find(&[&left[..], &right].concat())? };
        if bpe.merges.insert(key(find(&left)?, find(&right)?), merged).is_some() {
            return Err(file(format!("merge {rank} repeats an earlier pair")));
        }
    }
    // Most words are one token: those that merging would make anyway are looked up instead.
    let mut scratch = Scratch::default();
    for (bytes, id) in ids {
        if bpe.reaches(bytes, id, &mut scratch) {
            bpe.whole.insert(bytes.into(), id);
        }
    }
    Ok(bpe)
}

/// The character that stands for each byte in byte-level vocabularies: printable Latin-1 for itself, the
/// other bytes in order from U+0100.
pub(crate) fn byte_chars() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|b| {
        if matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            char::from(b as u8)
        } else {
            next += 1;
            char::from_u32(next - 1).expect("U+0100 to U+0143")
        }
    })
}

fn alphabet() -> FxHashMap<char, u8> {
    byte_chars().into_iter().zip(0..=255).collect()
}
