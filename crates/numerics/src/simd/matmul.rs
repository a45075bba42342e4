//! `out[t][r] = dot(x[t], m[r])`, once for all weight formats and instruction sets.
//!
//! Weights are decoded to `f32` into the first-level cache and widened to `f64` as they are loaded
//! from there; so is `x`. One position: [`single`] decodes and multiplies a few rows side by side.
//! More positions: [`panels`] decodes a few rows of a few hundred columns once for all of them,
//! and [`tile`] multiplies. Sums that must wait for the next columns wait as sixteen lanes, so
//! nothing is reordered.
#![allow(unsafe_code)]

use super::format::{Format, Scales};
use super::scratch::Scratch;
use super::{Lanes, Output, UNIT, matmul_rows_defined};
use crate::Matrix;
use crate::dot::{LANES, reduce, to_f32};
use std::ops::Range;

/// Positions multiplied at once. More are taken in groups, which bounds the working memory.
pub(crate) const MAX_POSITIONS: usize = 64;
/// Positions of a tile at most.
const TILE_POSITIONS: usize = 6;
/// Rows of a panel: a multiple of the rows of every [`tile`].
const PANEL_ROWS: usize = 12;
/// Columns of a panel. With all rows 24 KB.
const PANEL_COLS: usize = 512;

/// Rows to hand to a thread at least: a few panels.
pub(crate) const MIN_ROWS: usize = 2 * PANEL_ROWS;

/// The inputs of a product, `[t, cols]`, as the kernels read them: `[panel of columns][t]
/// [PANEL_COLS]`, padded with zeros to whole units.
pub(crate) struct Positions<'a> {
    plain: &'a [f32],
    packed: &'a [f32],
    t: usize,
    cols: usize,
}

impl<'a> Positions<'a> {
    /// Floats that [`Positions::new`] needs.
    pub(crate) fn packed_len(t: usize, cols: usize) -> usize {
        t * cols.next_multiple_of(PANEL_COLS)
    }

    /// Packs `x` into `packed`.
    pub(crate) fn new(x: &'a [f32], t: usize, packed: &'a mut [f32]) -> Positions<'a> {
        let cols = x.len() / t;
        for (i, panel) in packed.chunks_exact_mut(t * PANEL_COLS).enumerate() {
            let first = i * PANEL_COLS;
            let n = PANEL_COLS.min(cols - first);
            for (row, x) in panel.chunks_exact_mut(PANEL_COLS).zip(x.chunks_exact(cols)) {
                row[..n].copy_from_slice(&x[first..first + n]);
                row[n..n.next_multiple_of(UNIT)].fill(0.0);
            }
        }
        Positions { plain: x, packed, t, cols }
    }

    /// The inputs as given, `[t, cols]`.
    pub(crate) fn plain(&self) -> &'a [f32] {
        self.plain
    }
}

/// Computes the rows `rows` for all positions.
///
/// # Safety
/// As for [`Lanes`] and [`Output::put`].
#[inline(always)]
pub(crate) unsafe fn rows<L: Lanes, F: Format>(
    f: F,
    m: &Matrix,
    x: &Positions,
    rows: Range<usize>,
    out: Output,
) {
    assert_eq!(f.cols(), x.cols);
    assert_eq!(x.packed.len(), Positions::packed_len(x.t, x.cols));
    // SAFETY: passed on to the caller.
    unsafe {
        if x.t > 1 {
            return panels::<L, F>(&f, m, x, rows, out);
        }
        let done = match L::ROWS[F::SCALED as usize] {
            6 => single::<L, F, 6>(&f, m, x, rows.clone(), out),
            3 => single::<L, F, 3>(&f, m, x, rows.clone(), out),
            2 => single::<L, F, 2>(&f, m, x, rows.clone(), out),
            _ => rows.start,
        };
        single::<L, F, 1>(&f, m, x, done..rows.end, out);
    }
}

/// Bytes of a cache line, or a divisor.
const CACHE_LINE: usize = 64;
/// Bytes that [`single`] asks for ahead of time in each of its rows.
const AHEAD: usize = 1024;

