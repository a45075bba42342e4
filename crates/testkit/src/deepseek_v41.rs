//! Synthetic DeepSeek-V4.1 checkpoints with the real tensor graph, at any size: every tensor a
//! text model reads or ignores, in all five attention roles, with engram tables and draft stages.
//!
//! The graph comes from the model's own table (names and shapes are judged elsewhere: against
//! the published byte counts and against a golden checkpoint made by another program). The
//! tokenizer is the golden tiny model's, so every preset has its 384 tokens.

use crate::checkpoint::{Checkpoint, Fill, Tensor};
use models::deepseek_v41::{Config, engram, tensors};
use models::machine::{DType, LayerSpec, TensorSpec};
use serde_json::{Value, json};
use std::path::Path;

/// Sizes by name: `tiny` (4 MB: tests in a moment) or `bench5g` (about 5 GB: streaming under a
/// memory limit).
pub fn preset(name: &str) -> Option<Value> {
    let path = crate::root().join("vectors/deepseek_v41/tiny_model/config.json");
    let text = std::fs::read(path).expect("the golden tiny model is in the repository");
    let mut config: Value = serde_json::from_slice(&text).expect("golden JSON");
    let edits = match name {
        "tiny" => json!({}),
        "bench5g" => json!({
            "hidden_size": 2048, "moe_intermediate_size": 1024, "num_hidden_layers": 12,
            "num_attention_heads": 16, "head_dim": 256, "qk_rope_head_dim": 64,
            "q_lora_rank": 512, "o_lora_rank": 512, "o_groups": 4, "swiglu_limit": 10.0,
            "n_routed_experts": 96, "num_experts_per_tok": 6, "sliding_window": 128,
            "max_position_embeddings": 65536,
            "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0],
            "kv_source_layer_ids": [2, 4, 6], "index_source_layer_ids": [2, 4, 6, 8, 10],
            "index_n_heads": 16, "index_head_dim": 128, "index_topk": 128,
            "candidate_source_layer_id": 6, "candidate_topk_blocks": 64, "candidate_block_size": 8,
            "engram_layer_ids": [1, 6], "engram_vocab_size": 200_000, "engram_n_heads": 8,
            "engram_head_dim": 64, "dspark_block_size": 4, "dspark_markov_rank": 64,
            "dspark_target_layer_ids": [9, 10, 11], "dspark_n_routed_experts": 32,
            "dspark_num_experts_per_tok": 3,
        }),
        _ => return None,
    };
    let text = config["text_config"].as_object_mut().expect("an object");
    text.extend(edits.as_object().expect("an object").clone());
    set_engram_rows(&mut config);
    Some(config)
}

/// Makes the engram table sizes those the hash primes of the other fields need.
pub fn set_engram_rows(config: &mut Value) {
    let text = &mut config["text_config"];
    let number = |key: &str| text[key].as_u64().expect(key);
    let lookups = (number("engram_max_ngram_size") - 1) * number("engram_n_heads");
    let mut prime = number("engram_vocab_size");
    let layers = text["engram_layer_ids"].as_array().expect("a list").len();
    let sum = |_| engram::next_primes(&mut prime, lookups as usize).iter().sum::<u64>();
    text["engram_num_embeddings"] = (0..layers).map(sum).collect();
}

/// The checkpoint of a configuration (Hugging Face form) and a seed. A layer's always-active
/// tensors are one run, so is an expert; the engram tables come last.
///
/// # Panics
/// If the model refuses the configuration.
pub fn checkpoint(config: &Value, seed: u64) -> Checkpoint {
    let c = Config::from_json(config.to_string().as_bytes()).expect("a valid configuration");
    let layout = tensors::layout(&c);
    let unread = tensors::unread(&c);
    let mut runs = vec![run(&layout.tables[0].tensors)];
    for (layer, ignored) in layout.layers.iter().zip(&unread) {
        let mut tensors = run(&layer.tensors);
        tensors.push(tensor(&ignored.name, ignored, ignored.shape[0]));
        runs.push(tensors);
        runs.extend((0..layer.experts).map(|id| expert(layer, id)));
    }
    let mut head = run(&layout.head.tensors);
    head.extend(run(std::slice::from_ref(&layout.head.matrix)));
    // Part of the released files, to be ignored by name.
    head.push(Tensor::new("vision.norm.weight", "BF16", &[8], Fill::Around(1.0, 0.1)));
    runs.push(head);
    runs.extend(layout.tables[1..].iter().map(|table| run(&table.tensors)));
    let config = serde_json::to_string_pretty(config).expect("JSON");
    Checkpoint { seed, config, runs }
}

