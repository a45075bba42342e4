//! Reads the fields of both configuration forms, collecting every problem before it gives up.

use super::{Candidates, Config, ConfigError, DsparkConfig, EngramConfig};
use crate::deepseek_v41::reference::Yarn;
use serde_json::{Map, Value};

/// Looks fields up by their name in one form and remembers what was missing or mistyped.
struct Fields<'a> {
    hf: bool,
    map: &'a Map<String, Value>,
    missing: Vec<String>,
    mistyped: Vec<String>,
}

impl<'a> Fields<'a> {
    fn new(hf: bool, map: &'a Map<String, Value>) -> Self {
        Fields { hf, map, missing: Vec::new(), mistyped: Vec::new() }
    }

    /// The value of a field (`hf` / `short` name) as `convert` reads it.
    fn get<T: Default>(
        &mut self,
        (hf, short): (&str, &str),
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> T {
        let name = if self.hf { hf } else { short };
        match self.map.get(name) {
            None => self.missing.push(name.to_owned()),
            Some(value) => match convert(value) {
                Some(v) => return v,
                None => self.mistyped.push(format!("{name} ({expected})")),
            },
        }
        T::default()
    }

    fn size(&mut self, names: (&str, &str)) -> usize {
        self.get(names, "a non-negative integer", as_size)
    }

    fn id(&mut self, names: (&str, &str)) -> u32 {
        self.get(names, "a token id", |v| v.as_u64().and_then(|v| u32::try_from(v).ok()))
    }

    fn float(&mut self, names: (&str, &str)) -> f32 {
        self.get(names, "a finite number", |v| {
            v.as_f64().map(|v| v as f32).filter(|v| v.is_finite())
        })
    }

    fn flag(&mut self, names: (&str, &str)) -> bool {
        self.get(names, "true or false", Value::as_bool)
    }

    fn list(&mut self, names: (&str, &str)) -> Vec<usize> {
        self.get(names, "a list of non-negative integers", |v| {
            v.as_array()?.iter().map(as_size).collect()
        })
    }

    fn text(&mut self, names: (&str, &str)) -> &'a str {
        self.get(names, "a string", Value::as_str)
    }
}

fn as_size(v: &Value) -> Option<usize> {
    v.as_u64().and_then(|v| usize::try_from(v).ok())
}

/// Both names are the same.
fn same(name: &str) -> (&str, &str) {
    (name, name)
}

pub(super) fn read(json: &[u8]) -> Result<Config, ConfigError> {
    let top: Map<String, Value> =
        serde_json::from_slice(json).map_err(|e| ConfigError::Json(e.to_string()))?;
    refuse_other_models(&top)?;
    let hf = top.contains_key("text_config") || top.contains_key("model_type");
    let empty = Map::new();
    let text = match (hf, top.get("text_config")) {
        (false, _) => &top,
        (true, Some(Value::Object(text))) => text,
        (true, Some(_)) => {
            return Err(ConfigError::Fields {
                missing: Vec::new(),
                mistyped: vec!["text_config (an object)".to_owned()],
            });
        }
        (true, None) => {
            return Err(ConfigError::Fields {
                missing: vec!["text_config".to_owned()],
                mistyped: Vec::new(),
            });
        }
    };
    let mut f = Fields::new(hf, text);
    let config = model_fields(&mut f);
    let mut outer = Fields::new(hf, &top);
    let quant = object(&mut outer, hf.then_some("quantization_config"), &empty);
    let mut quant = Fields::new(hf, quant);
    let scaling = object(&mut f, hf.then_some("rope_scaling"), &empty);
    let mut scaling = if hf { Fields::new(true, scaling) } else { Fields::new(false, text) };
    let yarn = yarn_fields(&mut scaling);
    let fixed = fixed_fields(&mut f, &mut quant, &mut scaling, &top, hf);

    let mut missing = f.missing;
    let mut mistyped = f.mistyped;
    for other in [outer, quant, scaling] {
        missing.extend(other.missing);
        mistyped.extend(other.mistyped);
    }
    if !missing.is_empty() || !mistyped.is_empty() {
        return Err(ConfigError::Fields { missing, mistyped });
    }
    for (field, got, expected) in fixed {
        if got != expected {
            return Err(ConfigError::Value { field, got, expected });
        }
    }
    finish(config, yarn, hf)
}