/// One position times as many whole groups of `R` rows as there are; returns the first row not
/// done.
///
/// # Safety
/// As for [`Lanes`] and [`Output::put`].
#[inline(always)]
unsafe fn single<L: Lanes, F: Format, const R: usize>(
    f: &F,
    m: &Matrix,
    x: &Positions,
    rows: Range<usize>,
    out: Output,
) -> usize {
    let whole = f.cols() / UNIT;
    let (positions, x) = (x, x.packed.as_ptr());
    // Decoded units, `[2][R][32]`: one is multiplied while the next is decoded.
    let mut ring = Scratch::<f32>::new(2 * R * UNIT);
    let ring = ring.as_mut_ptr();
    let mut r = rows.start;
    while r + R <= rows.end {
        let w: [_; R] = std::array::from_fn(|i| f.row(r + i));
        let mut seen = Scales::default();
        // SAFETY: rows and units exist, `x` is padded to whole units; the rest is passed on.
        unsafe {
            let mut sums = [[L::zero(); LANES]; R];
            let mut last = ring;
            for u in 0..whole {
                // Where a row ends, its place in the next group of rows follows.
                let mut ahead = u * F::UNIT_BYTES + AHEAD;
                ahead += if ahead < f.stride() { 0 } else { (R - 1) * f.stride() };
                let next = ring.add(u % 2 * R * UNIT);
                for i in 0..R {
                    for line in (0..F::UNIT_BYTES).step_by(CACHE_LINE) {
                        L::prefetch(w[i].bytes.as_ptr().wrapping_add(ahead + line));
                    }
                    w[i].whole_unit::<L, F>(f, u, next.add(i * UNIT), &mut seen);
                }
                if u > 0 {
                    step::<L, R>(last, x.add((u - 1) * UNIT), &mut sums);
                }
                last = next;
            }
            if whole > 0 {
                step::<L, R>(last, x.add((whole - 1) * UNIT), &mut sums);
            }
            if whole * UNIT < f.cols() {
                for i in 0..R {
                    w[i].unit::<L, F>(f, whole, ring.add(i * UNIT), &mut seen);
                }
                step::<L, R>(ring, x.add(whole * UNIT), &mut sums);
            }
            if seen.exact::<F>() {
                for i in 0..R {
                    out.put(0, r + i, to_f32(reduce(&lanes::<L>(&sums[i]))));
                }
            } else {
                matmul_rows_defined(m, positions, r..r + R, out);
            }
        }
        r += R;
    }
    r
}

/// Adds a unit of `R` rows, `[R][32]`, times `x` to their sums, `16 / N` vectors each.
///
/// # Safety
/// As for [`Lanes`]; a unit of each is readable.
#[inline(always)]
unsafe fn step<L: Lanes, const R: usize>(
    w: *const f32,
    x: *const f32,
    sums: &mut [[L::V; LANES]; R],
) {
    for half in 0..UNIT / LANES {
        for v in 0..LANES / L::N {
            let at = half * LANES + v * L::N;
            // SAFETY: passed on to the caller.
            unsafe {
                let x = L::widen(x.add(at));
                for i in 0..R {
                    sums[i][v] = L::fma(sums[i][v], L::widen(w.add(i * UNIT + at)), x);
                }
            }
        }
    }
}

/// The first `16 / N` vectors as sixteen lanes.
#[inline(always)]
unsafe fn lanes<L: Lanes>(sums: &[L::V; LANES]) -> [f64; LANES] {
    let mut l = [0f64; LANES];
    for v in 0..LANES / L::N {
        // SAFETY: in bounds of `l`.
        unsafe { L::store(l.as_mut_ptr().add(v * L::N), sums[v]) }
    }
    l
}

/// Several positions times `rows`, panel by panel.
///
/// # Safety
/// As for [`Lanes`] and [`Output::put`].
#[inline(always)]
unsafe fn panels<L: Lanes, F: Format>(
    f: &F,
    m: &Matrix,
    x: &Positions,
    rows: Range<usize>,
    out: Output,
) {
    // Decoded weights, `[row][PANEL_COLS]`. Rows that do not exist are left as they were: their
    // sums are never read.
    let mut panel = Scratch::<f32>::new(PANEL_ROWS * PANEL_COLS);
    // `[row][t][16]`.
    let mut sums = Scratch::<f64>::new(PANEL_ROWS * x.t * LANES);
    for r in rows.clone().step_by(PANEL_ROWS) {
        let count = PANEL_ROWS.min(rows.end - r);
        let mut seen = Scales::default();
        for col in (0..x.cols).step_by(PANEL_COLS) {
            let units = PANEL_COLS.min(x.cols - col).div_ceil(UNIT);
            let first = col / UNIT;
            // SAFETY: rows and units exist; the rest is passed on to the caller.
            unsafe {
                for i in 0..count {
                    let row = f.row(r + i);
                    for u in 0..units {
                        let to = panel.as_mut_ptr().add(i * PANEL_COLS + u * UNIT);
                        row.unit::<L, F>(f, first + u, to, &mut seen);
                    }
                }
                let mut ahead = Ahead::new(f, &rows, r, col);
                multiply::<L>(&panel, count, x, col, units, &mut sums, &mut ahead);
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if !seen.exact::<F>() {
                matmul_rows_defined(m, x, r..r + count, out);
                continue;
            }
            for (i, sums) in sums.chunks_exact(x.t * LANES).take(count).enumerate() {
                for (t, l) in sums.as_chunks::<LANES>().0.iter().enumerate() {
                    out.put(t, r + i, to_f32(reduce(l)));
                }
            }
        }
    }
}

/// The weight bytes of the panel after this one, to be asked for while this one is multiplied.
struct Ahead {
    /// The first row's.
    base: *const u8,
    stride: usize,
    lines: usize,
    row: usize,
    line: usize,
    /// Lines to ask for at once.
    each: usize,
}

impl Ahead {
    fn new<F: Format>(f: &F, rows: &Range<usize>, r: usize, col: usize) -> Ahead {
        let (r, col) = match col + PANEL_COLS < f.cols() {
            true => (r, col + PANEL_COLS),
            false => (r + PANEL_ROWS, 0),
        };
        let cols = PANEL_COLS.min(f.cols() - col);
        let lines = (cols.div_ceil(UNIT) * F::UNIT_BYTES).div_ceil(CACHE_LINE);
        let row = if r < rows.end { 0 } else { PANEL_ROWS };
        let base = f.row(r.min(rows.end - 1)).bytes.as_ptr();
        let base = base.wrapping_add(col / UNIT * F::UNIT_BYTES);
        Ahead { base, stride: f.stride(), lines, row, line: 0, each: 1 }
    }

    /// Asks for the next cache lines.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn some<L: Lanes>(&mut self) {
        for _ in 0..self.each {
            if self.row == PANEL_ROWS {
                return;
            }
            let at = self.row * self.stride + self.line * CACHE_LINE;
            // SAFETY: passed on to the caller.
            unsafe { L::prefetch(self.base.wrapping_add(at)) }
            self.line += 1;
            if self.line == self.lines {
                (self.row, self.line) = (self.row + 1, 0);
            }
        }
    }
}

