//! The feed-forward of every layer: a router over many fp4 experts, a few of which are used a
//! token, and one fp8 expert that always is.

use super::linear::{Linear, Regime};
use numerics::{Error, Kernels, Matrix, bf16, elementary, top_k};

/// Sum guard of the routing weights' normalisation.
const WEIGHT_SUM_FLOOR: f32 = 1e-20;

/// A router's parameters.
#[derive(Debug)]
pub struct Gate<'a> {
    /// `[experts, dim]`
    pub weight: Matrix<'a>,
    /// `[experts]`; decides the choice, never enters the weights.
    pub bias: Vec<f32>,
    /// Experts chosen a token.
    pub active: usize,
    /// Divides the logits.
    pub temperature: f32,
    /// Whether the chosen scores are divided by their sum.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
}

/// The experts of T positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// Chosen experts, `[T, active]`, best first (score plus bias; ties: lower number).
    pub experts: Vec<u32>,
    /// Their weights, `[T, active]`.
    pub weights: Vec<f32>,
}

/// `sqrt(softplus(x))`, softplus linear above 20.
pub fn score(logit: f32) -> f32 {
    elementary::softplus(logit).sqrt()
}

impl Gate<'_> {
    /// Routes `t` rows of `x`.
    ///
    /// # Errors
    /// If a score is NaN.
    pub fn route(&self, kernels: &Kernels, x: &[f32], t: usize) -> Result<Routes, Error> {
        let experts = self.bias.len();
        let mut scores = vec![0.0; t * experts];
        kernels.matmul(&self.weight, x, t, &mut scores);
        let mut routes = Routes::default();
        for row in scores.chunks_exact_mut(experts) {
            row.iter_mut().for_each(|v| *v = score(*v / self.temperature));
            let biased: Vec<f32> = row.iter().zip(&self.bias).map(|(s, b)| s + b).collect();
            let chosen = top_k(&biased, self.active)?;
            let mut weights: Vec<f32> = chosen.iter().map(|&e| row[e as usize]).collect();
            if self.normalise && self.active > 1 {
                let sum = weights.iter().sum::<f32>() + WEIGHT_SUM_FLOOR;
                weights.iter_mut().for_each(|w| *w /= sum);
            }
            routes.weights.extend(weights.iter().map(|w| w * self.scale));
            routes.experts.extend(chosen);
        }
        Ok(routes)
    }
}

/// One expert's matrices; fp4 for a routed one, fp8 for the shared one.
#[derive(Debug)]
pub struct Expert<'a> {
    /// `[moe_dim, dim]`, the gate.
    pub w1: Linear<'a>,
    /// `[moe_dim, dim]`, the value.
    pub w3: Linear<'a>,
    /// `[dim, moe_dim]`
    pub w2: Linear<'a>,
}

impl Expert<'_> {
    /// `w2 bf16(silu(min(g, limit)) * clamp(u, -limit, limit) * weight)` for `t` rows, with
    /// `g = w1 x`, `u = w3 x`. `x` is what [`Regime::input`] made of the input; `weights` one a
    /// row, 1 for the shared expert; a `limit` of 0 is none.
    ///
    /// # Errors
    /// If an activation is not finite.
    pub fn apply(
        &self,
        kernels: &Kernels,
        regime: Regime,
        x: &[f32],
        weights: &[f32],
        limit: f32,
    ) -> Result<Vec<f32>, Error> {
        let t = weights.len();
        let mut hidden = self.w1.apply_exact(kernels, x, t);
        let up = self.w3.apply_exact(kernels, x, t);
        let width = self.w1.matrix.rows();
        let limit = if limit > 0.0 { limit } else { f32::INFINITY };
        let rows = hidden.chunks_exact_mut(width).zip(up.chunks_exact(width));
        for ((gate, up), &weight) in rows.zip(weights) {
            for (g, &u) in gate.iter_mut().zip(up) {
                let activated = elementary::silu(g.min(limit)) * u.clamp(-limit, limit);
                *g = bf16::round(activated * weight);
            }
        }
        self.w2.apply(kernels, regime, &hidden, t)
    }
}

/// Sums the experts' outputs of T positions: routed ones in f32 in order of the expert's
/// number (whatever the order they were computed in), then the shared one, then one rounding.
///
/// `slots` `[T, active, dim]` in the order of `routes`, `shared` `[T, dim]`; returns `[T, dim]`.
pub fn combine(
    routes: &Routes,
    slots: &[f32],
    shared: &[f32],
    active: usize,
    dim: usize,
) -> Vec<f32> {
    let mut out = Vec::with_capacity(shared.len());
    for (t, shared) in shared.chunks_exact(dim).enumerate() {
        let experts = &routes.experts[t * active..(t + 1) * active];
        let mut order: Vec<usize> = (0..active).collect();
        order.sort_unstable_by_key(|&slot| experts[slot]);
        let mut sum = vec![0.0f32; dim];
        for slot in order {
            let output = &slots[(t * active + slot) * dim..][..dim];
            sum.iter_mut().zip(output).for_each(|(s, o)| *s += o);
        }
        out.extend(sum.iter().zip(shared).map(|(s, o)| bf16::round(s + o)));
    }
    out
}
