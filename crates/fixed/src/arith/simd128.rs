//! WebAssembly SIMD: 16-bit digits through `i32x4.dot_i16x8_s`, 16 weights a register. There is no
//! detection at run time: a module has these instructions or does not load.
#![allow(unsafe_code)]

use super::Rows;
use super::digits::Input;
use super::madd::{self, Lanes};
use core::arch::wasm32::*;

struct Simd128;

impl Lanes for Simd128 {
    type Register = v128;
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> v128 {
        i32x4_splat(0)
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> v128 {
        // SAFETY: 16 readable bytes are the caller's promise.
        unsafe { v128_load(from.cast()) }
    }

    #[inline(always)]
    unsafe fn even(bytes: v128) -> v128 {
        v128_and(bytes, i16x8_splat(0xFF))
    }

    #[inline(always)]
    unsafe fn odd(bytes: v128) -> v128 {
        u16x8_shr(bytes, 8)
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: v128, bytes: v128, digits: v128) -> v128 {
        i32x4_add(sums, i32x4_dot_i16x8(bytes, digits))
    }

    #[inline(always)]
    unsafe fn row_sums(sums: [v128; 4]) -> [i64; 4] {
        sums.map(|sums| {
            let pairs = i64x2_add(i64x2_extend_low_i32x4(sums), i64x2_extend_high_i32x4(sums));
            i64x2_extract_lane::<0>(pairs) + i64x2_extract_lane::<1>(pairs)
        })
    }
}

/// `write(r, row r times the input)` for every row in order.
pub(super) fn rows(input: &Input, rows: Rows<'_>, write: impl FnMut(usize, i64)) {
    // SAFETY: the module is compiled with these instructions.
    unsafe { madd::rows::<Simd128>(input, rows, write) }
}
