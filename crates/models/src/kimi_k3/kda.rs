//! Kimi Delta Attention: a short causal convolution, then one `[d, d]` matrix a head that is
//! decayed, corrected and read at every position. Its state does not grow with the sequence.

use super::config::Config;
use super::layer::{Batch, Span};
use super::ops::project;
use super::state::{KdaState, NextMatrices, NextMatrix};
use super::weights::Weights;
use numerics::elementary::{exp, sigmoid, silu};
use numerics::{dot64, kda, rms_norm};

/// Added to the sum of squares when queries and keys are normalised.
const L2_EPS: f64 = 1e-6;

/// Attention of all positions `x` (`[t, hidden]`) to `[t, hidden]`. `states` go with the
/// batch's spans; what is `next` in them becomes the state when
/// the step ends.
pub fn attention(b: &Batch, w: &Weights, x: &[f32], states: &mut [&mut KdaState]) -> Vec<f32> {
    let (c, k) = (b.config, b.kernels);
    let (p, d) = (c.kda_width(), c.kda_head_dim);
    let of = |name: &str| project(k, &w.matrix(&format!("self_attn.{name}.weight")), x);
    let f_a = of("f_a_proj");
    let inputs = Inputs {
        qkv: [of("q_proj"), of("k_proj"), of("v_proj")],
        z: project(k, &w.matrix("self_attn.f_b_proj.weight"), &f_a),
        beta: of("b_proj"),
        gate: of("g_proj"),
    };
    let taps = ["q", "k", "v"].map(|n| w.vector(&format!("self_attn.{n}_conv1d.weight")));
    let head_weights = HeadWeights {
        taps: [&taps[0], &taps[1], &taps[2]],
        // One value a head. The checkpoint stores head_dim of them; the rest is padding.
        a: w.vector("self_attn.A_log")[..c.kda_heads].iter().map(|&a| exp(a)).collect(),
        dt_bias: w.vector("self_attn.dt_bias"),
        o_norm: w.vector("self_attn.o_norm.weight"),
    };

    // One task a sequence and head; outputs by [span][head][position in span][d].
    let mut by_head = vec![0.0; x.len() / c.hidden * p];
    let mut tasks = Vec::new();
    let mut rest = &mut by_head[..];
    for (span, state) in b.spans.iter().zip(states.iter_mut()) {
        state.next_conv(&inputs.qkv, span, p);
        let (mine, others) = rest.split_at_mut(span.len * p);
        rest = others;
        let KdaState { matrices, next, conv, .. } = &mut **state;
        *next = NextMatrices::of(matrices, c, span.len);
        let outs = mine.chunks_mut(span.len * d);
        let heads = matrices.chunks(d * d).zip(next.heads(c.kda_heads)).zip(outs);
        for (head, ((matrix, next), out)) in heads.enumerate() {
            tasks.push(Task { span, head, matrix, next, conv, out });
        }
    }
    k.for_each_chunk(&mut tasks, 1, |_, tasks| {
        for task in tasks {
            head(b, &inputs, &head_weights, task);
        }
    });

    let mut o = vec![0.0; by_head.len()];
    for span in b.spans {
        for head in 0..c.kda_heads {
            for t in 0..span.len {
                let from = span.first * p + (head * span.len + t) * d;
                let to = (span.first + t) * p + head * d;
                o[to..to + d].copy_from_slice(&by_head[from..from + d]);
            }
        }
    }
    project(k, &w.matrix("self_attn.o_proj.weight"), &o)
}

/// Projections of every position.
struct Inputs {
    /// Queries, keys, values before the convolution, each `[t, heads * d]`.
    qkv: [Vec<f32>; 3],
    /// Input of the decay, `[t, heads * d]`.
    z: Vec<f32>,
    /// Input of the correction's strength, `[t, heads]`.
    beta: Vec<f32>,
    /// Output gate, `[t, heads * d]`.
    gate: Vec<f32>,
}

/// Weights used elementwise.
struct HeadWeights<'a> {
    /// Convolution taps of q, k, v: `[heads * d, taps]`, oldest first.
    taps: [&'a [f32]; 3],
    /// `exp(A_log)`, one a head.
    a: Vec<f32>,
    /// `[heads * d]`.
    dt_bias: Vec<f32>,
    /// `[d]`.
    o_norm: Vec<f32>,
}

