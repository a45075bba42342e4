//! The kernels a model is computed with: a backend and a number of threads. Neither changes bits.

#![allow(unsafe_code)]

use crate::simd::matmul::{MAX_POSITIONS, MIN_ROWS, Positions};
use crate::simd::scratch::Scratch;
use crate::simd::transposed::Factors;
use crate::simd::{self, Output, UNIT};
use crate::{Backend, Matrix, definition, kda};
use std::ops::Range;

/// More threads than this are never started.
pub const MAX_THREADS: usize = 256;

/// Multiplications worth handing to another thread (some 30 microseconds).
const MIN_WORK: usize = 1 << 18;

/// A backend and a pool of threads.
pub struct Kernels {
    backend: Backend,
    pool: Option<rayon::ThreadPool>,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({}, {} threads)", self.backend.name(), self.threads())
    }
}

impl Kernels {
    /// Kernels on `backend` with `threads` threads (0 means 1, at most [`MAX_THREADS`]). Where the
    /// system gives no threads, one is used: the result is the same bits, later. See
    /// [`Kernels::threads`].
    pub fn new(backend: Backend, threads: usize) -> Kernels {
        let threads = threads.clamp(1, MAX_THREADS);
        let pool = (threads > 1)
            .then(|| rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok())
            .flatten();
        Kernels { backend, pool }
    }

    /// The backend.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The threads actually running.
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, |p| p.current_num_threads())
    }

    /// `out[t][r] = dot(x[t], m[r])`: every row of `m` times each of `t` positions. `x` is
    /// `[t, cols]`, `out` is `[t, rows]`. Weights are widened once for up to 64 positions. Panics if
    /// lengths do not fit.
    pub fn matmul(&self, m: &Matrix, x: &[f32], t: usize, out: &mut [f32]) {
        assert_eq!(x.len(), t * m.cols(), "x is not [t, cols]");
        assert_eq!(out.len(), t * m.rows(), "out is not [t, rows]");
        let (rows, cols) = (m.rows(), m.cols());
        let group = even_group(t);
        for (x, out) in x.chunks(group * cols).zip(out.chunks_mut(group * rows)) {
            let t = x.len() / cols;
            let mut packed = Scratch::new(Positions::packed_len(t, cols));
            let x = Positions::new(x, t, &mut packed);
            let out = Output::new(out, rows);
            self.split(rows, MIN_ROWS, cols * t, &|range| {
                // SAFETY: `out` is borrowed until `split` returns; its ranges are disjoint.
                unsafe { simd::matmul_rows(self.backend, m, &x, range, out) }
            });
        }
    }

    /// Calls `f` with ranges that together are `0..n`, each once, spread over the threads. A range
    /// starts at a multiple of `step`; `work` is the number of multiplications of an element.
    fn split(&self, n: usize, step: usize, work: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        let Some(pool) = &self.pool else { return f(0..n) };
        // A few pieces a thread, so that an early thread helps a late one, but none too small.
        let pieces = 4 * self.threads();
        let size = n.div_ceil(pieces).max(MIN_WORK.div_ceil(work)).next_multiple_of(step);
        if size >= n {
            return f(0..n);
        }
        pool.install(|| {
            use rayon::prelude::*;
            (0..n.div_ceil(size)).into_par_iter().for_each(|i| {
                f(i * size..n.min((i + 1) * size));
            });
        });
    }

    /// `out[t][j] = sum_i x[t][i] * m[i][j]`, sums in order of `i`: a weighted sum of the rows of
    /// `m` for each of `t` positions. `x` is `[t, rows]`, `out` is `[t, cols]`. Panics if lengths
    /// do not fit.
    pub fn matmul_transposed(&self, m: &Matrix, x: &[f32], t: usize, out: &mut [f32]) {
        assert_eq!(x.len(), t * m.rows(), "x is not [t, rows]");
        assert_eq!(out.len(), t * m.cols(), "out is not [t, cols]");
        let (rows, cols) = (m.rows(), m.cols());
        if self.backend == Backend::scalar() || !simd::format::exact(m) {
            return definition::matmul_transposed(m, x, t, out);
        }
        let group = even_group(t);
        for (x, out) in x.chunks(group * rows).zip(out.chunks_mut(group * cols)) {
            let t = x.len() / rows;
            let mut wide = Scratch::new(x.len());
            let x = Factors::new(x, t, &mut wide);
            let out = Output::new(out, cols);
            self.split(cols.div_ceil(UNIT), 1, UNIT * rows * t, &|units| {
                // SAFETY: `out` is borrowed until `split` returns; its ranges are disjoint.
                unsafe { simd::transposed_columns(self.backend, m, &x, units, out) }
            });
        }
    }

    /// One step of the KDA recurrence; see [`kda::step`].
    pub fn kda_step(&self, step: kda::Step) {
        simd::kda_step(self.backend, step);
    }

    /// Calls `f(i, chunk)` for every chunk of `size` elements of `data` (the last may be shorter),
    /// spread over the threads. Panics if `size` is 0.
    pub fn for_each_chunk<T: Send>(
        &self,
        data: &mut [T],
        size: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        use rayon::prelude::*;
        match &self.pool {
            // A single chunk is not worth waking a thread for.
            Some(pool) if data.len() > size => pool.install(|| {
                data.par_chunks_mut(size).enumerate().for_each(|(i, c)| f(i, c));
            }),
            _ => data.chunks_mut(size).enumerate().for_each(|(i, c)| f(i, c)),
        }
    }
}

/// Positions to take at once, so that `t` of them make groups of about the same size: 65 are 33
/// and 32, not 64 and a lonely one.
fn even_group(t: usize) -> usize {
    t.div_ceil(t.div_ceil(MAX_POSITIONS).max(1)).max(1)
}
