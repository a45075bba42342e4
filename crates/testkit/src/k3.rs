//! Synthetic Kimi K3 checkpoints with the real tensor graph: released names, types, order of
//! storage and nested config, at any size. Names are written out here a second time, on
//! purpose: the model's own table is checked against them.

use crate::checkpoint::{Checkpoint, Fill, Tensor};

/// Dimensions of a synthetic model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers; layer 0 is dense.
    pub layers: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Full-attention layers, counted from 1.
    pub full_attention: Vec<usize>,
    /// KDA heads.
    pub kda_heads: usize,
    /// KDA head size.
    pub kda_head_dim: usize,
    /// MLA heads.
    pub heads: usize,
    /// Compressed query.
    pub q_lora: usize,
    /// Cached latent.
    pub kv_lora: usize,
    /// Query and key values of a head.
    pub qk_nope: usize,
    /// Query and key values common to all heads.
    pub qk_rope: usize,
    /// Values of a head.
    pub v_head: usize,
    /// Routed experts.
    pub experts: usize,
    /// Experts of a position.
    pub top_k: usize,
    /// Width of the experts' input (a multiple of 32).
    pub latent: usize,
    /// Inner width of an expert (a multiple of 32).
    pub expert_width: usize,
    /// Inner width of layer 0's feed-forward.
    pub dense_width: usize,
    /// Layers between snapshots.
    pub block: usize,
}

/// Taps of the convolution, shared experts: as in the released model.
const TAPS: usize = 4;
const SHARED: usize = 2;

impl Shape {
    /// Small enough for tests in milliseconds, deep enough that four blocks close (13 layers,
    /// block 3) and MLA falls on a block boundary, with no size equal to another where a mix-up
    /// could hide.
    pub fn tiny() -> Shape {
        Shape {
            hidden: 96,
            layers: 13,
            vocab: 320,
            full_attention: vec![4, 8, 12, 13],
            kda_heads: 3,
            kda_head_dim: 16,
            heads: 4,
            q_lora: 40,
            kv_lora: 24,
            qk_nope: 12,
            qk_rope: 8,
            v_head: 20,
            experts: 12,
            top_k: 3,
            latent: 64,
            expert_width: 32,
            dense_width: 144,
            block: 3,
        }
    }

    /// The 7.9 GB shape that speeds are measured on.
    pub fn bench8g() -> Shape {
        Shape {
            hidden: 2048,
            layers: 21,
            vocab: 65_536,
            full_attention: vec![4, 8, 12, 16, 20, 21],
            kda_heads: 24,
            kda_head_dim: 128,
            heads: 24,
            q_lora: 512,
            kv_lora: 256,
            qk_nope: 128,
            qk_rope: 64,
            v_head: 128,
            experts: 192,
            top_k: 16,
            latent: 1024,
            expert_width: 896,
            dense_width: 8192,
            block: 4,
        }
    }

    /// The released model's dimensions (to plan and count with; 1.56 TB).
    pub fn released() -> Shape {
        Shape {
            hidden: 7168,
            layers: 93,
            vocab: 163_840,
            full_attention: (4..=92).step_by(4).chain([93]).collect(),
            kda_heads: 96,
            kda_head_dim: 128,
            heads: 96,
            q_lora: 1536,
            kv_lora: 512,
            qk_nope: 128,
            qk_rope: 64,
            v_head: 128,
            experts: 896,
            top_k: 16,
            latent: 3584,
            expert_width: 3072,
            dense_width: 33_792,
            block: 12,
        }
    }

    /// The shape of a preset's name, for command lines.
    pub fn by_name(name: &str) -> Option<Shape> {
        match name {
            "tiny" => Some(Shape::tiny()),
            "bench8g" => Some(Shape::bench8g()),
            "released" => Some(Shape::released()),
            _ => None,
        }
    }

