//! The engram token map: ids whose text looks the same to the model's hash tables share a compressed id.
//! Source: the released `inference/engram.py`. The hashes themselves are the model's.

use crate::class;
use crate::error::Error;
use crate::tokenizer::Tokenizer;
use rustc_hash::FxHashMap;
use unicode_normalization::UnicodeNormalization;

/// Stands for a text that is one space while blanks are stripped (private use, as in the original).
const ONE_SPACE: &str = "\u{e000}";

/// The compressed id of every id, numbered by first appearance; the count is one more than the largest,
/// and the released model's is 99,092.
///
/// # Errors
/// None for a tokenizer that was read; ids are looked up by the public way, which has some.
pub fn token_map(tokenizer: &Tokenizer) -> Result<Vec<u32>, Error> {
    let marks = class::ranges(r"\p{Mn}");
    let mut numbers: FxHashMap<String, u32> = FxHashMap::default();
    let mut map = Vec::with_capacity(tokenizer.vocab_size());
    for id in 0..tokenizer.vocab_size() as u32 {
        let text = String::from_utf8_lossy(tokenizer.token(id)?);
        let key = if text.contains(char::REPLACEMENT_CHARACTER) {
            tokenizer.vocabulary_string(id)?
        } else {
            let normal = normalize(&text, &marks);
            if normal.is_empty() { text.into_owned() } else { normal }
        };
        let next = numbers.len() as u32;
        map.push(*numbers.entry(key).or_insert(next));
    }
    Ok(map)
}

/// NFKC, NFD, no accents, lower case, runs of blanks as one space, stripped unless that is all.
fn normalize(text: &str, marks: &[(char, char)]) -> String {
    let accent = |c: &char| {
        marks.binary_search_by(|&(first, last)| {
            if last < *c {
                std::cmp::Ordering::Less
            } else if first > *c {
                std::cmp::Ordering::Greater
            } else {
                std::cmp::Ordering::Equal
            }
        })
    };
    let composed: String = text.nfkc().collect();
    // Letter by letter: a final sigma is lowered as any other.
    let lower = composed.nfd().filter(|c| accent(c).is_err()).flat_map(char::to_lowercase);
    let mut collapsed = String::new();
    let mut blank = false;
    for c in lower {
        let is_blank = matches!(c, ' ' | '\t' | '\r' | '\n');
        if !(is_blank && blank) {
            collapsed.push(if is_blank { ' ' } else { c });
        }
        blank = is_blank;
    }
    let kept = if collapsed == " " { ONE_SPACE } else { collapsed.trim() };
    kept.replace(ONE_SPACE, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalizes_as_the_original() {
        let marks = class::ranges(r"\p{Mn}");
        for (text, want) in [
            ("Café", "cafe"),
            ("ﬁ", "fi"),
            (" \t\n", " "),
            ("  A\r\n b  ", "a b"),
            ("Å", "a"),
            ("ΟΔΟΣ", "οδοσ"),
            ("\u{301}", ""),
            ("①", "1"),
            ("\u{3000}x", "x"),
            ("İ", "i"),
        ] {
            assert_eq!(normalize(text, &marks), want, "{text:?}");
        }
    }
}
