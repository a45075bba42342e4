//! Tensor names and shapes: the whole model is bound up front, so that a checkpoint that lacks
//! or misshapes anything is refused, by name, before a single weight is read.
//!
//! Two namings are known: the released checkpoint's, with MXFP4 experts in two tensors a
//! matrix, and the "module" naming of small reference dumps (underscores, plain matrices).

use super::Config;
use crate::machine::{DType, HeadSpec, LayerSpec, Layout, Stored, TableSpec, TensorSpec};

/// How a checkpoint spells its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `language_model.model.layers.3.self_attn.q_a_proj.weight`; experts in MXFP4.
    Released,
    /// `layers_3_self_attn_q_a_proj_weight`; experts as plain matrices.
    Module,
}

/// The first tensor that is not as the config says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Not in the checkpoint.
    #[error(
        "tensor {name} is missing (expected {expected}): the checkpoint is incomplete or config.json is of another model"
    )]
    Missing {
        /// Full name.
        name: String,
        /// Types and shapes that would do.
        expected: String,
    },
    /// There, but of another type or shape.
    #[error("tensor {name}: expected {expected}, got {got}")]
    Mismatch {
        /// Full name.
        name: String,
        /// Types and shapes that would do.
        expected: String,
        /// As stored.
        got: String,
    },
    /// MXFP4 groups do not divide the experts' widths.
    #[error("experts of {latent} by {width} cannot be MXFP4: both must be multiples of 32")]
    Groups {
        /// `routed_expert_hidden_size`.
        latent: usize,
        /// `moe_intermediate_size`.
        width: usize,
    },
}

/// A tensor the model reads: its key (the released name within its layer) and every shape
/// that is accepted.
pub(super) struct Entry {
    pub key: &'static str,
    shapes: Vec<Vec<usize>>,
    types: &'static [DType],
}

/// Anything the arithmetic widens exactly.
const FLOATS: &[DType] = &[DType::Bf16, DType::F32];
const BYTES: &[DType] = &[DType::U8];

fn entry<const N: usize>(key: &'static str, shape: [usize; N]) -> Entry {
    Entry { key, shapes: vec![shape.to_vec()], types: FLOATS }
}

/// A projection onto one value, stored as a vector or as a matrix of one row.
fn proj(key: &'static str, width: usize) -> Entry {
    Entry { key, shapes: vec![vec![width], vec![1, width]], types: FLOATS }
}

/// The always-active tensors of a layer in feeding order.
pub(super) fn layer_entries(c: &Config, layer: usize) -> Vec<Entry> {
    let e = c.hidden;
    let mut all = vec![
        entry("input_layernorm.weight", [e]),
        entry("post_attention_layernorm.weight", [e]),
        entry("self_attention_res_norm.weight", [e]),
        proj("self_attention_res_proj.weight", e),
        entry("mlp_res_norm.weight", [e]),
        proj("mlp_res_proj.weight", e),
    ];
    all.extend(if c.full_attention[layer] { mla_entries(c) } else { kda_entries(c) });
    all.extend(if c.is_dense(layer) { dense_entries(c) } else { moe_entries(c) });
    all
}

fn kda_entries(c: &Config) -> Vec<Entry> {
    let (e, p, d, h, taps) = (c.hidden, c.kda_width(), c.kda_head_dim, c.kda_heads, c.conv_kernel);
    // The released checkpoint stores head_dim values of which only the first `heads` count
    // (one a head); reference dumps store exactly those.
    let mut a_log = vec![vec![h]];
    if d > h {
        a_log.push(vec![d]);
    }
    vec![
        entry("self_attn.q_proj.weight", [p, e]),
        entry("self_attn.k_proj.weight", [p, e]),
        entry("self_attn.v_proj.weight", [p, e]),
        entry("self_attn.g_proj.weight", [p, e]),
        entry("self_attn.o_proj.weight", [e, p]),
        entry("self_attn.q_conv1d.weight", [p, 1, taps]),
        entry("self_attn.k_conv1d.weight", [p, 1, taps]),
        entry("self_attn.v_conv1d.weight", [p, 1, taps]),
        entry("self_attn.f_a_proj.weight", [d, e]),
        entry("self_attn.f_b_proj.weight", [p, d]),
        entry("self_attn.b_proj.weight", [h, e]),
        Entry { key: "self_attn.A_log", shapes: a_log, types: FLOATS },
        entry("self_attn.dt_bias", [p]),
        entry("self_attn.o_norm.weight", [d]),
    ]
}