/// Adds a panel of `count` rows and `units` units from column `col` on, times all positions, to
/// `sums`.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn multiply<L: Lanes>(
    panel: &[f32],
    count: usize,
    x: &Positions,
    col: usize,
    units: usize,
    sums: &mut [f64],
    ahead: &mut Ahead,
) {
    let groups = x.t.div_ceil(TILE_POSITIONS);
    let rounds = groups * count.div_ceil(2) * LANES / L::N;
    ahead.each = (PANEL_ROWS * ahead.lines).div_ceil(rounds);
    for g in 0..groups {
        // Groups of even size, so that none is one position alone.
        let t = g * x.t / groups;
        let positions = (g + 1) * x.t / groups - t;
        let rows = match positions {
            2 => 6,
            3 => 3,
            _ => 2,
        };
        for row in (0..count).step_by(rows) {
            let a = Tile {
                w: panel[row * PANEL_COLS..].as_ptr(),
                x: x.packed[col * x.t + t * PANEL_COLS..].as_ptr(),
                chunks: units * UNIT / LANES,
                sums: sums[(row * x.t + t) * LANES..].as_mut_ptr(),
                stride: x.t * LANES,
                fresh: col == 0,
            };
            // SAFETY: panel, positions and sums have the layout documented at each; `rows` divides
            // PANEL_ROWS, so all rows are in them.
            unsafe {
                match positions {
                    6 => tile::<L, 2, 6>(a, ahead),
                    5 => tile::<L, 2, 5>(a, ahead),
                    4 => tile::<L, 2, 4>(a, ahead),
                    3 => tile::<L, 3, 3>(a, ahead),
                    _ => tile::<L, 6, 2>(a, ahead),
                }
            }
        }
    }
}

/// What a [`tile`] works on.
struct Tile {
    /// Weights, rows `PANEL_COLS` apart.
    w: *const f32,
    /// Positions, `PANEL_COLS` apart.
    x: *const f32,
    /// Sixteens of columns.
    chunks: usize,
    /// `[row][position][16]`, positions side by side and rows `stride` apart.
    sums: *mut f64,
    stride: usize,
    /// Whether the sums start from zero.
    fresh: bool,
}

/// `R` rows times `P` positions, `N` lanes at a time: their sums stay in registers for all chunks.
///
/// # Safety
/// As for [`Lanes`]; the pointers cover what [`Tile`] says.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const P: usize>(a: Tile, ahead: &mut Ahead) {
    for v in 0..LANES / L::N {
        // SAFETY: passed on to the caller.
        unsafe {
            ahead.some::<L>();
            let mut acc = [[L::zero(); P]; R];
            if !a.fresh {
                for i in 0..R {
                    for p in 0..P {
                        acc[i][p] = L::load(a.sums.add(i * a.stride + p * LANES + v * L::N));
                    }
                }
            }
            for c in 0..a.chunks {
                let w = a.w.add(c * LANES + v * L::N);
                let x = a.x.add(c * LANES + v * L::N);
                if R <= P {
                    let mut rows = [L::zero(); R];
                    for i in 0..R {
                        rows[i] = L::widen(w.add(i * PANEL_COLS));
                    }
                    for p in 0..P {
                        let x = L::widen(x.add(p * PANEL_COLS));
                        for i in 0..R {
                            acc[i][p] = L::fma(acc[i][p], rows[i], x);
                        }
                    }
                } else {
                    let mut xs = [L::zero(); P];
                    for p in 0..P {
                        xs[p] = L::widen(x.add(p * PANEL_COLS));
                    }
                    for i in 0..R {
                        let w = L::widen(w.add(i * PANEL_COLS));
                        for p in 0..P {
                            acc[i][p] = L::fma(acc[i][p], w, xs[p]);
                        }
                    }
                }
            }
            for i in 0..R {
                for p in 0..P {
                    L::store(a.sums.add(i * a.stride + p * LANES + v * L::N), acc[i][p]);
                }
            }
        }
    }
}
