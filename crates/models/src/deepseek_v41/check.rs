//! Checks a kernel's results against the `reference`: a tensor file holds an operation's
//! inputs and the results to be judged; the reference computes its own and the two are compared
//! element by element. `examples/check_kernel.rs` and `facit check-op` are thin shells around
//! [`check_op`].
//!
//! | operation | inputs | results | metadata |
//! |---|---|---|---|
//! | `attn0` | `w.attn_sink`, `w.wq_a`, `w.q_norm`, `w.wq_b`, `w.wkv`, `w.kv_norm`, `w.wo_a`, `w.wo_b`; for each step i `stepI.x` | any of `stepI.` `qr`, `q`, `kv_new`, `kv_rows`, `idx`, `o`, `o_rotated`, `o_low`, `out`, `ring` | `cfg` (JSON sizes), `regimes` (JSON `[[start, n], ...]`), `rope_theta` |
//! | `sparse_attn` | `q` `[n, h, d]`, `kv` `[rows, d]`, `sink` `[h]`, `idx` `[n, cols]` | `o` | |
//! | `act_quant` | `x` `[.., d]` | `y` | |
//! | `apply_rotary` | `x` `[n, .., d]`, `pos` `[n]` | `y` | `rope_dim`, `rope_theta`, `inverse` (`true` or `false`) |
//! | `rms_norm` | `x` `[.., d]`, `w` `[d]` | `y` | `eps` |
//! | `linear_bf16` | `x` `[.., k]`, `w` `[m, k]` | `y` | |
//!
//! Floats are BF16 or F32. Results are compared at [`Tolerance::BF16`]; indices and `act_quant`
//! exactly.

use super::reference::{
    AttnConfig, AttnRun, AttnWeights, ReferenceError, WindowCache, act_quant_inplace, attention,
    cos_sin, freqs_cis, linear_bf16, rms_norm, rope_freqs, rotate, sparse_attn,
};
use crate::compare::{Report, Tolerance, compare};
use crate::tensor_file::{TensorFile, TensorFileError};
use serde::Deserialize;

/// The operations [`check_op`] knows.
pub const OPS: [&str; 6] =
    ["attn0", "sparse_attn", "act_quant", "apply_rotary", "rms_norm", "linear_bf16"];

/// Largest position a check computes a rotary table for.
pub const MAX_POSITION: usize = 1 << 20;
/// Largest value of any one size in the metadata.
pub const MAX_SIZE: usize = 1 << 20;
/// Most values that metadata alone (no tensor in the file) can ask memory for: a ring, a table.
pub const MAX_VALUES: usize = 1 << 26;

