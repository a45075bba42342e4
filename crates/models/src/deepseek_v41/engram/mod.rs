//! Engram: hashes of the last tokens pick rows of a large table, and a gate decides how much of
//! them each copy of the stream takes. The rows depend on token ids alone, so a step asks for
//! all of them before its first layer.

mod constants;

pub use constants::{
    LayerHash, RELEASED_MULTIPLIERS, RELEASED_PRIMES, derive, multipliers, next_primes,
};

use super::config::Config;
use super::linear::{Linear, Regime};
use numerics::{Error, Kernels, bf16, elementary};

/// Table rows of one position in one layer, `[order, head]` flattened.
///
/// `recent` holds the position's compressed id and those before it, newest first, at most one
/// for each multiplier; places before the start of the sequence take `pad`. The hash is 64-bit
/// wrapping: `roll = t0*m0`, then `roll ^= t_i*m_i` for each further place, and after each the
/// rows `roll mod prime + offset` of that order (the remainder is never negative).
pub fn hash_rows(recent: &[u32], pad: u32, hash: &LayerHash) -> Vec<u64> {
    let orders = hash.multipliers.len() - 1;
    let heads = hash.primes.len() / orders;
    let term = |place: usize| {
        let id = recent.get(place).copied().unwrap_or(pad);
        i64::from(id).wrapping_mul(hash.multipliers[place])
    };
    let mut rows = Vec::with_capacity(hash.primes.len());
    let mut roll = term(0);
    for order in 0..orders {
        roll ^= term(order + 1);
        for head in order * heads..(order + 1) * heads {
            let prime = hash.primes[head];
            rows.push(roll.rem_euclid(prime as i64) as u64 + hash.offsets[head]);
        }
    }
    rows
}

/// An engram layer's weights.
#[derive(Debug)]
pub struct EngramWeights<'a> {
    /// `[(m + 1) * dim, lookups * row]`: keys of the copies, then the value.
    pub wkv: Linear<'a>,
    /// `[m, dim]`
    pub q_weight: Vec<f32>,
    /// `[m, dim]`
    pub k_weight: Vec<f32>,
}

/// What an engram layer computed, for tests.
#[derive(Debug)]
pub struct EngramRun {
    /// Keys and value, `[T, (m + 1) * dim]`.
    pub kv: Vec<f32>,
    /// Gates, `[T, m]`.
    pub gate: Vec<f32>,
}

/// Adds the rows' value to every copy of `h` (`[T, m, dim]`) in place, weighted by its gate.
///
/// `rows` `[T, lookups * row]`. Per copy: `d = sum h*(q_w*k_w)*key / (rms(h) rms(key) sqrt(dim))`,
/// `g = sigmoid(sign(d) * sqrt(max(|d|, 1e-6)))`, `h = bf16(h + g*value)`. The three sums of a
/// copy are dot products by the contract (`q_w*k_w` times `h` rounded to f32 first); the rest of
/// `d` is f64.
///
/// # Errors
/// If an activation is not finite.
pub fn apply(
    kernels: &Kernels,
    regime: Regime,
    w: &EngramWeights<'_>,
    rows: &[f32],
    h: &mut [f32],
    c: &Config,
) -> Result<EngramRun, Error> {
    let (mult, dim) = (c.hc_mult, c.dim);
    let t = h.len() / c.stream();
    let kv = w.wkv.apply(kernels, regime, rows, t)?;
    let weight: Vec<f32> = w.q_weight.iter().zip(&w.k_weight).map(|(q, k)| q * k).collect();
    let mut gate = Vec::with_capacity(t * mult);
    let mut weighted = vec![0.0; dim];
    for (copies, kv) in h.chunks_exact_mut(mult * dim).zip(kv.chunks_exact((mult + 1) * dim)) {
        let value = &kv[mult * dim..];
        for (i, copy) in copies.chunks_exact_mut(dim).enumerate() {
            let key = &kv[i * dim..(i + 1) * dim];
            for d in 0..dim {
                weighted[d] = copy[d] * weight[i * dim + d];
            }
            let rms = |x: &[f32]| (numerics::dot64(x, x) / dim as f64 + f64::from(c.eps)).sqrt();
            let product = numerics::dot64(&weighted, key);
            let d = product / rms(copy) / rms(key) / (dim as f64).sqrt();
            let root = d.abs().max(1e-6).sqrt().copysign(d) as f32;
            let g = elementary::sigmoid(root);
            for d in 0..dim {
                copy[d] =
                    bf16::round((f64::from(copy[d]) + f64::from(g) * f64::from(value[d])) as f32);
            }
            gate.push(g);
        }
    }
    Ok(EngramRun { kv, gate })
}
