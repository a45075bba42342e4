//! Small functions over rows of activations that several parts of a layer share.

use numerics::{Kernels, Matrix, dot, elementary, rms_norm, softmax};

/// Elements of an element-wise task: enough to be worth a thread's while.
const RUN: usize = 2048;

/// `[t, rows]` = every row of `m` times each of the `t` positions of `x` (`[t, cols]`).
pub fn project(k: &Kernels, m: &Matrix, x: &[f32]) -> Vec<f32> {
    let t = x.len() / m.cols();
    let mut out = vec![0.0; t * m.rows()];
    k.matmul(m, x, t, &mut out);
    out
}

/// RMSNorm of every row of width `w.len()`.
pub fn rms_rows(k: &Kernels, x: &[f32], w: &[f32], eps: f64) -> Vec<f32> {
    let n = w.len();
    let mut out = vec![0.0; x.len()];
    k.for_each_chunk(&mut out, n, |t, out| rms_norm(&x[t * n..][..n], Some(w), eps, out));
    out
}

/// SiTU-GLU, elementwise: `gate` becomes `situ(gate, up)`.
pub fn situ(k: &Kernels, gate: &mut [f32], up: &[f32], beta: f32, linear_beta: f32) {
    k.for_each_chunk(gate, RUN, |i, gate| {
        for (g, &u) in gate.iter_mut().zip(&up[i * RUN..]) {
            *g = elementary::situ(*g, u, beta, linear_beta);
        }
    });
}

/// Attention residual: a softmax-weighted sum of the snapshots and the running residual.
///
/// Each source is scored by its RMS-normalised self against `norm * proj`; what is summed is
/// the *raw* source, in the order of `sources`. All are `[t, hidden]`.
pub fn attn_res(k: &Kernels, sources: &[&[f32]], norm: &[f32], proj: &[f32], eps: f64) -> Vec<f32> {
    let e = norm.len();
    let fold: Vec<f32> = norm.iter().zip(proj).map(|(n, p)| n * p).collect();
    let mut out = vec![0.0; sources[0].len()];
    k.for_each_chunk(&mut out, e, |t, out| {
        let rows = || sources.iter().map(|s| &s[t * e..][..e]);
        // `out` first serves as the normalised source.
        let mut p: Vec<f32> = rows()
            .map(|row| {
                rms_norm(row, None, eps, out);
                dot(out, &fold)
            })
            .collect();
        softmax(&mut p);
        out.fill(0.0);
        for (row, p) in rows().zip(p) {
            for (o, &s) in out.iter_mut().zip(row) {
                *o += p * s;
            }
        }
    });
    out
}
