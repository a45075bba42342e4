//! NEON (every aarch64): two `f64` a vector, lanes in their natural order.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::{E2M1_HIGH, E2M1_LOW, E4M3_MASK, E4M3_NAN};
use super::{Lanes, entry_points};
use crate::e8m0;
use std::arch::aarch64::*;

entry_points!("neon", Neon);

/// See the module.
pub(crate) struct Neon;

// SAFETY: NEON is part of aarch64. Loads through `u8` pointers need no alignment.
unsafe impl Lanes for Neon {
    type V = float64x2_t;
    const N: usize = 2;
    type Block = [float64x2_t; 8];
    /// The scale.
    type Table = float64x2_t;
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> float64x2_t {
        vdupq_n_f64(0.0)
    }
    #[inline(always)]
    unsafe fn splat(v: f64) -> float64x2_t {
        vdupq_n_f64(v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> float64x2_t {
        vld1q_f64(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f64, v: float64x2_t) {
        vst1q_f64(p, v)
    }
    #[inline(always)]
    unsafe fn fma(acc: float64x2_t, a: float64x2_t, b: float64x2_t) -> float64x2_t {
        vfmaq_f64(acc, a, b)
    }

    #[inline(always)]
    unsafe fn zeros() -> [float64x2_t; 8] {
        [vdupq_n_f64(0.0); 8]
    }

    #[inline(always)]
    unsafe fn f32(p: *const u8) -> [float64x2_t; 8] {
        let mut v = [vdupq_n_u8(0); 4];
        for i in 0..4 {
            v[i] = vld1q_u8(p.add(16 * i));
        }
        widen(v)
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [float64x2_t; 8] {
        // A zero half below each bf16 makes it an f32.
        let ([a, b], [c, d]) = (spread16(vld1q_u8(p)), spread16(vld1q_u8(p.add(16))));
        widen([a, b, c, d])
    }

    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: float64x2_t) -> [float64x2_t; 8] {
        e4m3_sixteen(vld1q_u8(p), scale)
    }

    #[inline(always)]
    unsafe fn e2m1_table(scale: u8) -> float64x2_t {
        Self::splat(if scale == e8m0::NAN { 0.0 } else { e8m0::decode64(scale) })
    }

    #[inline(always)]
    unsafe fn e2m1(p: *const u8, scale: float64x2_t) -> [float64x2_t; 8] {
        // (The upper eight bytes are zero and unused.)
        let packed = vcombine_u8(vld1_u8(p), vdup_n_u8(0));
        let (even, odd) = (vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed));
        e2m1_sixteen(vzip1q_u8(even, odd), scale)
    }
}

/// Sixteen `f32` (four vectors of bytes) widened.
#[inline(always)]
unsafe fn widen(v: [uint8x16_t; 4]) -> [float64x2_t; 8] {
    let mut block = [vdupq_n_f64(0.0); 8];
    for i in 0..4 {
        let four = vreinterpretq_f32_u8(v[i]);
        block[2 * i] = vcvt_f64_f32(vget_low_f32(four));
        block[2 * i + 1] = vcvt_high_f64_f32(four);
    }
    block
}

/// Each byte as the upper half of 16 bits.
#[inline(always)]
unsafe fn spread8(v: uint8x16_t) -> [uint8x16_t; 2] {
    let zero = vdupq_n_u8(0);
    [vzip1q_u8(zero, v), vzip2q_u8(zero, v)]
}

/// Each 16 bits as the upper half of 32.
#[inline(always)]
unsafe fn spread16(v: uint8x16_t) -> [uint8x16_t; 2] {
    let (zero, v) = (vdupq_n_u16(0), vreinterpretq_u16_u8(v));
    [vreinterpretq_u8_u16(vzip1q_u16(zero, v)), vreinterpretq_u8_u16(vzip2q_u16(zero, v))]
}

/// Each 32 bits as the upper half of 64, read as `f64`.
#[inline(always)]
unsafe fn spread32(v: uint8x16_t) -> [float64x2_t; 2] {
    let (zero, v) = (vdupq_n_u32(0), vreinterpretq_u32_u8(v));
    [vreinterpretq_f64_u32(vzip1q_u32(zero, v)), vreinterpretq_f64_u32(vzip2q_u32(zero, v))]
}

/// Sixteen E4M3 codes as `f32` bits (see [`E4M3_MASK`]), widened and scaled.
#[inline(always)]
unsafe fn e4m3_sixteen(codes: uint8x16_t, scale: float64x2_t) -> [float64x2_t; 8] {
    let [low, high] = spread8(codes);
    let ([a, b], [c, d]) = (spread16(low), spread16(high));
    let mut bits = [a, b, c, d];
    for b in &mut bits {
        let shifted = vshrq_n_s32::<4>(vreinterpretq_s32_u8(*b));
        let bits = vandq_s32(shifted, vdupq_n_s32(E4M3_MASK));
        let nan = vdupq_n_s32(E4M3_NAN);
        let is_nan = vceqq_s32(vandq_s32(bits, nan), nan);
        *b = vreinterpretq_u8_u32(vorrq_u32(vreinterpretq_u32_s32(bits), is_nan));
    }
    let mut block = widen(bits);
    for v in &mut block {
        *v = vmulq_f64(*v, scale);
    }
    block
}

/// Sixteen E2M1 codes, one a byte: the upper 16 bits of their values are looked up, zeros put
/// below, the scale multiplied.
#[inline(always)]
unsafe fn e2m1_sixteen(codes: uint8x16_t, scale: float64x2_t) -> [float64x2_t; 8] {
    let low = vqtbl1q_u8(vld1q_u8(E2M1_LOW.as_ptr()), codes);
    let high = vqtbl1q_u8(vld1q_u8(E2M1_HIGH.as_ptr()), codes);
    let ([a, b], [c, d]) = (spread16(vzip1q_u8(low, high)), spread16(vzip2q_u8(low, high)));
    let fours = [a, b, c, d];
    let mut block = [vdupq_n_f64(0.0); 8];
    for i in 0..4 {
        let [x, y] = spread32(fours[i]);
        block[2 * i] = vmulq_f64(x, scale);
        block[2 * i + 1] = vmulq_f64(y, scale);
    }
    block
}
