//! Tests: every operation against fixtures of weights, inputs and outputs. Our own, from the
//! numpy definition, lie in `vectors/kimi_k3`; the public ones, from a PyTorch model, outside
//! the repository. Both have the same form and go through the same code.

use super::config::Config;
use super::layer::{self, Batch, Span, Stream};
use super::moe::{Moe, choose};
use super::names::{Naming, find, layer_entries};
use super::state::{KdaState, LayerState, State};
use super::weights::{Expert, Weights};
use super::{kda, mla, ops};
use crate::machine::{DType, LayerSpec, Stored, TensorSpec};
use numerics::elementary::sigmoid;
use numerics::{Backend, Kernels, NanScale};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Absolute and relative tolerance, as the public fixtures state them.
const ATOL: f64 = 1e-5;
const RTOL: f64 = 1e-4;

/// One fixture file.
struct Fixture {
    json: Value,
    config: Config,
    kernels: Kernels,
    name: String,
    /// Worst difference as a share of the tolerance.
    worst: f64,
}

impl Fixture {
    fn load(dir: &Path, name: &str) -> Fixture {
        let read = |name: &str| -> Value {
            let path = dir.join(format!("{name}.json"));
            let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            serde_json::from_slice(&bytes).expect("JSON")
        };
        let config = read("MANIFEST")["config"].to_string();
        Fixture {
            json: read(name),
            config: Config::parse(config.as_bytes()).expect("the fixtures' config"),
            kernels: Kernels::new(Backend::detect(), 2),
            name: name.into(),
            worst: 0.0,
        }
    }

    fn f32s(&self, key: &str) -> Vec<f32> {
        let data = self.json[key]["data"].as_array().unwrap_or_else(|| panic!("no {key}"));
        data.iter().map(|v| v.as_f64().expect("a number") as f32).collect()
    }

    fn shape(&self, key: &str) -> Vec<usize> {
        let shape = self.json[key]["shape"].as_array().expect("a shape");
        shape.iter().map(|v| v.as_u64().expect("a size") as usize).collect()
    }

    #[track_caller]
    fn check(&mut self, key: &str, got: &[f32]) {
        let want = self.f32s(key);
        assert_eq!(got.len(), want.len(), "{} {key}", self.name);
        for (i, (&g, &w)) in got.iter().zip(&want).enumerate() {
            let (g, w) = (f64::from(g), f64::from(w));
            let share = (g - w).abs() / (ATOL + RTOL * w.abs());
            assert!(share <= 1.0, "{} {key}[{i}]: expected {w}, got {g}", self.name);
            self.worst = self.worst.max(share);
        }
    }

    fn batch<'a>(&'a self, spans: &'a [Span]) -> Batch<'a> {
        Batch { config: &self.config, kernels: &self.kernels, spans }
    }

    /// All rows of `key` (`[.., t, hidden]`) as one sequence from its beginning.
    fn span(&self, key: &str) -> Span {
        let len = self.f32s(key).len() / self.config.hidden;
        Span { first: 0, len, position: 0 }
    }

    /// The weights of the file as those of a layer. `rename` gives a tensor's name in module
    /// naming without its layer prefix; what a layer needs and the file lacks is left out.
    fn layer(&self, layer: usize, rename: impl Fn(&str) -> String) -> FixtureLayer {
        let mut stored = BTreeMap::new();
        for (key, v) in self.json.as_object().expect("an object") {
            if v.get("data").is_some() {
                let bytes: Vec<u8> = self.f32s(key).iter().flat_map(|x| x.to_le_bytes()).collect();
                stored.insert(rename(key), (self.shape(key), bytes));
            }
        }
        let mut all = FixtureLayer::default();
        let prefix = format!("layers_{layer}_");
        for entry in layer_entries(&self.config, layer) {
            let name = Naming::Module.layer(layer, entry.key);
            let Some((shape, bytes)) = stored.get(&name[prefix.len()..]) else { continue };
            let lookup = |_: &str| Some(Stored { dtype: "F32".into(), shape: shape.clone() });
            all.specs.push(find(name, &entry, &mut { lookup }).expect("the shape fits"));
            all.keys.push(entry.key);
            all.bytes.push(bytes.clone());
        }
        for id in 0..self.config.experts {
            let parts = ["w1", "w2", "w3"].map(|w| format!("mlp_experts_{id}_{w}_weight"));
            let tensors: Vec<Vec<u8>> =
                parts.iter().filter_map(|n| stored.get(n)).map(|(_, b)| b.clone()).collect();
            if tensors.len() == 3 {
                all.experts.push(tensors);
                all.spec.expert = parts
                    .iter()
                    .map(|n| TensorSpec {
                        name: n.clone(),
                        dtype: DType::F32,
                        shape: stored[n].0.clone(),
                    })
                    .collect();
            }
        }
        all
    }
}

