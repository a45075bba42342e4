//! The whole model against the golden tiny checkpoint, and against itself: the same bits however
//! a sequence is cut, fed and shared.

mod ds41_common;

use ds41_common::tiny::{ids, model, resident};
use ds41_common::{bytes, check_ints, floats};
use models::compare::{Tolerance, compare};
use models::deepseek_v41::{DeepSeekV41, Probe, Regime, State};
use models::machine::{Chunk, Logits, Model};
use models::tensor_file::TensorFile;
use numerics::{Backend, Kernels, argmax};
use std::collections::BTreeMap;
use testkit::host::Resident;

const REGIMES: [Regime; 2] = [Regime::Bf16, Regime::W8a8];

fn kernels() -> Kernels {
    Kernels::new(Backend::detect(), 2)
}

fn run(host: &Resident, m: &DeepSeekV41, tokens: &[u32], chunk: usize) -> (Vec<f32>, State) {
    let mut state = m.new_state(64).unwrap();
    let logits = host.logits(m, &kernels(), &mut state, tokens, chunk).unwrap();
    (logits, state)
}

/// Catches any structural error: logits at every teacher position, and the argmax where it is
/// safe to compare. The golden tolerances are 1e-3 and 0.1, since other orders of sums flip single
/// fp8 roundings; our sums are exact enough for none to flip, so one flip is seen here.
#[test]
fn logits_of_teacher_positions() {
    let host = resident();
    let bytes = bytes("tiny_expect/logits.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    for regime in REGIMES {
        let m = model(&host, regime, false);
        let (logits, _) = run(&host, &m, &ids(), 16);
        let want = floats(&file, &format!("{}.logits", regime.name()));
        let tolerance = Tolerance { relative: 0.0, absolute: 1e-4 };
        let report = compare(regime.name(), &[16, 384], &logits, &want, tolerance);
        testkit::note(format_args!("{report}"));
        assert!(report.passed(), "{report}");
        let picks: Vec<u32> = logits.chunks(384).map(|l| argmax(l).unwrap().unwrap()).collect();
        assert_eq!(picks[10..], [303, 324, 15, 140, 346, 72], "{}", regime.name());
    }
}

/// Catches an error that only a decode loop has: five greedy tokens after the prompt.
#[test]
fn first_greedy_tokens() {
    let host = resident();
    for regime in REGIMES {
        let m = model(&host, regime, false);
        let mut state = m.new_state(64).unwrap();
        let mut tokens = ids()[..11].to_vec();
        let mut next = tokens.clone();
        for _ in 0..5 {
            let logits = host.logits(&m, &kernels(), &mut state, &next, next.len()).unwrap();
            let last = logits.chunks(384).next_back().unwrap();
            next = vec![argmax(last).unwrap().unwrap()];
            tokens.push(next[0]);
        }
        assert_eq!(tokens[11..], [303, 324, 15, 140, 346], "{}", regime.name());
    }
}

/// Catches a query whose view depends on where its chunk began (window, groups, candidates,
/// n-grams): logits and the saved state, to the bit.
#[test]
fn chunks_of_any_size_give_the_same_bits() {
    let host = resident();
    for regime in REGIMES {
        let m = model(&host, regime, true);
        let long: Vec<u32> =
            (0..48).map(|i| if i < 16 { ids()[i] } else { (i * 37 % 384) as u32 }).collect();
        let (want, state) = run(&host, &m, &long, 1);
        let saved = m.save(&state, "d").write();
        for chunk in [2, 3, 5, 16, 48] {
            let (got, state) = run(&host, &m, &long, chunk);
            assert_eq!(bits(&got), bits(&want), "{} in chunks of {chunk}", regime.name());
            assert_eq!(
                m.save(&state, "d").write(),
                saved,
                "{} state, chunks of {chunk}",
                regime.name()
            );
        }
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Sees everything, and gives each layer the golden stream, so that errors do not compound.
struct Recorder<'a> {
    golden: &'a TensorFile<'a>,
    prefix: &'a str,
    seen: BTreeMap<String, Vec<f32>>,
}

impl Probe for Recorder<'_> {
    fn enter(&mut self, layer: usize, h: &mut [f32], pre: &mut [f32]) {
        h.copy_from_slice(&floats(self.golden, &format!("{}.L{layer}.h_in", self.prefix)));
        pre.copy_from_slice(&floats(self.golden, &format!("{}.L{layer}.pre_mix_in", self.prefix)));
    }

    fn see(&mut self, layer: usize, name: &'static str, values: &[f32]) {
        self.seen.insert(format!("{}.L{layer}.{name}", self.prefix), values.to_vec());
    }
}

