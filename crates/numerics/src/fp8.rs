//! E4M3 (the "fn" variant): sign, four exponent bits of bias 7, three mantissa bits, no infinity,
//! NaN at `0x7f` and `0xff`, largest value 448, smallest step 2^-9.

/// The largest finite value.
pub const MAX: f32 = 448.0;

/// The exact value of a code; NaN for `0x7f` and `0xff`.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    let (exponent, mantissa) = ((code >> 3) & 15, (code & 7) as f32);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * f32::from_bits((127 - 9) << 23),
        (e, _) => (8.0 + mantissa) * f32::from_bits((127 - 10 + e as u32) << 23),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// The code nearest to `x`, ties to the even code. Beyond ±448 it saturates to ±448 (also for
/// infinities); NaN becomes `0x7f`; a zero keeps its sign.
pub fn encode(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = ((x.to_bits() >> 24) & 0x80) as u8;
    let a = x.abs();
    if a >= MAX {
        return sign | 0x7e;
    }
    if a < f32::from_bits((127 - 6) << 23) {
        // Below the smallest normal 2^-6: multiples of 2^-9. 8 steps is the code of 2^-6 itself.
        return sign | (a * 512.0).round_ties_even() as u8;
    }
    let bits = a.to_bits();
    let rounded = bits + 0x7ffff + ((bits >> 20) & 1);
    // Rebias 127 to 7: the exponent field and three mantissa bits are the code.
    let code = (rounded >> 20) - ((127 - 7) << 3);
    sign | code.min(0x7e) as u8
}

/// `x` rounded to E4M3 as [`encode`] does.
#[inline]
pub fn round(x: f32) -> f32 {
    decode(encode(x))
}
