//! Normalisations over one row.

use crate::dot::dot64;
use crate::elementary::exp;

/// `f32(1 / sqrt(sum x^2 / n + eps))`, in `f64` until the one rounding. The sum is a dot product
/// of `x` with itself.
pub fn inverse_rms(x: &[f32], eps: f64) -> f32 {
    (1.0 / (dot64(x, x) / x.len() as f64 + eps).sqrt()) as f32
}

/// RMSNorm: `out[i] = (x[i] * inv) * w[i]` with `inv` of [`inverse_rms`]; without `w`, `x[i] * inv`.
/// Panics if the lengths differ.
pub fn rms_norm(x: &[f32], w: Option<&[f32]>, eps: f64, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output of a norm differ in length");
    let inv = inverse_rms(x, eps);
    match w {
        Some(w) => {
            assert_eq!(x.len(), w.len(), "input and weight of a norm differ in length");
            for i in 0..x.len() {
                out[i] = (x[i] * inv) * w[i];
            }
        }
        None => {
            for i in 0..x.len() {
                out[i] = x[i] * inv;
            }
        }
    }
}

/// Softmax in place: `e[i] = exp(x[i] - max)` in `f32`, their sum in `f64` in order of `i`,
/// `x[i] = f32(e[i] / sum)` with the division in `f64`.
///
/// A NaN anywhere makes every element NaN; so does a maximum that is infinite.
pub fn softmax(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
    let mut sum = 0f64;
    for v in x.iter_mut() {
        *v = exp(*v - max);
        sum += *v as f64;
    }
    for v in x.iter_mut() {
        let p = (*v as f64 / sum) as f32;
        *v = if p.is_nan() { f32::NAN } else { p };
    }
}