/// Catches an error inside a layer and names the first intermediate that is wrong: every
/// intermediate of every layer in a prefill and two decode steps, from the golden stream.
#[test]
fn every_intermediate_of_every_layer() {
    let host = resident();
    let ids = ids();
    for regime in REGIMES {
        let bytes = bytes(&format!("tiny_expect/trace_{}.safetensors", regime.name()));
        let golden = TensorFile::parse(&bytes).unwrap();
        let m = model(&host, regime, true);
        let mut state = m.new_state(64).unwrap();
        let mut compared = 0;
        for (prefix, tokens) in
            [("prefill", &ids[..11]), ("decode11", &ids[11..12]), ("decode12", &ids[12..13])]
        {
            let mut recorder = Recorder { golden: &golden, prefix, seen: BTreeMap::new() };
            let chunk = Chunk { state: &mut state, tokens, logits: Logits::All };
            let step = m.step(vec![chunk]).unwrap().with_probe(&mut recorder);
            host.feed(&m, &kernels(), step).unwrap();
            for (name, got) in &recorder.seen {
                if let Some(layer) = name.strip_suffix(".selected") {
                    compare_selected(&golden, layer, got, tokens.len());
                    compared += 1;
                } else if name.ends_with(".moe_indices") {
                    let got: Vec<i64> = got.iter().map(|&v| v as i64).collect();
                    check_ints(&golden, name, &got);
                    compared += 1;
                }
                if !golden.has(name) || name.ends_with(".moe_indices") {
                    continue;
                }
                let (shape, want) = golden.floats(name).unwrap();
                let kind = name.rsplit('.').next().unwrap();
                let tolerance = match kind {
                    "attn_pre" | "attn_post" | "attn_comb" | "ffn_pre" | "ffn_post"
                    | "ffn_comb" | "pre_mix_in" | "pre_mix_out" | "moe_weights" | "engram_gate" => {
                        Tolerance::F32
                    }
                    _ => Tolerance::BF16,
                };
                if kind == "index_score" {
                    compare_scores(name, &shape, got, &want, tolerance);
                } else {
                    let report = compare(name, &shape, got, &want, tolerance);
                    assert!(report.passed(), "{} {report}", regime.name());
                }
                compared += 1;
            }
        }
        assert!(compared > 400, "{compared} intermediates compared");
    }
}

/// Golden scores beyond what a query sees are -3e38 in a prefill.
fn compare_scores(name: &str, shape: &[usize], got: &[f32], want: &[f32], tolerance: Tolerance) {
    let visible: Vec<(f32, f32)> =
        got.iter().zip(want).map(|(g, w)| (*g, *w)).filter(|(_, w)| *w > -1e38).collect();
    let (got, want): (Vec<f32>, Vec<f32>) = visible.into_iter().unzip();
    let report = compare(name, &[want.len()], &got, &want, tolerance);
    assert!(report.passed() && shape.len() == 2, "{report}");
}

/// The golden lists hold window slots first, then compressed rows numbered after them; -1 is
/// none. Compares the compressed rows of every position exactly.
fn compare_selected(golden: &TensorFile<'_>, layer: &str, got: &[f32], positions: usize) {
    let (shape, want) = golden.integers(&format!("{layer}.sa_topk_idxs")).unwrap();
    let got: Vec<Vec<i64>> = got
        .split(|&v| v == u32::MAX as f32)
        .map(|rows| rows.iter().map(|&v| v as i64).collect())
        .collect();
    assert_eq!((shape[0], got.len()), (positions, positions + 1), "{layer}");
    let window = if positions == 1 { 8 } else { positions as i64 };
    let columns = positions.min(8).max(if positions == 1 { 8 } else { 0 });
    for (got, want) in got.iter().zip(want.chunks(shape[1])) {
        let want: Vec<i64> =
            want[columns..].iter().filter(|&&i| i >= 0).map(|i| i - window).collect();
        assert_eq!(*got, want, "{layer}");
    }
}