/// One head of one sequence.
struct Task<'a> {
    span: &'a Span,
    head: usize,
    /// The head's matrix before the step, `[d, d]`.
    matrix: &'a [f32],
    /// Its part of what the step leaves.
    next: NextMatrix<'a>,
    /// The sequence's convolution history before the step.
    conv: &'a [f32],
    /// `[positions, d]`.
    out: &'a mut [f32],
}

fn head(b: &Batch, inputs: &Inputs, w: &HeadWeights, task: &mut Task) {
    let c = b.config;
    let (d, p, heads) = (c.kda_head_dim, c.kda_width(), c.kda_heads);
    let channels = task.head * d..(task.head + 1) * d;
    let q_scale = (1.0 / (d as f64).sqrt()) as f32;
    let (mut q, mut k, mut v) = (vec![0.0; d], vec![0.0; d], vec![0.0; d]);
    let (mut alpha, mut o) = (vec![0.0; d], vec![0.0; d]);
    let mut scratch = Vec::new();
    for t in 0..task.span.len {
        let row = task.span.first + t;
        for (part, y) in [&mut q, &mut k, &mut v].into_iter().enumerate() {
            for (y, ch) in y.iter_mut().zip(channels.clone()) {
                *y = silu(convolve(c, &inputs.qkv[part], w.taps[part], task, part, t, ch));
            }
        }
        // A sum of squares, not a mean.
        for x in [&mut q, &mut k] {
            let inv = (1.0 / (dot64(x, x) + L2_EPS).sqrt()) as f32;
            x.iter_mut().for_each(|x| *x *= inv);
        }
        q.iter_mut().for_each(|q| *q *= q_scale);
        for (alpha, ch) in alpha.iter_mut().zip(channels.clone()) {
            let z = inputs.z[row * p + ch] + w.dt_bias[ch];
            *alpha = decay(c.gate_lower_bound, w.a[task.head], z);
        }
        let beta = sigmoid(inputs.beta[row * heads + task.head]);
        let (q, k, v, alpha) = (&q, &k, &v, &alpha);
        let state = task.next.matrix(task.matrix, &mut scratch, t);
        b.kernels.kda_step(kda::Step { state, q, k, v, alpha, beta, out: &mut o });
        task.next.record(t, [k, v, alpha], beta);
        // Norm first, then the gate.
        let out = &mut task.out[t * d..(t + 1) * d];
        rms_norm(&o, Some(&w.o_norm), c.rms_eps, out);
        for (out, ch) in out.iter_mut().zip(channels.clone()) {
            *out *= sigmoid(inputs.gate[row * p + ch]);
        }
    }
}

/// What a key channel keeps of its past: `exp(lower * sigmoid(a * z))`, in `(exp(lower), 1]`.
fn decay(lower: f32, a: f32, z: f32) -> f32 {
    exp(lower * sigmoid(a * z))
}

/// Causal depthwise convolution of one channel at position `t` of the span, taps oldest to
/// newest; what precedes the span comes from the history.
fn convolve(
    c: &Config,
    inputs: &[f32],
    taps: &[f32],
    task: &Task,
    part: usize,
    t: usize,
    ch: usize,
) -> f32 {
    let (p, past) = (c.kda_width(), c.conv_kernel - 1);
    let mut sum = 0.0;
    for j in 0..c.conv_kernel {
        // Index into history (`past` rows) followed by the span's own rows.
        let x = match (t + j).checked_sub(past) {
            None => task.conv[(part * past + t + j) * p + ch],
            Some(t) => inputs[(task.span.first + t) * p + ch],
        };
        sum += taps[ch * c.conv_kernel + j] * x;
    }
    sum
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The first of the three convolutions with its silu, `[t, p]`.
    pub fn conv(c: &Config, x: &[f32], taps: &[f32], span: &Span, history: &[f32]) -> Vec<f32> {
        let next = NextMatrix::Whole(&mut []);
        let task = Task { span, head: 0, matrix: &[], next, conv: history, out: &mut [] };
        let p = c.kda_width();
        (0..x.len()).map(|i| silu(convolve(c, x, taps, &task, 0, i / p, i % p))).collect()
    }

    /// The decay of a channel from its head's `A_log`.
    pub fn alpha(lower: f32, a_log: f32, z: f32) -> f32 {
        decay(lower, exp(a_log), z)
    }
}
