//! The Solana VM's row kernel. It is the program's, in assembly; here is only how it is called.

use super::plain::{finish_row, row_dot, sum};
use super::words::{I32, I64};
use super::{Overflow, Rows};

/// Rows of one call.
const ROWS: usize = 3;

unsafe extern "C" {
    /// Wrapping sums of products of [`ROWS`] consecutive rows with a vector of `columns` words.
    fn facit_dot3(weights: *const u8, x: *const I64, columns: u64, sums: *mut [i64; ROWS]);
}

/// The dot products of all rows, in order.
#[inline(always)]
fn each_dot(
    rows: Rows<'_>,
    x: &[I64],
    mut take: impl FnMut(usize, i64) -> Result<(), Overflow>,
) -> Result<(), Overflow> {
    assert!(x.len() == rows.cols);
    let mut groups = rows.weights.chunks_exact(ROWS * rows.cols);
    let mut row = 0;
    for group in &mut groups {
        let mut sums = [0; ROWS];
        // SAFETY: the group is three rows of as many bytes as the vector has words.
        unsafe { facit_dot3(group.as_ptr(), x.as_ptr(), rows.cols as u64, &mut sums) };
        for dot in sums {
            take(row, dot)?;
            row += 1;
        }
    }
    for weights in groups.remainder().chunks_exact(rows.cols) {
        take(row, row_dot(weights, x))?;
        row += 1;
    }
    Ok(())
}

/// As [`super::plain::matvec`].
pub fn matvec(rows: Rows<'_>, x: &[I64], out: &mut [I64]) {
    let sum = sum(x);
    let _ = each_dot(rows, x, |row, dot| {
        out[row].set(finish_row(dot, sum, rows.scales[row]));
        Ok(())
    });
}

/// As [`super::plain::matvec_cache`].
pub fn matvec_cache(rows: Rows<'_>, x: &[I64], out: &mut [I32]) -> Result<(), Overflow> {
    let sum = sum(x);
    each_dot(rows, x, |row, dot| {
        let value = finish_row(dot, sum, rows.scales[row]);
        out[row].set(i32::try_from(value).map_err(|_| Overflow)?);
        Ok(())
    })
}
