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

/// A model of four sections, wide and shallow in nothing but its vocabulary: its layers alone are 21 MB,
/// so that sections begin in the middle of a layer.
#[allow(dead_code)]
pub fn four_sections() -> Vec<u8> {
    let [dim, hidden, layers, heads, kv_heads, vocab, seq] = [256, 1024, 22, 4, 2, 300, 16];
    let kv = dim / heads * kv_heads;
    let mut checkpoint = Vec::new();
    for word in [dim, hidden, layers, heads, kv_heads, vocab, seq] {
        checkpoint.extend((word as u32).to_le_bytes());
    }
    // (length, whether it is of norm weights), in the order of the file.
    let arrays = [
        (vocab * dim, false),
        (layers * dim, true),
        (layers * dim * (dim + 2 * kv + dim), false),
        (layers * dim, true),
        (3 * layers * dim * hidden, false),
        (dim, true),
        (seq * dim / heads, false),
    ];
    let mut hash = 1u32;
    for (len, norm) in arrays {
        for _ in 0..len {
            hash = hash.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (hash >> 8) as f32 / (1 << 28) as f32 - 1.0 / 32.0;
            checkpoint.extend((if norm { 1.0 } else { value }).to_le_bytes());
        }
    }
    let mut tokenizer = 6u32.to_le_bytes().to_vec();
    for id in 0..vocab {
        let text = match id {
            0..3 => ["<unk>", "\n<s>\n", "\n</s>\n"][id].into(),
            3..259 => format!("<0x{:02X}>", id - 3),
            _ => format!("t{id}"),
        };
        tokenizer.extend(0f32.to_le_bytes());
        tokenizer.extend((text.len() as u32).to_le_bytes());
        tokenizer.extend(text.bytes());
    }
    fixed::convert::convert(&checkpoint, &tokenizer).expect("a model")
}
