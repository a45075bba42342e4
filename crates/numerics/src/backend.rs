//! Which instruction set computes. A [`Backend`] is proof that this machine has it.

use crate::simd;

/// A token for an instruction set that this machine was found to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backend(pub(crate) Isa);

/// The instruction sets there is code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon,
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128,
}

impl Backend {
    /// The plain definition, on every machine.
    pub fn scalar() -> Backend {
        Backend(Isa::Scalar)
    }

    /// The fastest of [`Backend::supported`].
    pub fn detect() -> Backend {
        Self::supported().pop().unwrap_or(Self::scalar())
    }

    /// Every backend of this machine, slowest first; the scalar definition is always there.
    pub fn supported() -> Vec<Backend> {
        #[allow(unused_mut)] // on machines with the definition only
        let mut all = vec![Self::scalar()];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Backend(Isa::Avx2));
                if is_x86_feature_detected!("avx512f") {
                    all.push(Backend(Isa::Avx512));
                }
            }
        }
        // NEON is part of every aarch64; wasm has no run-time detection.
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        all.push(Backend(Isa::Neon));
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        all.push(Backend(Isa::Simd128));
        all
    }

    /// The backend's name, as a user may ask for it: "scalar", "avx2", "avx512", "neon", "simd128".
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Isa::Neon => "neon",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Isa::Simd128 => "simd128",
        }
    }

    /// Does `rounds` rounds of multiply-adds with the backend's vectors and touches no memory;
    /// returns how many numbers they were done on. For benches: the time it takes is what a product
    /// cannot beat. The scalar definition does none.
    pub fn multiply_adds(self, rounds: usize) -> usize {
        simd::multiply_adds(self, rounds)
    }
}
