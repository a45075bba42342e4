//! What the tests of this crate share: the committed vectors and the tokenizers made from them.
#![allow(dead_code, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use text::{Tokenizer, TokenizerFiles};

pub fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/text")
}

pub fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(vectors().join(name)).unwrap_or_else(|e| panic!("vectors/text/{name}: {e}"))
}

pub fn vector(name: &str) -> String {
    String::from_utf8(bytes(name)).unwrap()
}

/// A file of the shared data, if that is there; says so if not.
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if !path.exists() {
        eprintln!("skipped: ../shared/{name} is not here");
        return None;
    }
    Some(path)
}

pub fn open_k3(tiktoken: &[u8], config: &[u8]) -> Tokenizer {
    let files =
        TokenizerFiles { tiktoken: Some(tiktoken), config: Some(config), ..Default::default() };
    Tokenizer::from_files(&files).unwrap()
}

pub fn open_deepseek(json: &[u8]) -> Tokenizer {
    let files = TokenizerFiles { tokenizer_json: Some(json), ..Default::default() };
    Tokenizer::from_files(&files).unwrap()
}

pub fn k3() -> Tokenizer {
    open_k3(&bytes("k3/tiktoken.model"), &bytes("k3/tokenizer_config.json"))
}

pub fn deepseek() -> Tokenizer {
    open_deepseek(&bytes("deepseek/tokenizer.json"))
}

pub fn strings(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
