//! Where the time of a Kimi K3 step goes: prefill and decode of a slice (a few layers) of the
//! 8 GB synthetic shape, everything in memory, part by part.
//!
//! `cargo bench -p facit-models --bench kimi_k3 [-- LAYERS PREFILL THREADS]`
#![allow(clippy::print_stdout)]

use models::kimi_k3::{Config, KimiK3};
use models::machine::{Chunk, Logits, Model};
use numerics::{Backend, Kernels};
use std::collections::BTreeMap;
use std::time::Instant;
use testkit::host::Resident;
use testkit::k3::Shape;

/// Processor time of this process so far, which a busy machine does not stretch (Linux; else 0).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // utime and stime are fields 14 and 15; two precede the parenthesis. 100 ticks a second.
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn main() {
    let args: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let [layers, prefill, threads] =
        [(0, 5), (1, 256), (2, 2)].map(|(i, d)| *args.get(i).unwrap_or(&d));
    let full = vec![4, layers];
    let shape = Shape { layers, full_attention: full, ..Shape::bench8g() };
    let checkpoint = shape.checkpoint(1);
    let host = Resident::new(&checkpoint);
    let config = Config::parse(checkpoint.config.as_bytes()).expect("config");
    let model = KimiK3::bind(config, host.lookup()).expect("bind");
    let k = Kernels::new(Backend::detect(), threads);
    println!("{k:?}: {layers} layers, {:.2} GB of weights", checkpoint.bytes() as f64 / 1e9);

    let tokens: Vec<u32> =
        (0..prefill as u64).map(|i| (testkit::random::hash(3, i) % 65536) as u32).collect();
    let mut state = model.new_state(prefill + 16).expect("state");
    for (what, tokens) in [("prefill", &tokens[..]), ("decode", &[7]), ("decode", &[8])] {
        let chunk = Chunk { state: &mut state, tokens, logits: Logits::Last };
        let mut step = model.step(vec![chunk]).expect("step");
        let mut parts: BTreeMap<String, (f64, usize)> = BTreeMap::new();
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let mut last = start;
        host.drive_watched(model.layout(), &k, &mut step, |want| {
            let now = Instant::now();
            let entry = parts.entry(want).or_default();
            entry.0 += (now - last).as_secs_f64();
            entry.1 += 1;
            last = now;
        })
        .expect("the step ends");
        println!(
            "{what} of {}: {:.3} s, {:.2} s of processor time",
            tokens.len(),
            start.elapsed().as_secs_f64(),
            cpu_seconds() - cpu
        );
        for (part, (seconds, n)) in parts {
            println!("  {part:<18} {:>9.2} ms in {n} feeds", 1e3 * seconds);
        }
    }
}
