//! A layer's fed bytes, seen by name: checked once against the layout, then matrices stay
//! packed and vectors are widened.

use super::config::Config;
use crate::machine::{DType, LayerSpec, StepError, TensorSpec};
use numerics::{Matrix, NanScale, Weights as Stored, bf16};

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

/// Compares number and sizes of tensors with the layout.
pub fn check(
    what: impl FnOnce() -> String,
    specs: &[TensorSpec],
    tensors: &[&[u8]],
) -> Result<(), StepError> {
    if specs.len() != tensors.len() {
        let (expected, got) = (specs.len(), tensors.len());
        return Err(StepError::Count { what: what(), expected, got });
    }
    for (spec, bytes) in specs.iter().zip(tensors) {
        if bytes.len() != spec.bytes() {
            let (name, expected) = (spec.name.clone(), spec.bytes());
            return Err(StepError::Bytes { name, expected, got: bytes.len() });
        }
    }
    Ok(())
}

/// A plain matrix of checked size: the first dimension is rows, the rest columns.
pub fn matrix<'a>(spec: &TensorSpec, bytes: &'a [u8]) -> Matrix<'a> {
    let rows = spec.shape[0];
    let cols = spec.shape[1..].iter().product();
    let weights = match spec.dtype {
        DType::F32 => Stored::F32(bytes),
        DType::Bf16 => Stored::Bf16(bytes),
        other => unreachable!("{}: bind admits no matrix of {other}", spec.name),
    };
    Matrix::new(rows, cols, weights).expect("size and shape were checked")
}

/// A vector of checked size, widened exactly.
pub fn vector(spec: &TensorSpec, bytes: &[u8]) -> Vec<f32> {
    match spec.dtype {
        DType::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        DType::Bf16 => {
            let mut out = vec![0.0; bytes.len() / 2];
            bf16::widen_all(bytes, &mut out);
            out
        }
        other => unreachable!("{}: bind admits no vector of {other}", spec.name),
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
