//! The tensors of a DeepSeek-V4.1 checkpoint: names, types and shapes, derived from the
//! configuration alone. The machine's [`Layout`] is the part of them that text needs; the rest
//! (vision tower, image token biases) is listed so that a whole checkpoint can be accounted for.
//!
//! Names carry no `model.` prefix. `.scale` of an fp8 weight is e8m0 `[ceil(out/32),
//! ceil(in/32)]`, of a packed fp4 weight `[out, in/32]`, of an engram table `[rows, dim/32]`.

use super::config::{Config, Role};
use crate::machine::{DType, HeadSpec, LayerSpec, Layout, TableSpec, TensorSpec};

/// Values that share one e8m0 scale, along both axes in fp8 weights.
pub const SCALE_BLOCK: usize = 32;

/// Prefixes of tensors that belong to images: never needed for text.
pub const VISION_PREFIXES: [&str; 3] = ["vision.", "aligner.", "image_"];

/// Collects the specs of one layer under its prefix.
struct Specs {
    prefix: String,
    list: Vec<TensorSpec>,
}

impl Specs {
    fn new(prefix: String) -> Self {
        Specs { prefix, list: Vec::new() }
    }

    fn push(&mut self, name: &str, dtype: DType, shape: &[usize]) {
        let name = format!("{}{name}", self.prefix);
        self.list.push(TensorSpec { name, dtype, shape: shape.to_vec() });
    }

    fn bf16(&mut self, name: &str, shape: &[usize]) {
        self.push(&format!("{name}.weight"), DType::Bf16, shape);
    }

    /// An fp8 matrix with a scale for every 32 x 32 block.
    fn fp8(&mut self, name: &str, rows: usize, cols: usize) {
        self.push(&format!("{name}.weight"), DType::F8E4M3, &[rows, cols]);
        let blocks = [rows.div_ceil(SCALE_BLOCK), cols.div_ceil(SCALE_BLOCK)];
        self.push(&format!("{name}.scale"), DType::F8E8M0, &blocks);
    }

    /// A packed fp4 matrix with a scale for every 32 columns.
    fn fp4(&mut self, name: &str, rows: usize, cols: usize) {
        self.push(&format!("{name}.weight"), DType::I8, &[rows, cols / 2]);
        self.push(&format!("{name}.scale"), DType::F8E8M0, &[rows, cols / SCALE_BLOCK]);
    }
}

/// Everything a text model reads, with the draft stages as layers `config.layers..`.
pub fn layout(c: &Config) -> Layout {
    let mut embed = Specs::new(String::new());
    embed.bf16("embed", &[c.vocab, c.dim]);
    let mut tables = vec![TableSpec { tensors: embed.list }];
    for (i, &layer) in c.engram.layers.iter().enumerate() {
        let mut table = Specs::new(format!("layers.{layer}.engram.embed."));
        let rows = c.engram.rows[i] as usize;
        table.push("weight", DType::F8E4M3, &[rows, c.engram.head_dim]);
        table.push("scale", DType::F8E8M0, &[rows, c.engram.head_dim / SCALE_BLOCK]);
        tables.push(TableSpec { tensors: table.list });
    }
    let mut layers: Vec<LayerSpec> = (0..c.layers).map(|l| backbone_layer(c, l)).collect();
    layers.extend((0..c.dspark.stages).map(|s| draft_layer(c, s)));
    let mut head = Specs::new(String::new());
    head.bf16("norm", &[c.dim]);
    head.bf16("head", &[c.vocab, c.dim]);
    let matrix = head.list.pop().expect("just pushed");
    Layout { tables, layers, head: HeadSpec { tensors: head.list, matrix } }
}

