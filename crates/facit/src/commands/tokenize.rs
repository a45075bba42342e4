//! `facit tokenize` and `facit detokenize`: text to ids and back, with a directory's tokenizer.

use std::io::Read as _;
use std::path::PathBuf;

use engine::giant::tokenizer_at;
use text::Tokenizer;

use crate::exit::{Code, Usage};
use crate::ui::Out;

/// Longest text or list of ids that is read from standard input.
const MAX_INPUT: u64 = 1 << 30;

/// Show the token ids of a text
///
/// The text is encoded as plain text: what spells a control token does not become one.
#[derive(clap::Args)]
pub struct TokenizeArgs {
    /// The directory with tiktoken.model or tokenizer.json
    dir: PathBuf,
    /// The text; `-` reads it from standard input, bytes as they are
    text: std::ffi::OsString,
    /// Print one JSON object with ids and pieces
    #[arg(long)]
    json: bool,
}

/// Show the text of token ids
#[derive(clap::Args)]
pub struct DetokenizeArgs {
    /// The directory with tiktoken.model or tokenizer.json
    dir: PathBuf,
    /// Ids separated by commas or blanks; `-` reads them from standard input
    #[arg(required = true, num_args = 1..)]
    ids: Vec<String>,
}

pub fn tokenize(args: TokenizeArgs) -> anyhow::Result<Code> {
    let tokenizer = open(&args.dir)?;
    let bytes = match args.text.to_str() {
        Some("-") => stdin()?,
        _ => args.text.into_encoded_bytes(),
    };
    let ids = tokenizer.encode_bytes(&bytes);
    let mut out = Out::default();
    if args.json {
        let pieces = ids.iter().map(|&id| tokenizer.token(id).map(String::from_utf8_lossy));
        let pieces = pieces.collect::<Result<Vec<_>, _>>().map_err(engine::Error::from)?;
        out.json(&serde_json::json!({ "ids": ids, "pieces": pieces, "count": ids.len() }))?;
    } else {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        out.line(&ids.join(" "))?;
    }
    Ok(Code::Ok)
}

pub fn detokenize(args: DetokenizeArgs) -> anyhow::Result<Code> {
    let tokenizer = open(&args.dir)?;
    let given = match args.ids.as_slice() {
        [dash] if dash == "-" => String::from_utf8_lossy(&stdin()?).into_owned(),
        ids => ids.join(" "),
    };
    let bytes = tokenizer.decode(&parse_ids(&given)?).map_err(engine::Error::from)?;
    Out::default().bytes(&bytes)?;
    Ok(Code::Ok)
}

/// Ids separated by commas, blanks or brackets.
pub fn parse_ids(text: &str) -> anyhow::Result<Vec<u32>> {
    text.split(|c: char| c == ',' || c == '[' || c == ']' || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().map_err(|_| Usage(format!("{word:?} is not a token id")).into()))
        .collect()
}

fn open(dir: &std::path::Path) -> anyhow::Result<Tokenizer> {
    Ok(tokenizer_at(dir)?.ok_or_else(|| {
        Usage(format!("{} has neither tiktoken.model nor tokenizer.json", dir.display()))
    })?)
}

fn stdin() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut bytes);
    read.map_err(|e| Usage(format!("cannot read standard input: {e}")))?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(Usage(format!("standard input is longer than {MAX_INPUT} bytes")).into());
    }
    Ok(bytes)
}