/// Writes a checkpoint with its tokenizer into `dir`.
///
/// # Errors
/// Whatever the file system says.
pub fn write(checkpoint: &Checkpoint, dir: &Path, shard_bytes: usize) -> std::io::Result<()> {
    checkpoint.write(dir, shard_bytes)?;
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let from = crate::root().join("vectors/deepseek_v41/tiny_model").join(name);
        std::fs::copy(from, dir.join(name))?;
    }
    Ok(())
}

/// The configuration of the released model.
pub fn released() -> Value {
    let path = crate::root().join("vectors/deepseek_v41/released_config.json");
    let text = std::fs::read(path).expect("it is in the repository");
    serde_json::from_slice(&text).expect("golden JSON")
}

/// Shards of the released checkpoint; the last two hold an engram table each.
pub const RELEASED_SHARDS: usize = 48;

/// The released checkpoint as headers over holes: all 96,085 tensors in 48 sparse files and the
/// index file. 510 GB that take 11 MB of disk.
///
/// # Errors
/// Whatever the file system says.
pub fn write_released_headers(dir: &Path) -> std::io::Result<()> {
    let all = checkpoint(&released(), 0);
    let vision = tensors::released_vision();
    let vision = vision.iter().map(|t| tensor(&t.name, t, 1));
    let is_table = |t: &Tensor| t.name.contains(".engram.embed.");
    let stand_in = "vision.norm.weight";
    let rest: Vec<Tensor> = all
        .tensors()
        .filter(|t| !is_table(t) && t.name != stand_in)
        .cloned()
        .chain(vision)
        .collect();
    let per_shard = rest.len().div_ceil(RELEASED_SHARDS - 2);
    let mut shards: Vec<Vec<Tensor>> = rest.chunks(per_shard).map(<[_]>::to_vec).collect();
    let tables: Vec<Tensor> = all.tensors().filter(|t| is_table(t)).cloned().collect();
    shards.extend(tables.chunks(2).map(<[_]>::to_vec));
    let mut map = serde_json::Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        let header = crate::checkpoint::header(shard.iter());
        std::fs::write(dir.join(&name), &header)?;
        let file = std::fs::OpenOptions::new().write(true).open(dir.join(&name))?;
        let data: usize = shard.iter().map(Tensor::bytes).sum();
        file.set_len((header.len() + data) as u64)?;
        map.extend(shard.iter().map(|t| (t.name.clone(), Value::from(name.as_str()))));
    }
    let total = 510_286_023_000u64;
    let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string())?;
    std::fs::write(dir.join("config.json"), released().to_string())
}

/// A tokenizer for the released model's dimensions: the golden tiny one's tokens, then new ones,
/// then their capitals, so that engram compresses as many tokens as the released tokenizer does.
///
/// # Errors
/// Whatever the file system says.
pub fn write_released_tokenizer(dir: &Path) -> std::io::Result<()> {
    let tiny = crate::root().join("vectors/deepseek_v41/tiny_model");
    let read = |name: &str| -> std::io::Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(tiny.join(name))?)?)
    };
    let (mut tokenizer, config) = (read("tokenizer.json")?, read("config.json")?);
    let number = |c: &Value, key: &str| c["text_config"][key].as_u64().expect(key);
    let (vocab, compressed) = ("vocab_size", "engram_compressed_vocab_size");
    let all = number(&released(), vocab);
    let new = number(&released(), compressed) - number(&config, compressed);
    let entries = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    for id in number(&config, vocab)..all {
        let n = id - number(&config, vocab);
        let name = if n < new { format!("new{n}") } else { format!("NEW{}", n - new) };
        entries.insert(name, id.into());
    }
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string())?;
    std::fs::copy(tiny.join("tokenizer_config.json"), dir.join("tokenizer_config.json")).map(drop)
}

