//! WebAssembly SIMD: two `f64` a vector, lanes in their natural order. The multiply-add is two
//! instructions; the product is exact, so that makes no difference.
#![allow(unsafe_code)]
// The whole file is one promise, made at the `impl`: blocks would repeat it at every instruction.
#![allow(unsafe_op_in_unsafe_fn)]

use super::format::{E2M1_HIGH, E2M1_LOW, E4M3_MASK, E4M3_NAN};
use super::{Lanes, entry_points};
use crate::e8m0;
use std::arch::wasm32::*;

entry_points!("simd128", Simd128);

/// See the module.
pub(crate) struct Simd128;

// SAFETY: this file is only compiled where SIMD is on. `v128_load` needs no alignment.
unsafe impl Lanes for Simd128 {
    type V = v128;
    const N: usize = 2;
    type Block = [v128; 8];
    /// The scale.
    type Table = v128;
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
        let mut v = [i8x16_splat(0); 4];
        for i in 0..4 {
            v[i] = v128_load(p.add(16 * i).cast());
        }
        widen(v)
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [v128; 8] {
        // A zero half below each bf16 makes it an f32.
        let [a, b] = spread16(v128_load(p.cast()));
        let [c, d] = spread16(v128_load(p.add(16).cast()));
        widen([a, b, c, d])
    }

    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: v128) -> [v128; 8] {
        e4m3_sixteen(v128_load(p.cast()), scale)
    }

    #[inline(always)]
    unsafe fn e2m1_table(scale: u8) -> v128 {
        Self::splat(if scale == e8m0::NAN { 0.0 } else { e8m0::decode64(scale) })
    }

    #[inline(always)]
    unsafe fn e2m1(p: *const u8, scale: v128) -> [v128; 8] {
        // (The upper eight bytes are zero and unused.)
        let packed = v128_load64_zero(p.cast());
        let (even, odd) = (v128_and(packed, i8x16_splat(15)), u8x16_shr(packed, 4));
        e2m1_sixteen(zip8(even, odd)[0], scale)
    }
}

/// Sixteen `f32` (four vectors) widened.
#[inline(always)]
unsafe fn widen(v: [v128; 4]) -> [v128; 8] {
    let mut block = [f64x2_splat(0.0); 8];
    for i in 0..4 {
        block[2 * i] = f64x2_promote_low_f32x4(v[i]);
        block[2 * i + 1] = f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(v[i], v[i]));
    }
    block
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

/// Each 32 bits as the upper half of 64.
#[inline(always)]
unsafe fn spread32(v: v128) -> [v128; 2] {
    let zero = i32x4_splat(0);
    [i32x4_shuffle::<0, 4, 1, 5>(zero, v), i32x4_shuffle::<2, 6, 3, 7>(zero, v)]
}

/// Sixteen E4M3 codes as `f32` bits (see [`E4M3_MASK`]), widened and scaled.
#[inline(always)]
unsafe fn e4m3_sixteen(codes: v128, scale: v128) -> [v128; 8] {
    let [low, high] = zip8(i8x16_splat(0), codes);
    let ([a, b], [c, d]) = (spread16(low), spread16(high));
    let mut bits = [a, b, c, d];
    for b in &mut bits {
        let (bits, nan) =
            (v128_and(i32x4_shr(*b, 4), i32x4_splat(E4M3_MASK)), i32x4_splat(E4M3_NAN));
        *b = v128_or(bits, i32x4_eq(v128_and(bits, nan), nan));
    }
    let mut block = widen(bits);
    for v in &mut block {
        *v = f64x2_mul(*v, scale);
    }
    block
}

/// Sixteen E2M1 codes, one a byte: the upper 16 bits of their values are looked up, zeros put
/// below, the scale multiplied.
#[inline(always)]
unsafe fn e2m1_sixteen(codes: v128, scale: v128) -> [v128; 8] {
    let low = i8x16_swizzle(v128_load(E2M1_LOW.as_ptr().cast()), codes);
    let high = i8x16_swizzle(v128_load(E2M1_HIGH.as_ptr().cast()), codes);
    let [low, high] = zip8(low, high);
    let ([a, b], [c, d]) = (spread16(low), spread16(high));
    let fours = [a, b, c, d];
    let mut block = [f64x2_splat(0.0); 8];
    for i in 0..4 {
        let [x, y] = spread32(fours[i]);
        block[2 * i] = f64x2_mul(x, scale);
        block[2 * i + 1] = f64x2_mul(y, scale);
    }
    block
}
