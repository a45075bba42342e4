//! What a SIMD backend must provide ([`Lanes`]) and where a product is handed to one. The kernels
//! themselves are written once, in [`matmul`], over a weight format ([`format`](mod@format)) and a backend; a
//! backend file only says how sixteen weights of each format become sixteen `f64`.
//!
//! Code generation: the generic kernels are `#[inline(always)]` into entry points that
//! [`entry_points!`] defines in each backend's file under `#[target_feature]`. So there are no
//! closures around vector code: a closure is a function of its own, and where the compiler does not
//! inline it, each instruction in it becomes a call (measured: 2 to 20 times slower).
#![allow(unsafe_code)]

pub(crate) mod format;
pub(crate) mod matmul;
pub(crate) mod peak;
pub(crate) mod scratch;
pub(crate) mod transposed;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(crate) mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) mod simd128;

use crate::backend::{Backend, Isa};
use crate::{Matrix, definition, kda};
use format::{Bf16, F32, Fp8, Mxfp4, with_format};
use std::ops::Range;

/// Columns decoded at once: one MXFP4 group, two rounds of the dot product's lanes.
pub(crate) const UNIT: usize = 32;

/// The operations of one instruction set.
///
/// # Safety
/// Every method may only run where the instruction set is there, inlined into a function that
/// enables it.
pub(crate) unsafe trait Lanes {
    /// A vector of [`Lanes::N`] `f64`.
    type V: Copy;
    /// Elements of a vector; divides 16.
    const N: usize;
    /// Rows a single position is multiplied with at once, in formats without and with scales: 1, 2,
    /// 3 or 6.
    const ROWS: [usize; 2];

    unsafe fn zero() -> Self::V;
    unsafe fn splat(v: f64) -> Self::V;
    /// Reads `N` elements; no alignment asked for.
    unsafe fn load(p: *const f64) -> Self::V;
    unsafe fn store(p: *mut f64, v: Self::V);
    /// `acc + a * b`. The product is exact, so fused or not is the same.
    unsafe fn fma(acc: Self::V, a: Self::V, b: Self::V) -> Self::V;

    /// Widens `N` elements, which is exact; no alignment asked for.
    unsafe fn widen(p: *const f32) -> Self::V;
    /// Asks for the cache line at `p`, which may lie anywhere.
    unsafe fn prefetch(p: *const u8);
    /// Decodes 32 E4M3 codes times `scale`.
    #[inline(always)]
    unsafe fn e4m3(p: *const u8, scale: f32, out: *mut f32) {
        // SAFETY: the caller gives this many bytes and floats.
        unsafe {
            let codes = p.cast::<[u8; UNIT]>().read();
            let mut floats = [0f32; UNIT];
            for i in 0..UNIT {
                floats[i] = format::e4m3(codes[i]) * scale;
            }
            out.cast::<[f32; UNIT]>().write(floats);
        }
    }
    /// Decodes 32 E2M1 codes (16 bytes, low nibble first) into 32 floats by their two upper bytes.
    unsafe fn e2m1(p: *const u8, bytes: &format::E2m1Bytes, out: *mut f32);
}

/// Evaluates `$body` with `$isa` naming the module of the backend's instruction set, or `$scalar`.
macro_rules! dispatch {
    ($backend:expr, $isa:ident => $body:expr, scalar => $scalar:expr) => {
        match $backend.0 {
            Isa::Scalar => $scalar,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                use avx2 as $isa;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                use avx512 as $isa;
                $body
            }
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Isa::Neon => {
                use neon as $isa;
                $body
            }
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Isa::Simd128 => {
                use simd128 as $isa;
                $body
            }
        }
    };
}

/// Output that threads write at disjoint elements.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    ptr: *mut f32,
    len: usize,
    stride: usize,
}

// SAFETY: the pointer is only written through `put`, whose callers write disjoint elements.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Rows of `stride` elements each. The slice stays borrowed by the caller for as long as
    /// writers run.
    pub(crate) fn new(out: &mut [f32], stride: usize) -> Output {
        Output { ptr: out.as_mut_ptr(), len: out.len(), stride }
    }

    /// Writes element `[t, r]`.
    ///
    /// # Safety
    /// The slice given to [`Output::new`] is still borrowed, and no other thread accesses the
    /// element.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, t: usize, r: usize, v: f32) {
        let i = t * self.stride + r;
        debug_assert!(r < self.stride && i < self.len);
        // SAFETY: in bounds (`t` and `r` come from the shape that `out` was asserted to have).
        unsafe { self.ptr.add(i).write(v) }
    }
}