fn mla_entries(c: &Config) -> Vec<Entry> {
    let (e, v) = (c.hidden, c.v_width());
    vec![
        entry("self_attn.q_a_proj.weight", [c.q_lora, e]),
        entry("self_attn.q_a_layernorm.weight", [c.q_lora]),
        entry("self_attn.q_b_proj.weight", [c.heads * c.qk(), c.q_lora]),
        entry("self_attn.kv_a_proj_with_mqa.weight", [c.cache_width(), e]),
        entry("self_attn.kv_a_layernorm.weight", [c.kv_lora]),
        entry("self_attn.kv_b_proj.weight", [c.heads * (c.qk_nope + c.v_head), c.kv_lora]),
        entry("self_attn.o_proj.weight", [e, v]),
        entry("self_attn.g_proj.weight", [v, e]),
    ]
}

fn dense_entries(c: &Config) -> Vec<Entry> {
    let (e, w) = (c.hidden, c.dense_width);
    vec![
        entry("mlp.gate_proj.weight", [w, e]),
        entry("mlp.up_proj.weight", [w, e]),
        entry("mlp.down_proj.weight", [e, w]),
    ]
}

fn moe_entries(c: &Config) -> Vec<Entry> {
    let (e, w) = (c.hidden, c.shared_width());
    vec![
        entry("block_sparse_moe.gate.weight", [c.experts, e]),
        entry("block_sparse_moe.gate.e_score_correction_bias", [c.experts]),
        entry("block_sparse_moe.routed_expert_down_proj.weight", [c.latent, e]),
        entry("block_sparse_moe.routed_expert_up_proj.weight", [e, c.latent]),
        entry("block_sparse_moe.routed_expert_norm.weight", [c.latent]),
        entry("block_sparse_moe.shared_experts.gate_proj.weight", [w, e]),
        entry("block_sparse_moe.shared_experts.up_proj.weight", [w, e]),
        entry("block_sparse_moe.shared_experts.down_proj.weight", [e, w]),
    ]
}

/// Names that the module naming spells differently beyond its underscores.
const MODULE_NAMES: &[(&str, &str)] = &[
    ("block_sparse_moe.gate.e_score_correction_bias", "mlp.e_score_correction_bias"),
    ("block_sparse_moe.routed_expert_down_proj.", "mlp.down."),
    ("block_sparse_moe.routed_expert_up_proj.", "mlp.up."),
    ("block_sparse_moe.routed_expert_norm.", "mlp.norm."),
    ("block_sparse_moe.shared_experts.gate_proj.", "mlp.shared.w1."),
    ("block_sparse_moe.shared_experts.up_proj.", "mlp.shared.w3."),
    ("block_sparse_moe.shared_experts.down_proj.", "mlp.shared.w2."),
    ("block_sparse_moe.", "mlp."),
];

impl Naming {
    /// A tensor outside the layers.
    fn top(self, key: &str) -> String {
        match self {
            Naming::Released if key.starts_with("lm_head") => format!("language_model.{key}"),
            Naming::Released => format!("language_model.model.{key}"),
            Naming::Module => key.replace('.', "_"),
        }
    }

    /// A tensor of a layer.
    pub(super) fn layer(self, layer: usize, key: &str) -> String {
        match self {
            Naming::Released => format!("language_model.model.layers.{layer}.{key}"),
            Naming::Module => {
                let mut key = key.to_string();
                if let Some((released, module)) =
                    MODULE_NAMES.iter().find(|(released, _)| key.starts_with(released))
                {
                    key.replace_range(..released.len(), module);
                }
                format!("layers_{layer}_{}", key.replace('.', "_"))
            }
        }
    }

    /// What comes before an expert's number, and the tensors of an expert with what comes
    /// after the number as their names.
    fn experts(self, c: &Config, layer: usize) -> (String, Vec<TensorSpec>) {
        let prefix = self.layer(layer, "block_sparse_moe.experts.");
        let (l, w) = (c.latent, c.expert_width);
        let mut tensors = Vec::new();
        for (part, rows, cols) in [("w1", w, l), ("w2", l, w), ("w3", w, l)] {
            let mut tensor = |name: String, dtype, cols| {
                tensors.push(TensorSpec { name, dtype, shape: vec![rows, cols] });
            };
            match self {
                Naming::Released => {
                    tensor(format!(".{part}.weight_packed"), DType::U8, cols / 2);
                    tensor(format!(".{part}.weight_scale"), DType::U8, cols / 32);
                }
                Naming::Module => tensor(format!("_{part}_weight"), DType::F32, cols),
            }
        }
        (prefix, tensors)
    }
}

