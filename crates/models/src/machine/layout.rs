//! What a bound model reads: every tensor by name, type and shape, in the order in which a
//! host must feed it. A [`Layout`] is made by a model's `bind` after it has checked that the
//! checkpoint has all of it, so a host can plan memory and reads from it alone.

use std::fmt;

/// Element type of a stored tensor. Names are those of the safetensors format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// Upper half of an `F32`.
    Bf16,
    /// Bytes: packed E2M1 pairs or E8M0 scales in Kimi K3.
    U8,
    /// Bytes: packed E2M1 pairs in DeepSeek-V4.1.
    I8,
    /// fp8, four exponent and three mantissa bits, no infinities.
    F8E4M3,
    /// Power-of-two scale.
    F8E8M0,
}

impl DType {
    /// Bytes an element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::Bf16 => 2,
            DType::U8 | DType::I8 | DType::F8E4M3 | DType::F8E8M0 => 1,
        }
    }

    /// The name in a safetensors header.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::Bf16 => "BF16",
            DType::U8 => "U8",
            DType::I8 => "I8",
            DType::F8E4M3 => "F8_E4M3",
            DType::F8E8M0 => "F8_E8M0",
        }
    }

    /// The type of a safetensors name; `None` for types no model here reads.
    pub fn from_name(name: &str) -> Option<DType> {
        [DType::F32, DType::Bf16, DType::U8, DType::I8, DType::F8E4M3, DType::F8E8M0]
            .into_iter()
            .find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Type and shape of a tensor as a checkpoint's header states them: what a model's `bind` asks
/// its lookup function for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Element type by its safetensors name; any text, so that `bind` can name a wrong one.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// One tensor of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first, as stored.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Size in bytes. Shapes in a layout have been checked, so this cannot overflow.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Bytes of one row (all dimensions but the first).
    pub fn row_bytes(&self) -> usize {
        self.shape.iter().skip(1).product::<usize>() * self.dtype.size()
    }
}

/// A table of which only single rows are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Tensors with one row an id (one, or values and their scales).
    pub tensors: Vec<TensorSpec>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LayerSpec {
    /// The always-active tensors, in the order of `Fed::Layer`.
    pub tensors: Vec<TensorSpec>,
    /// Number of routed experts; 0 in a dense layer.
    pub experts: usize,
    /// Tensors of expert 0, in the order of `Fed::Expert`; the others have the same types and
    /// shapes. Names by [`LayerSpec::expert`].
    pub expert: Vec<TensorSpec>,
    /// In `expert`'s names, what stands before and after the expert's number is split here:
    /// `(prefix, suffixes)`, one suffix a tensor.
    pub expert_names: (String, Vec<String>),
}

impl LayerSpec {
    /// Name of tensor `tensor` of expert `id`.
    pub fn expert_name(&self, id: usize, tensor: usize) -> String {
        format!("{}{}{}", self.expert_names.0, id, self.expert_names.1[tensor])
    }

    /// Bytes of the always-active tensors.
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(TensorSpec::bytes).sum()
    }

    /// Bytes of one expert.
    pub fn expert_bytes(&self) -> usize {
        self.expert.iter().map(TensorSpec::bytes).sum()
    }
}

/// The output head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSpec {
    /// Small tensors (norms), fed whole with every piece of the matrix.
    pub tensors: Vec<TensorSpec>,
    /// The matrix `[vocab, hidden]`, which may be fed in pieces of whole rows.
    pub matrix: TensorSpec,
}

/// Everything a bound model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Tables read by row: the token embedding first.
    pub tables: Vec<TableSpec>,
    /// Layers in order.
    pub layers: Vec<LayerSpec>,
    /// The head.
    pub head: HeadSpec,
}

impl Layout {
    /// The always-active tensors of a layer, in feeding order.
    pub fn layer(&self, layer: usize) -> &[TensorSpec] {
        &self.layers[layer].tensors
    }
}
