//! The released Kimi K3 checkpoint as headers over holes: the real names, types, shapes and
//! number of tensors in 96 sparse files, and the index file. 1.5 TB that take 80 MB of disk.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Tensors of the released checkpoint.
pub const TENSORS: usize = 497_220;
const SHARDS: usize = 96;
const LAYERS: usize = 93;

type Tensor = (String, &'static str, Vec<u64>);

fn layer(l: usize) -> Vec<Tensor> {
    let p = format!("language_model.model.layers.{l}.");
    let mut out = Vec::new();
    let mut add = |name: &str, dtype, shape: &[u64]| {
        out.push((format!("{p}{name}"), dtype, shape.to_vec()));
    };
    let norms = [
        "input_layernorm",
        "post_attention_layernorm",
        "self_attention_res_norm",
        "self_attention_res_proj",
        "mlp_res_norm",
        "mlp_res_proj",
    ];
    for n in norms {
        add(&format!("{n}.weight"), "BF16", &[7168]);
    }
    let full = (l + 1).is_multiple_of(4) || l >= 91;
    if full {
        for (n, shape) in [
            ("q_a_proj", &[1536, 7168][..]),
            ("q_a_layernorm", &[1536]),
            ("q_b_proj", &[18432, 1536]),
            ("kv_a_proj_with_mqa", &[576, 7168]),
            ("kv_a_layernorm", &[512]),
            ("kv_b_proj", &[24576, 512]),
            ("o_proj", &[7168, 12288]),
            ("g_proj", &[12288, 7168]),
        ] {
            add(&format!("self_attn.{n}.weight"), "BF16", shape);
        }
    } else {
        for n in ["q", "k", "v", "g"] {
            add(&format!("self_attn.{n}_proj.weight"), "BF16", &[12288, 7168]);
        }
        add("self_attn.o_proj.weight", "BF16", &[7168, 12288]);
        for n in ["q", "k", "v"] {
            add(&format!("self_attn.{n}_conv1d.weight"), "F32", &[12288, 1, 4]);
        }
        add("self_attn.f_a_proj.weight", "BF16", &[128, 7168]);
        add("self_attn.f_b_proj.weight", "BF16", &[12288, 128]);
        add("self_attn.b_proj.weight", "BF16", &[96, 7168]);
        add("self_attn.A_log", "F32", &[128]);
        add("self_attn.dt_bias", "F32", &[12288]);
        add("self_attn.o_norm.weight", "F32", &[128]);
    }
    if l == 0 {
        add("mlp.gate_proj.weight", "BF16", &[33792, 7168]);
        add("mlp.up_proj.weight", "BF16", &[33792, 7168]);
        add("mlp.down_proj.weight", "BF16", &[7168, 33792]);
        return out;
    }
    let moe = "block_sparse_moe";
    add(&format!("{moe}.gate.weight"), "BF16", &[896, 7168]);
    add(&format!("{moe}.gate.e_score_correction_bias"), "F32", &[896]);
    add(&format!("{moe}.routed_expert_down_proj.weight"), "BF16", &[3584, 7168]);
    add(&format!("{moe}.routed_expert_up_proj.weight"), "BF16", &[7168, 3584]);
    add(&format!("{moe}.routed_expert_norm.weight"), "BF16", &[3584]);
    for (n, shape) in [("gate", [6144, 7168]), ("up", [6144, 7168]), ("down", [7168, 6144])] {
        add(&format!("{moe}.shared_experts.{n}_proj.weight"), "BF16", &shape);
    }
    for e in 0..896 {
        for (w, rows, cols) in [("w1", 3072, 3584), ("w2", 3584, 3072), ("w3", 3072, 3584)] {
            let name = format!("{moe}.experts.{e}.{w}");
            add(&format!("{name}.weight_packed"), "U8", &[rows, cols / 2]);
            add(&format!("{name}.weight_scale"), "U8", &[rows, cols / 32]);
        }
    }
    out
}

fn write_shard(dir: &Path, name: &str, tensors: &[Tensor], map: &mut String) {
    let mut header = String::from("{");
    let mut at = 0;
    for (tensor, dtype, shape) in tensors {
        let size: u64 = match *dtype {
            "F32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let end = at + size * shape.iter().product::<u64>();
        let comma = if at == 0 { "" } else { "," };
        write!(
            header,
            "{comma}\"{tensor}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"
        )
        .unwrap();
        let comma = if map.len() < 2 { "" } else { "," };
        write!(map, "{comma}\n\"{tensor}\": \"{name}\"").unwrap();
        at = end;
    }
    header.push('}');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    let path = dir.join(name);
    fs::write(&path, &bytes).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(bytes.len() as u64 + at)
        .unwrap();
}

/// Writes the checkpoint into `dir`.
pub fn write(dir: &Path) {
    let mut map = String::from("{");
    let name = |i: usize| format!("model-{i:05}-of-{SHARDS:05}.safetensors");
    let mut count = 0;
    for l in 0..LAYERS {
        let tensors = layer(l);
        count += tensors.len();
        write_shard(dir, &name(l + 1), &tensors, &mut map);
    }
    let bf16 = |n: &str, shape: &[u64]| (format!("language_model.{n}"), "BF16", shape.to_vec());
    let tops = [
        vec![bf16("model.embed_tokens.weight", &[163_840, 7168])],
        vec![
            bf16("lm_head.weight", &[163_840, 7168]),
            bf16("model.norm.weight", &[7168]),
            bf16("model.output_attn_res_norm.weight", &[7168]),
            bf16("model.output_attn_res_proj.weight", &[1, 7168]),
        ],
    ];
    for (i, tensors) in tops.iter().enumerate() {
        count += tensors.len();
        write_shard(dir, &name(LAYERS + 1 + i), tensors, &mut map);
    }
    // The vision tower fills up to the released number of tensors.
    let tower: Vec<Tensor> = (count..TENSORS)
        .map(|i| (format!("vision_tower.block{i}.weight"), "BF16", vec![1024, 1024]))
        .collect();
    write_shard(dir, &name(SHARDS), &tower, &mut map);
    map.push('}');
    let text = format!("{{\"metadata\": {{\"total_size\": 0}}, \"weight_map\": {map}}}");
    fs::write(dir.join(store::safetensors::INDEX_FILE), text).unwrap();
}
