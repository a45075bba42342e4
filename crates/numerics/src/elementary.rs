//! Elementary functions, **correctly rounded**: the `f32` nearest to the true value, ties to even.
//! Never the platform's libm, whose last bit differs between systems. The crate `pxfm` gives this
//! for all inputs but eighteen, which are listed here; found by taking every `f32`, with and without
//! fused multiply-add (`tests/elementary.rs` does it again when asked to, and always tries the
//! inputs nearest to the middle between two floats). The composed activations below are `f32` steps
//! in the order written.

/// `e^x`.
#[inline]
pub fn exp(x: f32) -> f32 {
    f32::from_bits(match x.to_bits() {
        0xbbf0_edf1 => 0x3f7e_1fe9,
        _ => return pxfm::f_expf(x),
    })
}

/// Natural logarithm.
#[inline]
pub fn log(x: f32) -> f32 {
    pxfm::f_logf(x)
}

/// `log(1 + x)`.
#[inline]
pub fn log1p(x: f32) -> f32 {
    f32::from_bits(match x.to_bits() {
        0x3540_0003 => 0x353f_ffff,
        0x3710_001b => 0x370f_fff3,
        0x3770_004b => 0x376f_ffdb,
        0x3efd_81ad => 0x3ecd_eee1,
        0x4107_8feb => 0x400f_e5e7,
        0x65d8_90d3 => 0x4254_d1f9,
        0xb53f_fffd => 0xb540_0001,
        0xb70f_ffe5 => 0xb710_000d,
        0xbb0e_c8c4 => 0xbb0e_f0a5,
        _ => return pxfm::f_log1pf(x),
    })
}

/// Hyperbolic tangent.
#[inline]
pub fn tanh(x: f32) -> f32 {
    pxfm::f_tanhf(x)
}

/// Sine of an angle in radians.
#[inline]
pub fn sin(x: f32) -> f32 {
    f32::from_bits(match x.to_bits() {
        0x4619_9998 => 0xbeb1_fa5d,
        0xc619_9998 => 0x3eb1_fa5d,
        _ => return pxfm::f_sinf(x),
    })
}

/// Cosine of an angle in radians.
#[inline]
pub fn cos(x: f32) -> f32 {
    f32::from_bits(match x.to_bits() {
        0x5922_aa80 => 0x3f08_aebf,
        0x5f18_b878 => 0x3f7f_14bb,
        0x6115_cb11 => 0x3f78_142f,
        0xd922_aa80 => 0x3f08_aebf,
        0xdf18_b878 => 0x3f7f_14bb,
        0xe115_cb11 => 0x3f78_142f,
        _ => return pxfm::f_cosf(x),
    })
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
