//! Single operations of the fast model against golden data: linears, hyper-connections, engram,
//! experts, compressor, candidate blocks. (Attention in its five roles is tested inside the
//! crate, `csa_tests.rs`, and in the whole model.)

mod ds41_common;

use ds41_common::{bytes, check, check_ints, floats, json, tiny};
use models::compare::Tolerance;
use models::deepseek_v41::compressor::{Compressor, Partial, group};
use models::deepseek_v41::engram::{self, EngramWeights, LayerHash};
use models::deepseek_v41::hc::{self, HcWeights};
use models::deepseek_v41::indexer::candidate_blocks;
use models::deepseek_v41::linear::{Linear, Regime};
use models::deepseek_v41::moe::{self, Expert, Gate};
use models::deepseek_v41::reference::rms_norm;
use models::tensor_file::TensorFile;
use numerics::{Backend, Kernels, Matrix, NanScale, Weights};

const REGIMES: [Regime; 2] = [Regime::Bf16, Regime::W8a8];

fn kernels() -> Kernels {
    Kernels::new(Backend::detect(), 2)
}

/// A golden matrix by the name of its weight: bf16, f32, or fp8 or fp4 with its scale tensor.
fn linear<'a>(file: &TensorFile<'a>, weight: &str, scale: &str) -> Linear<'a> {
    let w = file.get(weight).unwrap();
    let scales = || file.get(scale).unwrap().bytes;
    let (rows, cols) = (w.shape[0], w.shape[1]);
    let (cols, weights) = match w.dtype.as_str() {
        "F8_E4M3" => (
            cols,
            Weights::Fp8 { codes: w.bytes, scales: scales(), block_rows: 32, block_cols: 32 },
        ),
        "I8" => {
            (2 * cols, Weights::Mxfp4 { packed: w.bytes, scales: scales(), nan: NanScale::Refuse })
        }
        "BF16" => (cols, Weights::Bf16(w.bytes)),
        _ => (cols, Weights::F32(w.bytes)),
    };
    let quantised = matches!(w.dtype.as_str(), "F8_E4M3" | "I8");
    Linear { matrix: Matrix::new(rows, cols, weights).unwrap(), quantised }
}

/// Catches swapped nibbles, scales along the wrong axis, a partial last block (80 x 96), and an
/// input that is rounded in the wrong regime.
#[test]
fn quantised_linears_in_both_regimes() {
    let bytes = bytes("ops/linear.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    for kind in ["fp8", "fp4"] {
        let name = |what: &str| format!("{kind}.{what}");
        let w = linear(&file, &name("weight"), &name("scale"));
        let mut dequantised = vec![0.0; w.matrix.rows() * w.matrix.cols()];
        for (r, row) in dequantised.chunks_mut(w.matrix.cols()).enumerate() {
            w.matrix.widen_row(r, row).unwrap();
        }
        check(&file, &name("dequant"), &dequantised, Tolerance::EXACT);
        for regime in REGIMES {
            let y = w.apply(&kernels(), regime, &floats(&file, &name("x")), 5).unwrap();
            check(&file, &name(&format!("y_{}", regime.name())), &y, Tolerance::BF16);
        }
    }
}

