//! Tokenizer files that are broken, or from another tokenizer: refused with the reason, never a panic, and
//! what is accepted still encodes every byte.

mod support;

use serde_json::Value;
use support::{bytes, vector};
use text::{Tokenizer, TokenizerFiles};

const TIKTOKEN: &str = "tiktoken.model";
const CONFIG: &str = "tokenizer_config.json";

/// Opens with one file in place of the good one.
fn open(file: &str, content: &[u8]) -> Result<Tokenizer, text::Error> {
    let (tiktoken, config) = (bytes("k3/tiktoken.model"), bytes("k3/tokenizer_config.json"));
    Tokenizer::from_files(&match file {
        TIKTOKEN => {
            TokenizerFiles { tiktoken: Some(content), config: Some(&config), ..Default::default() }
        }
        CONFIG => TokenizerFiles {
            tiktoken: Some(&tiktoken),
            config: Some(content),
            ..Default::default()
        },
        _ => TokenizerFiles { tokenizer_json: Some(content), ..Default::default() },
    })
}

fn replaced(text: &str, edit: &Value) -> String {
    let (old, new) = (edit[0].as_str().unwrap(), edit[1].as_str().unwrap());
    assert!(text.contains(old), "the good file has no {old:?}");
    text.replacen(old, new, 1)
}

/// The case's file: given whole, or made from the good one.
fn content(case: &Value) -> String {
    if let Some(whole) = case["whole"].as_str() {
        return whole.to_owned();
    }
    let file = case["file"].as_str().unwrap();
    let folder = if file == "tokenizer.json" { "deepseek" } else { "k3" };
    let good = vector(&format!("{folder}/{file}"));
    if let Some(append) = case["append"].as_str() {
        return good + append;
    }
    if let Some(length) = case["append_long"][0].as_u64() {
        return good + &"A".repeat(length as usize) + case["append_long"][1].as_str().unwrap();
    }
    if case["replace"].is_array() {
        return replaced(&good, &case["replace"]);
    }
    let mut json: Value = serde_json::from_str(&good).unwrap();
    if let Some(key) = case["set"][0].as_str() {
        json[key] = case["set"][1].clone();
        return json.to_string();
    }
    // Edits are of the text without blanks, in the file's own order.
    let compact = text::json::parse(&good).unwrap();
    let compact = text::json::dumps(&compact).replace("\": ", "\":").replace(", \"", ",\"");
    replaced(&compact.replace("], [", "],["), &case["edit"])
}

#[test]
fn every_bad_file_is_refused_with_its_reason() {
    let cases: Value = serde_json::from_str(&vector("bad/cases.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let error = match open(case["file"].as_str().unwrap(), content(case).as_bytes()) {
            Ok(_) => panic!("{} was accepted", case["name"]),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(case["error"].as_str().unwrap()), "{}: {error}", case["name"]);
    }
    assert!(cases.as_array().unwrap().len() > 60);
    for file in [CONFIG, "tokenizer.json"] {
        assert!(open(file, b"{\"\xff\": 1}").unwrap_err().to_string().contains("not UTF-8"));
    }
}

#[test]
fn the_wrong_set_of_files_is_refused() {
    let file = |bytes: &'static [u8]| Some(bytes);
    for (files, want) in [
        (TokenizerFiles::default(), "neither"),
        (TokenizerFiles { config: file(b"{}"), ..Default::default() }, "neither"),
        (
            TokenizerFiles { tiktoken: file(b""), ..Default::default() },
            "needs tokenizer_config.json",
        ),
        (
            TokenizerFiles { tiktoken: file(b""), tokenizer_json: file(b""), ..Default::default() },
            "both tiktoken.model and tokenizer.json",
        ),
    ] {
        let error = Tokenizer::from_files(&files).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

/// xorshift64*: the same mutations everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let (at, other) = (random.below(bytes.len()), random.below(bytes.len()));
    let (first, last) = (at.min(other), at.max(other).min(at.min(other) + 40));
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = b"0123456789\"{}[],: \n=-\\"[random.below(22)],
        2 => drop(bytes.drain(first..last)),
        3 => bytes.truncate(at.max(1)),
        4 => {
            let copy = bytes[first..last].to_vec();
            bytes.splice(other..other, copy);
        }
        _ => bytes.swap(at, other),
    }
}

/// A mutated file is refused, or makes a tokenizer that still gives every byte back.
#[test]
fn mutated_files_never_panic() {
    let sample: Vec<u8> = (0..=255).chain("The café 中文 123 aaaa\n\n".bytes()).collect();
    let mut random = Random(0x05ee_d0fb_07e5);
    for (file, good) in [
        (TIKTOKEN, bytes("k3/tiktoken.model")),
        (CONFIG, bytes("k3/tokenizer_config.json")),
        ("tokenizer.json", bytes("deepseek/tokenizer.json")),
    ] {
        let (mut refused, mut accepted) = (0, 0);
        for _ in 0..400 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(3) {
                mutate(&mut bytes, &mut random);
            }
            match open(file, &bytes) {
                Ok(tokenizer) => {
                    let ids = tokenizer.encode_bytes(&sample);
                    assert_eq!(tokenizer.decode(&ids).unwrap(), sample);
                    assert!(!ids.iter().any(|&id| tokenizer.is_control(id)));
                    accepted += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
        assert!(refused > 100 && refused + accepted == 400, "{file}: {refused} refused");
    }
}
