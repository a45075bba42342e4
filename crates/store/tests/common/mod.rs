//! Helpers shared by the store's tests and benches.
#![allow(dead_code, reason = "each test file uses some of them")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

pub mod k3_headers;
pub mod model;

use std::fs;
use std::path::{Path, PathBuf};
use store::safetensors::{Dtype, TensorSpec};

/// The shared data beside the repository; prints one line if it is absent.
pub fn shared(what: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(what);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {what} is not in ../shared");
    None
}

/// Committed golden data.
pub fn vectors(area: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(area)
}

/// Files of a directory by name.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

pub fn spec(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

/// A pseudo-random sequence that is the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}
