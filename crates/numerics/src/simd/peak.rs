//! The most multiply-adds a backend can do: what its products are measured against.
#![allow(unsafe_code)]

use super::Lanes;
use std::hint::black_box;

/// Chains of multiply-adds side by side, enough to hide the latency of one.
const CHAINS: usize = 10;

/// Does `rounds` rounds of multiply-adds in registers; returns how many numbers they were done on.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn multiply_adds<L: Lanes>(rounds: usize) -> usize {
    // SAFETY: passed on to the caller.
    unsafe {
        let (a, b) = (L::splat(black_box(0.5)), L::splat(black_box(0.25)));
        let mut sums = [L::zero(); CHAINS];
        for _ in 0..rounds {
            for s in &mut sums {
                *s = L::fma(*s, a, b);
            }
        }
        black_box(sums);
    }
    rounds * CHAINS * L::N
}
