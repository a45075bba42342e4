//! Matrix rows times 16-bit digits, for any instruction set that multiplies 16-bit lanes into
//! 32-bit sums: AVX2, NEON and WebAssembly SIMD supply [`Lanes`], the loop is written once.
#![allow(unsafe_code)]

use super::digits::{BLOCK16, Input, block_start};
use super::{Rows, plain::finish_row};

/// Blocks whose products a 32-bit lane may hold. A row is summed in parts of this many: a product
/// is at most 255 * 2^15 in magnitude, and [`Lanes::row_sums`] may add up to half the columns of a
/// part, 256, before it widens: 256 * 255 * 2^15 < 2^31.
const PART: usize = 512 / BLOCK16;

/// Bytes of weights to ask for ahead of time: some 100 ns at 40 GB/s.
const PREFETCH_BYTES: usize = 4096;

/// Rows done side by side, so that a digit is loaded once for all of them.
const SIDE: usize = 4;

/// One SIMD register, seen as weight bytes, 16-bit lanes or 32-bit sums.
///
/// # Safety
/// Every function needs the instruction set of its implementation; `load` reads [`Lanes::BYTES`].
pub(super) trait Lanes {
    type Register: Copy;
    /// Bytes of a register; divides the block of 32.
    const BYTES: usize;
    unsafe fn zero() -> Self::Register;
    unsafe fn load(from: *const u8) -> Self::Register;
    /// The bytes at even places as unsigned 16-bit lanes.
    unsafe fn even(bytes: Self::Register) -> Self::Register;
    /// The bytes at odd places as unsigned 16-bit lanes.
    unsafe fn odd(bytes: Self::Register) -> Self::Register;
    /// `sums` plus the signed products of 16-bit lanes, two to each 32-bit lane (in any order).
    unsafe fn multiply_add(
        sums: Self::Register,
        bytes: Self::Register,
        digits: Self::Register,
    ) -> Self::Register;
    /// Asks for the memory at an address, which need not exist. Nothing depends on it.
    #[inline(always)]
    fn prefetch(_from: *const u8) {}
    /// Each register's 32-bit lanes added up, at least the last addition in 64 bits.
    unsafe fn row_sums(sums: [Self::Register; SIDE]) -> [i64; SIDE];
}

/// `write(r, row r times the input)` for every row in order.
///
/// # Safety
/// The machine must have the instruction set of `L`.
#[inline(always)]
pub(super) unsafe fn rows<L: Lanes>(
    input: &Input,
    rows: Rows<'_>,
    mut write: impl FnMut(usize, i64),
) {
    assert_eq!(rows.cols, input.cols, "a matrix as wide as its input");
    let count = rows.scales.len();
    assert_eq!(rows.weights.len(), count * rows.cols);
    for first in (0..count).step_by(SIDE) {
        // A last group of fewer rows repeats the last row and drops the surplus.
        let starts: [*const u8; SIDE] = core::array::from_fn(|r| {
            rows.weights[(first + r).min(count - 1) * rows.cols..].as_ptr()
        });
        // SAFETY: each start has `cols` bytes behind it, and `input` has digits for all of them.
        let totals = unsafe {
            match input.count {
                1 => dots::<L, 1>(starts, input.digits16.as_ptr(), rows.cols),
                2 => dots::<L, 2>(starts, input.digits16.as_ptr(), rows.cols),
                _ => {
                    let plane = input.digits16.len() / 2;
                    let low = dots::<L, 2>(starts, input.digits16.as_ptr(), rows.cols);
                    let high = dots::<L, 2>(starts, input.digits16[plane..].as_ptr(), rows.cols);
                    core::array::from_fn(|r| low[r].wrapping_add(high[r] << 32))
                }
            }
        };
        for r in 0..SIDE.min(count - first) {
            write(first + r, finish_row(totals[r], input.sum, rows.scales[first + r]));
        }
    }
}

/// How far ahead of the weights in use others are asked for: as many groups of rows as make up what
/// memory delivers while they are waited for.
#[inline(always)]
pub(super) fn prefetch_distance(group: usize) -> usize {
    group * PREFETCH_BYTES.div_ceil(group)
}

/// Four rows times one plane of `D` digits.
///
/// # Safety
/// As [`rows`]; `rows` point at `cols >= 32` bytes each, `digits` at a plane for that many columns.
#[inline(always)]
unsafe fn dots<L: Lanes, const D: usize>(
    rows: [*const u8; SIDE],
    digits: *const [i16; BLOCK16],
    cols: usize,
) -> [i64; SIDE] {
    let blocks = cols.div_ceil(BLOCK16);
    let ahead = prefetch_distance(SIDE * cols);
    let mut totals = [0i64; SIDE];
    let mut part = 0;
    while part < blocks {
        // SAFETY: `L`'s instructions are the caller's promise. A block starts at most 32 bytes
        // before the row's end; digits are read at `half` and `half + 32` bytes into a block of 64.
        unsafe {
            let mut sums = [[L::zero(); SIDE]; D];
            for block in part..(part + PART).min(blocks) {
                let column = block_start(block, BLOCK16, cols);
                for half in (0..BLOCK16).step_by(L::BYTES) {
                    let digits: [[L::Register; 2]; D] = core::array::from_fn(|d| {
                        let at = digits.add(block * D + d).cast::<u8>().add(half);
                        [L::load(at), L::load(at.add(BLOCK16))]
                    });
                    for r in 0..SIDE {
                        let bytes = L::load(rows[r].add(column + half));
                        L::prefetch(rows[r].wrapping_add(column + half + ahead));
                        let (even, odd) = (L::even(bytes), L::odd(bytes));
                        for d in 0..D {
                            sums[d][r] = L::multiply_add(sums[d][r], even, digits[d][0]);
                            sums[d][r] = L::multiply_add(sums[d][r], odd, digits[d][1]);
                        }
                    }
                }
            }
            for d in 0..D {
                let sums = L::row_sums(sums[d]);
                for r in 0..SIDE {
                    totals[r] += sums[r] << (16 * d);
                }
            }
        }
        part += PART;
    }
    totals
}
