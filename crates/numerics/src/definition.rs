//! The matrix products written once to be right. Fast backends are compared with this to the bit.

use crate::Matrix;
use crate::dot::{LANES, reduce, to_f32};

/// Row `r` of `m` times each of the positions `x` (`[t, cols]`); `emit(t, value)` takes the results.
pub(crate) fn matmul_row(
    m: &Matrix,
    r: usize,
    x: &[f32],
    row: &mut [f64],
    emit: &mut dyn FnMut(usize, f32),
) {
    m.widen_row64(r, row);
    for (t, x) in x.chunks_exact(m.cols()).enumerate() {
        let mut lanes = [0f64; LANES];
        for (i, (&w, &x)) in row.iter().zip(x).enumerate() {
            lanes[i % LANES] += w * x as f64;
        }
        emit(t, to_f32(reduce(&lanes)));
    }
}

/// `out[t][j] = sum_i x[t][i] * m[i][j]` for the columns of `out` (`[t, cols]`), sums in order of
/// `i` in `f64`.
pub(crate) fn matmul_transposed(m: &Matrix, x: &[f32], t: usize, out: &mut [f32]) {
    let (rows, cols) = (m.rows(), m.cols());
    let mut row = vec![0f64; cols];
    let mut sums = vec![0f64; t * cols];
    for i in 0..rows {
        m.widen_row64(i, &mut row);
        for t in 0..t {
            let x = x[t * rows + i] as f64;
            for j in 0..cols {
                sums[t * cols + j] += x * row[j];
            }
        }
    }
    for (y, &s) in out.iter_mut().zip(&sums) {
        *y = to_f32(s);
    }
}
