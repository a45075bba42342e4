//! Whatever goes in comes out: bytes to ids to bytes, at once and token by token.

mod support;

use proptest::prelude::*;
use std::sync::OnceLock;
use text::{Piece, Tokenizer, Utf8Stream};

fn tokenizers() -> &'static [Tokenizer; 2] {
    static BOTH: OnceLock<[Tokenizer; 2]> = OnceLock::new();
    BOTH.get_or_init(|| [support::k3(), support::deepseek()])
}

/// Bytes of every kind: random, almost UTF-8, and text with spelled markers.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let marker = prop::sample::select(vec![
        "<|open|>",
        "[EOS]",
        "<｜User｜>",
        "</think>",
        "｜DSML｜",
        "aaaa",
    ]);
    let part = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..8),
        any::<String>().prop_map(String::into_bytes),
        prop::collection::vec(prop_oneof![0x80u8..0xc0, 0xc0u8..], 1..5),
        marker.prop_map(|s| s.as_bytes().to_vec()),
        ("[a ]", 1usize..200).prop_map(|(unit, n)| unit.repeat(n).into_bytes()),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

/// Quadratic work anywhere would take minutes here instead of a moment.
#[test]
fn a_million_equal_characters() {
    for tokenizer in tokenizers() {
        for unit in ["a", " ", "\n", "A", "中", "\u{301}", "\u{200d}", "'", "<|open|>"] {
            let text = unit.repeat(1_000_000 / unit.len());
            let ids = tokenizer.encode(&text);
            assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_bytes(), "{unit:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn bytes_come_back_and_are_never_control(bytes in bytes()) {
        for tokenizer in tokenizers() {
            let ids = tokenizer.encode_bytes(&bytes);
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), &bytes[..]);
            prop_assert!(!ids.iter().any(|&id| tokenizer.is_control(id)));
            let mut stream = Utf8Stream::default();
            let mut text: String = ids.iter().map(|&id| stream.push(tokenizer.token(id).unwrap())).collect();
            text += &stream.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn text_has_one_encoding(text in any::<String>()) {
        for tokenizer in tokenizers() {
            let ids = tokenizer.encode(&text);
            prop_assert_eq!(&tokenizer.encode_bytes(text.as_bytes()), &ids);
            prop_assert_eq!(tokenizer.encode_pieces(&[Piece::Text(text.clone())]).unwrap(), ids);
        }
    }

    /// Trusted text is the one place where spelled markers count; it still gives its bytes back.
    #[test]
    fn trusted_text_comes_back(bytes in bytes()) {
        let text = String::from_utf8_lossy(&bytes);
        for tokenizer in tokenizers() {
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode_trusted(&text)).unwrap(), text.as_bytes());
        }
    }
}