/// Computes the rows `rows` of a product: `out[t][r] = dot(x[t], m[r])`.
///
/// # Safety
/// `out` as in [`Output::put`]; ranges of concurrent calls are disjoint.
pub(crate) unsafe fn matmul_rows(
    backend: Backend,
    m: &Matrix,
    x: &matmul::Positions,
    rows: Range<usize>,
    out: Output,
) {
    dispatch!(backend, isa => {
        // SAFETY: the token proves the instruction set; `out` is the caller's promise.
        with_format!(m, |f| unsafe { isa::matmul(f, m, x, rows, out) })
    }, scalar => {
        // SAFETY: the caller's promise.
        unsafe { matmul_rows_defined(m, x, rows, out) }
    })
}

/// [`matmul_rows`] by the definition.
///
/// # Safety
/// As for [`matmul_rows`].
#[cold]
#[inline(never)]
unsafe fn matmul_rows_defined(m: &Matrix, x: &matmul::Positions, rows: Range<usize>, out: Output) {
    let mut row = vec![0f64; m.cols()];
    for r in rows {
        // SAFETY: the caller's promise.
        let emit = &mut |t, v| unsafe { out.put(t, r, v) };
        definition::matmul_row(m, r, x.plain(), &mut row, emit);
    }
}

/// Computes the columns of the units `units` of a transposed product:
/// `out[t][j] = sum_i x[t][i] * m[i][j]`.
///
/// # Safety
/// As for [`matmul_rows`].
pub(crate) unsafe fn transposed_columns(
    backend: Backend,
    m: &Matrix,
    x: &transposed::Factors,
    units: Range<usize>,
    out: Output,
) {
    dispatch!(backend, isa => {
        // SAFETY: the token proves the instruction set; `out` is the caller's promise.
        with_format!(m, |f| unsafe { isa::transposed(f, x, units, out) })
    }, scalar => unreachable!("the definition does not come here"))
}

/// One step of the KDA recurrence.
pub(crate) fn kda_step(backend: Backend, step: kda::Step) {
    dispatch!(backend, isa => {
        // SAFETY: the token proves the instruction set.
        unsafe { isa::kda_step(step) }
    }, scalar => kda::definition(step))
}

/// [`peak::multiply_adds`]; 0 for the scalar definition.
pub(crate) fn multiply_adds(backend: Backend, rounds: usize) -> usize {
    dispatch!(backend, isa => {
        // SAFETY: the token proves the instruction set.
        unsafe { isa::multiply_adds(rounds) }
    }, scalar => 0)
}

/// Defines a backend's entry points: the generic kernels compiled for its instruction set.
macro_rules! entry_points {
    ($features:literal, $lanes:ty) => {
        /// `matmul::rows` on this instruction set.
        ///
        /// # Safety
        /// The machine has the instruction set; `out` as in [`super::Output::put`].
        #[target_feature(enable = $features)]
        pub(super) unsafe fn matmul<F: super::format::Format>(
            f: F,
            m: &crate::Matrix,
            x: &super::matmul::Positions,
            rows: std::ops::Range<usize>,
            out: super::Output,
        ) {
            // SAFETY: passed on to the caller; the features are enabled here.
            unsafe { super::matmul::rows::<$lanes, F>(f, m, x, rows, out) }
        }

        /// [`transposed::columns`](super::transposed::columns) on this instruction set.
        ///
        /// # Safety
        /// The machine has the instruction set; `out` as in [`super::Output::put`].
        #[target_feature(enable = $features)]
        pub(super) unsafe fn transposed<F: super::format::Format>(
            f: F,
            x: &super::transposed::Factors,
            units: std::ops::Range<usize>,
            out: super::Output,
        ) {
            // SAFETY: passed on to the caller; the features are enabled here.
            unsafe { super::transposed::columns::<$lanes, F>(f, x, units, out) }
        }

        /// [`peak::multiply_adds`](super::peak::multiply_adds) on this instruction set.
        ///
        /// # Safety
        /// The machine has the instruction set.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn multiply_adds(rounds: usize) -> usize {
            // SAFETY: passed on to the caller; the features are enabled here.
            unsafe { super::peak::multiply_adds::<$lanes>(rounds) }
        }

        /// [`kda::step`](crate::kda::step) on this instruction set: plain code, which the compiler
        /// vectorises across columns.
        ///
        /// # Safety
        /// The machine has the instruction set.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn kda_step(args: crate::kda::Step) {
            crate::kda::columns(args)
        }
    };
}
pub(crate) use entry_points;
