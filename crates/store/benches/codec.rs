//! Size and speed of the bf16 codec on normal weights whose rows differ in scale.
#![allow(clippy::print_stdout, reason = "a bench prints its measurements")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::Random;
use std::time::Instant;
use store::pack::codec::{decode, encode};

const COLS: usize = 2048;
const ROWS: usize = 8192;
const BLOCK: usize = 512 << 10;

/// Normal values (sum of 12 uniforms), one scale a row, log-uniform over a factor of 4.
fn weights() -> Vec<u8> {
    let mut random = Random(5);
    let mut out = Vec::with_capacity(2 * COLS * ROWS);
    for _ in 0..ROWS {
        let scale = 0.01 * f32::from_bits((127 << 23) + random.below(2 << 23) as u32);
        for _ in 0..COLS {
            let sum: usize = (0..12).map(|_| random.below(1 << 20)).sum();
            let value = (sum as f32 / (1 << 20) as f32 - 6.0) * scale;
            out.extend_from_slice(&((value.to_bits() + 0x8000) >> 16).to_le_bytes()[..2]);
        }
    }
    out
}

/// Nanoseconds of processor time of this thread, which other processes do not lengthen.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn main() {
    let raw = weights();
    let start = Instant::now();
    let blocks: Vec<Vec<u8>> = raw
        .chunks(BLOCK)
        .map(|b| {
            let mut code = Vec::new();
            encode(b, &mut code);
            code
        })
        .collect();
    let gb = raw.len() as f64 / 1e9;
    let size: usize = blocks.iter().map(Vec::len).sum();
    println!(
        "encode {:.2} GB/s; {:.1} % fewer bytes",
        gb / start.elapsed().as_secs_f64(),
        100.0 - 100.0 * size as f64 / raw.len() as f64
    );
    let mut out = vec![0; raw.len()];
    let time = |f: &mut dyn FnMut()| {
        // The best of several: other processes only ever make it slower.
        let round = |_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        };
        (0..9).map(round).fold(f64::INFINITY, f64::min)
    };
    let copy = time(&mut || out.copy_from_slice(&raw));
    let one = time(&mut || {
        for (code, out) in blocks.iter().zip(out.chunks_mut(BLOCK)) {
            decode(code, out).unwrap();
        }
    });
    let before = cpu();
    for (code, out) in blocks.iter().zip(out.chunks_mut(BLOCK)) {
        decode(code, out).unwrap();
    }
    let decode_cpu = cpu() - before;
    let before = cpu();
    let mut code = Vec::new();
    for block in raw.chunks(BLOCK) {
        code.clear();
        encode(block, &mut code);
    }
    let encode_cpu = cpu() - before;
    println!(
        "a second of processor time: encodes {:.2} GB, decodes {:.2} GB",
        gb / encode_cpu,
        gb / decode_cpu
    );
    let two = time(&mut || {
        let half = blocks.len() / 2;
        let (a, b) = out.split_at_mut(half * BLOCK);
        std::thread::scope(|s| {
            for (blocks, out) in [(&blocks[..half], a), (&blocks[half..], b)] {
                s.spawn(move || {
                    for (code, out) in blocks.iter().zip(out.chunks_mut(BLOCK)) {
                        decode(code, out).unwrap();
                    }
                });
            }
        });
    });
    assert!(out == raw);
    println!(
        "decode, GB/s of output: 1 thread {:.2}, 2 threads {:.2}; a plain copy {:.2}",
        gb / one,
        gb / two,
        gb / copy
    );
}
