//! What tests and benches share: where shared data lies, synthetic checkpoints with the real
//! tensor graphs, golden files, an in-memory host that can shuffle and fail, a counting
//! allocator. Never shipped.

use std::path::{Path, PathBuf};

pub mod alloc;
pub mod checkpoint;
pub mod deepseek_v41;
pub mod fixed_goldens;
pub mod fixed_hostile;
pub mod fixed_models;
pub mod host;
pub mod hub;
pub mod k3;
pub mod random;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit").to_path_buf()
}

/// The folder of shared data beside the repository, if it is there. Tests that need it say in one
/// line that they were skipped when it is not.
pub fn shared() -> Option<PathBuf> {
    let path = root().join("../shared");
    path.is_dir().then_some(path)
}

/// Says in one line that a test did not run for want of shared data.
#[expect(
    clippy::print_stdout,
    reason = "the reader of a test's output is told what it did not prove"
)]
pub fn skipped(what: &str) {
    println!("skipped: {what} needs data that is not in ../shared");
}

/// Shows a measured value in a test's output.
#[expect(clippy::print_stdout, reason = "the reader of a test's output is told what was measured")]
pub fn note(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}

/// SHA-256 in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes of a string of hexadecimal digits.
///
/// # Panics
/// If it is not one.
pub fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).expect("a hex digit") as u8).collect();
    assert!(digits.len().is_multiple_of(2), "an odd number of hex digits");
    digits.chunks(2).map(|d| 16 * d[0] + d[1]).collect()
}

/// A fresh empty directory in the system's temporary folder, named after the test.
///
/// # Panics
/// If it cannot be made: a test cannot go on without it.
pub fn scratch_dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("facit-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch directory for the test");
    dir
}