/// The object called `name`, or the empty one (noted as missing) when it is not there.
fn object<'a>(
    f: &mut Fields<'a>,
    name: Option<&str>,
    empty: &'a Map<String, Value>,
) -> &'a Map<String, Value> {
    let Some(name) = name else { return empty };
    f.get(same(name), "an object", |v| v.as_object().map(Some)).unwrap_or(empty)
}

/// Another model family is refused before its fields are looked at: it would fail with a long
/// list of missing names otherwise.
fn refuse_other_models(top: &Map<String, Value>) -> Result<(), ConfigError> {
    let model = |field, got: &Value, expected| {
        Err(ConfigError::Model { field, got: got.to_string(), expected })
    };
    match top.get("model_type") {
        Some(Value::String(t)) if t == "deepseek_v41" => {}
        Some(other) => return model("model_type", other, "\"deepseek_v41\""),
        None => {
            // The inference form has no model type; V4 has hash-routed layers, V4.1 none.
            if let Some(v) = top.get("n_hash_layers") {
                return model("n_hash_layers", v, "no such field");
            }
        }
    }
    let text_type = top.get("text_config").and_then(|t| t.get("model_type"));
    match text_type {
        Some(Value::String(t)) if t == "deepseek_v41_text" => Ok(()),
        Some(other) => model("text_config.model_type", other, "\"deepseek_v41_text\""),
        None => Ok(()),
    }
}

/// Every field whose value is the model's own.
fn model_fields(f: &mut Fields<'_>) -> Config {
    let ratios = f.list(same("compress_ratios"));
    Config {
        vocab: f.size(same("vocab_size")),
        dim: f.size(("hidden_size", "dim")),
        layers: f.size(("num_hidden_layers", "n_layers")),
        heads: f.size(("num_attention_heads", "n_heads")),
        head_dim: f.size(same("head_dim")),
        rope_dim: f.size(("qk_rope_head_dim", "rope_head_dim")),
        q_rank: f.size(same("q_lora_rank")),
        o_rank: f.size(same("o_lora_rank")),
        o_groups: f.size(same("o_groups")),
        window: f.size(("sliding_window", "window_size")),
        eps: f.float(("rms_norm_eps", "norm_eps")),
        experts: f.size(same("n_routed_experts")),
        active: f.size(("num_experts_per_tok", "n_activated_experts")),
        moe_dim: f.size(("moe_intermediate_size", "moe_inter_dim")),
        swiglu_limit: f.float(same("swiglu_limit")),
        route_scale: f.float(("routed_scaling_factor", "route_scale")),
        norm_topk: f.flag(same("norm_topk_prob")),
        gate_temp: if f.hf { 1.0 } else { f.float(same("gate_temp")) },
        rope_theta: f.float(same("rope_theta")),
        compress_theta: f.float(same("compress_rope_theta")),
        yarn: Yarn { original: 0, factor: 0.0, beta_fast: 0.0, beta_slow: 0.0 },
        max_positions: if f.hf { f.size(same("max_position_embeddings")) } else { 0 },
        ratios,
        kv_sources: f.list(("kv_source_layer_ids", "kv_source_layers")),
        index_sources: f.list(("index_source_layer_ids", "index_source_layers")),
        index_heads: f.size(same("index_n_heads")),
        index_dim: f.size(same("index_head_dim")),
        index_topk: f.size(same("index_topk")),
        candidates: Candidates {
            source: f.size(("candidate_source_layer_id", "candidate_source_layer")),
            topk_blocks: f.size(same("candidate_topk_blocks")),
            block: f.size(same("candidate_block_size")),
        },
        hc_mult: f.size(same("hc_mult")),
        hc_iters: f.size(same("hc_sinkhorn_iters")),
        hc_eps: f.float(same("hc_eps")),
        engram: EngramConfig {
            layers: f.list(same("engram_layer_ids")),
            rows: f.list(same("engram_num_embeddings")).into_iter().map(|r| r as u64).collect(),
            max_ngram: f.size(same("engram_max_ngram_size")),
            heads: f.size(same("engram_n_heads")),
            head_dim: f.size(same("engram_head_dim")),
            first_prime: f.size(same("engram_vocab_size")) as u64,
            compressed_vocab: f.size(same("engram_compressed_vocab_size")),
            pad_id: f.id(("engram_pad_token_id", "engram_pad_id")),
        },
        dspark: DsparkConfig {
            stages: f.size(("num_nextn_predict_layers", "n_mtp_layers")),
            block: f.size(same("dspark_block_size")),
            noise_id: f.id(same("dspark_noise_token_id")),
            targets: f.list(same("dspark_target_layer_ids")),
            markov_rank: f.size(same("dspark_markov_rank")),
            experts: f.size(same("dspark_n_routed_experts")),
            active: f.size(("dspark_num_experts_per_tok", "dspark_n_activated_experts")),
        },
    }
}

