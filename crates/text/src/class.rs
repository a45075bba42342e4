//! The Unicode classes that pre-tokenizers ask about, one byte a code point. Not a general Unicode library.
//!
//! The tables are those of `regex-syntax`, which the regex engine of the original tokenizer uses too.

use regex_syntax::hir::{Class, HirKind};
use std::sync::OnceLock;

/// `\p{Lu}` and `\p{Lt}`
pub const UPPER: u8 = 1;
/// `\p{Ll}`
pub const LOWER: u8 = 1 << 1;
/// `\p{Lm}` and `\p{Lo}`
pub const UNCASED: u8 = 1 << 2;
/// `\p{M}`
pub const MARK: u8 = 1 << 3;
/// `\p{N}`
pub const NUMBER: u8 = 1 << 4;
/// `\p{P}` and `\p{S}`
pub const SYMBOL: u8 = 1 << 5;
/// `\s`, the property White_Space
pub const SPACE: u8 = 1 << 6;
/// `\p{Han}`, the script
pub const HAN: u8 = 1 << 7;
/// `\p{L}`
pub const LETTER: u8 = UPPER | LOWER | UNCASED;

const CODE_POINTS: usize = 0x11_0000;

/// Class bits by code point; built once, 1.1 MB.
pub fn table() -> &'static [u8; CODE_POINTS] {
    static TABLE: OnceLock<Box<[u8; CODE_POINTS]>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table: Box<[u8; CODE_POINTS]> =
            vec![0; CODE_POINTS].into_boxed_slice().try_into().expect("the length is the type's");
        for (pattern, bit) in [
            (r"[\p{Lu}\p{Lt}]", UPPER),
            (r"\p{Ll}", LOWER),
            (r"[\p{Lm}\p{Lo}]", UNCASED),
            (r"\p{M}", MARK),
            (r"\p{N}", NUMBER),
            (r"[\p{P}\p{S}]", SYMBOL),
            (r"\s", SPACE),
            (r"\p{Han}", HAN),
        ] {
            for (first, last) in ranges(pattern) {
                for slot in &mut table[first as usize..=last as usize] {
                    *slot |= bit;
                }
            }
        }
        table
    })
}

/// The inclusive ranges of a pattern that is one character class.
pub fn ranges(pattern: &str) -> Vec<(char, char)> {
    let hir = regex_syntax::parse(pattern).expect("a constant pattern");
    match hir.kind() {
        HirKind::Class(Class::Unicode(c)) => {
            c.ranges().iter().map(|r| (r.start(), r.end())).collect()
        }
        _ => unreachable!("a constant pattern that is one class"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_characters_that_tables_get_wrong() {
        let of = |c: char| table()[c as usize];
        assert_eq!(of('ǅ'), UPPER, "titlecase counts as upper");
        assert_eq!(of('ª'), UNCASED);
        assert_eq!(of('中'), UNCASED | HAN);
        assert_eq!(of('〇'), NUMBER | HAN, "a Han number is no letter");
        assert_eq!(of('⺀'), SYMBOL | HAN, "a radical is a symbol");
        assert_eq!(of('\u{16ff0}'), MARK | HAN);
        assert_eq!(of('\u{3000}'), SPACE);
        assert_eq!(of('\u{85}'), SPACE);
        assert_eq!(of('\u{1c}'), 0, "blank to Python, not to a regex");
        assert_eq!(of('\u{200d}'), 0, "the joiner is in no class");
        assert_eq!(of('\u{10ffff}'), 0);
    }
}
