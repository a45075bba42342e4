//! The number formats of DeepSeek-V4.1, written as their definitions: bf16, e4m3, e2m1 and
//! e8m0, each with its rounding table. Plain and slow on purpose; `numerics` holds the fast
//! versions, and a test compares the two over every code and around every rounding boundary.
//!
//! All values are carried as `f32`; "bf16 values" are `f32` numbers whose low 16 bits are zero.

/// Largest finite e4m3 value.
pub const E4M3_MAX: f32 = 448.0;
/// Largest e2m1 value.
pub const E2M1_MAX: f32 = 6.0;
/// Values that share one scale in an fp8 activation or cache row.
pub const FP8_BLOCK: usize = 32;
/// Smallest maximum an fp8 block is scaled by; keeps the scale of an all-zero block finite.
pub const FP8_AMAX_FLOOR: f32 = 1e-4;

/// Rounds to bfloat16, nearest with ties to even, and widens back.
///
/// | input | result |
/// |---|---|
/// | finite | nearest multiple of the bf16 step; a tie takes the even mantissa |
/// | beyond the largest bf16 by half a step or more | infinity |
/// | NaN | NaN with the same upper bits (quiet bit set if they would read as infinity) |
pub fn to_bf16_rne(x: f32) -> f32 {
    f32::from_bits(u32::from(to_bf16_bits(x)) << 16)
}

/// The 16 bits of `x` rounded to bfloat16, see [`to_bf16_rne`].
pub fn to_bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x0040;
    }
    // Half a step minus one, plus the lowest kept bit: carries exactly when RNE rounds up.
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// `2^ceil(log2 v)` of a positive normal `v`, from the IEEE fields: the exponent, plus one if
/// and only if the mantissa is not zero.
///
/// | v | 0.5 | 0.75 | 1.0 | 1.0001 | 2.0 |
/// |---|---|---|---|---|---|
/// | result | 0.5 | 1 | 1 | 2 | 2 |
pub fn pow2_ceil(v: f32) -> f32 {
    let bits = v.to_bits();
    let up = u32::from(bits & 0x007F_FFFF != 0);
    f32::from_bits(((bits >> 23 & 0xFF) + up) << 23)
}

/// The value of an e8m0 scale byte, `2^(byte-127)`; byte 255 is the format's NaN.
pub fn e8m0_to_f32(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        // 2^-127 is below the normal range of f32.
        0 => f32::from_bits(0x0040_0000),
        b => f32::from_bits(u32::from(b) << 23),
    }
}

/// The e8m0 byte of a positive power of two in `2^-126 ..= 2^127` (what [`pow2_ceil`] returns).
pub fn f32_to_e8m0(scale: f32) -> u8 {
    (scale.to_bits() >> 23) as u8
}

/// The value of an e4m3fn code: sign, 4 exponent bits (bias 7), 3 mantissa bits.
///
/// | exponent field | value |
/// |---|---|
/// | 0 | `mantissa * 2^-9` (zero and subnormals) |
/// | 1..=15 | `(8 + mantissa) * 2^(exponent-10)` |
/// | 15 with mantissa 7 | NaN; the format has no infinity |
pub fn e4m3_to_f32(code: u8) -> f32 {
    if code & 0x7F == 0x7F {
        return f32::NAN;
    }
    let (exponent, mantissa) = (u32::from(code >> 3 & 0xF), f32::from(code & 7));
    let magnitude = if exponent == 0 {
        mantissa * f32::from_bits((127 - 9) << 23)
    } else {
        (8.0 + mantissa) * f32::from_bits((exponent + 127 - 10) << 23)
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// The e4m3 code nearest to `x`, ties to the even mantissa.
///
/// | input | code |
/// |---|---|
/// | NaN | 0x7F |
/// | magnitude above 448 (infinity too) | 0x7E with the sign |
/// | below the smallest normal 2^-6 | multiples of 2^-9; 2^-10 (a tie) becomes zero |
/// | zero | zero with the sign |
pub fn f32_to_e4m3_rne(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7F;
    }
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let a = x.abs();
    if a > E4M3_MAX {
        return sign | 0x7E;
    }
    // Exponent of the grid a lies on: the step is 2^(e-3), and 2^-9 in the subnormal range.
    let e = ((a.to_bits() >> 23) as i32 - 127).max(-6);
    let step_inverse = f32::from_bits(((3 - e + 127) as u32) << 23);
    let steps = (a * step_inverse).round_ties_even() as u32;
    // 8..=16 steps in a normal binade; 16 is the next binade's 8, which the sum carries into.
    let code = (((e + 6) as u32) << 3) + steps;
    sign | code as u8
}

/// The magnitudes of the eight e2m1 codes.
pub const E2M1_MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The value of a 4-bit e2m1 code (bit 3 is the sign).
pub fn e2m1_to_f32(code: u8) -> f32 {
    let magnitude = E2M1_MAGNITUDES[usize::from(code & 7)];
    if code & 8 != 0 { -magnitude } else { magnitude }
}

/// The e2m1 code nearest to `x`, ties to the even code; magnitudes above 6 saturate.
///
/// | tie at | 0.25 | 0.75 | 1.25 | 1.75 | 2.5 | 3.5 | 5 |
/// |---|---|---|---|---|---|---|---|
/// | becomes | 0 | 1 | 1 | 2 | 2 | 4 | 4 |
///
/// A NaN has no code; it becomes zero, so check for NaN before rounding.
pub fn f32_to_e2m1_rne(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 8 } else { 0 };
    let a = x.abs();
    // Each boundary belongs to the even code beside it.
    let code = match a {
        a if a > 5.0 => 7,
        a if a >= 3.5 => 6,
        a if a > 2.5 => 5,
        a if a >= 1.75 => 4,
        a if a > 1.25 => 3,
        a if a >= 0.75 => 2,
        a if a > 0.25 => 1,
        _ => 0,
    };
    sign | code
}

