//! `out[t][r] = dot(x[t], m[r])`, once for all weight formats and instruction sets.
//!
//! `x` is widened to `f64` once ([`Positions`]). One position: [`single`] multiplies a few rows at
//! a time straight from their packed form. More positions: [`panels`] widens a few rows of a few
//! hundred columns into the first-level cache, once for all positions, and [`tile`] multiplies
//! them. Sums that must wait for the next columns wait as lanes, so nothing is reordered.
#![allow(unsafe_code)]

use super::format::{Format, Row};
use super::scratch::Scratch;
use super::{Lanes, Output, UNIT};
use crate::dot::{LANES, reduce, to_f32};
use std::ops::Range;

/// Positions multiplied at once. More are taken in groups, which bounds the working memory.
pub(crate) const MAX_POSITIONS: usize = 64;
/// Positions of a tile.
const TILE_POSITIONS: usize = 4;
/// Rows of a tile.
const TILE_ROWS: usize = 3;
/// Rows of a panel: weights widened together.
const PANEL_ROWS: usize = 2 * TILE_ROWS;
/// Columns of a panel. With six rows, 12 KB of `f64`; four positions of it are 8 KB more.
const PANEL_COLS: usize = 256;
const PANEL_CHUNKS: usize = PANEL_COLS / LANES;

/// Rows to hand to a thread at least: a few panels.
pub(crate) const MIN_ROWS: usize = 4 * PANEL_ROWS;

/// The inputs of a product, `[t, cols]`, in the order the kernels read them.
///
/// One position: as it is, padded with zeros to whole units. More: in groups of four (the last may
/// be smaller) `[group][lane / N][chunk of 16 columns][position][N]`, where `N` is the vector
/// length, so that [`tile`] reads on and on.
pub(crate) struct Positions<'a> {
    plain: &'a [f32],
    wide: &'a [f64],
    t: usize,
    cols: usize,
}

impl<'a> Positions<'a> {
    /// `f64` elements that [`Positions::new`] needs.
    pub(crate) fn wide_len(t: usize, cols: usize) -> usize {
        t * cols.next_multiple_of(UNIT)
    }

    /// Widens `x` into `wide` for vectors of `n` elements; `n` is 0 for the scalar definition,
    /// which reads `x` itself.
    pub(crate) fn new(x: &'a [f32], t: usize, n: usize, wide: &'a mut [f64]) -> Positions<'a> {
        let cols = x.len() / t;
        match n {
            0 => (),
            _ if t == 1 => {
                let (head, pad) = wide.split_at_mut(cols);
                head.iter_mut().zip(x).for_each(|(w, &v)| *w = v as f64);
                pad.fill(0.0);
            }
            2 => Self::pack::<2>(x, cols, wide),
            4 => Self::pack::<4>(x, cols, wide),
            8 => Self::pack::<8>(x, cols, wide),
            _ => unreachable!("a vector has 2, 4 or 8 elements"),
        }
        Positions { plain: x, wide, t, cols }
    }

    fn pack<const N: usize>(x: &[f32], cols: usize, wide: &mut [f64]) {
        let padded = cols.next_multiple_of(UNIT);
        let groups = wide.chunks_mut(TILE_POSITIONS * padded);
        for (group, x) in groups.zip(x.chunks(TILE_POSITIONS * cols)) {
            let positions = x.len() / cols;
            if padded != cols {
                group.fill(0.0);
            }
            for (p, x) in x.chunks_exact(cols).enumerate() {
                for (chunk, x) in x.chunks(LANES).enumerate() {
                    for (v, x) in x.chunks(N).enumerate() {
                        let at = ((v * (padded / LANES) + chunk) * positions + p) * N;
                        for (w, &x) in group[at..at + N].iter_mut().zip(x) {
                            *w = x as f64;
                        }
                    }
                }
            }
        }
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
    x: &Positions,
    rows: Range<usize>,
    out: Output,
) {
    debug_assert_eq!(f.cols(), x.cols);
    debug_assert_eq!(x.wide.len(), Positions::wide_len(x.t, x.cols));
    if x.t > 1 {
        // SAFETY: passed on to the caller.
        return unsafe { panels::<L, F>(&f, x, rows, out) };
    }
    // SAFETY: passed on to the caller.
    unsafe {
        let done = match L::ROWS {
            4 => single::<L, F, 4>(&f, x.wide, rows.clone(), out),
            2 => single::<L, F, 2>(&f, x.wide, rows.clone(), out),
            _ => rows.start,
        };
        single::<L, F, 1>(&f, x.wide, done..rows.end, out);
    }
}

