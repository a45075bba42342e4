//! Kimi K3 against public fixtures made by other people's code: a 13-layer model whose
//! generations must match to the token, and configs to accept or refuse. They lie outside the
//! repository; without them the tests say so and pass.

use models::kimi_k3::{Config, KimiK3, Naming};
use models::machine::Model;
use numerics::{Backend, Kernels, argmax};
use serde_json::Value;
use std::path::PathBuf;
use testkit::host::Resident;

fn folder() -> Option<PathBuf> {
    let dir = testkit::shared().map(|s| s.join("goldens/public/kimi-k3")).filter(|d| d.is_dir());
    if dir.is_none() {
        testkit::skipped("a comparison with public Kimi K3 fixtures");
    }
    dir
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(&path).expect("fixture")).expect("JSON")
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

/// The 13-layer model in module naming.
fn oracle(dir: &std::path::Path) -> (KimiK3, Resident, Value) {
    let index = json(dir.join("tiny_k3.json"));
    let weights = std::fs::read(dir.join("tiny_k3.bin")).unwrap();
    let mut host = Resident::default();
    for (name, t) in index["tensors"].as_object().unwrap() {
        let at = |key: &str| t[key].as_u64().unwrap() as usize;
        let shape: Vec<usize> =
            t["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
        let bytes = weights[4 * at("offset")..][..4 * at("numel")].to_vec();
        host.insert(name, "F32", &shape, bytes);
    }
    let reference = json(dir.join("ref_k3.json"));
    let config = Config::parse(reference["config"].to_string().as_bytes()).unwrap();
    assert_eq!(config.mla_eps, 1e-5, "the flat form's epsilon");
    let model = KimiK3::bind_as(Naming::Module, config, host.lookup()).unwrap();
    (model, host, reference)
}

#[test]
fn thirteen_layer_oracle() {
    let Some(dir) = folder() else { return };
    let (model, host, reference) = oracle(&dir);
    let k = Kernels::new(Backend::detect(), 2);
    let (prompt, full) = (ids(&reference["prompt_ids"]), ids(&reference["full_ids"]));
    let vocab = model.vocab();
    let pick = |logits: &[f32]| argmax(logits).unwrap().unwrap();

    // Teacher forcing: one pass over all 32 positions.
    let mut state = model.new_state(64).unwrap();
    let logits = host.logits(&model, &k, &mut state, &full, full.len()).unwrap();
    let picks: Vec<u32> = logits.chunks_exact(vocab).map(pick).collect();
    assert_eq!(picks, ids(&reference["tf_pred"]), "teacher forcing");
    let mut worst = 0f64;
    for (row, want) in logits.chunks_exact(vocab).zip(reference["logits_head"].as_array().unwrap())
    {
        for (got, want) in row.iter().zip(want.as_array().unwrap()) {
            worst = worst.max((f64::from(*got) - want.as_f64().unwrap()).abs());
        }
    }
    testkit::note(format_args!("teacher forcing 32/32, worst logit difference {worst:.2e}"));
    // The fixture has six decimals.
    assert!(worst < 2e-5, "worst logit difference {worst:e}");

    // Greedy with the whole prefix computed anew for every token.
    let mut seq = prompt.clone();
    while seq.len() < full.len() {
        let mut state = model.new_state(64).unwrap();
        let logits = host.logits(&model, &k, &mut state, &seq, seq.len()).unwrap();
        seq.push(pick(&logits[logits.len() - vocab..]));
    }
    assert_eq!(seq, full, "greedy");

    // Greedy with carried state.
    let mut state = model.new_state(64).unwrap();
    let mut logits = host.logits(&model, &k, &mut state, &prompt, prompt.len()).unwrap();
    let mut seq = prompt;
    while seq.len() < full.len() {
        seq.push(pick(&logits[logits.len() - vocab..]));
        logits = host.logits(&model, &k, &mut state, &seq[seq.len() - 1..], 1).unwrap();
    }
    assert_eq!(seq, full, "incremental");
}

#[test]
fn configs_are_refused_as_they_should_be() {
    let Some(dir) = folder() else { return };
    let good = json(dir.join("ref_k3.json"))["config"].to_string();
    assert!(Config::parse(good.as_bytes()).is_ok());
    for (file, says) in [
        ("no_layermap", "full_attn_layers is missing"),
        ("bad_layer_index", "999 is outside 1..=13"),
        ("bad_topk", "128 of only 8 experts"),
    ] {
        let bytes = std::fs::read(dir.join(format!("cfg/{file}.json"))).unwrap();
        let e = Config::parse(&bytes).unwrap_err().to_string();
        assert!(e.contains(says), "{file}: {e}");
    }
}
