//! What a DeepSeek-V4.1 step costs beside its weights: prefill and decode of the `bench5g` shape
//! with few experts, everything in memory, part by part; and the share of the step's processor
//! time that the bare products of its matrices take.
//!
//! `cargo bench -p facit-models --bench deepseek_v41 [-- PREFILL THREADS]`
#![allow(clippy::print_stdout)]

use models::deepseek_v41::{Config, DeepSeekV41, Options, Regime};
use models::machine::{Chunk, DType, Logits, Model, TensorSpec};
use numerics::{Backend, Kernels, Matrix, NanScale, Weights};
use std::collections::BTreeMap;
use std::time::Instant;
use testkit::host::Resident;

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
    let [prefill, threads] = [(0, 64), (1, 2)].map(|(i, d)| *args.get(i).unwrap_or(&d));
    let mut config = testkit::deepseek_v41::preset("bench5g").expect("a preset");
    for (key, value) in [("n_routed_experts", 8), ("engram_vocab_size", 2000)] {
        config["text_config"][key] = value.into();
    }
    testkit::deepseek_v41::set_engram_rows(&mut config);
    let checkpoint = testkit::deepseek_v41::checkpoint(&config, 1);
    let host = Resident::new(&checkpoint);
    let config = Config::from_json(config.to_string().as_bytes()).expect("config");
    let map = (0..config.vocab).map(|t| (t % config.engram.compressed_vocab) as u32).collect();
    let options = Options { regime: Regime::W8a8, drafts: false };
    let model = DeepSeekV41::bind(config, options, map, host.lookup()).expect("bind");
    let k = Kernels::new(Backend::detect(), threads);
    println!("{k:?}: {:.2} GB of weights", checkpoint.bytes() as f64 / 1e9);

    let vocab = model.vocab() as u64;
    let tokens: Vec<u32> =
        (0..prefill as u64).map(|i| (testkit::random::hash(3, i) % vocab) as u32).collect();
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
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let bare = products(&model, &k, tokens.len());
        println!(
            "{what} of {}: {seconds:.3} s, {cpu:.2} s of processor time, bare products {bare:.2} s ({:.0} %)",
            tokens.len(),
            100.0 * bare / cpu
        );
        for (part, (seconds, n)) in parts {
            println!("  {part:<18} {:>9.2} ms in {n} feeds", 1e3 * seconds);
        }
    }
}

/// Processor time of multiplying every matrix of the step once: always-active ones with `t` rows,
/// and as many experts as a step has slots.
fn products(model: &DeepSeekV41, k: &Kernels, t: usize) -> f64 {
    let active = model.config().active;
    let start = cpu_seconds();
    for layer in &model.layout().layers {
        let dense = layer.tensors.iter().map(|spec| (spec, t));
        // Slots spread evenly over the experts.
        let touched = layer.experts.min(active * t);
        let each = (active * t).div_ceil(touched);
        let routed = (0..touched).flat_map(|_| layer.expert.iter().map(move |spec| (spec, each)));
        for (spec, t) in dense.chain(routed) {
            product(spec, k, t);
        }
    }
    cpu_seconds() - start
}

fn product(spec: &TensorSpec, k: &Kernels, t: usize) {
    let &[rows, mut cols] = spec.shape.as_slice() else { return };
    let bytes = vec![0x31; spec.bytes()];
    let scales = vec![120; rows.max(32) * (2 * cols).div_ceil(32)];
    let weights = match spec.dtype {
        DType::F32 => Weights::F32(&bytes),
        DType::Bf16 => Weights::Bf16(&bytes),
        DType::F8E4M3 => Weights::Fp8 {
            codes: &bytes,
            scales: &scales[..rows.div_ceil(32) * cols.div_ceil(32)],
            block_rows: 32,
            block_cols: 32,
        },
        DType::I8 => {
            cols *= 2;
            let scales = &scales[..rows * cols / 32];
            Weights::Mxfp4 { packed: &bytes, scales, nan: NanScale::Refuse }
        }
        _ => return,
    };
    let matrix = Matrix::new(rows, cols, weights).expect("a layer's matrix");
    let (x, mut out) = (vec![0.5; t * cols], vec![0.0; t * rows]);
    k.matmul(&matrix, &x, t, &mut out);
}
