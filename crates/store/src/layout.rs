//! What a model reads, as plain data: the tensors of each layer, expert, table and head by
//! name, type and shape, in feeding order. The engine fills it from the model's own layout;
//! [`Layout::check`] holds it against a checkpoint.

use crate::safetensors::{Index, TensorRef, TensorSpec};
use crate::{Error, Result};
use std::collections::HashSet;

/// One layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerSpec {
    /// The always-active tensors in feeding order.
    pub tensors: Vec<TensorSpec>,
    /// Number of routed experts; 0 in a dense layer.
    pub experts: usize,
    /// Tensors of one expert in feeding order. Types and shapes are those of every expert;
    /// a `name` here is only what follows the expert's number.
    pub expert: Vec<TensorSpec>,
    /// What precedes the expert's number in its tensors' names.
    pub expert_prefix: String,
}

impl LayerSpec {
    /// Name of tensor `tensor` of expert `id`.
    pub fn expert_name(&self, id: usize, tensor: usize) -> String {
        format!("{}{id}{}", self.expert_prefix, self.expert[tensor].name)
    }
}

/// The output head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSpec {
    /// Small tensors, fed with every piece of the matrix.
    pub tensors: Vec<TensorSpec>,
    /// The matrix `[vocab, hidden]`, fed in pieces of whole rows.
    pub matrix: TensorSpec,
}

/// Everything a model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Tables read by row: tensors with one row an id.
    pub tables: Vec<Vec<TensorSpec>>,
    /// Layers in order.
    pub layers: Vec<LayerSpec>,
    /// The head.
    pub head: HeadSpec,
    /// Prefixes of names of tensors that the model does not use (a vision tower).
    pub ignored: Vec<String>,
}

/// The tensor of a spec, with the type and shape it must have.
pub(crate) fn bind<'i>(index: &'i Index, name: &str, spec: &TensorSpec) -> Result<TensorRef<'i>> {
    let t = index.require(name)?;
    if t.dtype != spec.dtype || t.shape != spec.shape {
        return Err(Error::WrongTensor {
            name: name.to_owned(),
            expected: spec.describe(),
            got: t.describe(),
        });
    }
    Ok(t)
}

impl Layout {
    /// All tensors but those of routed experts.
    fn fixed(&self) -> impl Iterator<Item = &TensorSpec> {
        let layers = self.layers.iter().flat_map(|l| &l.tensors);
        let head = self.head.tensors.iter().chain([&self.head.matrix]);
        self.tables.iter().flatten().chain(layers).chain(head)
    }

    /// The checkpoint must have exactly these tensors: everything the layout names with its
    /// type and shape, and nothing else but what is ignored by name.
    ///
    /// # Errors
    /// The first tensor that is missing, different, or not accounted for.
    pub fn check(&self, index: &Index) -> Result<()> {
        let mut known = HashSet::new();
        for spec in self.fixed() {
            known.insert(bind(index, &spec.name, spec)?.name);
        }
        for layer in &self.layers {
            for id in 0..layer.experts {
                for (i, spec) in layer.expert.iter().enumerate() {
                    known.insert(bind(index, &layer.expert_name(id, i), spec)?.name);
                }
            }
        }
        let stray = index.iter().find(|t| {
            !known.contains(t.name) && !self.ignored.iter().any(|p| t.name.starts_with(p))
        });
        match stray {
            None => Ok(()),
            Some(t) => Err(Error::Refused(format!(
                "tensor {} of the checkpoint belongs to no layer, expert, table or head of this \
                 model, so the model cannot be covered exactly",
                t.name
            ))),
        }
    }
}
