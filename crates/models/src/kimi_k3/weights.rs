//! A layer's fed bytes, seen by name: checked once against the layout, then matrices stay
//! packed and vectors are widened.

use super::config::Config;
use crate::machine::plain::{check, matrix, vector};
use crate::machine::{LayerSpec, StepError, TensorSpec};
use numerics::{Matrix, NanScale, Weights as Stored};

/// The tensors of one layer.
pub struct Weights<'a> {
    keys: &'a [&'static str],
    specs: &'a [TensorSpec],
    tensors: &'a [&'a [u8]],
}

impl<'a> Weights<'a> {
    /// Checks number and sizes of the tensors; `keys` go with `specs`.
    pub fn new(
        what: impl FnOnce() -> String,
        keys: &'a [&'static str],
        specs: &'a [TensorSpec],
        tensors: &'a [&'a [u8]],
    ) -> Result<Self, StepError> {
        check(what, specs, tensors)?;
        Ok(Weights { keys, specs, tensors })
    }

    fn find(&self, key: &str) -> (&'a TensorSpec, &'a [u8]) {
        let i = self.keys.iter().position(|k| *k == key).expect("every key asked for is bound");
        (&self.specs[i], self.tensors[i])
    }

    /// A matrix, packed as stored.
    pub fn matrix(&self, key: &str) -> Matrix<'a> {
        let (spec, bytes) = self.find(key);
        matrix(spec, bytes)
    }

    /// A vector (or an array used elementwise), widened.
    pub fn vector(&self, key: &str) -> Vec<f32> {
        let (spec, bytes) = self.find(key);
        vector(spec, bytes)
    }
}

/// The three matrices of one expert.
pub struct Expert<'a> {
    /// Gate, `[width, latent]`.
    pub w1: Matrix<'a>,
    /// Down, `[latent, width]`.
    pub w2: Matrix<'a>,
    /// Up, `[width, latent]`.
    pub w3: Matrix<'a>,
}

impl<'a> Expert<'a> {
    /// Checks sizes and binds: three plain matrices, or three pairs of MXFP4 codes and scales.
    pub fn new(
        c: &Config,
        spec: &LayerSpec,
        id: u32,
        tensors: &[&'a [u8]],
    ) -> Result<Self, StepError> {
        check(|| format!("expert {id}"), &spec.expert, tensors).map_err(|e| match e {
            // The layout names expert 0; the message must name this one.
            StepError::Bytes { name, expected, got } => {
                let j = spec.expert.iter().position(|s| s.name == name).unwrap_or(0);
                StepError::Bytes { name: spec.expert_name(id as usize, j), expected, got }
            }
            other => other,
        })?;
        let (l, w) = (c.latent, c.expert_width);
        let part = |i: usize, rows, cols| {
            if spec.expert.len() == 3 {
                return matrix(&spec.expert[i], tensors[i]);
            }
            let (packed, scales) = (tensors[2 * i], tensors[2 * i + 1]);
            // The released model's rule: a NaN scale makes its group zero.
            let weights = Stored::Mxfp4 { packed, scales, nan: NanScale::ZeroGroup };
            Matrix::new(rows, cols, weights).expect("sizes were checked")
        };
        Ok(Expert { w1: part(0, w, l), w2: part(1, l, w), w3: part(2, w, l) })
    }
}
