//! The kernels a model is computed with: a backend and a number of threads. Neither changes bits.

#![allow(unsafe_code)]

use crate::simd::matmul::{MAX_POSITIONS, MIN_ROWS, Positions};
use crate::simd::{self, Output, scratch};
use crate::{Backend, Matrix, definition};
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
    /// `[t, cols]`, `out` is `[t, rows]`. Panics if lengths do not fit.
    pub fn matmul(&self, m: &Matrix, x: &[f32], t: usize, out: &mut [f32]) {
        assert_eq!(x.len(), t * m.cols(), "x is not [t, cols]");
        assert_eq!(out.len(), t * m.rows(), "out is not [t, rows]");
        let (rows, cols) = (m.rows(), m.cols());
        // Even groups: 65 positions are 33 and 32, not 64 and a lonely one.
        let groups = t.div_ceil(MAX_POSITIONS).max(1);
        let group = t.div_ceil(groups).max(1);
        for (x, out) in x.chunks(group * cols).zip(out.chunks_mut(group * rows)) {
            let t = x.len() / cols;
            scratch::with(Positions::wide_len(t, cols), |wide| {
                let x = Positions::new(x, t, self.backend.vector_len(), wide);
                let out = Output::new(out, rows);
                self.split(rows, cols * t, &|range| {
                    // SAFETY: `out` is borrowed until `split` returns; its ranges are disjoint.
                    unsafe { simd::matmul_rows(self.backend, m, &x, range, out) }
                });
            });
        }
    }

    /// Calls `f` with ranges that together are `0..rows`, each once, spread over the threads.
    /// `work` is the number of multiplications of a row.
    fn split(&self, rows: usize, work: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        let Some(pool) = &self.pool else { return f(0..rows) };
        // A few pieces a thread, so that an early thread helps a late one, but none too small.
        let pieces = 4 * self.threads();
        let size = rows.div_ceil(pieces).max(MIN_WORK.div_ceil(work)).next_multiple_of(MIN_ROWS);
        if size >= rows {
            return f(0..rows);
        }
        pool.install(|| {
            use rayon::prelude::*;
            (0..rows.div_ceil(size)).into_par_iter().for_each(|i| {
                f(i * size..rows.min((i + 1) * size));
            });
        });
    }

    /// `out[t][j] = sum_i x[t][i] * m[i][j]`, sums in order of `i`: a weighted sum of the rows of
    /// `m` for each of `t` positions. `x` is `[t, rows]`, `out` is `[t, cols]`. Panics if lengths
    /// do not fit.
    pub fn matmul_transposed(&self, m: &Matrix, x: &[f32], t: usize, out: &mut [f32]) {
        assert_eq!(x.len(), t * m.rows(), "x is not [t, rows]");
        assert_eq!(out.len(), t * m.cols(), "out is not [t, cols]");
        definition::matmul_transposed(m, x, t, out);
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
            Some(pool) => pool.install(|| {
                data.par_chunks_mut(size).enumerate().for_each(|(i, c)| f(i, c));
            }),
            None => data.chunks_mut(size).enumerate().for_each(|(i, c)| f(i, c)),
        }
    }
}
