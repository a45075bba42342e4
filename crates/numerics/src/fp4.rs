//! E2M1: sign and the magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6. Two codes a byte, the **low nibble
//! holds the even column**.

/// The largest value.
pub const MAX: f32 = 6.0;

/// Columns that share one E8M0 scale in MXFP4.
pub const GROUP: usize = 32;

/// The value of each code; bit 3 is the sign.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The exact value of the code in the low four bits (the others are ignored).
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    VALUES[(code & 15) as usize]
}

/// The code nearest to `x`, ties to the even code (0.25 → 0, 0.75 → 1, 1.25 → 1, 1.75 → 2,
/// 2.5 → 2, 3.5 → 4, 5 → 4). Beyond ±6 it saturates. A zero keeps its sign.
///
/// E2M1 has no NaN: `None` for a NaN, so that a damaged activation cannot become a number.
pub fn encode(x: f32) -> Option<u8> {
    if x.is_nan() {
        return None;
    }
    let sign = if x.is_sign_negative() { 8 } else { 0 };
    let a = x.abs();
    // Midpoints between neighbours; a tie goes to the even code, so alternately down and up.
    let code = (a > 0.25) as u8
        + (a >= 0.75) as u8
        + (a > 1.25) as u8
        + (a >= 1.75) as u8
        + (a > 2.5) as u8
        + (a >= 3.5) as u8
        + (a > 5.0) as u8;
    Some(sign | code)
}

/// `x` rounded to E2M1 as [`encode`] does; a NaN stays NaN.
#[inline]
pub fn round(x: f32) -> f32 {
    encode(x).map_or(f32::NAN, decode)
}
