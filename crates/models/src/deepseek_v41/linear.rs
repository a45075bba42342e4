//! Linear layers in the two arithmetic regimes.

use numerics::{Error, Kernels, Matrix, bf16, quantize};
use std::borrow::Cow;

/// How linears with quantised weights treat their input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Regime {
    /// Activations stay bf16. The regime of the attention reference.
    Bf16,
    /// Activations are rounded to e4m3 with one power-of-two scale per 32 values, as the
    /// released model does. The default.
    #[default]
    W8a8,
}

impl Regime {
    /// Its name in a numerics id and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Regime::Bf16 => "bf16",
            Regime::W8a8 => "w8a8",
        }
    }

    /// The input of quantised matrices: `x` (rows of `width` values) itself, or rounded.
    ///
    /// # Errors
    /// In [`Regime::W8a8`] if a value is not finite.
    pub fn input<'x>(self, x: &'x [f32], width: usize) -> Result<Cow<'x, [f32]>, Error> {
        if self == Regime::Bf16 {
            return Ok(Cow::Borrowed(x));
        }
        let mut rounded = x.to_vec();
        rounded.chunks_exact_mut(width).try_for_each(quantize::fp8_round_trip)?;
        Ok(Cow::Owned(rounded))
    }

    /// The regime of a name.
    pub fn from_name(name: &str) -> Option<Regime> {
        [Regime::Bf16, Regime::W8a8].into_iter().find(|r| r.name() == name)
    }
}

/// A weight matrix that gives bf16 results.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// `[outputs, inputs]`; fp8 and fp4 stay packed.
    pub matrix: Matrix<'a>,
    /// Whether the released model rounds this matrix' input (fp8 and fp4 weights, except the
    /// grouped output projection).
    pub quantised: bool,
}

impl Linear<'_> {
    /// `bf16(w x)` for `t` rows of `x`. In [`Regime::W8a8`] the input of a quantised matrix is
    /// rounded first; a scale times an e4m3 value is exact, so the released kernel's sum over
    /// blocks of 32 is the plain dot product here, with one rounding.
    ///
    /// # Errors
    /// If the input has to be rounded and is not finite.
    pub fn apply(
        &self,
        kernels: &Kernels,
        regime: Regime,
        x: &[f32],
        t: usize,
    ) -> Result<Vec<f32>, Error> {
        if !self.quantised {
            return Ok(self.apply_exact(kernels, x, t));
        }
        Ok(self.apply_exact(kernels, &regime.input(x, self.matrix.cols())?, t))
    }

    /// `bf16(w x)` without rounding the input.
    pub fn apply_exact(&self, kernels: &Kernels, x: &[f32], t: usize) -> Vec<f32> {
        let mut out = vec![0.0; t * self.matrix.rows()];
        kernels.matmul(&self.matrix, x, t, &mut out);
        bf16::round_all(&mut out);
        out
    }
}