/// The weights of one layer of a fixture.
#[derive(Default)]
struct FixtureLayer {
    keys: Vec<&'static str>,
    specs: Vec<TensorSpec>,
    bytes: Vec<Vec<u8>>,
    spec: LayerSpec,
    experts: Vec<Vec<Vec<u8>>>,
}

impl FixtureLayer {
    fn with<T>(&self, f: impl FnOnce(&Weights) -> T) -> T {
        let tensors: Vec<&[u8]> = self.bytes.iter().map(Vec::as_slice).collect();
        f(&Weights::new(|| "fixture".into(), &self.keys, &self.specs, &tensors).expect("sizes"))
    }

    /// Feeds every expert the router chose, in descending order for a change.
    fn feed(&self, b: &Batch, moe: &mut Moe) {
        while let Some(&id) = moe.missing.last() {
            let tensors: Vec<&[u8]> = self.experts[id as usize].iter().map(Vec::as_slice).collect();
            let e = Expert::new(b.config, &self.spec, id, &tensors).expect("sizes");
            moe.expert(b, id, &e);
        }
    }
}

fn kda_state(s: &mut LayerState) -> &mut KdaState {
    match s {
        LayerState::Kda(s) => s,
        LayerState::Mla(_) => panic!("layer 0 is KDA"),
    }
}

fn rmsnorm(f: &mut Fixture) {
    let eps = f.json["eps"].as_f64().unwrap();
    let got = ops::rms_rows(&f.kernels, &f.f32s("in"), &f.f32s("weight"), eps);
    f.check("out", &got);
}

fn situ_glu(f: &mut Fixture) {
    let x = f.f32s("in");
    let half = f.shape("in")[1] / 2;
    let mut gate: Vec<f32> = x.chunks(2 * half).flat_map(|r| &r[..half]).copied().collect();
    let up: Vec<f32> = x.chunks(2 * half).flat_map(|r| &r[half..]).copied().collect();
    ops::situ(&f.kernels, &mut gate, &up, f.config.situ_beta, f.config.situ_linear_beta);
    assert!(gate.iter().all(|y| y.abs() <= 100.0), "bounded by the product of the caps");
    f.check("out", &gate);
}

/// The convolution with its silu, and its continuation in a second step.
fn shortconv(f: &mut Fixture) {
    let (c, x) = (&f.config, f.f32s("in"));
    let p = c.kda_width();
    let mut state = State::new(c, "", 8).unwrap();
    let s = kda_state(&mut state.layers[0]);
    let step = |x: &[f32], s: &mut KdaState| {
        let span = Span { first: 0, len: x.len() / p, position: 0 };
        let out = kda::tests::conv(c, x, &f.f32s("weight"), &span, &s.conv);
        s.next_conv(&[x.to_vec(), x.to_vec(), x.to_vec()], &span, p);
        out
    };
    let out = step(&x, s);
    state.commit(c, &f.kernels, x.len() / p);
    let s = kda_state(&mut state.layers[0]);
    // The fixture has [channel, tap].
    let past = c.conv_kernel - 1;
    let history: Vec<f32> = (0..p * past).map(|i| s.conv[(i % past) * p + i / past]).collect();
    let next = step(&f.f32s("in_next"), s);
    f.check("out", &out);
    f.check("state_after", &history);
    f.check("out_next", &next);
}

fn kda_decay(f: &mut Fixture) {
    let (z, a, bias) = (f.f32s("z"), f.f32s("A_log"), f.f32s("dt_bias"));
    let (p, d) = (f.config.kda_width(), f.config.kda_head_dim);
    let alpha: Vec<f32> = z
        .iter()
        .enumerate()
        .map(|(i, z)| kda::tests::alpha(f.config.gate_lower_bound, a[i % p / d], z + bias[i % p]))
        .collect();
    f.check("alpha", &alpha);
}