/// One position times as many whole groups of `R` rows as there are; returns the first row not
/// done.
///
/// # Safety
/// As for [`Lanes`] and [`Output::put`]; `x` holds whole units.
#[inline(always)]
unsafe fn single<L: Lanes, F: Format, const R: usize>(
    f: &F,
    x: &[f64],
    rows: Range<usize>,
    out: Output,
) -> usize {
    let whole = f.cols() / UNIT;
    let mut r = rows.start;
    while r + R <= rows.end {
        let w: [_; R] = std::array::from_fn(|i| f.row(r + i));
        let bytes = w.map(|row| row.bytes.as_ptr());
        // SAFETY: a row has `whole` units and `x` 32 elements for each; the rest is passed on.
        unsafe {
            let mut sums = [L::zeros(); R];
            for u in 0..whole {
                let at = bytes.map(|p| p.add(2 * u * F::CHUNK_BYTES));
                step::<L, F, R>(f, &w, u, at, x.as_ptr().add(u * UNIT), &mut sums);
            }
            if whole * UNIT < x.len() {
                let padded = w.map(|row| row.padded(2 * whole * F::CHUNK_BYTES));
                let mut at = bytes;
                for i in 0..R {
                    at[i] = padded[i].as_ptr();
                }
                step::<L, F, R>(f, &w, whole, at, x.as_ptr().add(whole * UNIT), &mut sums);
            }
            for i in 0..R {
                out.put(0, r + i, to_f32(reduce(&lanes::<L>(sums[i]))));
            }
        }
        r += R;
    }
    r
}

/// Unit `u` of `R` rows, whose bytes lie `at`, times the 32 elements at `x`.
///
/// # Safety
/// As for [`Lanes`]; whole units are readable.
#[inline(always)]
unsafe fn step<L: Lanes, F: Format, const R: usize>(
    f: &F,
    w: &[Row; R],
    u: usize,
    at: [*const u8; R],
    x: *const f64,
    sums: &mut [L::Block; R],
) {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut scales = [f.scale::<L>(w[0].scales, u); R];
        for i in 1..R {
            scales[i] = f.scale::<L>(w[i].scales, u);
        }
        for half in 0..2 {
            for i in 0..R {
                let w = F::chunk::<L>(at[i].add(half * F::CHUNK_BYTES), scales[i]);
                add::<L>(&mut sums[i], w, x.add(half * LANES));
            }
        }
    }
}

/// `sums += w * x` in sixteen lanes.
#[inline(always)]
unsafe fn add<L: Lanes>(sums: &mut L::Block, w: L::Block, x: *const f64) {
    for v in 0..LANES / L::N {
        // SAFETY: the caller gives 16 readable elements.
        unsafe {
            let x = L::load(x.add(v * L::N));
            sums.as_mut()[v] = L::fma(sums.as_ref()[v], w.as_ref()[v], x);
        }
    }
}

/// The sixteen lanes as an array.
#[inline(always)]
unsafe fn lanes<L: Lanes>(block: L::Block) -> [f64; LANES] {
    let mut l = [0f64; LANES];
    for v in 0..LANES / L::N {
        // SAFETY: in bounds of `l`.
        unsafe { L::store(l.as_mut_ptr().add(v * L::N), block.as_ref()[v]) }
    }
    l
}

/// Widened weights: `[tile of rows][lane / N][chunk][row of the tile][N]`, and rows that do not
/// exist are left as they were (their sums are never read).
#[repr(C, align(64))]
struct Panel([f64; PANEL_ROWS * PANEL_COLS]);

/// Several positions times `rows`, panel by panel.
///
/// # Safety
/// As for [`Lanes`] and [`Output::put`].
#[inline(always)]
unsafe fn panels<L: Lanes, F: Format>(f: &F, x: &Positions, rows: Range<usize>, out: Output) {
    let padded = x.cols.next_multiple_of(UNIT);
    let mut panel = Panel([0.0; PANEL_ROWS * PANEL_COLS]);
    let mut sums = Scratch::new(PANEL_ROWS * x.t * LANES);
    for r in rows.clone().step_by(PANEL_ROWS) {
        let count = PANEL_ROWS.min(rows.end - r);
        for col in (0..padded).step_by(PANEL_COLS) {
            let cols = PANEL_COLS.min(padded - col);
            // SAFETY: rows and columns exist; the rest is passed on to the caller.
            unsafe {
                for i in 0..count {
                    fill::<L, F>(f, r + i, i, col, cols, &mut panel);
                }
                multiply::<L>(&panel, count.div_ceil(TILE_ROWS), x, col, cols, &mut sums);
            }
        }
        for i in 0..count {
            for t in 0..x.t {
                let l = waiting::<L>(&sums, i, t, x.t);
                // SAFETY: the caller's promise.
                unsafe { out.put(t, r + i, to_f32(reduce(&l))) }
            }
        }
    }
}

