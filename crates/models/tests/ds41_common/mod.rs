//! Golden data of `vectors/deepseek_v41`, for the tests named `ds41_*`.
#![allow(dead_code)]

pub mod tiny;

use models::compare::{Tolerance, compare};
use models::tensor_file::TensorFile;
use std::path::PathBuf;

/// A path under `vectors/deepseek_v41`.
pub fn vector(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors/deepseek_v41").join(name)
}

/// The bytes of a golden file.
pub fn bytes(name: &str) -> Vec<u8> {
    let path = vector(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A JSON golden file.
pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&bytes(name)).expect("golden JSON")
}

/// Panics with the whole report unless `got` is inside `tolerance` of the golden tensor.
#[track_caller]
pub fn check(file: &TensorFile<'_>, name: &str, got: &[f32], tolerance: Tolerance) {
    let (shape, want) = file.floats(name).expect(name);
    let report = compare(name, &shape, got, &want, tolerance);
    assert!(report.passed(), "{report}");
}

/// Panics unless `got` equals the golden integer tensor.
#[track_caller]
pub fn check_ints(file: &TensorFile<'_>, name: &str, got: &[i64]) {
    assert_eq!(got, file.integers(name).expect(name).1, "{name}");
}

/// The values of a golden float tensor.
pub fn floats(file: &TensorFile<'_>, name: &str) -> Vec<f32> {
    file.floats(name).expect(name).1
}
