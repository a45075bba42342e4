//! The lookup tables, computed with integers only, so that every machine converts to the same
//! bytes. Values have 62 fractional bits on the way and are rounded to nearest at the end; the
//! series are long enough that every entry is the correctly rounded real value.

/// One, with 62 fractional bits.
const ONE: i128 = 1 << 62;
/// `ln 2`.
const LN_2: i128 = 3_196_577_161_300_663_915;
/// `ln 10000`, the base of the rotary frequencies.
const LN_10000: i128 = 42_475_197_918_399_869_020;
/// `pi / 2`.
const HALF_PI: i128 = 7_244_019_458_077_122_842;

/// `e^-a` for `a >= 0`.
fn exp_neg(a: i128) -> i128 {
    let (halvings, r) = (a / LN_2, a % LN_2);
    if halvings > 62 {
        return 0;
    }
    let (mut term, mut sum) = (ONE, ONE);
    for n in 1..=24 {
        term = ((term * r) >> 62) / n;
        sum += if n % 2 == 1 { -term } else { term };
    }
    sum >> halvings
}

/// `e^(-i / 256)`, 30 fractional bits.
pub(super) fn exponential(i: usize) -> u32 {
    ((exp_neg((i as i128) << 54) + (1 << 31)) >> 32) as u32
}

/// `x * sigmoid(x)` at `x = i / 128 - 16`, 16 fractional bits.
pub(super) fn silu(i: usize) -> i32 {
    let t = (i as i128 - 2048).abs();
    let e = exp_neg(t << 55);
    let divisor = ONE + e;
    let rounded = |numerator: i128| ((numerator + divisor / 2) / divisor) as i32;
    if i >= 2048 { rounded((t << 9) * ONE) } else { -rounded((t << 9) * e) }
}

/// Sine and cosine of `a >= 0`.
fn sin_cos(a: i128) -> (i128, i128) {
    let (quarter, r) = (a / HALF_PI, a % HALF_PI);
    let square = (r * r) >> 62;
    let series = |first: i128, divisor: fn(i128) -> i128| {
        let (mut term, mut sum) = (first, first);
        for k in 1..=15 {
            term = ((term * square) >> 62) / divisor(k);
            sum += if k % 2 == 1 { -term } else { term };
        }
        sum
    };
    let cos = series(ONE, |k| (2 * k - 1) * (2 * k));
    let sin = series(r, |k| 2 * k * (2 * k + 1));
    match quarter % 4 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// To 24 fractional bits, halves away from zero.
fn to_q24(v: i128) -> i32 {
    (((v.abs() + (1 << 37)) >> 38) * v.signum()) as i32
}

/// The turn a position adds to pair `pair` of a head of `head_size` elements: `10000^(-2 pair / size)`.
pub(super) fn frequency(pair: usize, head_size: usize) -> i128 {
    exp_neg(2 * pair as i128 * LN_10000 / head_size as i128)
}

/// Cosine and sine of `position * frequency`, 24 fractional bits.
pub(super) fn rotary(position: usize, frequency: i128) -> (i32, i32) {
    let (sin, cos) = sin_cos(position as i128 * frequency);
    (to_q24(cos), to_q24(sin))
}

/// `1 / sqrt(head_size)`, 24 fractional bits.
pub(super) fn inv_sqrt(head_size: usize) -> u32 {
    ((((1u128 << 98) / head_size as u128).isqrt() + (1 << 24)) >> 25) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a wrong constant or a series cut short: entries whose rounding is known by hand.
    #[test]
    fn known_entries() {
        assert_eq!(exponential(0), 1 << 30);
        assert_eq!(exponential(256), 395_007_542); // e^-1 * 2^30 = 395007542.4
        assert_eq!(exponential(4096), 121); // e^-16 * 2^30 = 120.8
        assert_eq!(silu(2048), 0);
        assert_eq!(silu(4096), 1_048_576); // 16 less 1.8e-6, of steps of 1.5e-5
        assert_eq!(silu(0), 0);
        assert_eq!(silu(2048 + 128), 47_911); // sigmoid(1) * 2^16 = 47911.0
        assert_eq!(rotary(0, frequency(0, 8)), (1 << 24, 0));
        assert_eq!(inv_sqrt(16), 1 << 22);
        assert_eq!(inv_sqrt(2), 11_863_283); // 2^24 / sqrt 2 = 11863283.2
    }

    /// Catches an angle reduced to the wrong quarter.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "compared with a tolerance, not to the bit")]
    fn rotary_agrees_with_floats_to_the_last_unit() {
        for position in [0, 1, 2, 3, 4, 5, 100, 65_535] {
            for pair in 0..4 {
                let (cos, sin) = rotary(position, frequency(pair, 8));
                let a = position as f64 * 10f64.powf(-(pair as f64));
                let unit = f64::from(1 << 24);
                assert!((f64::from(cos) - unit * a.cos()).abs() < 0.51, "{position} {pair}");
                assert!((f64::from(sin) - unit * a.sin()).abs() < 0.51, "{position} {pair}");
            }
        }
    }
}
