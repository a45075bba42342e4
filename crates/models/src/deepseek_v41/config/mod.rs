//! The configuration of a DeepSeek-V4.1 model, read from either of the two published forms:
//! `config.json` in Hugging Face layout (model fields under `text_config`) or the released
//! code's `inference/config.json` with its short names.
//!
//! Nothing is defaulted: a missing or mistyped field is an error that lists *all* of them, and
//! a value this engine does not implement is refused by name. (Two fields are absent from one
//! form by design: `gate_temp` is 1 in the Hugging Face form, and the inference form's context
//! is `original_seq_len * rope_factor`.)

mod check;
mod read;

use super::reference::Yarn;

/// What a layer's attention reads and publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its window only (ratio 0).
    Window,
    /// Own compressor, own index keys and own indexer.
    Full,
    /// Own indexer query against the keys of its source, among the source's candidates.
    Reindex,
    /// The top-k last published by a layer below.
    Reuse,
}

/// Candidate blocks: one layer keeps the best blocks of positions, later indexers choose among
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// The layer that publishes.
    pub source: usize,
    /// Blocks kept.
    pub topk_blocks: usize,
    /// Positions in a block.
    pub block: usize,
}

/// Engram: n-gram hashes look up rows of large tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngramConfig {
    /// Layers that add engram rows to the stream.
    pub layers: Vec<usize>,
    /// Rows of each layer's table.
    pub rows: Vec<u64>,
    /// Longest n-gram; orders are 2 to this.
    pub max_ngram: usize,
    /// Hash heads of each order.
    pub heads: usize,
    /// Values of a row.
    pub head_dim: usize,
    /// Where the search for primes begins.
    pub first_prime: u64,
    /// Ids of the compressed vocabulary.
    pub compressed_vocab: usize,
    /// Token id that stands for "before the start".
    pub pad_id: u32,
}

impl EngramConfig {
    /// Rows looked up by one layer for one position.
    pub fn lookups(&self) -> usize {
        (self.max_ngram - 1) * self.heads
    }
}

/// The DSpark draft stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DsparkConfig {
    /// Stages, each a layer of its own.
    pub stages: usize,
    /// Tokens drafted at once.
    pub block: usize,
    /// Token that stands for "to be drafted".
    pub noise_id: u32,
    /// Backbone layers whose input streams the draft sees.
    pub targets: Vec<usize>,
    /// Rank of the Markov head.
    pub markov_rank: usize,
    /// Routed experts of a stage.
    pub experts: usize,
    /// Experts chosen a token.
    pub active: usize,
}

/// A checked DeepSeek-V4.1 configuration. Field names in the comments: Hugging Face form /
/// inference form where they differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// vocab_size
    pub vocab: usize,
    /// hidden_size / dim
    pub dim: usize,
    /// num_hidden_layers / n_layers
    pub layers: usize,
    /// num_attention_heads / n_heads
    pub heads: usize,
    /// head_dim
    pub head_dim: usize,
    /// qk_rope_head_dim / rope_head_dim: the last values of a head
    pub rope_dim: usize,
    /// q_lora_rank
    pub q_rank: usize,
    /// o_lora_rank
    pub o_rank: usize,
    /// o_groups
    pub o_groups: usize,
    /// sliding_window / window_size
    pub window: usize,
    /// rms_norm_eps / norm_eps
    pub eps: f32,
    /// n_routed_experts
    pub experts: usize,
    /// num_experts_per_tok / n_activated_experts
    pub active: usize,
    /// moe_intermediate_size / moe_inter_dim
    pub moe_dim: usize,
    /// swiglu_limit; 0 means no limit
    pub swiglu_limit: f32,
    /// routed_scaling_factor / route_scale
    pub route_scale: f32,
    /// norm_topk_prob
    pub norm_topk: bool,
    /// gate_temp (inference form only)
    pub gate_temp: f32,
    /// rope_theta
    pub rope_theta: f32,
    /// compress_rope_theta
    pub compress_theta: f32,
    /// rope_scaling / original_seq_len, rope_factor, beta_fast, beta_slow
    pub yarn: Yarn,
    /// max_position_embeddings
    pub max_positions: usize,
    /// compress_ratios of the backbone layers
    pub ratios: Vec<usize>,
    /// kv_source_layer_ids / kv_source_layers
    pub kv_sources: Vec<usize>,
    /// index_source_layer_ids / index_source_layers
    pub index_sources: Vec<usize>,
    /// index_n_heads
    pub index_heads: usize,
    /// index_head_dim
    pub index_dim: usize,
    /// index_topk
    pub index_topk: usize,
    /// candidate_*
    pub candidates: Candidates,
    /// hc_mult
    pub hc_mult: usize,
    /// hc_sinkhorn_iters
    pub hc_iters: usize,
    /// hc_eps
    pub hc_eps: f32,
    /// engram_*
    pub engram: EngramConfig,
    /// dspark_*, num_nextn_predict_layers / n_mtp_layers
    pub dspark: DsparkConfig,
}