fn kda_recur(f: &mut Fixture) {
    let (h, d) = (f.config.kda_heads, f.config.kda_head_dim);
    let scale = f.json["q_scale"].as_f64().unwrap() as f32;
    let q: Vec<f32> = f.f32s("q").iter().map(|q| q * scale).collect();
    let (k, v) = (f.f32s("k"), f.f32s("v"));
    let (alpha, beta) = (f.f32s("alpha"), f.f32s("beta"));
    let mut s = vec![0.0; h * d * d];
    let mut out = vec![0.0; q.len()];
    for (i, out) in out.chunks_exact_mut(d).enumerate() {
        let r = i * d..(i + 1) * d;
        let s = &mut s[i % h * d * d..][..d * d];
        let (q, k, v, alpha) = (&q[r.clone()], &k[r.clone()], &v[r.clone()], &alpha[r]);
        let beta = beta[i];
        f.kernels.kda_step(numerics::kda::Step { state: s, q, k, v, alpha, beta, out });
    }
    f.check("out", &out);
    f.check("state_out", &s);
}

fn kda_layer(f: &mut Fixture) {
    let w = f.layer(0, |key| match key {
        "A_log" | "dt_bias" => format!("self_attn_{key}"),
        "o_norm" => "self_attn_o_norm_weight".into(),
        _ => match key.strip_suffix("_conv") {
            Some(part) => format!("self_attn_{part}_conv1d_weight"),
            None => format!("self_attn_{}_proj_weight", key.trim_end_matches("_proj")),
        },
    });
    let mut state = State::new(&f.config, "", 8).unwrap();
    let span = [f.span("in")];
    let s = kda_state(&mut state.layers[0]);
    let out = w.with(|w| kda::attention(&f.batch(&span), w, &f.f32s("in"), &mut [s]));
    state.commit(&f.config, &f.kernels, span[0].len);
    let matrices = kda_state(&mut state.layers[0]).matrices.clone();
    f.check("out", &out);
    f.check("state_out", &matrices);
}

fn router(f: &mut Fixture) {
    let (x, gate, bias) = (f.f32s("in"), f.f32s("gate_weight"), f.f32s("bias"));
    let k = f.json["top_k"].as_u64().unwrap() as usize;
    let e = f.config.hidden;
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    let mut changed = 0;
    for x in x.chunks_exact(e) {
        let scores: Vec<f32> = gate.chunks_exact(e).map(|g| sigmoid(numerics::dot(x, g))).collect();
        let (picks, w) = choose(&scores, &bias, k, 1.0).unwrap();
        let (plain, _) = choose(&scores, &vec![0.0; bias.len()], k, 1.0).unwrap();
        changed += usize::from(picks.iter().any(|p| !plain.contains(p)));
        ids.extend(picks.iter().map(|&p| p as f32));
        weights.extend(w);
    }
    assert!(changed > 0, "the bias matters in this fixture");
    f.check("topk_idx", &ids);
    f.check("topk_weight", &weights);
}

fn mla_layer(f: &mut Fixture) {
    let w = f.layer(3, |key| format!("self_attn_{key}"));
    let mut state = State::new(&f.config, "", 8).unwrap();
    let span = [f.span("in")];
    let mut layers = [&mut state.layers[3]];
    let mut mlas = LayerState::mla(&mut layers);
    let out = w.with(|w| mla::attention(&f.batch(&span), w, &f.f32s("in"), &mut mlas));
    let (lat, width) = (f.config.kv_lora, f.config.cache_width());
    let rows = mlas[0].rows.clone();
    let part = |range: std::ops::Range<usize>| -> Vec<f32> {
        rows.chunks(width).flat_map(|r| &r[range.clone()]).copied().collect()
    };
    f.check("out", &out);
    f.check("kv_latent", &part(0..lat));
    f.check("k_rope", &part(lat..width));
}

fn moe(f: &mut Fixture) {
    let w = f.layer(1, |key| format!("mlp_{key}"));
    let span = [f.span("in")];
    let b = f.batch(&span);
    let x = f.f32s("in");
    let out = w.with(|weights| {
        let mut stream = Stream::new(vec![0.0; x.len()]);
        stream.x = x.clone();
        let mut moe = Moe::route(&b, weights, &x).unwrap();
        layer::rest(&b, 1, weights, &mut stream, Some(&mut moe)).unwrap();
        w.feed(&b, &mut moe);
        layer::join(&b, 1, weights, &mut stream, &moe).unwrap();
        stream.r
    });
    f.check("out", &out);
}

fn attnres(f: &mut Fixture) {
    let (e, n) = (f.config.hidden, f.shape("block_residual")[1]);
    let snapshots = snapshots(&f.f32s("block_residual"), n, e);
    let last = f.f32s("prefix_sum");
    let mut sources: Vec<&[f32]> = snapshots.iter().map(Vec::as_slice).collect();
    sources.push(&last);
    let (norm, proj) = (f.f32s("norm_weight"), f.f32s("proj_weight"));
    let out = ops::attn_res(&f.kernels, &sources, &norm, &proj, f.config.rms_eps);
    f.check("out", &out);
}

