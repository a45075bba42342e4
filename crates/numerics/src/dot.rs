//! The dot product of two `f32` slices: the definition of the crate's contract (see the crate
//! docs). Plain code: fixed lanes are what a compiler vectorises without changing a bit.

/// Lanes of a dot product; element `i` belongs to lane `i mod LANES`.
pub const LANES: usize = 16;

/// Adds the lanes in the contract's tree. A NaN becomes the canonical one.
#[inline(always)]
pub(crate) fn reduce(l: &[f64; LANES]) -> f64 {
    let b: [f64; 4] = std::array::from_fn(|j| (l[j] + l[j + 4]) + (l[j + 8] + l[j + 12]));
    let s = (b[0] + b[1]) + (b[2] + b[3]);
    if s.is_nan() { f64::NAN } else { s }
}

/// Rounds a sum to `f32`; a NaN becomes the canonical one.
#[inline(always)]
pub(crate) fn to_f32(s: f64) -> f32 {
    if s.is_nan() { f32::NAN } else { s as f32 }
}

/// `sum_i x[i] * w[i]` before the last rounding. Panics if the lengths differ.
#[inline]
pub fn dot64(x: &[f32], w: &[f32]) -> f64 {
    assert_eq!(x.len(), w.len(), "the operands of a dot product differ in length");
    let mut lanes = [0f64; LANES];
    let (xs, ws) = (x.chunks_exact(LANES), w.chunks_exact(LANES));
    let (xt, wt) = (xs.remainder(), ws.remainder());
    for (x, w) in xs.zip(ws) {
        for l in 0..LANES {
            lanes[l] += x[l] as f64 * w[l] as f64;
        }
    }
    for l in 0..xt.len() {
        lanes[l] += xt[l] as f64 * wt[l] as f64;
    }
    reduce(&lanes)
}

/// `sum_i x[i] * w[i]`, rounded to `f32` once. Panics if the lengths differ.
#[inline]
pub fn dot(x: &[f32], w: &[f32]) -> f32 {
    to_f32(dot64(x, w))
}
