//! Attention in its five layer roles against golden data: a ratio-2 source, a layer that reuses
//! its selection, a ratio-1 source that publishes candidates, a layer with its own indexer among
//! them, and one that reuses that. Inputs are independent, so errors do not compound.

use super::attention::{Sequence, Shared, attention};
use super::cache::Rows;
use super::config::Config;
use super::cx::{Cx, Probe, Rotations, Span};
use super::linear::Regime;
use super::reference::rope_freqs;
use super::state::{Pending, State};
use super::weights::LayerView;
use crate::compare::{Tolerance, compare};
use crate::machine::{DType, TensorSpec};
use crate::tensor_file::TensorFile;
use numerics::{Backend, Kernels};
use std::collections::HashMap;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/deepseek_v41/");

fn read(name: &str) -> Vec<u8> {
    std::fs::read(format!("{VECTORS}{name}")).expect(name)
}

/// The golden file's sizes in a tiny configuration.
fn config() -> Config {
    let mut c = Config::from_json(&read("tiny_model/config.json")).unwrap();
    (c.dim, c.layers, c.heads, c.head_dim, c.rope_dim) = (64, 5, 4, 32, 8);
    (c.q_rank, c.o_rank, c.o_groups, c.window) = (32, 16, 2, 8);
    (c.index_heads, c.index_dim, c.index_topk) = (8, 32, 5);
    (c.ratios, c.kv_sources, c.index_sources) = (vec![2, 2, 1, 1, 1], vec![0, 2], vec![0, 2, 3]);
    (c.candidates.source, c.candidates.topk_blocks, c.candidates.block) = (2, 2, 4);
    c.compress_theta = 40000.0;
    c.dspark.targets.clear();
    c
}

#[derive(Default)]
struct Seen(HashMap<&'static str, Vec<f32>>);

impl Probe for Seen {
    fn see(&mut self, _layer: usize, name: &'static str, values: &[f32]) {
        self.0.insert(name, values.to_vec());
    }
}

/// A layer's golden weights under the names of a checkpoint.
fn layer_tensors<'a>(file: &TensorFile<'a>, layer: usize) -> (Vec<TensorSpec>, Vec<&'a [u8]>) {
    let prefix = format!("L{layer}.w.");
    let names = file.names().filter(|n| n.starts_with(&prefix));
    names
        .map(|name| {
            let t = file.get(name).unwrap();
            let short = &name[prefix.len()..];
            let suffix = if short == "attn_sink" { "" } else { ".weight" };
            let spec = TensorSpec {
                name: format!("attn.{short}{suffix}"),
                dtype: DType::from_name(&t.dtype).unwrap(),
                shape: t.shape.clone(),
            };
            (spec, t.bytes)
        })
        .unzip()
}

fn unpacked(rows: &Rows) -> Vec<f32> {
    let mut out = Vec::new();
    (0..rows.len()).for_each(|i| rows.unpack(i, &mut out));
    out
}

#[track_caller]
fn check(file: &TensorFile<'_>, name: &str, got: &[f32]) {
    let (shape, want) = file.floats(name).expect(name);
    let report = compare(name, &shape, got, &want, Tolerance::BF16);
    assert!(report.passed(), "{report}");
}

/// Catches a query that sees a group too early or too late, keys rotated at the wrong position
/// or made from the rotated latent, the wrong layer's keys or selection, candidates that are not
/// obeyed, and a prefill that differs from decoding.
#[test]
fn five_roles_prefill_and_decode() {
    let bytes = read("ops/csa.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let c = config();
    let freqs = rope_freqs(c.rope_dim, c.compress_theta, Some(&c.yarn));
    let kernels = Kernels::new(Backend::detect(), 2);
    let mut state = State::new(&c, "", 64, false).unwrap();
    for (step, (start, len)) in [(0, 13), (13, 1), (14, 1), (15, 1)].into_iter().enumerate() {
        let spans = [Span { first: 0, len, position: start }];
        let rotations = Rotations::new(&freqs, start..start + len);
        let mut pending = Pending::new(&c, vec![0; len]);
        let mut shared = Shared::default();
        let mut seen: Vec<Seen> = (0..c.layers).map(|_| Seen::default()).collect();
        for (layer, seen) in seen.iter_mut().enumerate() {
            let name = |what: &str| format!("L{layer}.step{step}.{what}");
            let (specs, tensors) = layer_tensors(&file, layer);
            let w = LayerView::new("", &specs, &tensors).unwrap();
            let mut cx = Cx {
                config: &c,
                kernels: &kernels,
                regime: Regime::Bf16,
                spans: &spans,
                layer,
                probe: Some(seen),
            };
            let (_, x) = file.floats(&name("x")).unwrap();
            let mut sequences = [Sequence { state: &state, pending: &mut pending }];
            let out = attention(&mut cx, &w, &x, &freqs, &rotations, &mut sequences, &mut shared);
            check(&file, &name("out"), &out.unwrap());
            let pairs = [
                ("sa_q", "q"),
                ("sa_o", "o"),
                ("latent", "latent"),
                ("index_q", "index_q"),
                ("index_weights", "index_weights"),
            ];
            for (ours, golden) in pairs.iter().filter(|p| file.has(&name(p.1))) {
                check(&file, &name(golden), &seen.0[ours]);
            }
            check_selected(&file, &name("idx"), &shared, start, len);
            if layer == c.candidates.source {
                check_candidates(&file, &name("candidates"), &shared, start);
            }
        }
        state.commit(&c, &pending, len);
        for layer in 0..c.layers {
            check(&file, &format!("L{layer}.step{step}.ring"), &unpacked(&state.windows[layer]));
        }
        for (s, layer) in [(0, 0), (1, 2)] {
            let name = |what: &str| format!("L{layer}.step{step}.{what}");
            check(&file, &name("compress_kv"), &unpacked(&state.sources[s].rows.rows));
            check(&file, &name("index_k"), &unpacked(&state.sources[s].rows.keys));
        }
    }
}

/// Golden lists: window columns (of the chunk in a prefill, the ring in a decode), then compressed
/// rows numbered after the window's rows.
fn check_selected(file: &TensorFile<'_>, name: &str, shared: &Shared, start: usize, len: usize) {
    let (shape, want) = file.integers(name).unwrap();
    let rows = if start == 0 { len as i64 } else { 8 };
    for (got, want) in shared.topk.iter().zip(want.chunks(shape[1])) {
        let want: Vec<i64> = want[8..].iter().filter(|&&i| i >= 0).map(|i| i - rows).collect();
        let got: Vec<i64> = got.iter().map(|&i| i64::from(i)).collect();
        assert_eq!(got, want, "{name}");
    }
}

/// Golden masks cover the whole width; a query's own flags end with its newest block.
fn check_candidates(file: &TensorFile<'_>, name: &str, shared: &Shared, start: usize) {
    let (shape, want) = file.integers(name).unwrap();
    for (t, (got, want)) in shared.candidates.iter().zip(want.chunks(shape[1])).enumerate() {
        for (i, &want) in want.iter().enumerate().take(start + t + 1) {
            assert_eq!(i64::from(got[i / 4]), want, "{name} query {t} position {i}");
        }
    }
}