/// A layout and, for each layer, the keys by which the arithmetic finds its tensors.
pub(super) struct Bound {
    pub layout: Layout,
    pub keys: Vec<Vec<&'static str>>,
}

/// Looks up every tensor of the model and checks type and shape.
pub(super) fn bind(
    c: &Config,
    naming: Naming,
    mut lookup: impl FnMut(&str) -> Option<Stored>,
) -> Result<Bound, BindError> {
    let lookup = &mut lookup;
    if naming == Naming::Released
        && c.dense_layers < c.layers
        && (!c.latent.is_multiple_of(32) || !c.expert_width.is_multiple_of(32))
    {
        return Err(BindError::Groups { latent: c.latent, width: c.expert_width });
    }
    let e = c.hidden;
    let mut top = |entry: Entry| find(naming.top(entry.key), &entry, lookup);
    let embedding = top(entry("embed_tokens.weight", [c.vocab, e]))?;
    let head = HeadSpec {
        tensors: vec![
            top(entry("output_attn_res_norm.weight", [e]))?,
            top(proj("output_attn_res_proj.weight", e))?,
            top(entry("norm.weight", [e]))?,
        ],
        matrix: top(entry("lm_head.weight", [c.vocab, e]))?,
    };
    let (mut layers, mut keys) = (Vec::new(), Vec::new());
    for layer in 0..c.layers {
        let entries = layer_entries(c, layer);
        let mut spec = LayerSpec::default();
        for entry in &entries {
            spec.tensors.push(find(naming.layer(layer, entry.key), entry, lookup)?);
        }
        if !c.is_dense(layer) {
            bind_experts(c, naming, layer, &mut spec, lookup)?;
        }
        layers.push(spec);
        keys.push(entries.iter().map(|e| e.key).collect());
    }
    let layout = Layout { tables: vec![TableSpec { tensors: vec![embedding] }], layers, head };
    Ok(Bound { layout, keys })
}

fn bind_experts(
    c: &Config,
    naming: Naming,
    layer: usize,
    spec: &mut LayerSpec,
    lookup: &mut impl FnMut(&str) -> Option<Stored>,
) -> Result<(), BindError> {
    let (prefix, tensors) = naming.experts(c, layer);
    for id in 0..c.experts {
        for (j, TensorSpec { name, dtype, shape }) in tensors.iter().enumerate() {
            let types = if *dtype == DType::U8 { BYTES } else { FLOATS };
            let entry = Entry { key: "", shapes: vec![shape.clone()], types };
            let found = find(format!("{prefix}{id}{name}"), &entry, lookup)?;
            if id == 0 {
                spec.expert.push(found);
            } else if found.dtype != spec.expert[j].dtype {
                // One description serves all experts of a layer.
                return Err(BindError::Mismatch {
                    name: found.name,
                    expected: format!("{} like expert 0", spec.expert[j].dtype),
                    got: found.dtype.to_string(),
                });
            }
        }
    }
    spec.experts = c.experts;
    spec.expert_names = (prefix, tensors.into_iter().map(|t| t.name).collect());
    Ok(())
}

/// Looks up one tensor.
pub(super) fn find(
    name: String,
    entry: &Entry,
    lookup: &mut impl FnMut(&str) -> Option<Stored>,
) -> Result<TensorSpec, BindError> {
    let expected = || {
        let types: Vec<_> = entry.types.iter().map(|t| t.name()).collect();
        let shapes: Vec<_> = entry.shapes.iter().map(|s| format!("{s:?}")).collect();
        format!("{} {}", types.join(" or "), shapes.join(" or "))
    };
    let Some(stored) = lookup(&name) else {
        return Err(BindError::Missing { name, expected: expected() });
    };
    let dtype = DType::from_name(&stored.dtype).filter(|d| entry.types.contains(d));
    match dtype {
        Some(dtype) if entry.shapes.contains(&stored.shape) => {
            Ok(TensorSpec { name, dtype, shape: stored.shape })
        }
        _ => {
            let got = format!("{} {:?}", stored.dtype, stored.shape);
            Err(BindError::Mismatch { name, expected: expected(), got })
        }
    }
}
