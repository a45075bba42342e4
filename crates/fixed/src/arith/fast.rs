//! The choice of code for a prepared input.
#![allow(unsafe_code)]

use super::digits::Input;
use super::words::{I32, I64};
use super::{Backend, Kind, Overflow, Rows, plain};

impl Input {
    /// Readies `x` to be multiplied by rows on `backend`, in place of what was prepared before.
    pub fn prepare(&mut self, backend: Backend, x: &[I64]) {
        self.backend = backend;
        match backend.0 {
            Kind::Plain => self.prepare_plain(x),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a backend is only made where its instructions are.
            Kind::Avx2 => unsafe { super::avx2::prepare(self, x) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Vnni => unsafe { super::vnni::prepare(self, x) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Kind::Neon => self.prepare16(x),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => self.prepare16(x),
        }
    }

    /// `out[r] = row r times the input`: [`plain::matvec`].
    pub fn rows(&self, rows: Rows<'_>, out: &mut [I64]) {
        self.each_row(rows, |r, y| out[r].set(y));
    }

    /// [`plain::matvec_cache`].
    ///
    /// # Errors
    /// A value that does not fit 32 bits; what is written then has no meaning.
    pub fn rows_cache(&self, rows: Rows<'_>, out: &mut [I32]) -> Result<(), Overflow> {
        let mut fits = true;
        self.each_row(rows, |r, y| {
            fits &= i32::try_from(y).is_ok();
            out[r].set(y as i32);
        });
        if fits { Ok(()) } else { Err(Overflow) }
    }

    #[inline(always)]
    fn each_row(&self, rows: Rows<'_>, mut write: impl FnMut(usize, i64)) {
        if self.count == 0 {
            for (r, (weights, scale)) in rows.each().enumerate() {
                write(r, plain::finish_row(plain::row_dot(weights, &self.x), self.sum, scale));
            }
            return;
        }
        match self.backend.0 {
            Kind::Plain => unreachable!("plain inputs have no digits"),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a backend is only made where its instructions are.
            Kind::Avx2 => unsafe { super::avx2::rows(self, rows, write) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Vnni => unsafe { super::vnni::rows(self, rows, write) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            // SAFETY: as above.
            Kind::Neon => unsafe { super::neon::rows(self, rows, write) },
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => super::simd128::rows(self, rows, write),
        }
    }
}