fn yarn_fields(f: &mut Fields<'_>) -> Yarn {
    Yarn {
        original: f.get(
            ("original_max_position_embeddings", "original_seq_len"),
            "a positive integer",
            |v| v.as_u64().and_then(|v| u32::try_from(v).ok()),
        ),
        factor: f.float(("factor", "rope_factor")),
        beta_fast: f.float(same("beta_fast")),
        beta_slow: f.float(same("beta_slow")),
    }
}

/// Fields with one implemented value: `(name, value, the implemented one)`.
fn fixed_fields(
    f: &mut Fields<'_>,
    quant: &mut Fields<'_>,
    scaling: &mut Fields<'_>,
    top: &Map<String, Value>,
    hf: bool,
) -> Vec<(&'static str, String, String)> {
    let quoted = |s: &str| format!("{s:?}");
    let shared = f.size(same("n_shared_experts")).to_string();
    let mut fixed = vec![("n_shared_experts", shared, "1".to_owned())];
    let mut text =
        |name, got: &str, expected: &str| fixed.push((name, quoted(got), quoted(expected)));
    text("scoring_func", f.text(("scoring_func", "score_func")), "sqrtsoftplus");
    if !hf {
        text("dtype", f.text(same("dtype")), "fp8");
        text("expert_dtype", f.text(same("expert_dtype")), "fp4");
        return fixed;
    }
    text("topk_method", f.text(same("topk_method")), "noaux_tc");
    text("hidden_act", f.text(same("hidden_act")), "silu");
    text("rope_scaling.rope_type", scaling.text(same("rope_type")), "yarn");
    text("quantization_config.quant_method", quant.text(same("quant_method")), "fp8");
    text("quantization_config.activation_scheme", quant.text(same("activation_scheme")), "dynamic");
    text("quantization_config.scale_fmt", quant.text(same("scale_fmt")), "ue8m0");
    text("quantization_config.expert_dtype", quant.text(same("expert_dtype")), "fp4");
    fixed.push((
        "quantization_config.weight_block_size",
        format!("{:?}", quant.list(same("weight_block_size"))),
        "[32, 32]".to_owned(),
    ));
    fixed.push((
        "num_key_value_heads",
        f.size(same("num_key_value_heads")).to_string(),
        "1".into(),
    ));
    fixed.push(("attention_bias", f.flag(same("attention_bias")).to_string(), "false".into()));
    fixed.push((
        "tie_word_embeddings",
        f.flag(same("tie_word_embeddings")).to_string(),
        "false".into(),
    ));
    if let Some(architectures) = top.get("architectures") {
        let expected = "[\"DeepseekV41ForCausalLM\"]";
        fixed.push(("architectures", architectures.to_string(), expected.to_owned()));
    }
    fixed
}

/// Splits the ratios of the draft stages off and fills in what was read elsewhere.
fn finish(mut config: Config, yarn: Yarn, hf: bool) -> Result<Config, ConfigError> {
    config.yarn = yarn;
    if !hf {
        let context = f64::from(yarn.original) * f64::from(yarn.factor);
        config.max_positions = context as usize;
    }
    let expected = config.layers.saturating_add(config.dspark.stages);
    if config.ratios.len() != expected {
        return Err(ConfigError::Value {
            field: "compress_ratios",
            got: format!("{} entries", config.ratios.len()),
            expected: format!("{expected} entries (layers and draft stages)"),
        });
    }
    if let Some(bad) = config.ratios.iter().find(|r| **r > 2) {
        return Err(ConfigError::Value {
            field: "compress_ratios",
            got: format!("{bad} in an entry"),
            expected: "0, 1 or 2 (4 and 128 are DeepSeek-V4's, another model)".to_owned(),
        });
    }
    let draft = config.ratios.split_off(config.layers);
    if draft.iter().any(|r| *r != 0) {
        return Err(ConfigError::Value {
            field: "compress_ratios",
            got: format!("{draft:?} for the draft stages"),
            expected: "0 for every draft stage".to_owned(),
        });
    }
    Ok(config)
}