fn expert(layer: &LayerSpec, id: usize) -> Vec<Tensor> {
    let named = |i: usize| TensorSpec { name: layer.expert_name(id, i), ..layer.expert[i].clone() };
    run(&(0..layer.expert.len()).map(named).collect::<Vec<_>>())
}

/// Tensors with their fillings. A scale's filling depends on the weight before it.
fn run(specs: &[TensorSpec]) -> Vec<Tensor> {
    let inputs = |i: usize| {
        let weight = if specs[i].dtype == DType::F8E8M0 { &specs[i - 1] } else { &specs[i] };
        weight.shape.last().copied().unwrap_or(1) * (1 + usize::from(weight.dtype == DType::I8))
    };
    (0..specs.len()).map(|i| tensor(&specs[i].name, &specs[i], inputs(i))).collect()
}

fn tensor(name: &str, spec: &TensorSpec, inputs: usize) -> Tensor {
    let spread = 1.0 / (inputs as f32).sqrt();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|s| name.ends_with(s));
    let fill = match spec.dtype {
        DType::I8 | DType::U8 | DType::F8E4M3 => Fill::Bytes,
        DType::F8E8M0 if ends(&["engram.embed.scale"]) => Fill::Scales(scale_byte(FP8_SPREAD, 1.0)),
        // The scale of a packed matrix has its rows, that of an fp8 matrix one for 32.
        DType::F8E8M0 if name.contains(".experts.") => Fill::Scales(scale_byte(FP4_SPREAD, spread)),
        DType::F8E8M0 => Fill::Scales(scale_byte(FP8_SPREAD, spread)),
        DType::F32 if ends(&["_fn"]) => Fill::Normal(spread),
        DType::F32 if ends(&["_scale"]) => Fill::Around(1.0, 0.1),
        DType::F32 if ends(&["attn_sink"]) => Fill::Around(0.0, 1.0),
        // Image tokens only: large, so that a text model that reads it is found out.
        DType::F32 if ends(&["bias_vl"]) => Fill::Around(0.0, 5.0),
        DType::F32 => Fill::Around(0.0, 0.1),
        DType::Bf16 if ends(&["norm.weight", "q_weight", "k_weight"]) => Fill::Around(1.0, 0.1),
        DType::Bf16 if ends(&["embed.weight"]) => Fill::Normal(1.0),
        DType::Bf16 if name == "head.weight" => Fill::Normal(2.0 * spread),
        DType::Bf16 => Fill::Normal(spread),
    };
    Tensor::new(name, spec.dtype.name(), &spec.shape, fill)
}

/// Root mean square of uniform e2m1 codes.
const FP4_SPREAD: f32 = 2.93;
/// Root mean square of uniform e4m3 codes without the NaNs.
const FP8_SPREAD: f32 = 106.0;

/// The e8m0 byte with which codes of root mean square `codes` come nearest below `spread`.
fn scale_byte(codes: f32, spread: f32) -> u8 {
    let fits = |k: &u8| codes * f32::from_bits(u32::from(*k) << 23) <= spread;
    (2..127u8).rev().find(fits).unwrap_or(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a preset that the model refuses or whose size is not what it is for.
    #[test]
    fn presets_have_their_sizes() {
        let bytes = |name: &str| checkpoint(&preset(name).unwrap(), 1).bytes();
        assert!((3_000_000..5_000_000).contains(&bytes("tiny")), "{}", bytes("tiny"));
        let bench = bytes("bench5g");
        assert!((4_000_000_000..6_000_000_000).contains(&bench), "{bench}");
        assert!(preset("huge").is_none());
    }

    /// Catches NaN codes among random fp8 bytes.
    #[test]
    fn fp8_codes_are_numbers() {
        let t = Tensor::new("t", "F8_E4M3", &[64, 64], Fill::Bytes);
        let mut bytes = vec![0; t.bytes()];
        t.fill(1, 0, &mut bytes);
        assert!(bytes.iter().all(|b| b & 0x7F != 0x7F));
    }
}