/// The fp8 round trip with a power-of-two scale, in place, over blocks of [`FP8_BLOCK`] values
/// (the last block may be shorter).
///
/// Per block: `amax = max(|x|, 1e-4)`, `s = pow2_ceil(amax/448)`, `x' = e4m3(clamp(x/s)) * s`.
/// The result is always a bf16 value.
pub fn act_quant_inplace(x: &mut [f32]) {
    for block in x.chunks_mut(FP8_BLOCK) {
        let scale = fp8_scale(block);
        for v in block {
            let code = f32_to_e4m3_rne((*v / scale).clamp(-E4M3_MAX, E4M3_MAX));
            *v = to_bf16_rne(e4m3_to_f32(code) * scale);
        }
    }
}

/// The power-of-two scale of one fp8 block.
pub fn fp8_scale(block: &[f32]) -> f32 {
    pow2_ceil(amax(block, FP8_AMAX_FLOOR) / E4M3_MAX)
}

/// The fp4 round trip of index keys and queries, in place: blocks of 32, scale the
/// power-of-two ceiling of `amax/6`, amax floored at `6 * 2^-126`.
pub fn fp4_e8m0_inplace(x: &mut [f32]) {
    for block in x.chunks_mut(32) {
        let scale = fp4_e8m0_scale(block);
        round_block_e2m1(block, scale);
    }
}

/// The power-of-two scale of one 32-value fp4 block.
pub fn fp4_e8m0_scale(block: &[f32]) -> f32 {
    pow2_ceil(amax(block, E2M1_MAX * f32::MIN_POSITIVE) / E2M1_MAX)
}

/// The fp4 round trip of compressed key rows, in place: blocks of 16, scale `e4m3(amax/6)`,
/// amax floored at `6 * 2^-9`.
pub fn fp4_e4m3_inplace(x: &mut [f32]) {
    for block in x.chunks_mut(16) {
        let scale = e4m3_to_f32(fp4_e4m3_scale(block));
        round_block_e2m1(block, scale);
    }
}

/// The e4m3 scale code of one 16-value fp4 block.
pub fn fp4_e4m3_scale(block: &[f32]) -> u8 {
    let floor = E2M1_MAX * f32::from_bits((127 - 9) << 23);
    f32_to_e4m3_rne(amax(block, floor) / E2M1_MAX)
}

fn round_block_e2m1(block: &mut [f32], scale: f32) {
    for v in block {
        let code = f32_to_e2m1_rne((*v / scale).clamp(-E2M1_MAX, E2M1_MAX));
        *v = to_bf16_rne(e2m1_to_f32(code) * scale);
    }
}

fn amax(block: &[f32], floor: f32) -> f32 {
    block.iter().fold(floor, |a, v| a.max(v.abs()))
}