    /// `config.json` in the released, nested form.
    pub fn config(&self) -> String {
        format!(
            r#"{{
  "architectures": ["KimiK3ForConditionalGeneration"],
  "model_type": "kimi_k3",
  "text_config": {{
    "hidden_size": {}, "num_hidden_layers": {}, "vocab_size": {}, "rms_norm_eps": 1e-05,
    "linear_attn_config": {{
      "num_heads": {}, "head_dim": {}, "short_conv_kernel_size": {TAPS},
      "gate_lower_bound": -5.0, "full_attn_layers": {:?}
    }},
    "num_attention_heads": {}, "q_lora_rank": {}, "kv_lora_rank": {},
    "qk_nope_head_dim": {}, "qk_rope_head_dim": {}, "v_head_dim": {},
    "mla_use_output_gate": true,
    "num_experts": {}, "num_experts_per_token": {}, "num_shared_experts": {SHARED},
    "routed_expert_hidden_size": {}, "moe_intermediate_size": {},
    "routed_scaling_factor": 1.0, "moe_renormalize": true, "latent_moe_use_norm": true,
    "first_k_dense_replace": 1, "intermediate_size": {}, "attn_res_block_size": {},
    "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
    "tie_word_embeddings": false
  }}
}}
"#,
            self.hidden,
            self.layers,
            self.vocab,
            self.kda_heads,
            self.kda_head_dim,
            self.full_attention,
            self.heads,
            self.q_lora,
            self.kv_lora,
            self.qk_nope,
            self.qk_rope,
            self.v_head,
            self.experts,
            self.top_k,
            self.latent,
            self.expert_width,
            self.dense_width,
            self.block,
        )
    }

    /// The checkpoint of a seed.
    pub fn checkpoint(&self, seed: u64) -> Checkpoint {
        let mut runs = vec![vec![matrix(
            "language_model.model.embed_tokens.weight",
            self.vocab,
            self.hidden,
            32.0,
        )]];
        for layer in 0..self.layers {
            runs.push(self.layer(layer));
            if layer > 0 {
                runs.extend((0..self.experts).map(|id| self.expert(layer, id)));
            }
        }
        let top = |name: &str| format!("language_model.model.{name}.weight");
        runs.push(vec![
            gain(top("output_attn_res_norm"), self.hidden),
            res_proj(top("output_attn_res_proj"), self.hidden),
            gain(top("norm"), self.hidden),
            matrix("language_model.lm_head.weight", self.vocab, self.hidden, 2.0),
        ]);
        // Part of the released files, to be ignored by name.
        runs.push(vec![
            matrix("vision_tower.patch_embed.proj.weight", 8, 48, 1.0),
            matrix("mm_projector.proj.weight", 8, 8, 1.0),
        ]);
        Checkpoint { seed, config: self.config(), runs }
    }

    /// The always-active tensors of a layer.
    fn layer(&self, layer: usize) -> Vec<Tensor> {
        let name = |suffix: &str| format!("language_model.model.layers.{layer}.{suffix}");
        let e = self.hidden;
        let mut run = vec![
            gain(name("input_layernorm.weight"), e),
            gain(name("post_attention_layernorm.weight"), e),
            gain(name("self_attention_res_norm.weight"), e),
            res_proj(name("self_attention_res_proj.weight"), e),
            gain(name("mlp_res_norm.weight"), e),
            res_proj(name("mlp_res_proj.weight"), e),
        ];
        if self.full_attention.contains(&(layer + 1)) {
            self.mla(&mut run, name);
        } else {
            self.kda(&mut run, name);
        }
        if layer == 0 {
            run.push(matrix(name("mlp.gate_proj.weight"), self.dense_width, e, 1.0));
            run.push(matrix(name("mlp.up_proj.weight"), self.dense_width, e, 1.0));
            run.push(matrix(name("mlp.down_proj.weight"), e, self.dense_width, 1.0));
            return run;
        }
        let moe = |suffix: &str| name(&format!("block_sparse_moe.{suffix}"));
        let (l, w) = (self.latent, SHARED * self.expert_width);
        let bias = Fill::Around(0.0, 0.05);
        run.push(matrix(moe("gate.weight"), self.experts, e, 1.0));
        run.push(Tensor::new(moe("gate.e_score_correction_bias"), "F32", &[self.experts], bias));
        run.push(matrix(moe("routed_expert_down_proj.weight"), l, e, 1.0));
        run.push(matrix(moe("routed_expert_up_proj.weight"), e, l, 1.0));
        run.push(gain(moe("routed_expert_norm.weight"), l));
        run.push(matrix(moe("shared_experts.gate_proj.weight"), w, e, 1.0));
        run.push(matrix(moe("shared_experts.up_proj.weight"), w, e, 1.0));
        run.push(matrix(moe("shared_experts.down_proj.weight"), e, w, 1.0));
        run
    }

    fn kda(&self, run: &mut Vec<Tensor>, name: impl Fn(&str) -> String) {
        let name = |suffix: &str| name(&format!("self_attn.{suffix}"));
        let (e, d, h) = (self.hidden, self.kda_head_dim, self.kda_heads);
        let p = h * d;
        for part in ["q", "k", "v", "g"] {
            run.push(matrix(name(&format!("{part}_proj.weight")), p, e, 1.0));
        }
        run.push(matrix(name("o_proj.weight"), e, p, 1.0));
        for part in ["q", "k", "v"] {
            let conv = name(&format!("{part}_conv1d.weight"));
            run.push(Tensor::new(conv, "F32", &[p, 1, TAPS], Fill::Around(0.2, 0.4)));
        }
        run.push(matrix(name("f_a_proj.weight"), d, e, 1.0));
        run.push(matrix(name("f_b_proj.weight"), p, d, 1.0));
        run.push(matrix(name("b_proj.weight"), h, e, 1.0));
        // head_dim values, one a head; the rest is padding that no reader may use.
        run.push(Tensor::new(name("A_log"), "F32", &[d.max(h)], Fill::Uniform(0.0, 1.5)));
        run.push(Tensor::new(name("dt_bias"), "F32", &[p], Fill::Uniform(-3.0, 0.5)));
        run.push(Tensor::new(name("o_norm.weight"), "F32", &[d], Fill::Around(1.0, 0.1)));
    }

    fn mla(&self, run: &mut Vec<Tensor>, name: impl Fn(&str) -> String) {
        let name = |suffix: &str| name(&format!("self_attn.{suffix}"));
        let (e, h, lat) = (self.hidden, self.heads, self.kv_lora);
        let v = h * self.v_head;
        run.push(matrix(name("q_a_proj.weight"), self.q_lora, e, 1.0));
        run.push(gain(name("q_a_layernorm.weight"), self.q_lora));
        run.push(matrix(
            name("q_b_proj.weight"),
            h * (self.qk_nope + self.qk_rope),
            self.q_lora,
            2.0,
        ));
        run.push(matrix(name("kv_a_proj_with_mqa.weight"), lat + self.qk_rope, e, 1.0));
        run.push(gain(name("kv_a_layernorm.weight"), lat));
        run.push(matrix(name("kv_b_proj.weight"), h * (self.qk_nope + self.v_head), lat, 1.0));
        run.push(matrix(name("o_proj.weight"), e, v, 1.0));
        run.push(matrix(name("g_proj.weight"), v, e, 1.0));
    }

    /// One routed expert: six tensors in a row.
    fn expert(&self, layer: usize, id: usize) -> Vec<Tensor> {
        let prefix = format!("language_model.model.layers.{layer}.block_sparse_moe.experts.{id}");
        let (l, w) = (self.latent, self.expert_width);
        let mut run = Vec::with_capacity(6);
        for (part, rows, cols) in [("w1", w, l), ("w2", l, w), ("w3", w, l)] {
            let packed = format!("{prefix}.{part}.weight_packed");
            let scale = format!("{prefix}.{part}.weight_scale");
            run.push(Tensor::new(packed, "U8", &[rows, cols / 2], Fill::Bytes));
            let scales = Fill::Scales(scale_byte(cols));
            run.push(Tensor::new(scale, "U8", &[rows, cols / 32], scales));
        }
        run
    }
}

