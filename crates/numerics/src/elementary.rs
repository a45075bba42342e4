//! Elementary functions, **correctly rounded**: the `f32` nearest to the true value, ties to even.
//! That is what the crate `pxfm` sets out to give; `tests/elementary.rs` checks it against a
//! 512-bit oracle on random inputs, and on every `f32` when asked to. Never the platform's libm, whose last bit differs between systems. The composed activations
//! below are `f32` steps in the order written.

/// `e^x`.
#[inline]
pub fn exp(x: f32) -> f32 {
    pxfm::f_expf(x)
}

/// Natural logarithm.
#[inline]
pub fn log(x: f32) -> f32 {
    pxfm::f_logf(x)
}

/// `log(1 + x)`.
#[inline]
pub fn log1p(x: f32) -> f32 {
    pxfm::f_log1pf(x)
}

/// Hyperbolic tangent.
#[inline]
pub fn tanh(x: f32) -> f32 {
    pxfm::f_tanhf(x)
}

/// Sine of an angle in radians.
#[inline]
pub fn sin(x: f32) -> f32 {
    pxfm::f_sinf(x)
}

/// Cosine of an angle in radians.
#[inline]
pub fn cos(x: f32) -> f32 {
    pxfm::f_cosf(x)
}

/// `x^y` in `f32`.
#[inline]
pub fn pow(x: f32, y: f32) -> f32 {
    pxfm::f_powf(x, y)
}

/// `x^y` in `f64` (for frequency tables; rounded to `f32` by the caller).
#[inline]
pub fn pow64(x: f64, y: f64) -> f64 {
    pxfm::f_pow(x, y)
}

/// `e^x` in `f64` (for sampling).
#[inline]
pub fn exp64(x: f64) -> f64 {
    pxfm::f_exp(x)
}

/// Natural logarithm in `f64`.
#[inline]
pub fn log64(x: f64) -> f64 {
    pxfm::f_log(x)
}

/// `1 / (1 + exp(-x))`.
#[inline]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`.
#[inline]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `log(1 + exp(x))`; `x` itself above 20, as torch has it.
#[inline]
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { log1p(exp(x)) }
}

/// SiTU-GLU: `(b1*tanh(g/b1)*sigmoid(g)) * (b2*tanh(u/b2))`, the sigmoid of the uncapped gate.
#[inline]
pub fn situ(g: f32, u: f32, b1: f32, b2: f32) -> f32 {
    (b1 * tanh(g / b1) * sigmoid(g)) * (b2 * tanh(u / b2))
}