fn backbone_layer(c: &Config, layer: usize) -> LayerSpec {
    let mut s = Specs::new(format!("layers.{layer}."));
    attention(&mut s, c);
    let role = c.role(layer);
    if role == Role::Full {
        s.bf16("attn.compressor.wkv", &[c.head_dim, c.dim]);
        s.bf16("attn.compressor.norm", &[c.head_dim]);
        if c.ratios[layer] > 1 {
            s.bf16("attn.compressor.wgate", &[c.head_dim, c.dim]);
        }
        s.bf16("attn.indexer.wk", &[c.index_dim, c.head_dim]);
        s.bf16("attn.indexer.k_norm", &[c.index_dim]);
    }
    if matches!(role, Role::Full | Role::Reindex) {
        s.fp8("attn.indexer.wq_b", c.index_heads * c.index_dim, c.q_rank);
        s.bf16("attn.indexer.weights_proj", &[c.index_heads, c.dim]);
    }
    if c.engram_at(layer).is_some() {
        let inputs = c.engram.lookups() * c.engram.head_dim;
        s.fp8("engram.wkv", (c.hc_mult + 1) * c.dim, inputs);
        s.push("engram.q_weight", DType::Bf16, &[c.hc_mult, c.dim]);
        s.push("engram.k_weight", DType::Bf16, &[c.hc_mult, c.dim]);
    }
    feed_forward(s, c, c.experts)
}

fn draft_layer(c: &Config, stage: usize) -> LayerSpec {
    let mut s = Specs::new(format!("mtp.{stage}."));
    attention(&mut s, c);
    if stage == 0 {
        s.fp8("main_proj", c.dim, c.main_hidden());
        s.bf16("main_norm", &[c.dim]);
    }
    if stage + 1 == c.dspark.stages {
        s.bf16("norm", &[c.dim]);
        s.bf16("markov_head.embed", &[c.vocab, c.dspark.markov_rank]);
        s.bf16("markov_head.head", &[c.vocab, c.dspark.markov_rank]);
        s.bf16("confidence_head.proj", &[1, c.dim + c.dspark.markov_rank]);
    }
    feed_forward(s, c, c.dspark.experts)
}

/// What every layer's attention has, with its norm and stream mixes.
fn attention(s: &mut Specs, c: &Config) {
    let mixes = (2 + c.hc_mult) * c.hc_mult;
    for sub in ["attn", "ffn"] {
        s.push(&format!("hc_{sub}_fn"), DType::F32, &[mixes, c.stream()]);
        s.push(&format!("hc_{sub}_base"), DType::F32, &[mixes]);
        s.push(&format!("hc_{sub}_scale"), DType::F32, &[3]);
    }
    s.bf16("attn_norm", &[c.dim]);
    s.push("attn.attn_sink", DType::F32, &[c.heads]);
    s.fp8("attn.wq_a", c.q_rank, c.dim);
    s.bf16("attn.q_norm", &[c.q_rank]);
    s.fp8("attn.wq_b", c.heads * c.head_dim, c.q_rank);
    s.fp8("attn.wkv", c.head_dim, c.dim);
    s.bf16("attn.kv_norm", &[c.head_dim]);
    s.fp8("attn.wo_a", c.o_groups * c.o_rank, c.heads * c.head_dim / c.o_groups);
    s.fp8("attn.wo_b", c.dim, c.o_groups * c.o_rank);
}

/// Router, shared expert and routed experts; ends the layer.
fn feed_forward(mut s: Specs, c: &Config, experts: usize) -> LayerSpec {
    s.bf16("ffn_norm", &[c.dim]);
    s.bf16("ffn.gate", &[experts, c.dim]);
    s.push("ffn.gate.bias", DType::F32, &[experts]);
    for (name, rows, cols) in expert_matrices(c) {
        s.fp8(&format!("ffn.shared_experts.{name}"), rows, cols);
    }
    let prefix = format!("{}ffn.experts.", s.prefix);
    let mut expert = Specs::new(format!("{prefix}0"));
    for (name, rows, cols) in expert_matrices(c) {
        expert.fp4(&format!(".{name}"), rows, cols);
    }
    let start = prefix.len() + 1;
    let suffixes = expert.list.iter().map(|t| t.name[start..].to_owned()).collect();
    LayerSpec { tensors: s.list, experts, expert: expert.list, expert_names: (prefix, suffixes) }
}

