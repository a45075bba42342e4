//! Round trips of activations through fp8 and fp4, where a released model rounds them. The results
//! stay `f32` and are exact in bf16 as long as the scale keeps them in its range.

use crate::{Error, e8m0, fp4, fp8};

/// Columns that share a scale in [`fp8`](fp8_round_trip) and [`fp4`](fp4_round_trip) round trips.
pub const BLOCK: usize = 32;
/// Columns that share an E4M3 scale in [`fp4_e4m3_round_trip`].
pub const SMALL_BLOCK: usize = 16;

/// The largest magnitude, or the error that names a NaN or an infinity.
fn amax(block: &[f32], offset: usize) -> Result<f32, Error> {
    let mut m = 0f32;
    for (i, v) in block.iter().enumerate() {
        if !v.is_finite() {
            return Err(Error::NotFinite { index: offset + i });
        }
        m = m.max(v.abs());
    }
    Ok(m)
}

/// E4M3 with one power-of-two scale per 32: `s = 2^ceil(log2(max(amax, 1e-4) / 448))`,
/// `x = e4m3(clamp(x / s, ±448)) * s`. A shorter last block has its own scale.
pub fn fp8_round_trip(x: &mut [f32]) -> Result<(), Error> {
    for (b, block) in x.chunks_mut(BLOCK).enumerate() {
        let s = power_scale(amax(block, b * BLOCK)?.max(1e-4), fp8::MAX);
        for v in block {
            *v = fp8::round(*v / s) * s;
        }
    }
    Ok(())
}

/// E2M1 with one power-of-two scale per 32: `s = 2^ceil(log2(max(amax, 6*2^-126) / 6))`,
/// `x = e2m1(x / s) * s`.
pub fn fp4_round_trip(x: &mut [f32]) -> Result<(), Error> {
    for (b, block) in x.chunks_mut(BLOCK).enumerate() {
        let floor = fp4::MAX * f32::MIN_POSITIVE;
        let s = power_scale(amax(block, b * BLOCK)?.max(floor), fp4::MAX);
        for v in block {
            *v = fp4::round(*v / s) * s;
        }
    }
    Ok(())
}

/// E2M1 with one E4M3 scale per 16: `s = e4m3(max(amax, 6*2^-9) / 6)`, `x = e2m1(x / s) * s`.
pub fn fp4_e4m3_round_trip(x: &mut [f32]) -> Result<(), Error> {
    for (b, block) in x.chunks_mut(SMALL_BLOCK).enumerate() {
        let floor = fp4::MAX / 512.0;
        let s = fp8::round(amax(block, b * SMALL_BLOCK)?.max(floor) / fp4::MAX);
        for v in block {
            *v = fp4::round(*v / s) * s;
        }
    }
    Ok(())
}

/// The power of two at or above `amax / max`. Finite operands of at most `f32::MAX / 6` cannot
/// leave the range of E8M0, and division only shrinks them.
fn power_scale(amax: f32, max: f32) -> f32 {
    e8m0::ceil(amax / max).map_or(f32::NAN, e8m0::decode)
}
