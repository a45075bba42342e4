//! Models that the tests run, and states put where a test wants them.

use std::path::{Path, PathBuf};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The built-in model.
pub fn facit_tales() -> Vec<u8> {
    std::fs::read(root().join("assets/facit-tales/facit-tales.facit")).unwrap()
}

/// Moves a state that has tokenized an empty prompt to a later place: phase, row, position, and the
/// tokens generated before it. The cache keeps its zeros, which cost as much as anything else.
#[allow(dead_code)]
pub fn place(state: &mut [u8], phase: u32, row: u32, position: u32) {
    for (offset, value) in [(8, phase), (16, row), (20, position), (44, position)] {
        state[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
}
