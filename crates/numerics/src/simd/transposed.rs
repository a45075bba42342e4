//! `out[t][j] = sum_i x[t][i] * w[i][j]`: weighted sums of rows, once for all weight formats and
//! instruction sets. Vectors run across columns; every sum is in order of `i`.
//!
//! Rows are taken a few at a time, so that a long matrix is read from memory once, and of those
//! rows 32 columns at a time, so that the widened weights stay in the first-level cache.
#![allow(unsafe_code)]

use super::format::{Format, Scales};
use super::scratch::Scratch;
use super::{Lanes, Output, UNIT};
use crate::dot::to_f32;
use std::ops::Range;

/// Rows of a panel: 8 KB of widened weights.
const PANEL_ROWS: usize = 32;
/// Positions of a tile.
const TILE_POSITIONS: usize = 4;

/// The weights of the sums, `[t, rows]`, widened in groups of four positions (the last may be
/// smaller): `[group][row][position]`.
pub(crate) struct Factors<'a> {
    wide: &'a [f64],
    t: usize,
    rows: usize,
}

impl<'a> Factors<'a> {
    /// Widens `x` into `wide`, which is as long.
    pub(crate) fn new(x: &[f32], t: usize, wide: &'a mut [f64]) -> Factors<'a> {
        let rows = x.len() / t;
        let groups = wide.chunks_mut(TILE_POSITIONS * rows);
        for (group, x) in groups.zip(x.chunks(TILE_POSITIONS * rows)) {
            let positions = x.len() / rows;
            for (p, x) in x.chunks_exact(rows).enumerate() {
                for (w, &v) in group.iter_mut().skip(p).step_by(positions).zip(x) {
                    *w = v as f64;
                }
            }
        }
        Factors { wide, t, rows }
    }
}

/// Widened weights, `[row][32]`.
#[repr(C, align(64))]
struct Panel([f32; PANEL_ROWS * UNIT]);

/// Computes the columns of the units `units` (of 32) for all positions.
///
/// # Safety
/// As for [`Lanes`] and [`Output::put`].
#[inline(always)]
pub(crate) unsafe fn columns<L: Lanes, F: Format>(
    f: F,
    x: &Factors,
    units: Range<usize>,
    out: Output,
) {
    let mut panel = Panel([0.0; PANEL_ROWS * UNIT]);
    let mut sums = Scratch::new(units.len() * x.t * UNIT);
    sums.fill(0.0);
    for first in (0..x.rows).step_by(PANEL_ROWS) {
        let rows = first..x.rows.min(first + PANEL_ROWS);
        for (u, sums) in units.clone().zip(sums.chunks_exact_mut(x.t * UNIT)) {
            // SAFETY: rows and unit exist; `sums` is `[t][32]`; the rest is the caller's.
            unsafe {
                if x.t == 1 {
                    single::<L, F>(&f, x, rows.clone(), u, sums);
                    continue;
                }
                for (i, r) in rows.clone().enumerate() {
                    let to = panel.0.as_mut_ptr().add(i * UNIT);
                    f.row(r).unit::<L, F>(&f, u, to, &mut Scales::default());
                }
                multiply::<L>(&panel, x, rows.clone(), sums);
            }
        }
    }
    for (u, sums) in units.zip(sums.chunks_exact(x.t * UNIT)) {
        let first = u * UNIT;
        for (t, sums) in sums.chunks_exact(UNIT).enumerate() {
            for (c, &s) in (first..f.cols().min(first + UNIT)).zip(sums) {
                // SAFETY: the caller's promise.
                unsafe { out.put(t, c, to_f32(s)) }
            }
        }
    }
}

/// One position: the sums of 32 columns stay in registers.
///
/// # Safety
/// As for [`Lanes`]; `sums` has 32 elements.
#[inline(always)]
unsafe fn single<L: Lanes, F: Format>(
    f: &F,
    x: &Factors,
    rows: Range<usize>,
    u: usize,
    sums: &mut [f64],
) {
    assert_eq!(sums.len(), UNIT);
    // SAFETY: `sums` has 32 elements; the rest is passed on to the caller.
    unsafe {
        let mut acc = [L::zero(); UNIT];
        for v in 0..UNIT / L::N {
            acc[v] = L::load(sums.as_ptr().add(v * L::N));
        }
        let mut w = [0f32; UNIT];
        for r in rows {
            let x = L::splat(x.wide[r]);
            f.row(r).unit::<L, F>(f, u, w.as_mut_ptr(), &mut Scales::default());
            for v in 0..UNIT / L::N {
                acc[v] = L::fma(acc[v], L::widen(w.as_ptr().add(v * L::N)), x);
            }
        }
        for v in 0..UNIT / L::N {
            L::store(sums.as_mut_ptr().add(v * L::N), acc[v]);
        }
    }
}

/// Adds a panel of `rows`, times all positions, to `sums` (`[t][32]`).
///
/// # Safety
/// As for [`Lanes`]; the panel holds these rows.
#[inline(always)]
unsafe fn multiply<L: Lanes>(panel: &Panel, x: &Factors, rows: Range<usize>, sums: &mut [f64]) {
    assert_eq!(sums.len(), x.t * UNIT);
    for t in (0..x.t).step_by(TILE_POSITIONS) {
        let positions = TILE_POSITIONS.min(x.t - t);
        let factors = &x.wide[t * x.rows + rows.start * positions..][..rows.len() * positions];
        // Eight sums at a time where the positions alone are too few to hide the latency.
        let vectors = if positions > 2 { 2 } else { 4 };
        for v in (0..UNIT / L::N).step_by(vectors) {
            let sums = &mut sums[t * UNIT + v * L::N..];
            // SAFETY: `vectors` divides the vectors of a unit, of which there are at least four.
            unsafe {
                let w = panel.0.as_ptr().add(v * L::N);
                match positions {
                    4 => tile::<L, 4, 2>(w, factors, sums),
                    3 => tile::<L, 3, 2>(w, factors, sums),
                    2 => tile::<L, 2, 4>(w, factors, sums),
                    _ => tile::<L, 1, 4>(w, factors, sums),
                }
            }
        }
    }
}

/// `V` vectors of columns for `P` positions; `x` is `[row][P]`, `w` is `[row][32]` and `sums`
/// `[P][32]`, both from the first of the columns.
///
/// # Safety
/// As for [`Lanes`]; `w` holds as many rows as `x`, `sums` at least `P - 1` times 32 elements and
/// the vectors.
#[inline(always)]
unsafe fn tile<L: Lanes, const P: usize, const V: usize>(
    w: *const f32,
    x: &[f64],
    sums: &mut [f64],
) {
    assert!(sums.len() >= (P - 1) * UNIT + V * L::N);
    // SAFETY: `sums` was just checked; the rest is passed on to the caller.
    unsafe {
        let mut acc = [[L::zero(); V]; P];
        for p in 0..P {
            for v in 0..V {
                acc[p][v] = L::load(sums.as_ptr().add(p * UNIT + v * L::N));
            }
        }
        for (i, x) in x.as_chunks::<P>().0.iter().enumerate() {
            let mut row = [L::zero(); V];
            for v in 0..V {
                row[v] = L::widen(w.add(i * UNIT + v * L::N));
            }
            for p in 0..P {
                let x = L::splat(x[p]);
                for v in 0..V {
                    acc[p][v] = L::fma(acc[p][v], row[v], x);
                }
            }
        }
        for p in 0..P {
            for v in 0..V {
                L::store(sums.as_mut_ptr().add(p * UNIT + v * L::N), acc[p][v]);
            }
        }
    }
}
