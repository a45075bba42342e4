//! bfloat16: the upper half of an `f32`.

/// The exact `f32` value of bf16 bits.
#[inline(always)]
pub fn widen(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The bf16 bits nearest to `x`, ties to even. Beyond the largest finite value: infinity.
/// A NaN becomes the canonical `0x7fc0`.
#[inline(always)]
pub fn narrow(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fc0;
    }
    let bits = x.to_bits();
    // Adding half an ulp minus one plus the last kept bit carries exactly when RNE rounds up.
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// `x` rounded to the nearest bf16 value, ties to even, as an `f32`.
#[inline(always)]
pub fn round(x: f32) -> f32 {
    widen(narrow(x))
}

/// Rounds every element in place, as [`round`] does.
pub fn round_all(xs: &mut [f32]) {
    for x in xs {
        *x = round(*x);
    }
}

/// Widens little-endian bf16 bytes to `f32`. Panics unless `bytes` is twice as long as `out`.
pub fn widen_all(bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * 2, "bf16 bytes and output differ in length");
    for (y, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *y = widen(u16::from_le_bytes([b[0], b[1]]));
    }
}
