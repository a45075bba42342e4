//! A weight matrix in its packed form: checked once, multiplied as it lies in the file.

use crate::{Error, bf16, e8m0, fp4, fp8};
use std::ops::Range;

/// What an E8M0 scale of 255 (NaN) means to a format's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NanScale {
    /// Kimi K3: the group's weights are all zero.
    ZeroGroup,
    /// DeepSeek-V4.1: the tensor is damaged; refuse it.
    Refuse,
}

/// The stored values of a `[rows, cols]` matrix, row by row. Bytes are little-endian and need no
/// alignment.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// `f32` in memory, for instance cached activations.
    Floats(&'a [f32]),
    /// `f32` bytes.
    F32(&'a [u8]),
    /// bf16 bytes.
    Bf16(&'a [u8]),
    /// E2M1 nibbles `[rows, cols/2]`, low nibble first, with one E8M0 scale per 32 columns
    /// `[rows, ceil(cols/32)]`.
    Mxfp4 {
        /// Two codes a byte.
        packed: &'a [u8],
        /// E8M0 codes.
        scales: &'a [u8],
        /// Meaning of scale 255.
        nan: NanScale,
    },
    /// E4M3 codes `[rows, cols]` with one E8M0 scale per block
    /// `[ceil(rows/block_rows), ceil(cols/block_cols)]`. A scale of 255 is refused; the code NaN
    /// is a NaN weight.
    Fp8 {
        /// One code a byte.
        codes: &'a [u8],
        /// E8M0 codes.
        scales: &'a [u8],
        /// Rows of a block.
        block_rows: usize,
        /// Columns of a block, a multiple of 32.
        block_cols: usize,
    },
}

/// A checked matrix: every buffer has exactly the length its shape asks for.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    rows: usize,
    cols: usize,
    /// Distance between the starts of two rows, in columns.
    stride: usize,
    /// Rows cut off before this matrix by [`Matrix::row_range`]; only block scales look back.
    first_row: usize,
    weights: Weights<'a>,
}

impl<'a> Matrix<'a> {
    /// Binds `weights` to a shape.
    ///
    /// # Errors
    /// [`Error::Shape`] for a zero or absurd dimension, an odd number of MXFP4 columns or an
    /// unusable block; [`Error::Size`] for a buffer of another length; [`Error::NanScale`].
    pub fn new(rows: usize, cols: usize, weights: Weights<'a>) -> Result<Self, Error> {
        let shape = |what| Error::Shape { what, rows, cols };
        let size = |what, r: usize, bytes: Option<usize>, got: usize| match r
            .checked_mul(bytes.ok_or(shape("addressed"))?)
        {
            Some(expected) if expected == got => Ok(()),
            Some(expected) => Err(Error::Size { what, rows, cols, expected, got }),
            None => Err(shape("addressed")),
        };
        if rows == 0 || cols == 0 {
            return Err(shape("empty"));
        }
        match weights {
            Weights::Floats(w) => {
                let bytes = w.len().checked_mul(4).ok_or(shape("addressed"))?;
                size("f32 values", rows, cols.checked_mul(4), bytes)?;
            }
            Weights::F32(w) => size("f32 weights", rows, cols.checked_mul(4), w.len())?,
            Weights::Bf16(w) => size("bf16 weights", rows, cols.checked_mul(2), w.len())?,
            Weights::Mxfp4 { packed, scales, nan } => {
                if !cols.is_multiple_of(2) {
                    return Err(shape("mxfp4: two columns share a byte"));
                }
                size("mxfp4 nibbles", rows, Some(cols / 2), packed.len())?;
                size("mxfp4 scales", rows, Some(cols.div_ceil(fp4::GROUP)), scales.len())?;
                if nan == NanScale::Refuse {
                    refuse_nan(scales)?;
                }
            }
            Weights::Fp8 { codes, scales, block_rows, block_cols } => {
                if block_rows == 0 || block_cols == 0 || !block_cols.is_multiple_of(32) {
                    return Err(shape("fp8 in blocks whose width is not a multiple of 32"));
                }
                size("fp8 codes", rows, Some(cols), codes.len())?;
                let (r, c) = (rows.div_ceil(block_rows), cols.div_ceil(block_cols));
                size("fp8 scales", r, Some(c), scales.len())?;
                refuse_nan(scales)?;
            }
        }
        Ok(Matrix { rows, cols, stride: cols, first_row: 0, weights })
    }

    /// The first `cols` values of each of `rows` rows that lie `stride` apart in `values`
    /// (for instance the latent part of cached rows).
    ///
    /// # Errors
    /// [`Error::Shape`] if `cols > stride` or a dimension is zero; [`Error::Size`] unless
    /// `values` has `rows * stride` elements.
    pub fn strided(
        values: &'a [f32],
        rows: usize,
        cols: usize,
        stride: usize,
    ) -> Result<Self, Error> {
        if cols == 0 || cols > stride {
            return Err(Error::Shape { what: "cut from rows of that stride", rows, cols });
        }
        let whole = Matrix::new(rows, stride, Weights::Floats(values))?;
        Ok(Matrix { cols, ..whole })
    }

    /// Rows of the matrix (outputs of a product).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix (inputs of a product).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored values.
    pub fn weights(&self) -> Weights<'a> {
        self.weights
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn first_row(&self) -> usize {
        self.first_row
    }

    /// The rows `range` as a matrix of their own. Panics if the range is empty or too long.
    pub fn row_range(&self, range: Range<usize>) -> Matrix<'a> {
        assert!(range.start < range.end && range.end <= self.rows, "row range outside the matrix");
        let cut = |per_row: usize| range.start * per_row..range.end * per_row;
        let weights = match self.weights {
            Weights::Floats(w) => Weights::Floats(&w[cut(self.stride)]),
            Weights::F32(w) => Weights::F32(&w[cut(4 * self.cols)]),
            Weights::Bf16(w) => Weights::Bf16(&w[cut(2 * self.cols)]),
            Weights::Mxfp4 { packed, scales, nan } => Weights::Mxfp4 {
                packed: &packed[cut(self.cols / 2)],
                scales: &scales[cut(self.cols.div_ceil(fp4::GROUP))],
                nan,
            },
            Weights::Fp8 { codes, scales, block_rows, block_cols } => {
                Weights::Fp8 { codes: &codes[cut(self.cols)], scales, block_rows, block_cols }
            }
        };
        let (rows, first_row) = (range.len(), self.first_row + range.start);
        Matrix { rows, first_row, weights, ..*self }
    }

    /// Row `r` as exact `f64` values. Panics if `r` or the length of `out` does not fit.
    pub fn widen_row64(&self, r: usize, out: &mut [f64]) {
        assert!(r < self.rows, "row outside the matrix");
        assert_eq!(out.len(), self.cols, "output is not one row long");
        let cols = self.cols;
        match self.weights {
            Weights::Floats(w) => {
                for (y, &v) in out.iter_mut().zip(&w[r * self.stride..]) {
                    *y = v as f64;
                }
            }
            Weights::F32(w) => {
                for (y, b) in out.iter_mut().zip(w[r * cols * 4..].chunks_exact(4)) {
                    *y = f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64;
                }
            }
            Weights::Bf16(w) => {
                for (y, b) in out.iter_mut().zip(w[r * cols * 2..].chunks_exact(2)) {
                    *y = bf16::widen(u16::from_le_bytes([b[0], b[1]])) as f64;
                }
            }
            Weights::Mxfp4 { packed, scales, .. } => {
                let packed = &packed[r * (cols / 2)..];
                let scales = &scales[r * cols.div_ceil(fp4::GROUP)..];
                for (c, y) in out.iter_mut().enumerate() {
                    let code = packed[c / 2] >> (4 * (c % 2));
                    *y = match scales[c / fp4::GROUP] {
                        e8m0::NAN => 0.0,
                        s => fp4::decode(code) as f64 * e8m0::decode64(s),
                    };
                }
            }
            Weights::Fp8 { codes, scales, block_rows, block_cols } => {
                let block = (self.first_row + r) / block_rows;
                let scales = &scales[block * cols.div_ceil(block_cols)..];
                for (c, y) in out.iter_mut().enumerate() {
                    let scale = e8m0::decode64(scales[c / block_cols]);
                    *y = fp8::decode(codes[r * cols + c]) as f64 * scale;
                }
            }
        }
    }

    /// Row `r` as exact `f32` values, for embeddings and norms.
    ///
    /// # Errors
    /// [`Error::Range`] if a value (a scaled fp8 or fp4 weight) is outside what `f32` holds.
    /// Panics if `r` or the length of `out` does not fit.
    pub fn widen_row(&self, r: usize, out: &mut [f32]) -> Result<(), Error> {
        let mut wide = vec![0f64; self.cols];
        self.widen_row64(r, &mut wide);
        assert_eq!(out.len(), self.cols, "output is not one row long");
        for (col, (y, &v)) in out.iter_mut().zip(&wide).enumerate() {
            *y = v as f32;
            if *y as f64 != v && !v.is_nan() {
                return Err(Error::Range { row: r, col });
            }
        }
        Ok(())
    }
}

fn refuse_nan(scales: &[u8]) -> Result<(), Error> {
    match scales.iter().position(|&s| s == e8m0::NAN) {
        Some(index) => Err(Error::NanScale { index }),
        None => Ok(()),
    }
}