/// The E8M0 byte with which uniform E2M1 codes (root mean square 2.93) come nearest below
/// a spread of `1/sqrt(cols)`.
fn scale_byte(cols: usize) -> u8 {
    let want = 1.0 / (cols as f32).sqrt();
    (0..127u8).rev().find(|k| 2.93 * f32::from_bits(u32::from(*k) << 23) <= want).unwrap_or(1)
}

/// A bf16 matrix whose rows have a spread of about `gain / sqrt(cols)`.
fn matrix(name: impl Into<String>, rows: usize, cols: usize, gain: f32) -> Tensor {
    let spread = gain / (cols as f32).sqrt();
    Tensor::new(name, "BF16", &[rows, cols], Fill::Normal(spread))
}

fn gain(name: String, width: usize) -> Tensor {
    Tensor::new(name, "BF16", &[width], Fill::Around(1.0, 0.1))
}

fn res_proj(name: String, width: usize) -> Tensor {
    let spread = 1.0 / (width as f32).sqrt();
    Tensor::new(name, "BF16", &[1, width], Fill::Around(0.0, spread))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The graph is the released one: counts and bytes of the published headers.
    #[test]
    fn the_released_shape_has_the_released_size() {
        let shape = Shape::released();
        let kda = shape.layer(1);
        let mla = shape.layer(3);
        let expert: Vec<Tensor> = shape.expert(1, 0);
        assert_eq!((shape.layer(0).len(), kda.len(), mla.len()), (23, 28, 22));
        let bytes = |run: &[Tensor]| run.iter().map(Tensor::bytes).sum::<usize>();
        assert_eq!(bytes(&expert), 17_547_264);
        let layers: usize = (0..93).map(|l| bytes(&shape.layer(l))).sum();
        assert!((108_700_000_000..108_900_000_000).contains(&layers), "{layers}");
        let top: usize = (0..93).map(|l| shape.layer(l).len()).sum::<usize>() + 5;
        assert_eq!(top, 2460, "tensors outside the experts");
    }
}
