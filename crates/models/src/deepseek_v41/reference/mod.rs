//! DeepSeek-V4.1 attention for authors of kernels: the layer that looks at its window only
//! (`compress_ratio` 0), as plain code that returns every intermediate, and the helpers it is
//! made of. Each helper stands alone and says its shapes, rounding and order of operations.
//!
//! This is the *definition* Facit's own fast layer ([`crate::deepseek_v41`]) is tested against.
//! Of it only the rotation and the softmax with a sink are used to run the model. To check a kernel against a file of inputs see
//! `examples/check_kernel.rs` and [`crate::deepseek_v41::check`].
//!
//! # Source
//! The behaviour is that of the released model's `Attention.forward` at `compress_ratio == 0`
//! (`inference/model.py`, revision dba1be0a) with unquantised linears: low-rank query with
//! RMSNorm, one latent key-value row a token, rotation of the last `rope_dim` values, the fp8
//! round trip of the key-value row, a ring of the last `window` rows, attention with a sink in
//! the denominator, the inverse rotation, and the grouped low-rank output.
//!
//! # Arithmetic
//! Every tensor holds bf16 values in f32 (the sink is f32). Where the released code leaves the
//! order of a sum open, Facit uses its own dot contract everywhere (`numerics::dot`: exact f64
//! products in 16 lanes by index, one written tree, one rounding to f32), so that every
//! implementation of the contract gives the *same bits*; a sequential f32 sum differs from it
//! by less than the bf16 tolerance. Elementary functions are correctly rounded
//! (`numerics::elementary`). Softmax numerators are not rounded to bf16 (the released GPU
//! kernel does that; the difference is about one bf16 step of the output).
//!
//! # Plausible mistakes, each caught by a golden case
//! The rotation on the first values of a head; the sink added to the numerators or scaled;
//! a window one row too long; the ring read newest first or before the new row is in it; the
//! fp8 round trip before the rotation or on the unrotated part only; forgetting the inverse
//! rotation, or rotating `o` before it is returned; one rounding too many in `o`.

mod formats;
mod rope;
mod window;

pub use formats::*;
pub use rope::{Yarn, apply_rotary, cos_sin, freqs_cis, rope_freqs, rotate, table};
pub use window::{sink_softmax, sink_softmax_inplace, sparse_attn, window_topk_idxs};

use numerics::{dot, dot64};

/// `y = w x` for bf16 values, one rounding to bf16 an element: `x` `[rows, inputs]`, `w`
/// `[outputs, inputs]`, result `[rows, outputs]`.
///
/// # Panics
/// If `x` or `w` is not a whole number of rows of `inputs` values.
pub fn linear_bf16(x: &[f32], w: &[f32], inputs: usize) -> Vec<f32> {
    assert!(x.len().is_multiple_of(inputs) && w.len().is_multiple_of(inputs), "rows of {inputs}");
    x.chunks_exact(inputs)
        .flat_map(|row| w.chunks_exact(inputs).map(move |wr| to_bf16_rne(dot(row, wr))))
        .collect()
}

/// RMSNorm of rows: `bf16(w * (x * r))`, `r = f32(1 / sqrt(sum x^2 / n + eps))` with the sum by
/// the dot contract and the rest of `r` in f64. `x` `[row, w.len()]`.
///
/// With the released `eps` of 1e-20 a row of zeros gives zeros, not NaN.
///
/// # Panics
/// If `x` is not a whole number of rows.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    assert!(x.len().is_multiple_of(w.len()), "rows of {} values", w.len());
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(w.len()) {
        let mean = dot64(row, row) / w.len() as f64;
        let r = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
        out.extend(row.iter().zip(w).map(|(v, g)| to_bf16_rne(g * (v * r))));
    }
    out
}