/// Catches mixes from the wrong rows or with their own-block `pre`, a Sinkhorn that ends on rows
/// or forgets the epsilon, and an expansion along comb's rows instead of its columns.
#[test]
fn hyper_connections() {
    let bytes = bytes("ops/hc.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let mut c = tiny::config();
    c.dim = 64;
    let h = floats(&file, "hc.h");
    let w = HcWeights {
        weight: linear(&file, "hc.fn", "").matrix,
        base: floats(&file, "hc.base"),
        scale: floats(&file, "hc.scale"),
    };
    let m = hc::mixes(&kernels(), &w, &h, &c);
    check(&file, "hc.pre", &m.pre, Tolerance::F32);
    check(&file, "hc.post", &m.post, Tolerance::F32);
    check(&file, "hc.comb", &m.comb, Tolerance::F32);
    let collapsed = hc::collapse(&h, &floats(&file, "hc.pre_mix"), 4, 64);
    check(&file, "hc.collapsed", &collapsed, Tolerance::BF16);
    let expanded = hc::expand(&floats(&file, "hc.sub_out"), &h, &m, 4, 64);
    check(&file, "hc.expanded", &expanded, Tolerance::BF16);

    let mixes = floats(&file, "sinkhorn.mixes");
    let m = hc::split(&mixes, &[1.0; 3], &[0.0; 24], 4, 20, 1e-6);
    check(&file, "sinkhorn.pre", &m.pre, Tolerance::F32);
    check(&file, "sinkhorn.post", &m.post, Tolerance::F32);
    check(&file, "sinkhorn.comb", &m.comb, Tolerance::F32);
}

/// Catches hard-coded hash constants with a typing error, a prime search that starts, ends or
/// skips wrongly, and multipliers that lost bits in a JSON double.
#[test]
fn released_engram_constants_are_what_the_rules_give() {
    let golden = json("engram_real_constants.json");
    let mut from = 16_000_000;
    for (i, layer) in [1usize, 14].into_iter().enumerate() {
        let primes = engram::next_primes(&mut from, 24);
        assert_eq!(primes, engram::RELEASED_PRIMES[i].concat());
        assert_eq!(primes.iter().sum::<u64>(), [384_006_168, 384_016_682][i]);
        let mut e = tiny::config().engram;
        e.compressed_vocab = 99092;
        let multipliers = engram::multipliers(layer, &e).unwrap();
        assert_eq!(multipliers, engram::RELEASED_MULTIPLIERS[i]);
        let strings: Vec<String> = multipliers.iter().map(i64::to_string).collect();
        assert_eq!(golden["multipliers"][i], serde_json::json!(strings));
        assert_eq!(golden["primes"][i], serde_json::json!(engram::RELEASED_PRIMES[i]));
    }
}

/// Catches a derivation that only works for the released sizes.
#[test]
fn tiny_engram_constants_are_derived() {
    let golden = json("tiny_model/engram_tables.json");
    let hashes = engram::derive(&tiny::config().engram).unwrap();
    for (i, hash) in hashes.iter().enumerate() {
        let strings: Vec<String> = hash.multipliers.iter().map(i64::to_string).collect();
        assert_eq!(golden["multipliers"][i], serde_json::json!(strings));
        assert_eq!(golden["offsets"][i], serde_json::json!(hash.offsets));
        let primes: Vec<&[u64]> = hash.primes.chunks(2).collect();
        assert_eq!(golden["primes"][i], serde_json::json!(primes));
    }
}

fn released_hash(i: usize) -> LayerHash {
    let primes = engram::RELEASED_PRIMES[i].concat();
    let offsets = primes.iter().scan(0, |sum, p| {
        *sum += p;
        Some(*sum - p)
    });
    LayerHash {
        multipliers: engram::RELEASED_MULTIPLIERS[i].to_vec(),
        offsets: offsets.collect(),
        primes,
    }
}

/// Catches hash rows that wrap, sign or pad wrongly, with the released constants.
#[test]
fn engram_rows_at_released_sizes() {
    let bytes = bytes("ops/engram.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let ids: Vec<u32> =
        file.integers("hash_real.compressed_ids").unwrap().1.iter().map(|&v| v as u32).collect();
    let pad = file.integers("hash_real.pad_id").unwrap().1[0] as u32;
    let mut rows = Vec::new();
    for p in 0..ids.len() {
        let recent: Vec<u32> = ids[..=p].iter().rev().take(4).copied().collect();
        for layer in 0..2 {
            let hash = released_hash(layer);
            rows.extend(engram::hash_rows(&recent, pad, &hash).iter().map(|&r| r as i64));
        }
    }
    check_ints(&file, "hash_real.row_ids", &rows);
}

/// Catches a gate with the wrong norm, sign or root, and keys and value in the wrong order.
#[test]
fn engram_gate_in_both_regimes() {
    let bytes = bytes("ops/engram.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let mut c = tiny::config();
    c.dim = 64;
    let w = EngramWeights {
        wkv: linear(&file, "gate.wkv", "gate.wkv_scale"),
        q_weight: floats(&file, "gate.q_weight"),
        k_weight: floats(&file, "gate.k_weight"),
    };
    let rows = floats(&file, "gate.dequant_rows");
    for regime in REGIMES {
        let name = |what: &str| format!("gate_{}.{what}", regime.name());
        let mut h = floats(&file, "gate.h");
        let run = engram::apply(&kernels(), regime, &w, &rows, &mut h, &c).unwrap();
        check(&file, &name("kv"), &run.kv, Tolerance::BF16);
        check(&file, &name("gate"), &run.gate, Tolerance::F32);
        check(&file, &name("out"), &h, Tolerance::BF16);
    }
}

fn expert<'a>(file: &TensorFile<'a>, prefix: &str) -> Expert<'a> {
    let part =
        |m: &str| linear(file, &format!("{prefix}.{m}.weight"), &format!("{prefix}.{m}.scale"));
    Expert { w1: part("w1"), w3: part("w3"), w2: part("w2") }
}

/// Catches a bias in the weights, a missing normalisation or scale, a limit on the wrong side
/// (1.5 here, so that it bites), w1 and w3 swapped, and outputs added in order of arrival.
#[test]
fn experts_in_both_regimes() {
    let bytes = bytes("ops/moe.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let k = kernels();
    let gate = Gate {
        weight: linear(&file, "moe.gate_weight", "").matrix,
        bias: floats(&file, "moe.gate_bias"),
        active: 2,
        temperature: 1.0,
        normalise: true,
        scale: 1.5,
    };
    let (shape, x) = file.floats("moe.x").unwrap();
    let (t, dim) = (shape[0], shape[1]);
    let routes = gate.route(&k, &x, t).unwrap();
    let ids: Vec<i64> = routes.experts.iter().map(|&e| i64::from(e)).collect();
    check_ints(&file, "moe.indices", &ids);
    check(&file, "moe.weights", &routes.weights, Tolerance::F32);
    for regime in REGIMES {
        let input = regime.input(&x, dim).unwrap();
        let mut slots = vec![0.0; t * 2 * dim];
        for place in (0..2 * t).rev() {
            let w = expert(&file, &format!("moe.experts.{}", routes.experts[place]));
            let row = &input[place / 2 * dim..][..dim];
            let y = w.apply(&k, regime, row, &routes.weights[place..=place], 1.5).unwrap();
            slots[place * dim..][..dim].copy_from_slice(&y);
        }
        let shared = expert(&file, "moe.shared").apply(&k, regime, &input, &vec![1.0; t], 1.5);
        let y = moe::combine(&routes, &slots, &shared.unwrap(), 2, dim);
        check(&file, &format!("moe.y_{}", regime.name()), &y, Tolerance::BF16);
    }
    let scores: Vec<f32> = floats(&file, "score.logit").iter().map(|&x| moe::score(x)).collect();
    check(&file, "score.sqrtsoftplus", &scores, Tolerance::F32);
}

/// Catches groups that overlap or are out of step, a state that is not the incomplete group's
/// positions, and a rounding of the projections to bf16 where they stay f32.
///
/// The released code leaves old values in slots of complete groups; they are never read again,
/// and ours has only the live ones, which are compared.
#[test]
fn compressor_of_ratios_1_2_and_4() {
    let bytes = bytes("ops/compressor.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    for ratio in [1usize, 2, 4] {
        let name = |what: &str| format!("ratio{ratio}.{what}");
        let (shape, x) = file.floats(&name("x")).unwrap();
        let (dim, width) = (shape[1], 32);
        let compressor = Compressor {
            wkv: linear(&file, &name("wkv"), "").matrix,
            wgate: (ratio > 1).then(|| linear(&file, &name("wgate"), "").matrix),
            norm: floats(&file, &name("norm")),
        };
        let mut partial = Partial::default();
        for step in 0..7 {
            let (start, n) = if step == 0 { (0, 7) } else { (6 + step, 1) };
            let p = compressor.project(&kernels(), &x[start * dim..(start + n) * dim], n);
            let pooled = group(&mut partial, &p.kv, &p.score, width, ratio);
            let latent = rms_norm(&pooled, &compressor.norm, 1e-20);
            check(&file, &name(&format!("step{step}.latent")), &latent, Tolerance::BF16);
            if ratio == 1 {
                continue;
            }
            let live = (start + n) % ratio * width;
            for (what, got) in [("kv_state", &partial.kv), ("score_state", &partial.score)] {
                let want = floats(&file, &name(&format!("step{step}.{what}")));
                assert_eq!(got.len(), live, "live positions after step {step}");
                for (g, w) in got.iter().zip(&want) {
                    assert!((g - w).abs() <= 1e-4, "ratio {ratio} step {step} {what}: {g} {w}");
                }
            }
        }
    }
}

/// Catches a newest block that is not forced in, blocks counted from the end, ties to the later
/// block, and blocks without any score that are kept: 40 masks.
#[test]
fn candidate_masks() {
    let bytes = bytes("ops/candidates.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let mut compared = 0;
    for case in 0..40 {
        let name = |what: &str| format!("case{case:02}.{what}");
        let (shape, scores) = file.floats(&name("score")).unwrap();
        let params = file.integers(&name("params")).unwrap().1;
        let (block, topk) = (params[0] as usize, params[1] as usize);
        let lens = file.integers(&name("lens")).unwrap().1;
        let keep = file.integers(&name("keep")).unwrap().1;
        for (row, &len) in lens.iter().enumerate() {
            let width = shape[1];
            let scores: Vec<f32> = scores[row * width..(row + 1) * width]
                .iter()
                .map(|&s| if s < -1e38 { f32::NEG_INFINITY } else { s })
                .collect();
            let visible = len as usize;
            // What a query does not see has no score.
            assert!(scores[visible.min(width)..].iter().all(|s| *s == f32::NEG_INFINITY));
            let kept = candidate_blocks(&scores[..visible.min(width)], topk, block).unwrap();
            for i in 0..width {
                let got = kept.get(i / block).copied().unwrap_or(false);
                assert_eq!(
                    i64::from(got),
                    keep[row * width + i],
                    "case {case} row {row} position {i}"
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 500);
}