/// `(name, outputs, inputs)` of an expert's matrices, in the order the checkpoint stores them.
fn expert_matrices(c: &Config) -> [(&'static str, usize, usize); 3] {
    [("w1", c.moe_dim, c.dim), ("w3", c.moe_dim, c.dim), ("w2", c.dim, c.moe_dim)]
}

/// Text tensors that no text run reads: the router's bias for image tokens.
pub fn unread(c: &Config) -> Vec<TensorSpec> {
    let backbone = (0..c.layers).map(|l| (format!("layers.{l}."), c.experts));
    let drafts = (0..c.dspark.stages).map(|s| (format!("mtp.{s}."), c.dspark.experts));
    let spec = |(prefix, experts): (String, usize)| TensorSpec {
        name: format!("{prefix}ffn.gate.bias_vl"),
        dtype: DType::F32,
        shape: vec![experts],
    };
    backbone.chain(drafts).map(spec).collect()
}

/// Calls `visit` with every tensor of a text checkpoint, experts included (96,085 minus the 266
/// of [`released_vision`] for the released model).
pub fn for_each(c: &Config, mut visit: impl FnMut(&str, DType, &[usize])) {
    let layout = layout(c);
    let mut each = |t: &TensorSpec| visit(&t.name, t.dtype, &t.shape);
    layout.tables.iter().flat_map(|t| &t.tensors).for_each(&mut each);
    layout.layers.iter().flat_map(|l| &l.tensors).for_each(&mut each);
    layout.head.tensors.iter().for_each(&mut each);
    each(&layout.head.matrix);
    unread(c).iter().for_each(&mut each);
    for layer in &layout.layers {
        for id in 0..layer.experts {
            for (i, t) in layer.expert.iter().enumerate() {
                visit(&layer.expert_name(id, i), t.dtype, &t.shape);
            }
        }
    }
}

/// The vision tower of the released model, which text ignores: 32 blocks of width 1024 over
/// patches of 14 pixels, an aligner that joins 3 x 3 patches, and three separators. The
/// published names; widths that the names leave open are those that close the published
/// byte count.
pub fn released_vision() -> Vec<TensorSpec> {
    const WIDTH: usize = 1024;
    const HIDDEN: usize = 2816;
    const MERGED: usize = 9 * WIDTH;
    const DIM: usize = 5120;
    let mut s = Specs::new(String::new());
    let mut pair = |name: &str, weight: &[usize]| {
        s.push(&format!("{name}.weight"), DType::Bf16, weight);
        s.push(&format!("{name}.bias"), DType::Bf16, &weight[..1]);
    };
    pair("vision.patch_embed.proj", &[WIDTH, 3, 14, 14]);
    for b in 0..32 {
        pair(&format!("vision.blocks.{b}.attn.wqkv"), &[3 * WIDTH, WIDTH]);
        pair(&format!("vision.blocks.{b}.attn.wo"), &[WIDTH, WIDTH]);
    }
    pair("aligner.w1", &[DIM, MERGED]);
    pair("aligner.w2", &[DIM, DIM]);
    for b in 0..32 {
        s.bf16(&format!("vision.blocks.{b}.norm1"), &[WIDTH]);
        s.bf16(&format!("vision.blocks.{b}.norm2"), &[WIDTH]);
        s.bf16(&format!("vision.blocks.{b}.mlp.w1"), &[2 * HIDDEN, WIDTH]);
        s.bf16(&format!("vision.blocks.{b}.mlp.w2"), &[WIDTH, HIDDEN]);
    }
    s.bf16("vision.norm", &[WIDTH]);
    for name in ["image_start", "image_end", "image_newline"] {
        s.push(name, DType::Bf16, &[DIM]);
    }
    s.list
}
