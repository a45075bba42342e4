//! A host that has everything in memory, for tests of models: it can feed experts in any
//! order, the head in pieces, and fail at any read.

use crate::checkpoint::Checkpoint;
use crate::random;
use models::machine::{
    Chunk, DType, Fed, Layout, Logits, Model, Step, StepError, Stored, TensorSpec, Want,
};
use numerics::Kernels;
use std::collections::HashMap;

/// Tensors by name.
#[derive(Clone, Debug, Default)]
pub struct Resident {
    tensors: HashMap<String, (Stored, Vec<u8>)>,
    /// How to feed.
    pub habits: Habits,
}

/// Ways of feeding that must not change a result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// Experts in an order shuffled by this seed instead of ascending.
    pub shuffle: Option<u64>,
    /// At most this many rows of the head at once instead of all.
    pub head_rows: Option<usize>,
    /// The read with this number (from 0, within one step) fails.
    pub fail_at: Option<usize>,
}

/// Why a step did not end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HostError {
    /// The injected fault.
    #[error("read {0} failed")]
    Fault(usize),
    /// A tensor that is not in memory.
    #[error("tensor {0} cannot be read")]
    Missing(String),
    /// The model's refusal.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl Resident {
    /// All of a synthetic checkpoint.
    pub fn new(checkpoint: &Checkpoint) -> Resident {
        let mut host = Resident::default();
        for (name, (t, bytes)) in checkpoint.in_memory() {
            host.insert(name, t.dtype, &t.shape, bytes);
        }
        host
    }

    /// Adds or replaces a tensor.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        dtype: &str,
        shape: &[usize],
        bytes: Vec<u8>,
    ) {
        let stored = Stored { dtype: dtype.into(), shape: shape.to_vec() };
        self.tensors.insert(name.into(), (stored, bytes));
    }

    /// Takes a tensor away.
    pub fn remove(&mut self, name: &str) -> Option<Vec<u8>> {
        self.tensors.remove(name).map(|(_, bytes)| bytes)
    }

    /// A tensor's bytes, to look at or to damage.
    pub fn bytes_mut(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.tensors.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}")).1
    }

    /// A tensor of floats, widened.
    pub fn f32s(&self, name: &str) -> Vec<f32> {
        let (stored, bytes) = &self.tensors[name];
        match DType::from_name(&stored.dtype) {
            Some(DType::F32) => bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Some(DType::Bf16) => bytes
                .chunks_exact(2)
                .map(|b| numerics::bf16::widen(u16::from_le_bytes([b[0], b[1]])))
                .collect(),
            other => panic!("{name}: not floats but {other:?}"),
        }
    }

    /// What a model's `bind` asks.
    pub fn lookup(&self) -> impl Fn(&str) -> Option<Stored> + '_ {
        |name| self.tensors.get(name).map(|(stored, _)| stored.clone())
    }

    fn get(&self, name: &str) -> Result<&[u8], HostError> {
        match self.tensors.get(name) {
            Some((_, bytes)) => Ok(bytes),
            None => Err(HostError::Missing(name.into())),
        }
    }

    fn all(&self, specs: &[TensorSpec]) -> Result<Vec<&[u8]>, HostError> {
        specs.iter().map(|s| self.get(&s.name)).collect()
    }

    /// Feeds a step until it has ended and returns its logits, `[positions with logits, vocab]`.
    ///
    /// # Errors
    /// The injected fault, a tensor that is not there, or the model's refusal.
    pub fn feed<M: Model>(
        &self,
        model: &M,
        kernels: &Kernels,
        mut step: M::Step<'_>,
    ) -> Result<Vec<f32>, HostError> {
        self.drive(model.layout(), kernels, &mut step)?;
        Ok(step.logits().to_vec())
    }

    /// Feeds any step until it wants nothing more.
    ///
    /// # Errors
    /// As [`Resident::feed`].
    pub fn drive(
        &self,
        layout: &Layout,
        kernels: &Kernels,
        step: &mut dyn Step,
    ) -> Result<(), HostError> {
        self.drive_watched(layout, kernels, step, |_| ())
    }

    /// As [`Resident::drive`]; `watch` is called after every feed with what was wanted.
    ///
    /// # Errors
    /// As [`Resident::feed`].
    pub fn drive_watched(
        &self,
        layout: &Layout,
        kernels: &Kernels,
        step: &mut dyn Step,
        mut watch: impl FnMut(String),
    ) -> Result<(), HostError> {
        let mut reads = 0;
        while let Some(want) = step.want() {
            if self.habits.fail_at == Some(reads) {
                return Err(HostError::Fault(reads));
            }
            reads += 1;
            let what = match want {
                Want::Layer { layer, part } => {
                    let kind = layout.layer(layer).len();
                    format!("{part:?} ({kind} tensors)")
                }
                other => other.kind().into(),
            };
            match want {
                Want::Rows { table, ids } => {
                    let mut rows = Vec::new();
                    for &id in ids {
                        for spec in &layout.tables[table].tensors {
                            let n = spec.row_bytes();
                            rows.push(&self.get(&spec.name)?[id as usize * n..][..n]);
                        }
                    }
                    step.feed(kernels, Fed::Rows { rows: &rows })?;
                }
                Want::Layer { layer, .. } => {
                    let tensors = self.all(layout.layer(layer))?;
                    step.feed(kernels, Fed::Layer { tensors: &tensors })?;
                }
                Want::Experts { layer, ids } => {
                    let id = match self.habits.shuffle {
                        None => ids[0],
                        Some(seed) => {
                            ids[(random::hash(seed, reads as u64) % ids.len() as u64) as usize]
                        }
                    };
                    let spec = &layout.layers[layer];
                    let names = (0..spec.expert.len()).map(|j| spec.expert_name(id as usize, j));
                    let tensors: Vec<&[u8]> =
                        names.map(|name| self.get(&name)).collect::<Result<_, _>>()?;
                    step.feed(kernels, Fed::Expert { id, tensors: &tensors })?;
                }
                Want::Head { first_row } => {
                    let tensors = self.all(&layout.head.tensors)?;
                    let matrix = &layout.head.matrix;
                    let bytes = self.get(&matrix.name)?;
                    let rows = &bytes[first_row * matrix.row_bytes()..];
                    let most = self.habits.head_rows.unwrap_or(usize::MAX);
                    let n = rows.len().min(most.saturating_mul(matrix.row_bytes()));
                    step.feed(kernels, Fed::Head { tensors: &tensors, rows: &rows[..n] })?;
                }
            }
            watch(what);
        }
        Ok(())
    }

    /// Runs `tokens` through one sequence in chunks of `chunk` and returns the logits of every
    /// position, `[tokens, vocab]`.
    ///
    /// # Errors
    /// As [`Resident::feed`].
    pub fn logits<M: Model>(
        &self,
        model: &M,
        kernels: &Kernels,
        state: &mut M::State,
        tokens: &[u32],
        chunk: usize,
    ) -> Result<Vec<f32>, HostError> {
        let mut all = Vec::new();
        for tokens in tokens.chunks(chunk) {
            let chunk = Chunk { state: &mut *state, tokens, logits: Logits::All };
            all.extend(self.feed(model, kernels, model.step(vec![chunk])?)?);
        }
        Ok(all)
    }
}
