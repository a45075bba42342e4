//! Encoding and decoding against vectors of the Python definition, which equal llama2.c's. Catches a
//! wrong tie, a wrong byte token and a merge looked up by the wrong text.

use fixed::arith::{Backend, Scratch};
use fixed::planner::{ALLOWANCE, phase};
use fixed::{Metadata, StateInfo, init_state, state_size, tokenizer, turn_with};
use testkit::fixed_goldens::json;
use testkit::fixed_models::{Generated, Model, model};
use testkit::unhex;

/// The smallest artifact around a tokenizer: long context, hardly any weights.
fn artifact(tokenizer: Vec<u8>, vocab: i32) -> Vec<u8> {
    let config = [2, 1, 1, 1, 1, vocab, 2048];
    let shape = Generated { seed: 0, config, embedding_gain: 1.0, gain: 1.0 };
    Model { checkpoint: shape.checkpoint(), tokenizer }.artifact()
}

/// Section zero for the vectors of one vocabulary; `None` if its file is not there.
fn metadata(name: &str) -> Option<Vec<u8>> {
    let (tokenizer, vocab) = match name {
        "tiny" => (model("tiny")?.tokenizer, 17),
        "stories260K" => (model("stories260K")?.tokenizer, 512),
        "llama32000" => {
            (std::fs::read(testkit::shared()?.join("models/tokenizer32k.bin")).ok()?, 32000)
        }
        other => panic!("no vocabulary {other}"),
    };
    let mut bytes = artifact(tokenizer, vocab);
    let zero = fixed::read_u64(&bytes, fixed::format::SECTION_TABLE + 8) as usize;
    bytes.truncate(zero);
    Some(bytes)
}

fn encode(m: &Metadata<'_>, text: &[u8]) -> Vec<u32> {
    let mut state = vec![0; state_size(m.config, text.len(), 1).unwrap()];
    init_state(m.config, &mut state, text, 1, 0, 0).unwrap();
    while StateInfo::read(&state).unwrap().phase < phase::EMBEDDING {
        let mut scratch = Scratch::default();
        turn_with(Backend::plain(), &mut scratch, m, &mut state, &[], ALLOWANCE).unwrap();
    }
    let count = StateInfo::read(&state).unwrap().prompt_tokens as usize;
    let words = state[128 + text.len().next_multiple_of(8)..].as_chunks().0;
    words[..count].iter().map(|w| u32::from_le_bytes(*w)).collect()
}

fn decode(m: &Metadata<'_>, tokens: &[u32]) -> Vec<u8> {
    tokens.windows(2).flat_map(|t| tokenizer::decode(m, t[0], t[1]).unwrap()).copied().collect()
}

fn check(name: &str) {
    let Some(bytes) = metadata(name) else {
        return testkit::skipped(name);
    };
    let m = Metadata::new(&bytes).unwrap();
    let file = json("tokenizer").unwrap();
    let vectors: Vec<_> = file.as_array().unwrap().iter().filter(|v| v["model"] == name).collect();
    assert!(vectors.len() > 10, "{name}: {} vectors", vectors.len());
    for v in vectors {
        let decoded = unhex(v["decoded_hex"].as_str().unwrap());
        if let Some(text) = v["text_hex"].as_str() {
            let tokens = encode(&m, &unhex(text));
            let want: Vec<u32> = serde_json::from_value(v["tokens"].clone()).unwrap();
            assert_eq!(tokens, want, "{name} {text}");
            assert_eq!(decode(&m, &tokens), decoded, "{name} {text}");
            assert_eq!(v["roundtrip"] == true, decoded == unhex(text), "{name} {text}");
        } else {
            let number = |key: &str| v[key].as_u64().unwrap() as u32;
            let (previous, token) = (number("decode_previous"), number("decode_token"));
            let got = tokenizer::decode(&m, previous, token).unwrap();
            assert_eq!(got, decoded, "{name} {token} after {previous}");
        }
    }
}

#[test]
fn the_committed_vocabulary() {
    check("tiny");
}

#[test]
fn vocabularies_beside_the_repository() {
    check("stories260K");
    check("llama32000");
}

/// Catches a search that stops at any of several equal texts instead of the lowest id.
#[test]
fn of_equal_texts_the_lowest_id_counts() {
    let bytes = model("facit-tales").unwrap().artifact();
    let m = fixed::Artifact::new(&bytes).unwrap().metadata;
    let mut equal = 0;
    for id in 0..m.config.vocab() as u32 {
        let text = m.token_text(id).unwrap();
        let first = (0..).find(|other| m.token_text(*other).unwrap() == text).unwrap();
        assert_eq!(tokenizer::lookup(&m, text), Ok(Some(first)));
        equal += u32::from(first != id);
    }
    assert_eq!(tokenizer::lookup(&m, b"no such token"), Ok(None));
    let tokens = ["<unk>", "\n<s>\n", "\n</s>\n", "b", "a", "a", "", "a", ""];
    let tokens: Vec<(f32, String)> = tokens.iter().map(|t| (0.0, t.to_string())).collect();
    let bytes = artifact(testkit::fixed_models::tokenizer_file(&tokens), tokens.len() as i32);
    let m = fixed::Artifact::new(&bytes).unwrap().metadata;
    assert_eq!(tokenizer::lookup(&m, b"a"), Ok(Some(4)));
    assert_eq!(tokenizer::lookup(&m, b""), Ok(Some(6)));
    assert_eq!(equal, 0, "the built-in vocabulary has no equal texts");
}