/// `[t, n, e]` as `n` times `[t, e]`.
fn snapshots(x: &[f32], n: usize, e: usize) -> Vec<Vec<f32>> {
    (0..n).map(|s| x.chunks(n * e).flat_map(|t| &t[s * e..][..e]).copied().collect()).collect()
}

fn whole_layer(f: &mut Fixture) {
    let l = f.json["layer_idx"].as_u64().unwrap() as usize;
    let w = f.layer(l, str::to_string);
    let span = [f.span("in")];
    let b = f.batch(&span);
    let (e, n) = (f.config.hidden, f.shape("block_residual_in")[1]);
    let mut state = State::new(&f.config, "", 8).unwrap();
    let mut stream = Stream::new(f.f32s("in"));
    stream.snapshots = snapshots(&f.f32s("block_residual_in"), n, e);
    w.with(|weights| {
        let mut states = [&mut state.layers[l]];
        layer::mix(&b, l, weights, &mut stream, &mut states).unwrap();
        let moe = layer::route(&b, l, weights, &mut stream).unwrap();
        let mut moe = moe.expect("a layer with experts");
        layer::rest(&b, l, weights, &mut stream, Some(&mut moe)).unwrap();
        w.feed(&b, &mut moe);
        layer::join(&b, l, weights, &mut stream, &moe).unwrap();
    });
    f.check("out", &stream.r);
    let n = f.shape("block_residual_out")[1];
    assert_eq!(stream.snapshots.len(), n, "a block boundary takes a snapshot");
    let want = snapshots(&f.f32s("block_residual_out"), n, e);
    assert_eq!(stream.snapshots, want, "snapshots are raw copies");
}

type Check = fn(&mut Fixture);
const CHECKS: &[(&str, Check)] = &[
    ("rmsnorm", rmsnorm),
    ("situ_glu", situ_glu),
    ("shortconv", shortconv),
    ("kda_decay", kda_decay),
    ("kda_recur1", kda_recur),
    ("kda_recur8", kda_recur),
    ("kda_layer1", kda_layer),
    ("kda_layer8", kda_layer),
    ("router", router),
    ("mla", mla_layer),
    ("moe", moe),
    ("attnres", attnres),
    ("layer_kda", whole_layer),
    ("layer_mla", whole_layer),
];

fn run_all(dir: &Path, whose: &str) {
    let mut worst = (0.0, "");
    for (name, check) in CHECKS {
        let mut fixture = Fixture::load(dir, name);
        check(&mut fixture);
        testkit::note(format_args!("{whose} {name}: worst {:.4} of tolerance", fixture.worst));
        if fixture.worst > worst.0 {
            worst = (fixture.worst, name);
        }
    }
    testkit::note(format_args!("{whose}: worst ratio {:.4} ({})", worst.0, worst.1));
}

fn public() -> Option<PathBuf> {
    let dir = testkit::shared().map(|s| s.join("goldens/public/kimi-k3")).filter(|d| d.is_dir());
    if dir.is_none() {
        testkit::skipped("a comparison with public Kimi K3 operations");
    }
    dir
}

#[test]
fn own_operations() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/kimi_k3/ops");
    run_all(&dir, "own");
}

#[test]
fn public_operations() {
    if let Some(dir) = public() {
        run_all(&dir.join("ops"), "public");
    }
}

/// Released bytes, to the bit; swapped nibbles must not pass.
#[test]
fn public_mxfp4() {
    let Some(dir) = public() else { return };
    let v: Value = serde_json::from_slice(&std::fs::read(dir.join("mxfp4.json")).unwrap()).unwrap();
    let bytes = |key: &str| -> Vec<u8> {
        v[key]["data"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect()
    };
    let (packed, scales) = (bytes("packed"), bytes("scales"));
    let weights =
        numerics::Weights::Mxfp4 { packed: &packed, scales: &scales, nan: NanScale::ZeroGroup };
    let m = numerics::Matrix::new(64, 3584, weights).unwrap();
    let want: Vec<f32> = v["expected"]["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap() as f32)
        .collect();
    let mut row = vec![0.0; 3584];
    for (r, want) in want.chunks_exact(3584).enumerate() {
        m.widen_row(r, &mut row).unwrap();
        assert_eq!(row, want, "row {r}");
    }
    m.widen_row(0, &mut row).unwrap();
    let swapped: Vec<f32> = v["expected_swapped_nibbles"]["first64"]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap() as f32)
        .collect();
    assert_ne!(row[..64], swapped[..]);
}
