//! Normalisation on machines that multiply 64 by 64 to 128 bits at once: one division for the
//! reciprocal of the root, then a multiplication for every element. Integers only, so exact.

use super::plain;
use super::words::I64;

/// `floor(n / d)` for many `n` up to 2^63 and one `d`.
///
/// With `reciprocal = floor((2^64 - 1) / d)`, `n * reciprocal / 2^64` falls short of `n / d` by at
/// most `n * (1 + 1/d) / 2^64 <= 1`, so its whole part is the quotient or one less, and the
/// remainder says which.
#[derive(Clone, Copy)]
struct Divisor {
    d: u64,
    reciprocal: u64,
}

impl Divisor {
    fn new(d: u64) -> Divisor {
        Divisor { d, reciprocal: u64::MAX / d }
    }

    #[inline(always)]
    fn divide(self, n: u64) -> u64 {
        let estimate = ((n as u128 * self.reciprocal as u128) >> 64) as u64;
        estimate + (n - estimate * self.d >= self.d) as u64
    }
}

/// One element of the normalised vector: [`plain::rms_norm`].
#[inline(always)]
fn normalise(x: i64, weight: [u8; 4], root: Divisor) -> i64 {
    let product = x.wrapping_mul(i32::from_le_bytes(weight) as i64);
    let quotient = root.divide(product.unsigned_abs()) as i64;
    // Truncates towards zero, as division does; |quotient| is below 2^63, the root being above 1.
    (if product < 0 { -quotient } else { quotient }) >> 8
}

/// As [`plain::rms_norm`].
pub(super) fn rms_norm(x: &[I64], weights: &[[u8; 4]], out: &mut [I64]) {
    let root = Divisor::new(plain::root_mean_square(x) as u64);
    for ((x, weight), out) in x.iter().zip(weights).zip(out) {
        out.set(normalise(x.get(), *weight, root));
    }
}

/// As [`plain::rms_norm_in_place`].
pub(super) fn rms_norm_in_place(x: &mut [I64], weights: &[[u8; 4]]) {
    let root = Divisor::new(plain::root_mean_square(x) as u64);
    for (x, weight) in x.iter_mut().zip(weights) {
        x.set(normalise(x.get(), *weight, root));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an estimate that is two off, at quotients next to whole numbers and the largest
    /// numerators.
    #[test]
    fn division_through_the_reciprocal_is_exact() {
        for d in (2..300).chain([1 << 16, (1 << 16) + 1, (1 << 31) - 1, 3 << 30, 1 << 32]) {
            let divisor = Divisor::new(d);
            let top = 1u64 << 63;
            let near = |n: u64| [n.saturating_sub(1), n, (n + 1).min(top)];
            for n in near(0).into_iter().chain(near(d)).chain(near(top)).chain(near(top / d * d)) {
                assert_eq!(divisor.divide(n), n / d, "{n} / {d}");
            }
            for k in (0..63).map(|k| 1u64 << k).filter(|k| *k <= top / d) {
                for n in near(k * d) {
                    assert_eq!(divisor.divide(n), n / d, "{n} / {d}");
                }
            }
        }
    }
}