impl Config {
    /// Reads either form of the configuration.
    ///
    /// # Errors
    /// Bad JSON, another model, missing or mistyped fields (all of them), or values that
    /// contradict each other or are not implemented.
    pub fn from_json(json: &[u8]) -> Result<Config, ConfigError> {
        let config = read::read(json)?;
        check::check(&config)?;
        Ok(config)
    }

    /// What layer `layer` of the backbone does.
    pub fn role(&self, layer: usize) -> Role {
        if self.ratios[layer] == 0 {
            Role::Window
        } else if self.kv_sources.contains(&layer) {
            Role::Full
        } else if self.index_sources.contains(&layer) {
            Role::Reindex
        } else {
            Role::Reuse
        }
    }

    /// The index in [`Config::kv_sources`] of the source layer `layer` reads; `None` for a
    /// window-only layer.
    pub fn source(&self, layer: usize) -> Option<usize> {
        if self.ratios[layer] == 0 {
            return None;
        }
        self.kv_sources.iter().rposition(|&s| s <= layer)
    }

    /// Compression ratio of source `source` (index in [`Config::kv_sources`]).
    pub fn source_ratio(&self, source: usize) -> usize {
        self.ratios[self.kv_sources[source]]
    }

    /// Index in [`EngramConfig::layers`] if `layer` adds engram rows.
    pub fn engram_at(&self, layer: usize) -> Option<usize> {
        self.engram.layers.iter().position(|&l| l == layer)
    }

    /// Whether `layer`'s indexer chooses among the candidates of an earlier layer.
    pub fn uses_candidates(&self, layer: usize) -> bool {
        layer > self.candidates.source && self.index_sources.contains(&layer)
    }

    /// Values of the residual stream of one position.
    pub fn stream(&self) -> usize {
        self.hc_mult * self.dim
    }

    /// Width of one hidden state handed to the draft stages.
    pub fn main_hidden(&self) -> usize {
        self.dspark.targets.len() * self.dim
    }

    /// Bytes a position adds to the caches that grow (compressed rows and index keys, packed).
    pub fn cache_bytes_per_token(&self) -> usize {
        let row = self.head_dim / 2 + self.head_dim / 16 + self.index_dim / 2 + self.index_dim / 32;
        // Ratios are 1 or 2, so twice the sum is a whole number of rows for two tokens.
        let rows: usize = (0..self.kv_sources.len()).map(|s| 2 / self.source_ratio(s)).sum();
        rows * row / 2
    }
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Not a JSON object.
    #[error("the configuration is not a JSON object: {0}")]
    Json(String),
    /// Another model.
    #[error("{field} is {got}: not a DeepSeek-V4.1 configuration (expected {expected})")]
    Model {
        /// Field by which the model was recognised.
        field: &'static str,
        /// Its value.
        got: String,
        /// What V4.1 has.
        expected: &'static str,
    },
    /// Fields that are missing or have the wrong type, all of them.
    #[error("the configuration lacks: [{}]; mistyped: [{}]", missing.join(", "), mistyped.join(", "))]
    Fields {
        /// Names in the form that was read.
        missing: Vec<String>,
        /// Names with what was expected.
        mistyped: Vec<String>,
    },
    /// A value that is not implemented or contradicts another.
    #[error("{field} is {got}: expected {expected}")]
    Value {
        /// Field (Hugging Face name).
        field: &'static str,
        /// Its value.
        got: String,
        /// What is possible.
        expected: String,
    },
}
