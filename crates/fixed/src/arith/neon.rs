//! NEON: 16-bit digits through widening multiply-accumulate, 16 weights a register.
#![allow(unsafe_code)]

use super::Rows;
use super::digits::Input;
use super::madd::{self, Lanes};
use core::arch::aarch64::*;

struct Neon;

impl Lanes for Neon {
    type Register = int16x8_t;
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> int16x8_t {
        // SAFETY: NEON is the caller's promise, here and below.
        unsafe { vdupq_n_s16(0) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> int16x8_t {
        // SAFETY: 16 readable bytes are the caller's promise.
        unsafe { vreinterpretq_s16_u8(vld1q_u8(from)) }
    }

    #[inline(always)]
    unsafe fn even(bytes: int16x8_t) -> int16x8_t {
        // SAFETY: as above.
        unsafe { vandq_s16(bytes, vdupq_n_s16(0xFF)) }
    }

    #[inline(always)]
    unsafe fn odd(bytes: int16x8_t) -> int16x8_t {
        // SAFETY: as above.
        unsafe { vreinterpretq_s16_u16(vshrq_n_u16::<8>(vreinterpretq_u16_s16(bytes))) }
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: int16x8_t, bytes: int16x8_t, digits: int16x8_t) -> int16x8_t {
        // SAFETY: as above.
        unsafe {
            let sums = vreinterpretq_s32_s16(sums);
            let sums = vmlal_s16(sums, vget_low_s16(bytes), vget_low_s16(digits));
            vreinterpretq_s16_s32(vmlal_high_s16(sums, bytes, digits))
        }
    }

    #[inline(always)]
    unsafe fn row_sums(sums: [int16x8_t; 4]) -> [i64; 4] {
        // SAFETY: as above.
        sums.map(|sums| unsafe { vaddlvq_s32(vreinterpretq_s32_s16(sums)) })
    }
}

/// `write(r, row r times the input)` for every row in order.
#[target_feature(enable = "neon")]
pub(super) fn rows(input: &Input, rows: Rows<'_>, write: impl FnMut(usize, i64)) {
    // SAFETY: this function has NEON.
    unsafe { madd::rows::<Neon>(input, rows, write) }
}
