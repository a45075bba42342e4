//! Kimi K3 against our own numpy definition (`reference/kimi_k3.py`): the synthetic 13-layer
//! model with released names, bf16 and MXFP4 weights.

use models::kimi_k3::{Config, KimiK3};
use models::machine::Model;
use numerics::{Backend, Kernels, argmax};
use serde_json::Value;
use testkit::host::Resident;
use testkit::k3::Shape;

fn golden() -> Value {
    let path = testkit::root().join("vectors/kimi_k3/model.json");
    serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("JSON")
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

/// Catches: a generator that no longer makes the weights the goldens were computed from, which
/// would make every other difference here hard to read.
#[test]
fn the_weights_are_those_of_the_definition() {
    let golden = golden();
    let checkpoint = Shape::tiny().checkpoint(golden["seed"].as_u64().unwrap());
    let mut all = Vec::new();
    for t in checkpoint.tensors().filter(|t| t.name.starts_with("language_model.")) {
        let start = all.len();
        all.resize(start + t.bytes(), 0);
        t.fill(checkpoint.seed, 0, &mut all[start..]);
    }
    assert_eq!(testkit::sha256(&all), golden["weights_sha256"].as_str().unwrap());
}

#[test]
fn teacher_forcing_greedy_and_incremental() {
    let golden = golden();
    let checkpoint = Shape::tiny().checkpoint(golden["seed"].as_u64().unwrap());
    let host = Resident::new(&checkpoint);
    let config = Config::parse(checkpoint.config.as_bytes()).unwrap();
    let model = KimiK3::bind(config, host.lookup()).unwrap();
    let k = Kernels::new(Backend::detect(), 2);
    let (prompt, full) = (ids(&golden["prompt_ids"]), ids(&golden["full_ids"]));
    let vocab = model.vocab();
    let pick = |logits: &[f32]| argmax(logits).unwrap().unwrap();

    let mut state = model.new_state(64).unwrap();
    let logits = host.logits(&model, &k, &mut state, &full, full.len()).unwrap();
    let picks: Vec<u32> = logits.chunks_exact(vocab).map(pick).collect();
    assert_eq!(picks, ids(&golden["tf_pred"]), "teacher forcing");
    let mut worst = 0f64;
    for (row, want) in logits.chunks_exact(vocab).zip(golden["logits_head"].as_array().unwrap()) {
        for (got, want) in row.iter().zip(want.as_array().unwrap()) {
            worst = worst.max((f64::from(*got) - want.as_f64().unwrap()).abs());
        }
    }
    testkit::note(format_args!("own model: worst logit difference {worst:.2e}"));
    assert!(worst < 1e-4, "worst logit difference {worst:e}");

    let mut seq = prompt.clone();
    while seq.len() < full.len() {
        let mut state = model.new_state(64).unwrap();
        let logits = host.logits(&model, &k, &mut state, &seq, seq.len()).unwrap();
        seq.push(pick(&logits[logits.len() - vocab..]));
    }
    assert_eq!(seq, full, "greedy, recomputed");

    let mut state = model.new_state(64).unwrap();
    let mut logits = host.logits(&model, &k, &mut state, &prompt, prompt.len()).unwrap();
    let mut seq = prompt;
    while seq.len() < full.len() {
        seq.push(pick(&logits[logits.len() - vocab..]));
        logits = host.logits(&model, &k, &mut state, &seq[seq.len() - 1..], 1).unwrap();
    }
    assert_eq!(seq, full, "greedy, incremental");
}
