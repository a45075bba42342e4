//! NEON (every aarch64): two `f64` a vector.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::E2m1Bytes;
use super::{Lanes, entry_points};
use std::arch::aarch64::*;

entry_points!("neon", Neon);

/// See the module.
pub(crate) struct Neon;

// SAFETY: NEON is part of aarch64. `vld1` and `vst1` need no more alignment than their element,
// which the callers' pointers have.
unsafe impl Lanes for Neon {
    type V = float64x2_t;
    const N: usize = 2;
    const ROWS: [usize; 2] = [2, 2];

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
    unsafe fn widen(p: *const f32) -> float64x2_t {
        vcvt_f64_f32(vld1_f32(p))
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {
        // There is no stable intrinsic, and the hardware follows a row by itself.
    }
    #[inline(always)]
    unsafe fn e2m1(p: *const u8, bytes: &E2m1Bytes, out: *mut f32) {
        let packed = vld1q_u8(p);
        let (even, odd) = (vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed));
        let (low, high) = (vld1q_u8(bytes.low.as_ptr()), vld1q_u8(bytes.high.as_ptr()));
        let zero = vdupq_n_u16(0);
        for (i, codes) in [vzip1q_u8(even, odd), vzip2q_u8(even, odd)].into_iter().enumerate() {
            let (low, high) = (vqtbl1q_u8(low, codes), vqtbl1q_u8(high, codes));
            for (j, upper) in [vzip1q_u8(low, high), vzip2q_u8(low, high)].into_iter().enumerate() {
                let upper = vreinterpretq_u16_u8(upper);
                let out = out.add(16 * i + 8 * j);
                vst1q_f32(out, vreinterpretq_f32_u16(vzip1q_u16(zero, upper)));
                vst1q_f32(out.add(4), vreinterpretq_f32_u16(vzip2q_u16(zero, upper)));
            }
        }
    }
}
