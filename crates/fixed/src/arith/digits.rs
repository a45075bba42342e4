//! An input vector prepared once for all rows of a matrix: written as signed digits that multiply
//! weight bytes without overflow. Which digits is the backend's choice; any number of them only
//! regroups a wrapping sum, so the bits of the result do not depend on it.
//!
//! With digits `x = sum_k d[k] * B^k (mod 2^64)`, `sum byte * x = sum_k B^k * (sum byte * d[k])`,
//! and each inner sum is small enough for 32-bit lanes.

use super::Backend;
use super::words::I64;
use std::vec::Vec;

/// Columns of a block of 16-bit digits: the bytes of one AVX2 register, or two of 128 bits.
pub(super) const BLOCK16: usize = 32;
/// Columns of a block of 8-bit digits: the bytes of one AVX-512 register.
pub(super) const BLOCK8: usize = 64;

/// A vector ready to be multiplied by matrix rows, and the memory for it.
pub struct Input {
    pub(super) backend: Backend,
    pub(super) cols: usize,
    pub(super) sum: i64,
    /// Digits in use; 0 says that rows are done by the definition, from `x`.
    pub(super) count: usize,
    pub(super) x: Vec<I64>,
    pub(super) digits16: Vec<[i16; BLOCK16]>,
    pub(super) digits8: Vec<[i8; BLOCK8]>,
}

/// The column at which block `index` starts: the last block of a width that is no multiple ends
/// with the row, and its digits are zero for the columns it shares with the block before.
#[inline(always)]
pub(super) fn block_start(index: usize, block: usize, cols: usize) -> usize {
    (index * block).min(cols - block)
}

impl Default for Input {
    /// No columns yet.
    fn default() -> Input {
        Input {
            backend: Backend::plain(),
            cols: 0,
            sum: 0,
            count: 0,
            x: Vec::new(),
            digits16: Vec::new(),
            digits8: Vec::new(),
        }
    }
}

impl Input {
    /// Keeps `x` as it is, for the plain backend and for rows too short for a register.
    pub(super) fn prepare_plain(&mut self, x: &[I64]) {
        self.cols = x.len();
        self.count = 0;
        self.sum = super::plain::sum(x);
        self.x.clear();
        self.x.extend_from_slice(x);
    }

    /// Signed base-65536 digits, one, two or four of them by the largest magnitude; two planes of
    /// two digits at most: `[plane, block, digit of the plane]`, a block being its even columns and
    /// then its odd ones.
    #[inline(always)]
    pub(super) fn prepare16(&mut self, x: &[I64]) {
        if x.len() < BLOCK16 {
            return self.prepare_plain(x);
        }
        let magnitude = self.measure(x);
        self.count = match magnitude {
            0..0x8000 => 1,
            0x8000..0x4000_0000 => 2,
            _ => 4,
        };
        let blocks = x.len().div_ceil(BLOCK16);
        self.digits16.resize(blocks * self.count, [0; BLOCK16]);
        for block in 0..blocks {
            let values = block_of::<BLOCK16>(x, block);
            if self.count == 1 {
                self.digits16[block] = even_then_odd(values).map(|v| v as i16);
                continue;
            }
            for plane in 0..self.count / 2 {
                let digits = &mut self.digits16[(plane * blocks + block) * 2..][..2];
                // The two lowest digits of what is left after `plane` planes of 32 bits; exact, as
                // two digits are enough or higher planes follow. The carry is that of both digits.
                let rest = values.map(|v| match plane {
                    0 => v as i32,
                    _ => ((v.wrapping_add(0x8000_8000)) >> 32) as i32,
                });
                let pairs = even_then_odd(rest);
                digits[0] = pairs.map(|v| v as i16);
                digits[1] = pairs.map(|v| (v.wrapping_add(0x8000) >> 16) as i16);
            }
        }
    }

    /// Signed base-256 digits, one to eight of them by the largest magnitude: `[block, digit]`.
    #[inline(always)]
    pub(super) fn prepare8(&mut self, x: &[I64]) {
        if x.len() < BLOCK8 {
            return self.prepare_plain(x);
        }
        let magnitude = self.measure(x);
        // k digits reach from -128 * 0x0101..01 to 127 * 0x0101..01: a bit less than 8k bits.
        let bits = 64 - magnitude.leading_zeros() as usize;
        self.count = ((bits + 2).div_ceil(8)).min(8);
        let blocks = x.len().div_ceil(BLOCK8);
        self.digits8.resize(blocks * self.count, [0; BLOCK8]);
        for block in 0..blocks {
            let mut values = block_of::<BLOCK8>(x, block);
            for digits in &mut self.digits8[block * self.count..][..self.count] {
                for (digit, value) in digits.iter_mut().zip(&mut values) {
                    *digit = *value as i8;
                    // What the next digits stand for; wraps at the top, where 2^64 is zero.
                    *value = value.wrapping_add(0x80) >> 8;
                }
            }
        }
    }

    /// Sets width and sum; returns the OR of all magnitudes (ones' complement for negatives).
    #[inline(always)]
    fn measure(&mut self, x: &[I64]) -> u64 {
        self.cols = x.len();
        let (mut or, mut sum) = (0, 0i64);
        for x in x {
            or |= x.get() ^ (x.get() >> 63);
            sum = sum.wrapping_add(x.get());
        }
        self.sum = sum;
        or as u64
    }
}

/// The values of one block, zero where the block before has the column already.
#[inline(always)]
fn block_of<const N: usize>(x: &[I64], block: usize) -> [i64; N] {
    let start = block_start(block, N, x.len());
    let mut values = [0; N];
    for (value, x) in values.iter_mut().zip(&x[start..start + N]) {
        *value = x.get();
    }
    values[..block * N - start].fill(0);
    values
}

/// The values of even columns, then those of odd ones.
#[inline(always)]
fn even_then_odd<T: Copy + Default>(values: [T; BLOCK16]) -> [T; BLOCK16] {
    let mut sorted = [T::default(); BLOCK16];
    for j in 0..BLOCK16 / 2 {
        sorted[j] = values[2 * j];
        sorted[BLOCK16 / 2 + j] = values[2 * j + 1];
    }
    sorted
}
