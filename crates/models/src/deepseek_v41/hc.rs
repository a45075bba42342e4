//! Hyper-connections: the residual stream is `hc_mult` copies, and every sub-block reads one
//! weighted sum of them and writes back through a doubly stochastic mix.
//!
//! The released model delays the mixes by one sub-block: attention collapses with the `pre` of
//! the feed-forward before it, the feed-forward with the `pre` of this layer's attention, the
//! head with the last feed-forward's. `post` and `comb` are a sub-block's own. The delay is done
//! in `layer.rs` (`Stream::pre`); this file computes the mixes and applies them.
//!
//! All mixes are f32. A weighted sum of copies is exact products added in f64 in the order of
//! the copies, rounded to f32 and then to bf16.

use super::config::Config;
use numerics::{Kernels, Matrix, bf16, elementary, norm};

/// The mixes of one sub-block for T positions; `m` is `hc_mult`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mixes {
    /// Weights of the copies for the *next* sub-block's input, `[T, m]`.
    pub pre: Vec<f32>,
    /// Share of this sub-block's output in each copy, `[T, m]`.
    pub post: Vec<f32>,
    /// Share of copy `j` in the new copy `k`, `[T, m (j), m (k)]`.
    pub comb: Vec<f32>,
}

/// Parameters of a sub-block's mixes.
#[derive(Debug)]
pub struct HcWeights<'a> {
    /// `[(2 + m) * m, m * dim]`, f32.
    pub weight: Matrix<'a>,
    /// `[(2 + m) * m]`
    pub base: Vec<f32>,
    /// Scales of pre, post and comb.
    pub scale: Vec<f32>,
}

/// The mixes of `h` (`[T, m, dim]`): `(weight . X) * r` with `X` all copies of a position and
/// one `r = f32(1/sqrt(mean X^2 + eps))` over them, then [`split`].
pub fn mixes(kernels: &Kernels, w: &HcWeights<'_>, h: &[f32], c: &Config) -> Mixes {
    let t = h.len() / c.stream();
    let count = w.base.len();
    let mut m = vec![0.0; t * count];
    kernels.matmul(&w.weight, h, t, &mut m);
    for (row, x) in m.chunks_exact_mut(count).zip(h.chunks_exact(c.stream())) {
        let r = norm::inverse_rms(x, f64::from(c.eps));
        row.iter_mut().for_each(|v| *v *= r);
    }
    split(&m, &w.scale, &w.base, c.hc_mult, c.hc_iters, c.hc_eps)
}

/// Turns raw mixes `[T, (2+m)*m]` into pre, post and the Sinkhorn-normalised comb.
///
/// `pre = sigmoid(x*scale0 + base) + eps`, `post = 2 sigmoid(x*scale1 + base)`,
/// `comb = softmax over k of (x*scale2 + base) + eps`, divided by its column sums `+ eps`; then
/// `iters - 1` times rows and columns again. It ends on columns.
pub fn split(m: &[f32], scale: &[f32], base: &[f32], mult: usize, iters: usize, eps: f32) -> Mixes {
    let count = (2 + mult) * mult;
    let mut out = Mixes::default();
    for row in m.chunks_exact(count) {
        let value = |i: usize| row[i] * scale[(i / mult).min(2)] + base[i];
        out.pre.extend((0..mult).map(|i| elementary::sigmoid(value(i)) + eps));
        out.post.extend((mult..2 * mult).map(|i| 2.0 * elementary::sigmoid(value(i))));
        let mut comb: Vec<f32> = (2 * mult..count).map(value).collect();
        sinkhorn(&mut comb, mult, iters, eps);
        out.comb.extend(comb);
    }
    out
}

fn sinkhorn(comb: &mut [f32], mult: usize, iters: usize, eps: f32) {
    for row in comb.chunks_exact_mut(mult) {
        let max = row.iter().fold(f32::NEG_INFINITY, |a, &v| a.max(v));
        row.iter_mut().for_each(|v| *v = elementary::exp(*v - max));
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = *v / sum + eps);
    }
    divide_columns(comb, mult, eps);
    for _ in 1..iters {
        for row in comb.chunks_exact_mut(mult) {
            let sum = row.iter().sum::<f32>() + eps;
            row.iter_mut().for_each(|v| *v /= sum);
        }
        divide_columns(comb, mult, eps);
    }
}

fn divide_columns(comb: &mut [f32], mult: usize, eps: f32) {
    for k in 0..mult {
        let sum = (0..mult).map(|j| comb[j * mult + k]).sum::<f32>() + eps;
        (0..mult).for_each(|j| comb[j * mult + k] /= sum);
    }
}

/// The input of a sub-block: `bf16(sum over copies of pre * copy)`, `[T, dim]`.
pub fn collapse(h: &[f32], pre: &[f32], mult: usize, dim: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(h.len() / mult);
    for (copies, pre) in h.chunks_exact(mult * dim).zip(pre.chunks_exact(mult)) {
        out.extend((0..dim).map(|d| {
            let sum =
                (0..mult).fold(0.0, |s, c| s + f64::from(pre[c]) * f64::from(copies[c * dim + d]));
            bf16::round(sum as f32)
        }));
    }
    out
}

/// The stream after a sub-block with output `y` (`[T, dim]`): copy `k` becomes
/// `bf16(post[k] * y + sum over j of comb[j][k] * copy j)`. The output copy is comb's *column*.
pub fn expand(y: &[f32], h: &[f32], mixes: &Mixes, mult: usize, dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; h.len()];
    let positions = out.chunks_exact_mut(mult * dim).zip(h.chunks_exact(mult * dim));
    for (t, (new, old)) in positions.enumerate() {
        let y = &y[t * dim..(t + 1) * dim];
        for (k, copy) in new.chunks_exact_mut(dim).enumerate() {
            let post = f64::from(mixes.post[t * mult + k]);
            for d in 0..dim {
                let mut sum = post * f64::from(y[d]);
                for j in 0..mult {
                    let share = f64::from(mixes.comb[(t * mult + j) * mult + k]);
                    sum += share * f64::from(old[j * dim + d]);
                }
                copy[d] = bf16::round(sum as f32);
            }
        }
    }
    out
}
