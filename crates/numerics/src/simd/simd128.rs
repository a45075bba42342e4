//! WebAssembly SIMD: two `f64` a vector. The multiply-add is two instructions; the product is
//! exact, so that makes no difference.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::E2m1Bytes;
use super::{Lanes, entry_points};
use std::arch::wasm32::*;

entry_points!("simd128", Simd128);

/// See the module.
pub(crate) struct Simd128;

// SAFETY: this file is only compiled where SIMD is on. Loads and stores need no alignment.
unsafe impl Lanes for Simd128 {
    type V = v128;
    const N: usize = 2;
    const ROWS: [usize; 2] = [1, 1];

    #[inline(always)]
    unsafe fn zero() -> v128 {
        f64x2_splat(0.0)
    }
    #[inline(always)]
    unsafe fn splat(v: f64) -> v128 {
        f64x2_splat(v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> v128 {
        v128_load(p.cast())
    }
    #[inline(always)]
    unsafe fn store(p: *mut f64, v: v128) {
        v128_store(p.cast(), v)
    }
    #[inline(always)]
    unsafe fn fma(acc: v128, a: v128, b: v128) -> v128 {
        f64x2_add(acc, f64x2_mul(a, b))
    }
    #[inline(always)]
    unsafe fn widen(p: *const f32) -> v128 {
        f64x2_promote_low_f32x4(v128_load64_zero(p.cast()))
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {
        // WebAssembly has none.
    }
    #[inline(always)]
    unsafe fn e2m1(p: *const u8, bytes: &E2m1Bytes, out: *mut f32) {
        let packed = v128_load(p.cast());
        let (even, odd) = (v128_and(packed, i8x16_splat(15)), u8x16_shr(packed, 4));
        let low = v128_load(bytes.low.as_ptr().cast());
        let high = v128_load(bytes.high.as_ptr().cast());
        for (i, codes) in zip8(even, odd).into_iter().enumerate() {
            let (low, high) = (i8x16_swizzle(low, codes), i8x16_swizzle(high, codes));
            for (j, upper) in zip8(low, high).into_iter().enumerate() {
                let [a, b] = spread16(upper);
                let out = out.add(16 * i + 8 * j);
                v128_store(out.cast(), a);
                v128_store(out.add(4).cast(), b);
            }
        }
    }
}

/// `[a0, b0, a1, b1, ...]` of the lower and of the upper halves.
#[inline(always)]
unsafe fn zip8(a: v128, b: v128) -> [v128; 2] {
    [
        i8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b),
        i8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b),
    ]
}

/// Each 16 bits as the upper half of 32.
#[inline(always)]
unsafe fn spread16(v: v128) -> [v128; 2] {
    let zero = i16x8_splat(0);
    [
        i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(zero, v),
        i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(zero, v),
    ]
}