/// Sizes of one attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttnConfig {
    /// Width of the layer's input and output.
    pub dim: usize,
    /// Query heads.
    pub heads: usize,
    /// Values in a head, and in a key-value row.
    pub head_dim: usize,
    /// How many of a head's last values are rotated.
    pub rope_dim: usize,
    /// Rank of the query projection.
    pub q_rank: usize,
    /// Rank of each group's output projection.
    pub o_rank: usize,
    /// Groups of heads in the output projection.
    pub groups: usize,
    /// Positions a query sees, its own included.
    pub window: usize,
    /// RMSNorm epsilon.
    pub eps: f32,
}

/// A length that does not fit the sizes of the layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Wrong number of values.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// Which tensor.
        what: &'static str,
        /// By the sizes.
        expected: usize,
        /// As given.
        got: usize,
    },
    /// Sizes that contradict each other.
    #[error("{what}")]
    Config {
        /// What is wrong.
        what: &'static str,
    },
}

/// A layer's parameters: bf16 values, the sink f32; matrices are `[outputs, inputs]`.
#[derive(Clone, Copy, Debug)]
pub struct AttnWeights<'a> {
    /// Sink logit of each head, `[heads]`.
    pub sink: &'a [f32],
    /// `[q_rank, dim]`
    pub wq_a: &'a [f32],
    /// `[q_rank]`
    pub q_norm: &'a [f32],
    /// `[heads * head_dim, q_rank]`
    pub wq_b: &'a [f32],
    /// `[head_dim, dim]`
    pub wkv: &'a [f32],
    /// `[head_dim]`
    pub kv_norm: &'a [f32],
    /// `[groups * o_rank, heads/groups * head_dim]`
    pub wo_a: &'a [f32],
    /// `[dim, groups * o_rank]`
    pub wo_b: &'a [f32],
}

/// The ring of the last `window` key-value rows, `[window, head_dim]`; the row of position `p`
/// is in slot `p % window`. Slots never written hold zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowCache {
    /// The slots.
    pub slots: Vec<f32>,
}

impl WindowCache {
    /// An empty ring.
    pub fn new(config: &AttnConfig) -> Self {
        WindowCache { slots: vec![0.0; config.window * config.head_dim] }
    }
}

/// Everything one call computes, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct AttnRun {
    /// The normalised low-rank query, `[query, q_rank]`.
    pub qr: Vec<f32>,
    /// Rotated queries, `[query, heads, head_dim]`.
    pub q: Vec<f32>,
    /// This call's key-value rows after the fp8 round trip, `[query, head_dim]`.
    pub kv_new: Vec<f32>,
    /// The rows attention read: the chunk in a prefill, the ring in a decode step.
    pub kv_rows: Vec<f32>,
    /// Window indices, `[query, cols]`.
    pub idx: Vec<i32>,
    /// Columns of `idx`.
    pub cols: usize,
    /// Attention's result *before* the inverse rotation, `[query, heads, head_dim]`.
    pub o: Vec<f32>,
    /// `o` after the inverse rotation.
    pub o_rotated: Vec<f32>,
    /// The grouped projection, `[query, groups, o_rank]`.
    pub o_low: Vec<f32>,
    /// The layer's output, `[query, dim]`.
    pub out: Vec<f32>,
}

