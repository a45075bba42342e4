//! The index at the size of the released Kimi K3 checkpoint.
#![allow(clippy::print_stderr, reason = "prints its measurements")]

mod common;

use std::time::Instant;
use store::safetensors::Index;

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Catches an index that keeps a string, a hash entry or a shape for each tensor.
#[test]
fn half_a_million_tensors_take_at_most_130_bytes_each() {
    let dir = tempfile::tempdir().unwrap();
    common::k3_headers::write(dir.path());
    let before = resident();
    let start = Instant::now();
    let index = Index::open(dir.path()).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(index.len(), common::k3_headers::TENSORS);
    assert_eq!(index.shards().len(), 96);
    let each = index.memory() as f64 / index.len() as f64;
    let grown = resident().saturating_sub(before);
    eprintln!(
        "opened {} tensors in {seconds:.3} s: {each:.1} bytes each by count; resident memory grew by {:.1} each",
        index.len(),
        grown as f64 / index.len() as f64,
    );
    assert!(each <= 130.0, "{each} bytes a tensor");
    // The target is 0.5 s of an idle machine (see benches/index.rs); this bound, for debug
    // builds on busy machines, catches what is quadratic.
    assert!(seconds < 10.0, "{seconds} s");
    let t = index
        .require("language_model.model.layers.92.block_sparse_moe.experts.895.w2.weight_scale")
        .unwrap();
    assert_eq!((t.shape, t.shard), (&[3584, 96][..], 92));
}
