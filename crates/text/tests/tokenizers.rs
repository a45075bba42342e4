//! The tokenizers against vectors that tiktoken and tokenizers made (vectors/text/generate.py).
#![allow(clippy::print_stderr)]

mod support;

use serde_json::Value;
use support::{deepseek, k3, strings, vector};
use text::{Family, Tokenizer};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn fnv1a64(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// Any wrong cut, merge order, slice of long text or class of a character changes some of these ids.
fn oracle_cases(tokenizer: &Tokenizer, file: &str) -> usize {
    let cases: Value = serde_json::from_str(&vector(file)).unwrap();
    for case in cases.as_array().unwrap() {
        if let Some(unit) = case["unit"].as_str() {
            let text = unit.repeat(case["repeats"].as_u64().unwrap() as usize);
            let got = tokenizer.encode(&text);
            assert_eq!(got.len() as u64, case["count"].as_u64().unwrap(), "{unit:?}");
            assert_eq!(&got[got.len() - 4..], ids(&case["tail"]), "{unit:?}");
            assert_eq!(fnv1a64(&got), case["fnv1a64"], "{unit:?}");
            continue;
        }
        let text = case["text"].as_str().unwrap();
        let (got, want) = if case["trusted"].is_array() {
            (tokenizer.encode_trusted(text), ids(&case["trusted"]))
        } else {
            (tokenizer.encode(text), ids(&case["ids"]))
        };
        assert_eq!(got, want, "{text:?}");
        assert_eq!(tokenizer.decode(&got).unwrap(), text.as_bytes());
    }
    cases.as_array().unwrap().len()
}

#[test]
fn k3_gives_the_ids_of_tiktoken() {
    assert!(oracle_cases(&k3(), "k3/cases.json") > 400);
}

#[test]
fn deepseek_gives_the_ids_of_tokenizers() {
    assert!(oracle_cases(&deepseek(), "deepseek/cases.json") > 400);
}

#[test]
fn the_checkpoints_own_tokenizer_cases() {
    let Some(shared) = support::shared("goldens/ds41/tiny_expect/expect.json") else { return };
    let expect: Value = serde_json::from_slice(&std::fs::read(shared).unwrap()).unwrap();
    let tokenizer = deepseek();
    for case in expect["tokenizer"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_trusted(text), ids(&case["ids"]), "{text:?}");
    }
}

/// The property of the crate: if this fails, a user can open a system message.
#[test]
fn text_that_spells_control_tokens_stays_text() {
    for tokenizer in [k3(), deepseek()] {
        let spelled: Vec<String> = tokenizer.controls().map(|(_, s)| strings(s)).collect();
        for text in spelled.iter().cloned().chain([spelled.concat(), spelled.join(" ")]) {
            for got in [tokenizer.encode(&text), tokenizer.encode_bytes(text.as_bytes())] {
                assert!(!got.iter().any(|&id| tokenizer.is_control(id)), "{text:?}");
                assert_eq!(tokenizer.decode(&got).unwrap(), text.as_bytes());
            }
            assert!(
                tokenizer.encode_trusted(&text).iter().all(|&id| {
                    tokenizer.is_control(id) || tokenizer.token(id).unwrap() == b" "
                })
            );
        }
    }
}

#[test]
fn families_sizes_and_ids() {
    assert_eq!(k3().family(), Family::KimiK3);
    assert_eq!(k3().vocab_size(), 1204 + 11);
    assert_eq!(k3().control("<|open|>").unwrap(), 1204 + 3);
    assert_eq!(deepseek().family(), Family::DeepseekV41);
    assert_eq!(deepseek().vocab_size(), 384);
    let error = deepseek().decode(&[3, 384]).unwrap_err().to_string();
    assert_eq!(error, "token id 384 is outside the vocabulary of 384 ids");
    let error = k3().control("<|nope|>").unwrap_err().to_string();
    assert!(error.contains("<|nope|>"), "{error}");
}

/// Set FACIT_K3_TOKENIZER to a folder with the released tiktoken.model and tokenizer_config.json.
#[test]
fn released_k3_ids() {
    let Some(dir) = std::env::var_os("FACIT_K3_TOKENIZER").map(std::path::PathBuf::from) else {
        eprintln!("skipped: FACIT_K3_TOKENIZER is not set");
        return;
    };
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let tokenizer = support::open_k3(&read("tiktoken.model"), &read("tokenizer_config.json"));
    let ids = tokenizer.encode("The capital of France is");
    assert_eq!(ids, [1008, 10484, 318, 15383, 387]);
    assert_eq!(tokenizer.token(17374).unwrap(), b" Paris");
    assert_eq!(tokenizer.control("[BOS]").unwrap(), 163_584);
}

/// Set FACIT_DEEPSEEK_TOKENIZER to a folder with the released tokenizer.json.
#[test]
fn released_deepseek_ids() {
    let Some(dir) = std::env::var_os("FACIT_DEEPSEEK_TOKENIZER").map(std::path::PathBuf::from)
    else {
        eprintln!("skipped: FACIT_DEEPSEEK_TOKENIZER is not set");
        return;
    };
    let tokenizer = support::open_deepseek(&std::fs::read(dir.join("tokenizer.json")).unwrap());
    let chat = "<｜begin▁of▁sentence｜><｜User｜>What is 2+2?<｜Assistant｜></think>";
    let want = [0, 128_803, 3085, 344, 223, 20, 13, 20, 33, 128_804, 128_822];
    assert_eq!(tokenizer.encode_trusted(chat), want);
    let map = text::engram::token_map(&tokenizer).unwrap();
    assert_eq!((map.len(), map.iter().max().unwrap() + 1), (129_280, 99_092));
}
