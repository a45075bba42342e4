//! Rotary positions of DeepSeek-V4.1: frequencies with and without YaRN, angles, and the
//! rotation of adjacent pairs. Frequencies and angles are f32 and equal the released model's
//! bit for bit: at position 1,000,000 one unit in the last place of a frequency is already
//! about 0.06 rad.

use super::formats::to_bf16_rne;
use numerics::elementary;

/// YaRN context extension, used by every layer that reads compressed rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Context length before the extension, positions.
    pub original: u32,
    /// How much longer the context became.
    pub factor: f32,
    /// Rotations over the original context above which a pair keeps its frequency.
    pub beta_fast: f32,
    /// Rotations over the original context below which a frequency is divided by `factor`.
    pub beta_slow: f32,
}

impl Yarn {
    /// First and last pair of the ramp between kept and divided frequencies:
    /// `c(r) = dim * ln(original / (2 pi r)) / (2 ln base)`, floor for `beta_fast` and ceiling
    /// for `beta_slow`, clamped to `0 ..= dim-1`. For the released model 15 and 25.
    pub fn ramp(&self, dim: usize, base: f32) -> (f32, f32) {
        let pair = |rotations: f32| {
            let turns = f64::from(self.original) / (f64::from(rotations) * std::f64::consts::TAU);
            dim as f64 * elementary::log64(turns) / (2.0 * elementary::log64(f64::from(base)))
        };
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(dim as f64 - 1.0);
        (low as f32, high as f32)
    }
}

/// The `dim/2` rotation frequencies in radians per position:
/// `1 / base^(2i/dim)`, the power correctly rounded to f32 before the division.
pub fn rope_freqs(dim: usize, base: f32, yarn: Option<&Yarn>) -> Vec<f32> {
    let plain = (0..dim / 2).map(|i| 1.0 / elementary::pow(base, (2 * i) as f32 / dim as f32));
    let Some(yarn) = yarn else {
        return plain.collect();
    };
    let (low, high) = yarn.ramp(dim, base);
    let width = (high - low).max(1e-3);
    plain
        .enumerate()
        .map(|(i, freq)| {
            let ramp = ((i as f32 - low) / width).clamp(0.0, 1.0);
            let keep = 1.0 - ramp;
            freq / yarn.factor * (1.0 - keep) + freq * keep
        })
        .collect()
}

/// `(cos, sin)` of `position * freq`, the angle rounded to f32 before the functions are taken.
pub fn cos_sin(position: u32, freq: f32) -> (f32, f32) {
    let angle = position as f32 * freq;
    (elementary::cos(angle), elementary::sin(angle))
}

/// `(cos, sin)` for positions `0..positions`, `[position, dim/2]`, without YaRN (the table of
/// the layers that look at their window only).
pub fn freqs_cis(dim: usize, positions: usize, base: f32) -> Vec<(f32, f32)> {
    table(&rope_freqs(dim, base, None), positions)
}

/// `(cos, sin)` for positions `0..positions` of any frequencies, `[position, pair]`.
pub fn table(freqs: &[f32], positions: usize) -> Vec<(f32, f32)> {
    (0..positions as u32).flat_map(|p| freqs.iter().map(move |&f| cos_sin(p, f))).collect()
}

/// Rotates the last `rope_dim` values of each row of `x`, in place.
///
/// `x` is `[row, row_len]`; row `r` is at position `pos[r]` of the table `fc`
/// (`[position, rope_dim/2]`). Values `2i` and `2i+1` of the rotated part are one complex
/// number, multiplied by `cos + i sin` (its conjugate when `inverse`) in f32, each component
/// rounded to bf16.
///
/// # Panics
/// If `x` is not `pos.len()` rows, `rope_dim` exceeds `row_len`, or a position is outside `fc`.
pub fn apply_rotary(
    x: &mut [f32],
    row_len: usize,
    rope_dim: usize,
    pos: &[usize],
    fc: &[(f32, f32)],
    inverse: bool,
) {
    let half = rope_dim / 2;
    assert_eq!(x.len(), pos.len() * row_len, "one position for each row");
    for (row, &p) in x.chunks_exact_mut(row_len).zip(pos) {
        rotate(&mut row[row_len - rope_dim..], &fc[p * half..(p + 1) * half], inverse);
    }
}

/// Rotates one row's pairs by one position's `(cos, sin)`, see [`apply_rotary`].
pub fn rotate(pairs: &mut [f32], fc: &[(f32, f32)], inverse: bool) {
    for (pair, &(cos, sin)) in pairs.chunks_exact_mut(2).zip(fc) {
        let sin = if inverse { -sin } else { sin };
        let (a, b) = (pair[0], pair[1]);
        pair[0] = to_bf16_rne(a * cos - b * sin);
        pair[1] = to_bf16_rne(a * sin + b * cos);
    }
}