/// The window-only attention layer on `x` (`[query, dim]`) at positions `start..`.
///
/// `fc` is [`freqs_cis`] for at least `start + queries` positions. With `start == 0` any number
/// of queries is a prefill and the ring is seeded with the last `window` rows; otherwise exactly
/// one query is a decode step, which writes its slot and then reads the whole ring.
///
/// # Errors
/// If a length does not fit `config`, or a decode step has more than one query.
pub fn attention(
    x: &[f32],
    start: usize,
    w: &AttnWeights<'_>,
    config: &AttnConfig,
    fc: &[(f32, f32)],
    cache: &mut WindowCache,
) -> Result<AttnRun, ReferenceError> {
    let n = check(x, start, w, config, fc, cache)?;
    let (hd, rd, heads) = (config.head_dim, config.rope_dim, config.heads);
    let pos: Vec<usize> = (start..start + n).collect();
    let head_pos: Vec<usize> = pos.iter().flat_map(|&p| std::iter::repeat_n(p, heads)).collect();

    let qr = rms_norm(&linear_bf16(x, w.wq_a, config.dim), w.q_norm, config.eps);
    let mut q = linear_bf16(&qr, w.wq_b, config.q_rank);
    apply_rotary(&mut q, hd, rd, &head_pos, fc, false);

    let mut kv = rms_norm(&linear_bf16(x, w.wkv, config.dim), w.kv_norm, config.eps);
    apply_rotary(&mut kv, hd, rd, &pos, fc, false);
    // Row by row: blocks of 32 must not run over the end of a row.
    kv.chunks_exact_mut(hd).for_each(act_quant_inplace);

    for (row, &p) in kv.chunks_exact(hd).zip(&pos) {
        let slot = p % config.window;
        cache.slots[slot * hd..(slot + 1) * hd].copy_from_slice(row);
    }
    let kv_rows = if start == 0 { kv.clone() } else { cache.slots.clone() };
    let (idx, cols) = window_topk_idxs(config.window, n, start);

    let scale = (1.0 / (hd as f64).sqrt()) as f32;
    let o = sparse_attn(&q, &kv_rows, w.sink, &idx, cols, hd, scale);
    let mut o_rotated = o.clone();
    apply_rotary(&mut o_rotated, hd, rd, &head_pos, fc, true);

    let group = heads * hd / config.groups;
    let o_low: Vec<f32> = o_rotated
        .chunks_exact(group)
        .enumerate()
        .flat_map(|(i, part)| {
            let g = i % config.groups;
            linear_bf16(part, &w.wo_a[g * config.o_rank * group..][..config.o_rank * group], group)
        })
        .collect();
    let out = linear_bf16(&o_low, w.wo_b, config.groups * config.o_rank);
    Ok(AttnRun { qr, q, kv_new: kv, kv_rows, idx, cols, o, o_rotated, o_low, out })
}

/// Checks every length and returns the number of queries.
fn check(
    x: &[f32],
    start: usize,
    w: &AttnWeights<'_>,
    c: &AttnConfig,
    fc: &[(f32, f32)],
    cache: &WindowCache,
) -> Result<usize, ReferenceError> {
    let config = |ok: bool, what| if ok { Ok(()) } else { Err(ReferenceError::Config { what }) };
    let positive = [c.dim, c.heads, c.head_dim, c.q_rank, c.o_rank, c.groups, c.window];
    config(positive.iter().all(|&v| v > 0), "every size of an attention layer must be positive")?;
    config(
        c.rope_dim.is_multiple_of(2) && c.rope_dim <= c.head_dim,
        "rope_dim must be even and at most head_dim",
    )?;
    config(c.heads.is_multiple_of(c.groups), "groups must divide the heads")?;
    let n = x.len() / c.dim;
    config(n > 0, "at least one query is needed")?;
    config(start == 0 || n == 1, "a decode step (start > 0) takes exactly one query")?;
    let lengths = [
        ("x", n * c.dim, x.len()),
        ("attn_sink", c.heads, w.sink.len()),
        ("wq_a", c.q_rank * c.dim, w.wq_a.len()),
        ("q_norm", c.q_rank, w.q_norm.len()),
        ("wq_b", c.heads * c.head_dim * c.q_rank, w.wq_b.len()),
        ("wkv", c.head_dim * c.dim, w.wkv.len()),
        ("kv_norm", c.head_dim, w.kv_norm.len()),
        ("wo_a", c.o_rank * c.heads * c.head_dim, w.wo_a.len()),
        ("wo_b", c.dim * c.groups * c.o_rank, w.wo_b.len()),
        ("the ring", c.window * c.head_dim, cache.slots.len()),
    ];
    for (what, expected, got) in lengths {
        if expected != got {
            return Err(ReferenceError::Length { what, expected, got });
        }
    }
    let needed = (start + n) * c.rope_dim / 2;
    if fc.len() < needed {
        return Err(ReferenceError::Length {
            what: "the rotary table",
            expected: needed,
            got: fc.len(),
        });
    }
    Ok(n)
}
