//! What untrusted bytes or values can do wrong. Wrong *arguments* (slices of the wrong length) are
//! programmer errors and panic instead.

/// An input that the number formats or the total order refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A weight buffer has the wrong number of bytes for its shape.
    #[error("{what} of a [{rows}, {cols}] matrix: expected {expected} bytes, got {got}")]
    Size {
        /// Which buffer: "bf16 weights", "fp8 scales", ...
        what: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes the shape asks for.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A dimension is zero, too large for the address space, or unfit for the packing.
    #[error("a [{rows}, {cols}] matrix cannot be {what}")]
    Shape {
        /// What the shape does not allow.
        what: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// An E8M0 scale byte is 255 (NaN) where the format's user does not allow it.
    #[error("scale byte {index} is 255 (NaN); the tensor is damaged or not of this format")]
    NanScale {
        /// Index of the byte in the scale tensor.
        index: usize,
    },
    /// A weight of the row is outside what `f32` can hold.
    #[error("the weight at row {row}, column {col} cannot be held exactly in f32")]
    Range {
        /// Row of the weight.
        row: usize,
        /// Column of the weight.
        col: usize,
    },
    /// A NaN or an infinity among values that are to be quantised.
    #[error("value {index} is not finite and cannot be quantised")]
    NotFinite {
        /// Index of the first such value.
        index: usize,
    },
    /// A NaN among values that must be ordered.
    #[error("value {index} is NaN and cannot be ordered")]
    Nan {
        /// Index of the first NaN.
        index: usize,
    },
}
