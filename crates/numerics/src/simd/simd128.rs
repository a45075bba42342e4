//! WebAssembly SIMD: two `f64` a vector, lanes in their natural order. The multiply-add is two
//! instructions; the product is exact, so that makes no difference.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::{E2M1_HIGH, E2M1_LOW, e4m3_unit};
use super::{Lanes, UNIT, entry_points};
use crate::dot::LANES;
use crate::e8m0;
use std::arch::wasm32::*;

entry_points!("simd128", Simd128);

/// See the module.
pub(crate) struct Simd128;

/// Four `f32` as two vectors.
#[inline(always)]
fn widen(v: v128) -> [v128; 2] {
    [f64x2_promote_low_f32x4(v), f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(v, v))]
}

/// `[0, v0, 0, v1, ...]` of the lower and of the upper bytes, then as 16 and as 32 bits.
#[inline(always)]
fn spread8(v: v128) -> [v128; 2] {
    let z = i8x16_splat(0);
    [
        i8x16_shuffle::<0, 16, 0, 17, 0, 18, 0, 19, 0, 20, 0, 21, 0, 22, 0, 23>(z, v),
        i8x16_shuffle::<0, 24, 0, 25, 0, 26, 0, 27, 0, 28, 0, 29, 0, 30, 0, 31>(z, v),
    ]
}
#[inline(always)]
fn spread16(v: v128) -> [v128; 2] {
    let z = i16x8_splat(0);
    [
        i16x8_shuffle::<0, 8, 0, 9, 0, 10, 0, 11>(z, v),
        i16x8_shuffle::<0, 12, 0, 13, 0, 14, 0, 15>(z, v),
    ]
}
#[inline(always)]
fn spread32(v: v128) -> [v128; 2] {
    let z = i32x4_splat(0);
    [i32x4_shuffle::<0, 4, 0, 5>(z, v), i32x4_shuffle::<0, 6, 0, 7>(z, v)]
}

/// Sixteen lanes from four at a time.
#[inline(always)]
fn block(four: impl Fn(usize) -> [v128; 2]) -> [v128; 8] {
    let ([a, b], [c, d], [e, f], [g, h]) = (four(0), four(1), four(2), four(3));
    [a, b, c, d, e, f, g, h]
}

// SAFETY: this file is only compiled where SIMD is on. `v128_load` needs no alignment.
unsafe impl Lanes for Simd128 {
    type V = v128;
    const N: usize = 2;
    type Block = [v128; 8];
    const ROWS: usize = 2;

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
    unsafe fn zeros() -> [v128; 8] {
        [f64x2_splat(0.0); 8]
    }

    #[inline(always)]
    unsafe fn f32(p: *const u8) -> [v128; 8] {
        block(|i| widen(v128_load(p.add(16 * i).cast())))
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [v128; 8] {
        // A zero half below each bf16 makes it an f32.
        let a = spread16(v128_load(p.cast()));
        let b = spread16(v128_load(p.add(16).cast()));
        block(|i| widen(if i < 2 { a[i] } else { b[i - 2] }))
    }

    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: f64) -> [[v128; 8]; 2] {
        let (a, b) = (v128_load(p.cast()), v128_load(p.add(16).cast()));
        let seven = i8x16_splat(0x7f);
        let is_nan = |v| i8x16_eq(v128_and(v, seven), seven);
        if v128_any_true(v128_or(is_nan(a), is_nan(b))) {
            let w = e4m3_unit(p, scale);
            let half =
                |at: usize| std::array::from_fn(|i| v128_load(w.as_ptr().add(at + 2 * i).cast()));
            return [half(0), half(LANES)];
        }
        // As in avx2.rs: the code's bits as an f32 are the value times 2^-120.
        let scale = f64x2_splat(scale * f64::from_bits((1023 + 120) << 52));
        let sixteen = |v: v128| {
            let [low, high] = spread8(v);
            let (low, high) = (spread16(low), spread16(high));
            block(|i| {
                let codes_at_top = if i < 2 { low[i] } else { high[i - 2] };
                let shifted = i32x4_shr(codes_at_top, 4);
                let bits = v128_and(shifted, i32x4_splat(0x87f0_0000u32 as i32));
                widen(bits).map(|w| f64x2_mul(w, scale))
            })
        };
        [sixteen(a), sixteen(b)]
    }

    #[inline(always)]
    unsafe fn e2m1(p: *const u8, scale: u8) -> [[v128; 8]; 2] {
        let scale = if scale == e8m0::NAN { 0.0 } else { e8m0::decode64(scale) };
        let scale = f64x2_splat(scale);
        let packed = v128_load(p.cast());
        let (even, odd) = (v128_and(packed, i8x16_splat(15)), u8x16_shr(packed, 4));
        let low_bytes = v128_load(E2M1_LOW.as_ptr().cast());
        let high_bytes = v128_load(E2M1_HIGH.as_ptr().cast());
        let zip = |a, b| {
            [
                i8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b),
                i8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b),
            ]
        };
        debug_assert_eq!(UNIT, 32);
        zip(even, odd).map(|codes| {
            // The upper 16 bits of each value as f64, then zeros below them.
            let words = zip(i8x16_swizzle(low_bytes, codes), i8x16_swizzle(high_bytes, codes));
            block(|i| {
                let four = spread16(words[i / 2])[i % 2];
                spread32(four).map(|w| f64x2_mul(w, scale))
            })
        })
    }
}
