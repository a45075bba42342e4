//! Number formats and kernels that give the same bits on every machine.
//!
//! This crate is for arithmetic only: it reads no files, knows no model and prints nothing.
//! All floating-point SIMD of the workspace lives here, checked against plain scalar definitions.
//!
//! # The exactness contract
//!
//! **Dot product** ([`dot()`], [`dot64`], [`Kernels::matmul`]). Operands are `f32` values or weights
//! that an `f64` holds exactly (bf16, f32, fp8 and fp4 times a power-of-two scale). Every product
//! is formed in `f64`, where it is exact: 24 bits times 24 bits fit in 53. So a fused and a
//! separate multiply-add give the same bits, and so do all instruction sets. Element `i` is added
//! to lane `i mod 16`, in order, each lane starting from `+0.0`. The lanes are added in this tree:
//!
//! ```text
//! b[j] = (l[j] + l[j+4]) + (l[j+8] + l[j+12])      for j in 0..4
//! s    = (b[0] + b[1]) + (b[2] + b[3])
//! ```
//!
//! and `s` is rounded to `f32` once. A length that is no multiple of 16 behaves as if both
//! operands were padded with zeros. A NaN result is always the canonical quiet NaN
//! (`0x7fc00000`, `0x7ff8000000000000`): IEEE 754 leaves sign and payload open, and machines use
//! that freedom.
//!
//! **Weighted sum of rows** ([`Kernels::matmul_transposed`]). `out[j] = sum_i x[i] * w[i][j]`:
//! exact products in `f64`, added in order of `i` from `+0.0`, rounded to `f32` once. Vectors run
//! across `j`, never along a sum.
//!
//! **Element-wise steps** ([`kda`], [`elementary`], [`norm`]) are `f32`, each operation rounded
//! separately in the order written; never contracted to a fused multiply-add.
//!
//! **Elementary functions** ([`elementary`]) are correctly rounded: a mathematical definition
//! instead of a platform's library.
//!
//! **Range of weights.** A scale is `2^-127..=2^127`, so an fp8 or fp4 weight can exceed the range
//! of `f32`. Kernels hold weights in `f64`, where none overflows or underflows; only the final sum
//! is rounded to `f32` (and may become infinite, as IEEE 754 says). [`Matrix::widen_row`], which
//! must return `f32`, refuses a value that `f32` cannot hold exactly.
//!
//! **Threads** split output elements; each is computed whole by one thread.

mod backend;
pub mod bf16;
mod definition;
mod dot;
pub mod e8m0;
pub mod elementary;
mod error;
pub mod fp4;
pub mod fp8;
pub mod kda;
mod kernels;
mod matrix;
pub mod norm;
pub mod quantize;
mod select;
mod simd;

pub use backend::Backend;
pub use dot::{LANES, dot, dot64};
pub use error::Error;
pub use kernels::{Kernels, MAX_THREADS};
pub use matrix::{Matrix, NanScale, Weights};
pub use norm::{rms_norm, softmax};
pub use select::{argmax, top_k};
