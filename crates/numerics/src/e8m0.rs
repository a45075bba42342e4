//! E8M0: a power of two in a byte, `2^(b-127)`; 255 is NaN.

/// The code of NaN.
pub const NAN: u8 = 255;

/// The exact value of a code (NaN for 255). 0 is 2^-127, a subnormal `f32`.
#[inline(always)]
pub const fn decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        NAN => f32::NAN,
        b => f32::from_bits((b as u32) << 23),
    }
}

/// The exact value of a code in `f64` (NaN for 255).
#[inline(always)]
pub fn decode64(code: u8) -> f64 {
    match code {
        NAN => f64::NAN,
        b => f64::from_bits((b as u64 + 1023 - 127) << 52),
    }
}

/// The smallest power of two that is not below the positive normal number `x`, as a code.
///
/// The exponent field of `x`, plus one if any mantissa bit is set. A subnormal gives a code of
/// 0 or 1; `None` for what is not positive and finite, or needs more than 2^127.
#[inline]
pub fn ceil(x: f32) -> Option<u8> {
    let bits = x.to_bits();
    if bits == 0 || bits >= 0x7f80_0000 {
        return None;
    }
    if bits <= 1 << 22 {
        return Some(0);
    }
    let code = (bits >> 23) + (bits & 0x7f_ffff != 0) as u32;
    (code < NAN as u32).then_some(code as u8)
}
