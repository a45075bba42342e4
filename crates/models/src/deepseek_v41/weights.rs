//! A layer's fed bytes, seen by name: checked once against the layout, then matrices stay packed
//! and vectors are widened.

use super::hc::HcWeights;
use super::linear::Linear;
use super::moe::Expert;
use super::tensors::SCALE_BLOCK;
use crate::machine::plain::{check, matrix, vector};
use crate::machine::{DType, LayerSpec, StepError, TensorSpec};
use numerics::{Error, Matrix, NanScale, Weights, e8m0};

/// The tensors of one layer, in the order of its specs.
#[derive(Clone, Copy, Debug)]
pub struct LayerView<'a> {
    prefix: &'a str,
    specs: &'a [TensorSpec],
    tensors: &'a [&'a [u8]],
}

impl<'a> LayerView<'a> {
    /// Checks number and sizes; every spec's name starts with `prefix`.
    pub fn new(
        prefix: &'a str,
        specs: &'a [TensorSpec],
        tensors: &'a [&'a [u8]],
    ) -> Result<Self, StepError> {
        check(|| prefix.trim_end_matches('.').into(), specs, tensors)?;
        Ok(LayerView { prefix, specs, tensors })
    }

    fn find(&self, name: &str) -> (&'a TensorSpec, &'a [u8]) {
        let named = |s: &TensorSpec| s.name.strip_prefix(self.prefix) == Some(name);
        let i = self.specs.iter().position(named);
        let i = i.unwrap_or_else(|| panic!("{}{name} is not in the layout", self.prefix));
        (&self.specs[i], self.tensors[i])
    }

    /// A norm, bias or other array used element by element, widened.
    pub fn vector(&self, name: &str) -> Vec<f32> {
        let (spec, bytes) = self.find(name);
        vector(spec, bytes)
    }

    /// An unquantised matrix whose results stay f32.
    pub fn matrix(&self, name: &str) -> Matrix<'a> {
        let (spec, bytes) = self.find(name);
        matrix(spec, bytes)
    }

    /// A matrix with bf16 results: `name.weight`, and `name.scale` if it is fp8.
    ///
    /// # Errors
    /// If a scale is NaN.
    pub fn linear(&self, name: &str) -> Result<Linear<'a>, StepError> {
        let (spec, bytes) = self.find(&format!("{name}.weight"));
        if spec.dtype != DType::F8E4M3 {
            return Ok(Linear { matrix: matrix(spec, bytes), quantised: false });
        }
        let (scale, scales) = self.find(&format!("{name}.scale"));
        let weights =
            Weights::Fp8 { codes: bytes, scales, block_rows: SCALE_BLOCK, block_cols: SCALE_BLOCK };
        let matrix = quantised_matrix(spec.shape[0], spec.shape[1], weights, &scale.name)?;
        Ok(Linear { matrix, quantised: true })
    }

    /// The mixes of a sub-block, `attn` or `ffn`.
    pub fn hc(&self, sub: &str) -> HcWeights<'a> {
        HcWeights {
            weight: self.matrix(&format!("hc_{sub}_fn")),
            base: self.vector(&format!("hc_{sub}_base")),
            scale: self.vector(&format!("hc_{sub}_scale")),
        }
    }

    /// The expert every token uses.
    pub fn shared_expert(&self) -> Result<Expert<'a>, StepError> {
        let part = |name: &str| self.linear(&format!("ffn.shared_experts.{name}"));
        Ok(Expert { w1: part("w1")?, w3: part("w3")?, w2: part("w2")? })
    }
}

/// Routed expert `id` of a layer from its six tensors.
pub fn expert<'a>(
    spec: &LayerSpec,
    id: u32,
    tensors: &[&'a [u8]],
) -> Result<Expert<'a>, StepError> {
    let name = |i: usize| spec.expert_name(id as usize, i);
    if tensors.len() != spec.expert.len() {
        let (expected, got) = (spec.expert.len(), tensors.len());
        return Err(StepError::Count { what: name(0), expected, got });
    }
    let part = |i: usize| {
        let (weight, packed, scales) = (&spec.expert[2 * i], tensors[2 * i], tensors[2 * i + 1]);
        for (j, bytes) in [(2 * i, packed), (2 * i + 1, scales)] {
            let (expected, got) = (spec.expert[j].bytes(), bytes.len());
            if expected != got {
                return Err(StepError::Bytes { name: name(j), expected, got });
            }
        }
        let weights = Weights::Mxfp4 { packed, scales, nan: NanScale::Refuse };
        let (rows, cols) = (weight.shape[0], 2 * weight.shape[1]);
        let matrix = quantised_matrix(rows, cols, weights, &name(2 * i + 1))?;
        Ok(Linear { matrix, quantised: true })
    };
    Ok(Expert { w1: part(0)?, w3: part(1)?, w2: part(2)? })
}

fn quantised_matrix<'a>(
    rows: usize,
    cols: usize,
    weights: Weights<'a>,
    scale: &str,
) -> Result<Matrix<'a>, StepError> {
    Matrix::new(rows, cols, weights).map_err(|e| match e {
        Error::NanScale { index } => StepError::NanScale { name: scale.to_owned(), index },
        other => unreachable!("{scale}: sizes were checked: {other}"),
    })
}

/// Dequantises one engram row: `codes` e4m3, `scales` e8m0 for every 32. Exact in bf16.
///
/// # Errors
/// If a scale is NaN; `name` is the scale tensor.
pub fn engram_row(
    codes: &[u8],
    scales: &[u8],
    name: &str,
    out: &mut Vec<f32>,
) -> Result<(), StepError> {
    if let Some(index) = scales.iter().position(|&s| s == e8m0::NAN) {
        return Err(StepError::NanScale { name: name.to_owned(), index });
    }
    for (codes, &scale) in codes.chunks(SCALE_BLOCK).zip(scales) {
        let scale = e8m0::decode(scale);
        out.extend(codes.iter().map(|&c| numerics::fp8::decode(c) * scale));
    }
    Ok(())
}