/// Why a check could not be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// No such operation.
    #[error("unknown operation {0:?}: expected one of {list}", list = OPS.join(", "))]
    Op(String),
    /// The file is damaged or lacks something.
    #[error(transparent)]
    File(#[from] TensorFileError),
    /// Sizes that do not fit together.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A metadata entry that cannot be used.
    #[error("metadata {key}: {what}")]
    Meta {
        /// Its key.
        key: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A tensor that does not fit the others.
    #[error("tensor {name}: {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// Inputs without any result to judge.
    #[error("the file holds no result to compare (see the table of results for this operation)")]
    NoResult,
}

fn bad(name: &str, what: impl Into<String>) -> CheckError {
    CheckError::Tensor { name: name.to_owned(), what: what.into() }
}

/// Computes operation `op` on the file's inputs and compares every result the file holds.
/// The kernel is right when every report [passed](Report::passed).
///
/// # Errors
/// If the operation is unknown or the file does not fit it.
pub fn check_op(op: &str, file: &TensorFile<'_>) -> Result<Vec<Report>, CheckError> {
    match op {
        "attn0" => check_attn0(file),
        "sparse_attn" => check_sparse_attn(file),
        "act_quant" => {
            let (shape, mut x) = rows(file, "x", None)?;
            // Row by row: a block of 32 must not run over the end of a row.
            x.chunks_exact_mut(width(&shape)).for_each(act_quant_inplace);
            Ok(vec![result(file, "y", &x, Tolerance::EXACT)?])
        }
        "apply_rotary" => check_rotary(file),
        "rms_norm" => {
            let (shape, x) = rows(file, "x", None)?;
            let (_, w) = rows(file, "w", Some(width(&shape)))?;
            if w.len() != width(&shape) {
                return Err(bad("w", "expected one row"));
            }
            let y = rms_norm(&x, &w, number(file, "eps")?);
            Ok(vec![result(file, "y", &y, Tolerance::BF16)?])
        }
        "linear_bf16" => {
            let (shape, x) = rows(file, "x", None)?;
            let (_, w) = rows(file, "w", Some(width(&shape)))?;
            Ok(vec![result(file, "y", &linear_bf16(&x, &w, width(&shape)), Tolerance::BF16)?])
        }
        other => Err(CheckError::Op(other.to_owned())),
    }
}

/// A float tensor with at least one dimension, none of them zero, and rows of `expected` values.
fn rows(
    file: &TensorFile<'_>,
    name: &str,
    expected: Option<usize>,
) -> Result<(Vec<usize>, Vec<f32>), CheckError> {
    let (shape, values) = file.floats(name)?;
    if shape.is_empty() || values.is_empty() {
        return Err(bad(name, format!("{shape:?} has no rows")));
    }
    match expected {
        Some(w) if width(&shape) != w => Err(bad(name, format!("{shape:?}: expected rows of {w}"))),
        _ => Ok((shape, values)),
    }
}

fn width(shape: &[usize]) -> usize {
    shape[shape.len() - 1]
}

fn number(file: &TensorFile<'_>, key: &'static str) -> Result<f32, CheckError> {
    let text = file.meta(key)?;
    let value = text.parse::<f32>().ok().filter(|v| v.is_finite());
    value.ok_or_else(|| CheckError::Meta { key, what: format!("{text:?} is not a number") })
}

fn result(
    file: &TensorFile<'_>,
    name: &str,
    reference: &[f32],
    tolerance: Tolerance,
) -> Result<Report, CheckError> {
    let (shape, judged) = file.floats(name)?;
    if judged.len() != reference.len() {
        let what = format!("{} values where {} are expected", judged.len(), reference.len());
        return Err(bad(name, what));
    }
    Ok(compare(name, &shape, &judged, reference, tolerance))
}

fn indices(
    file: &TensorFile<'_>,
    name: &str,
    below: usize,
) -> Result<(Vec<usize>, Vec<i32>), CheckError> {
    let (shape, values) = file.integers(name)?;
    let fits = |v: &i64| *v >= -1 && *v < below as i64;
    if let Some(v) = values.iter().find(|v| !fits(v)) {
        return Err(bad(name, format!("{v} is outside -1..{below}")));
    }
    Ok((shape, values.iter().map(|&v| v as i32).collect()))
}

fn check_sparse_attn(file: &TensorFile<'_>) -> Result<Vec<Report>, CheckError> {
    let (shape, q) = rows(file, "q", None)?;
    let &[queries, heads, dim] = shape.as_slice() else {
        return Err(bad("q", format!("{shape:?}: expected [queries, heads, dim]")));
    };
    let (_, kv) = rows(file, "kv", Some(dim))?;
    let (_, sink) = rows(file, "sink", Some(heads))?;
    let below = (kv.len() / dim).min(i32::MAX as usize);
    let (idx_shape, idx) = indices(file, "idx", below)?;
    if idx_shape.len() != 2 || idx_shape[0] != queries {
        return Err(bad("idx", format!("{idx_shape:?}: expected [{queries}, cols]")));
    }
    if sink.len() != heads {
        return Err(bad("sink", "expected one row"));
    }
    let scale = (1.0 / (dim as f64).sqrt()) as f32;
    let o = sparse_attn(&q, &kv, &sink, &idx, idx_shape[1], dim, scale);
    Ok(vec![result(file, "o", &o, Tolerance::BF16)?])
}

fn check_rotary(file: &TensorFile<'_>) -> Result<Vec<Report>, CheckError> {
    let (shape, mut x) = rows(file, "x", None)?;
    let (_, pos) = indices(file, "pos", MAX_POSITION)?;
    let rope_dim = number(file, "rope_dim")? as usize;
    if !rope_dim.is_multiple_of(2) || rope_dim > width(&shape) {
        let what = format!("expected an even number up to {}", width(&shape));
        return Err(CheckError::Meta { key: "rope_dim", what });
    }
    let inverse = match file.meta("inverse")? {
        "true" => true,
        "false" => false,
        other => {
            return Err(CheckError::Meta {
                key: "inverse",
                what: format!("{other:?} is not true or false"),
            });
        }
    };
    if pos.len() != shape[0] || pos.iter().any(|&p| p < 0) {
        return Err(bad("pos", format!("expected {} positions", shape[0])));
    }
    let per_token = x.len() / width(&shape) / shape[0];
    let freqs = rope_freqs(rope_dim, number(file, "rope_theta")?, None);
    let from = width(&shape) - rope_dim;
    for (i, row) in x.chunks_exact_mut(width(&shape)).enumerate() {
        let position = pos[i / per_token] as u32;
        let fc: Vec<(f32, f32)> = freqs.iter().map(|&f| cos_sin(position, f)).collect();
        rotate(&mut row[from..], &fc, inverse);
    }
    Ok(vec![result(file, "y", &x, Tolerance::BF16)?])
}

/// The sizes in the metadata of an `attn0` file.
#[derive(Deserialize)]
struct Sizes {
    dim: usize,
    n_heads: usize,
    head_dim: usize,
    rope_head_dim: usize,
    q_lora_rank: usize,
    o_lora_rank: usize,
    o_groups: usize,
    window_size: usize,
    norm_eps: f32,
}

impl Sizes {
    fn config(&self) -> Result<AttnConfig, CheckError> {
        let all = [
            self.dim,
            self.n_heads,
            self.head_dim,
            self.q_lora_rank,
            self.o_lora_rank,
            self.o_groups,
            self.window_size,
        ];
        if all.iter().any(|s| !(1..=MAX_SIZE).contains(s)) {
            return Err(CheckError::Meta {
                key: "cfg",
                what: format!("every size must be 1 to {MAX_SIZE}"),
            });
        }
        // The ring is not in the file, so nothing else bounds it.
        if self.window_size * self.head_dim > MAX_VALUES || self.rope_head_dim > self.head_dim {
            return Err(CheckError::Meta {
                key: "cfg",
                what: format!(
                    "rope_head_dim must be at most head_dim, window_size times head_dim at most {MAX_VALUES}"
                ),
            });
        }
        Ok(AttnConfig {
            dim: self.dim,
            heads: self.n_heads,
            head_dim: self.head_dim,
            rope_dim: self.rope_head_dim,
            q_rank: self.q_lora_rank,
            o_rank: self.o_lora_rank,
            groups: self.o_groups,
            window: self.window_size,
            eps: self.norm_eps,
        })
    }
}

fn json<T: for<'de> Deserialize<'de>>(
    file: &TensorFile<'_>,
    key: &'static str,
) -> Result<T, CheckError> {
    serde_json::from_str(file.meta(key)?).map_err(|e| CheckError::Meta { key, what: e.to_string() })
}

fn check_attn0(file: &TensorFile<'_>) -> Result<Vec<Report>, CheckError> {
    let config = json::<Sizes>(file, "cfg")?.config()?;
    let steps: Vec<(usize, usize)> = json(file, "regimes")?;
    let weight = |name: &str| Ok::<_, CheckError>(file.floats(&format!("w.{name}"))?.1);
    let (sink, wq_a, q_norm) = (weight("attn_sink")?, weight("wq_a")?, weight("q_norm")?);
    let (wq_b, wkv, kv_norm) = (weight("wq_b")?, weight("wkv")?, weight("kv_norm")?);
    let (wo_a, wo_b) = (weight("wo_a")?, weight("wo_b")?);
    let weights = AttnWeights {
        sink: &sink,
        wq_a: &wq_a,
        q_norm: &q_norm,
        wq_b: &wq_b,
        wkv: &wkv,
        kv_norm: &kv_norm,
        wo_a: &wo_a,
        wo_b: &wo_b,
    };
    // The sizes bound each other only through the tensors: kv_norm is one row long.
    if kv_norm.len() != config.head_dim {
        return Err(bad("w.kv_norm", format!("expected {} values", config.head_dim)));
    }
    let ends = steps.iter().map(|(start, n)| start.checked_add(*n)).collect::<Option<Vec<_>>>();
    let end = ends.map(|ends| ends.into_iter().max().unwrap_or(0));
    let end = end.filter(|&e| e <= MAX_POSITION && e * config.rope_dim <= 2 * MAX_VALUES);
    let Some(end) = end else {
        let what = format!(
            "positions up to {MAX_POSITION} are possible, times rope_head_dim up to {}",
            2 * MAX_VALUES
        );
        return Err(CheckError::Meta { key: "regimes", what });
    };
    let fc = freqs_cis(config.rope_dim, end, number(file, "rope_theta")?);
    let mut cache = WindowCache::new(&config);
    let mut reports = Vec::new();
    for (i, &(start, n)) in steps.iter().enumerate() {
        let name = format!("step{i}.x");
        let (_, x) = file.floats(&name)?;
        if Some(x.len()) != n.checked_mul(config.dim) {
            return Err(bad(&name, format!("expected [{n}, {}]", config.dim)));
        }
        let run = attention(&x, start, &weights, &config, &fc, &mut cache)?;
        compare_step(file, i, &run, &cache, &mut reports)?;
    }
    if reports.is_empty() { Err(CheckError::NoResult) } else { Ok(reports) }
}

/// Compares every result the file holds of step `i`.
fn compare_step(
    file: &TensorFile<'_>,
    i: usize,
    run: &AttnRun,
    cache: &WindowCache,
    reports: &mut Vec<Report>,
) -> Result<(), CheckError> {
    let name = |what: &str| format!("step{i}.{what}");
    let computed = [
        ("qr", &run.qr),
        ("q", &run.q),
        ("kv_new", &run.kv_new),
        ("kv_rows", &run.kv_rows),
        ("o", &run.o),
        ("o_rotated", &run.o_rotated),
        ("o_low", &run.o_low),
        ("out", &run.out),
        ("ring", &cache.slots),
    ];
    for (what, reference) in computed {
        if file.has(&name(what)) {
            reports.push(result(file, &name(what), reference, Tolerance::BF16)?);
        }
    }
    if file.has(&name("idx")) {
        let (shape, judged) = file.integers(&name("idx"))?;
        let judged: Vec<f32> = judged.iter().map(|&v| v as f32).collect();
        let reference: Vec<f32> = run.idx.iter().map(|&v| v as f32).collect();
        reports.push(compare(&name("idx"), &shape, &judged, &reference, Tolerance::EXACT));
    }
    Ok(())
}
