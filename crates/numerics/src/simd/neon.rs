//! NEON (every aarch64): two `f64` a vector, lanes in their natural order.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::{E2M1_HIGH, E2M1_LOW, e4m3_unit};
use super::{Lanes, UNIT, entry_points};
use crate::dot::LANES;
use crate::e8m0;
use std::arch::aarch64::*;

entry_points!("neon", Neon);

/// See the module.
pub(crate) struct Neon;

/// Four `f32` as two vectors.
#[inline(always)]
unsafe fn widen(v: float32x4_t) -> [float64x2_t; 2] {
    [vcvt_f64_f32(vget_low_f32(v)), vcvt_high_f64_f32(v)]
}

/// Sixteen lanes from four at a time.
#[inline(always)]
unsafe fn block(four: impl Fn(usize) -> [float64x2_t; 2]) -> [float64x2_t; 8] {
    let ([a, b], [c, d], [e, f], [g, h]) = (four(0), four(1), four(2), four(3));
    [a, b, c, d, e, f, g, h]
}

// SAFETY: NEON is part of aarch64. Loads through `u8` pointers need no alignment.
unsafe impl Lanes for Neon {
    type V = float64x2_t;
    const N: usize = 2;
    type Block = [float64x2_t; 8];
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
        block(|i| widen(vreinterpretq_f32_u8(vld1q_u8(p.add(16 * i)))))
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [float64x2_t; 8] {
        // A zero half below each bf16 makes it an f32.
        let zero = vdupq_n_u16(0);
        let halves = |i: usize| vreinterpretq_u16_u8(vld1q_u8(p.add(16 * i)));
        let (a, b) = (halves(0), halves(1));
        let f = |v: uint16x8_t| widen(vreinterpretq_f32_u16(v));
        let ([a0, a1], [a2, a3]) = (f(vzip1q_u16(zero, a)), f(vzip2q_u16(zero, a)));
        let ([b0, b1], [b2, b3]) = (f(vzip1q_u16(zero, b)), f(vzip2q_u16(zero, b)));
        [a0, a1, a2, a3, b0, b1, b2, b3]
    }

    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: f64) -> [[float64x2_t; 8]; 2] {
        let (a, b) = (vld1q_u8(p), vld1q_u8(p.add(16)));
        let magnitude = |v| vandq_u8(v, vdupq_n_u8(0x7f));
        if vmaxvq_u8(vmaxq_u8(magnitude(a), magnitude(b))) == 0x7f {
            let w = e4m3_unit(p, scale);
            let half = |at: usize| std::array::from_fn(|i| vld1q_f64(w.as_ptr().add(at + 2 * i)));
            return [half(0), half(LANES)];
        }
        // As in avx2.rs: the code's bits as an f32 are the value times 2^-120.
        let scale = vdupq_n_f64(scale * f64::from_bits((1023 + 120) << 52));
        let four = |codes_at_top: uint16x8_t| {
            let shifted = vshrq_n_s32::<4>(vreinterpretq_s32_u16(codes_at_top));
            let bits = vandq_s32(shifted, vdupq_n_s32(0x87f0_0000u32 as i32));
            let [x, y] = widen(vreinterpretq_f32_s32(bits));
            [vmulq_f64(x, scale), vmulq_f64(y, scale)]
        };
        let (zero8, zero16) = (vdupq_n_u8(0), vdupq_n_u16(0));
        let sixteen = |v: uint8x16_t| {
            let low = vreinterpretq_u16_u8(vzip1q_u8(zero8, v));
            let high = vreinterpretq_u16_u8(vzip2q_u8(zero8, v));
            let ([a, b], [c, d]) = (four(vzip1q_u16(zero16, low)), four(vzip2q_u16(zero16, low)));
            let ([e, f], [g, h]) = (four(vzip1q_u16(zero16, high)), four(vzip2q_u16(zero16, high)));
            [a, b, c, d, e, f, g, h]
        };
        [sixteen(a), sixteen(b)]
    }

    #[inline(always)]
    unsafe fn e2m1(p: *const u8, scale: u8) -> [[float64x2_t; 8]; 2] {
        let scale = if scale == e8m0::NAN { 0.0 } else { e8m0::decode64(scale) };
        let scale = vdupq_n_f64(scale);
        let packed = vld1q_u8(p);
        let (even, odd) = (vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed));
        let (low_bytes, high_bytes) = (vld1q_u8(E2M1_LOW.as_ptr()), vld1q_u8(E2M1_HIGH.as_ptr()));
        let zero16 = vreinterpretq_u16_u8(vdupq_n_u8(0));
        let zero32 = vreinterpretq_u32_u16(zero16);
        let sixteen = |codes: uint8x16_t| {
            // The upper 16 bits of each value as f64, then zeros below them.
            let (l, h) = (vqtbl1q_u8(low_bytes, codes), vqtbl1q_u8(high_bytes, codes));
            let words = [vzip1q_u8(l, h), vzip2q_u8(l, h)].map(|v| vreinterpretq_u16_u8(v));
            let two = |v: uint32x4_t| vmulq_f64(vreinterpretq_f64_u32(v), scale);
            block(|i| {
                let w = words[i / 2];
                let four = match i % 2 {
                    0 => vzip1q_u16(zero16, w),
                    _ => vzip2q_u16(zero16, w),
                };
                let four = vreinterpretq_u32_u16(four);
                [two(vzip1q_u32(zero32, four)), two(vzip2q_u32(zero32, four))]
            })
        };
        debug_assert_eq!(UNIT, 32);
        [sixteen(vzip1q_u8(even, odd)), sixteen(vzip2q_u8(even, odd))]
    }
}
