//! How long opening the released Kimi K3 checkpoint takes, from headers over holes.
#![allow(clippy::print_stdout, reason = "a bench prints its measurements")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;
use store::safetensors::{INDEX_FILE, Index};

/// Processor time of this process in seconds, which other processes do not lengthen.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

const ROUNDS: usize = 7;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    common::k3_headers::write(dir.path());
    for map in [true, false] {
        if !map {
            std::fs::remove_file(dir.path().join(INDEX_FILE)).unwrap();
        }
        let cpu = cpu_seconds();
        let mut times: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                let index = Index::open(dir.path()).unwrap();
                let seconds = start.elapsed().as_secs_f64();
                assert_eq!(index.len(), common::k3_headers::TENSORS);
                seconds
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let with = if map { "with" } else { "without" };
        println!(
            "{} tensors {with} the index file: best {:.3} s, median {:.3} s, processor {:.3} s \
             (target 0.5)",
            common::k3_headers::TENSORS,
            times[0],
            times[ROUNDS / 2],
            (cpu_seconds() - cpu) / ROUNDS as f64,
        );
    }
}
