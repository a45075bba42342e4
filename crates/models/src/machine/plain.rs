//! Tensors as they are fed, where all models store them alike: F32 or BF16, row-major.

use super::{DType, StepError, TensorSpec};
use numerics::{Kernels, Matrix, Weights, bf16};

/// Compares number and sizes of tensors with the layout.
pub(crate) fn check(
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

/// A matrix of checked size: the first dimension is rows, the rest columns.
pub(crate) fn matrix<'a>(spec: &TensorSpec, bytes: &'a [u8]) -> Matrix<'a> {
    let weights = match spec.dtype {
        DType::F32 => Weights::F32(bytes),
        DType::Bf16 => Weights::Bf16(bytes),
        other => unreachable!("{}: no layout has a plain matrix of {other}", spec.name),
    };
    let cols = spec.shape[1..].iter().product();
    Matrix::new(spec.shape[0], cols, weights).expect("size and shape were checked")
}

/// A vector of checked size (or an array used elementwise), widened exactly.
pub(crate) fn vector(spec: &TensorSpec, bytes: &[u8]) -> Vec<f32> {
    match spec.dtype {
        DType::F32 => {
            let values = bytes.chunks_exact(4);
            values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        DType::Bf16 => {
            let mut out = vec![0.0; bytes.len() / 2];
            bf16::widen_all(bytes, &mut out);
            out
        }
        other => unreachable!("{}: no layout has a vector of {other}", spec.name),
    }
}

/// The embedding of `tokens`, `[tokens, width]`, from the fed rows of the distinct `ids`.
pub(crate) fn embed(
    spec: &TensorSpec,
    ids: &[u64],
    tokens: &[u32],
    rows: &[&[u8]],
) -> Result<Vec<f32>, StepError> {
    check_rows(std::slice::from_ref(spec), ids, rows)?;
    let at = |token: u32| ids.binary_search(&u64::from(token)).expect("ids are the tokens'");
    // No larger than a step's plan says.
    let mut embedded = Vec::with_capacity(tokens.len() * spec.row_bytes() / spec.dtype.size());
    tokens.iter().for_each(|&t| embedded.extend(vector(spec, rows[at(t)])));
    Ok(embedded)
}

/// Compares number and sizes of rows with a table of `specs` and the `ids` asked for.
pub(crate) fn check_rows(
    specs: &[TensorSpec],
    ids: &[u64],
    rows: &[&[u8]],
) -> Result<(), StepError> {
    let expected = ids.len() * specs.len();
    if rows.len() != expected {
        let what = format!("rows of {}", specs[0].name);
        return Err(StepError::Count { what, expected, got: rows.len() });
    }
    for (spec, row) in specs.iter().cycle().zip(rows) {
        let (expected, got) = (spec.row_bytes(), row.len());
        if expected != got {
            let name = format!("{} (a row)", spec.name);
            return Err(StepError::Bytes { name, expected, got });
        }
    }
    Ok(())
}

/// Multiplies the fed rows of the head (row `done` on) with `x` (`[n, width]`) into `logits`
/// (`[n, vocab]`); returns how many rows there were. Logits are f32, never rounded.
pub(crate) fn head_rows(
    kernels: &Kernels,
    spec: &TensorSpec,
    rows: &[u8],
    done: usize,
    x: &[f32],
    logits: &mut [f32],
) -> Result<usize, StepError> {
    let (vocab, bytes) = (spec.shape[0], spec.row_bytes());
    let n = rows.len() / bytes;
    if n == 0 || n > vocab - done || !rows.len().is_multiple_of(bytes) {
        let (name, expected) = (spec.name.clone(), (vocab - done) * bytes);
        return Err(StepError::Bytes { name, expected, got: rows.len() });
    }
    let spec = TensorSpec { shape: vec![n, spec.shape[1]], ..spec.clone() };
    let positions = logits.len() / vocab;
    let mut part = vec![0.0; positions * n];
    kernels.matmul(&matrix(&spec, rows), x, positions, &mut part);
    for (all, part) in logits.chunks_exact_mut(vocab).zip(part.chunks_exact(n)) {
        all[done..done + n].copy_from_slice(part);
    }
    Ok(n)
}

/// Distinct row numbers, ascending.
pub(crate) fn distinct(mut ids: Vec<u64>) -> Vec<u64> {
    ids.sort_unstable();
    ids.dedup();
    ids
}
