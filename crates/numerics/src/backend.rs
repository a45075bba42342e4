//! Which instruction set computes. A [`Backend`] is proof that this machine has it.

/// A token for an instruction set that this machine was found to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backend(pub(crate) Isa);

/// The instruction sets there is code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    Scalar,
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
        vec![Self::scalar()]
    }

    /// The backend's name, as a user may ask for it: "scalar", "avx2", "avx512", "neon", "simd128".
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Scalar => "scalar",
        }
    }
}