/// The lanes of row `i` and position `t`, gathered from where [`tile`] left them.
#[inline(always)]
fn waiting<L: Lanes>(sums: &[f64], i: usize, t: usize, of: usize) -> [f64; LANES] {
    let group = t / TILE_POSITIONS * TILE_POSITIONS;
    let positions = TILE_POSITIONS.min(of - group);
    let sums = &sums[(i / TILE_ROWS * of + group) * TILE_ROWS * LANES..];
    let at = (i % TILE_ROWS * positions + t % TILE_POSITIONS) * L::N;
    let mut l = [0f64; LANES];
    for (v, l) in l.chunks_exact_mut(L::N).enumerate() {
        l.copy_from_slice(&sums[v * TILE_ROWS * positions * L::N + at..][..L::N]);
    }
    l
}

/// Widens columns `col..col + cols` of row `r` as row `i` of the panel.
///
/// # Safety
/// As for [`Lanes`]; whole units within the padded row, at most a panel of them.
#[inline(always)]
unsafe fn fill<L: Lanes, F: Format>(
    f: &F,
    r: usize,
    i: usize,
    col: usize,
    cols: usize,
    panel: &mut Panel,
) {
    let row = f.row(r);
    let (tile, i) = (i / TILE_ROWS, i % TILE_ROWS);
    for u in 0..cols / UNIT {
        // SAFETY: passed on to the caller; the stores stay in the panel by its layout.
        unsafe {
            let blocks = row.unit::<L, F>(f, col / UNIT + u);
            for (half, block) in blocks.iter().enumerate() {
                for v in 0..LANES / L::N {
                    let chunk = (tile * (LANES / L::N) + v) * PANEL_CHUNKS + 2 * u + half;
                    let p = panel.0.as_mut_ptr().add((chunk * TILE_ROWS + i) * L::N);
                    L::store(p, block.as_ref()[v]);
                }
            }
        }
    }
}

/// Adds a panel of `tiles` tiles of rows, times all positions, to `sums`:
/// `[tile of rows][group of positions][lane / N][row of the tile][position of the group][N]`.
///
/// # Safety
/// As for [`Lanes`]; the panel holds columns `col..col + cols` of the padded row.
#[inline(always)]
unsafe fn multiply<L: Lanes>(
    panel: &Panel,
    tiles: usize,
    x: &Positions,
    col: usize,
    cols: usize,
    sums: &mut [f64],
) {
    let padded = x.cols.next_multiple_of(UNIT);
    let chunks = cols / LANES;
    assert!(sums.len() >= tiles * TILE_ROWS * x.t * LANES);
    for t in (0..x.t).step_by(TILE_POSITIONS) {
        let positions = TILE_POSITIONS.min(x.t - t);
        for v in 0..LANES / L::N {
            let chunk = v * (padded / LANES) + col / LANES;
            let at = t * padded + chunk * positions * L::N;
            for tile in 0..tiles {
                // SAFETY: layouts as documented at `Panel` and `Positions`.
                unsafe {
                    let w = (tile * (LANES / L::N) + v) * PANEL_CHUNKS * TILE_ROWS * L::N;
                    let w = panel.0.as_ptr().add(w);
                    let x_at = x.wide.as_ptr().add(at);
                    let s = (tile * x.t + t) * TILE_ROWS * LANES + v * TILE_ROWS * positions * L::N;
                    let s = sums.as_mut_ptr().add(s);
                    let fresh = col == 0;
                    match positions {
                        4 => self::tile::<L, 4>(w, x_at, chunks, s, fresh),
                        3 => self::tile::<L, 3>(w, x_at, chunks, s, fresh),
                        2 => self::tile::<L, 2>(w, x_at, chunks, s, fresh),
                        _ => self::tile::<L, 1>(w, x_at, chunks, s, fresh),
                    }
                }
            }
        }
    }
}

/// Three rows times `P` positions in `N` lanes: the sums stay in registers for all `chunks`.
///
/// `w` is `[chunk][3][N]`, `x` is `[chunk][P][N]`, `sums` is `[3][P][N]`, read unless `fresh`
/// and written.
///
/// # Safety
/// As for [`Lanes`]; the pointers cover what the layouts say.
#[inline(always)]
unsafe fn tile<L: Lanes, const P: usize>(
    w: *const f64,
    x: *const f64,
    chunks: usize,
    sums: *mut f64,
    fresh: bool,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        let mut acc = [[L::zero(); P]; TILE_ROWS];
        if !fresh {
            for i in 0..TILE_ROWS {
                for p in 0..P {
                    acc[i][p] = L::load(sums.add((i * P + p) * L::N));
                }
            }
        }
        for c in 0..chunks {
            let w = w.add(c * TILE_ROWS * L::N);
            let mut rows = [L::zero(); TILE_ROWS];
            for i in 0..TILE_ROWS {
                rows[i] = L::load(w.add(i * L::N));
            }
            for p in 0..P {
                let x = L::load(x.add((c * P + p) * L::N));
                for i in 0..TILE_ROWS {
                    acc[i][p] = L::fma(acc[i][p], rows[i], x);
                }
            }
        }
        for i in 0..TILE_ROWS {
            for p in 0..P {
                L::store(sums.add((i * P + p) * L::N), acc[i][p]);
            }
        }
    }
}
