//! The configuration in both published forms, the tensor table of the released model, and what
//! is refused: every refusal names the field or the tensor.

mod ds41_common;

use ds41_common::{bytes, json, tiny};
use models::deepseek_v41::config::Role;
use models::deepseek_v41::{BindError, Config, ConfigError, DeepSeekV41, Options, Regime, tensors};
use models::machine::{DType, Model, Stored};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn parse(v: &Value) -> Result<Config, ConfigError> {
    Config::from_json(v.to_string().as_bytes())
}

fn released() -> Config {
    Config::from_json(&bytes("released_config.json")).unwrap()
}

/// Catches a field read under the wrong name in one of the forms.
#[test]
fn both_forms_give_the_same_configuration() {
    let hf = tiny::config();
    let mut short = Config::from_json(&bytes("tiny_model/inference_config.json")).unwrap();
    // The short form has no context of its own: it is the rotary range, 32 * 4.
    assert_eq!((hf.max_positions, short.max_positions), (64, 128));
    short.max_positions = 64;
    assert_eq!(hf, short);
}

/// Catches roles and sources shifted by a layer.
#[test]
fn released_layer_roles() {
    let c = released();
    let of = |role| (0..40).filter(|&l| c.role(l) == role).collect::<Vec<_>>();
    assert_eq!(of(Role::Window), [0, 1]);
    assert_eq!(of(Role::Full), [2, 8, 14, 20]);
    assert_eq!(of(Role::Reindex), [24, 28, 32, 36]);
    let sources: Vec<_> = [1, 2, 7, 8, 13, 14, 19, 20, 39].map(|l| c.source(l)).to_vec();
    let want = [None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(2), Some(3), Some(3)];
    assert_eq!(sources, want);
    assert_eq!(c.cache_bytes_per_token(), 890);
}

/// Catches any wrong name, shape or type in the table: count, bytes and elements of the published
/// headers.
#[test]
fn the_released_table_adds_up() {
    let c = released();
    let (mut count, mut bytes) = (0u64, 0u64);
    let mut elements: BTreeMap<&str, u64> = BTreeMap::new();
    let mut names = std::collections::HashSet::new();
    let mut add = |name: &str, dtype: DType, shape: &[usize]| {
        assert!(names.insert(name.to_owned()), "{name} twice");
        let n = shape.iter().map(|&d| d as u64).product::<u64>();
        count += 1;
        bytes += n * dtype.size() as u64;
        *elements.entry(dtype.name()).or_default() += n;
    };
    tensors::for_each(&c, &mut add);
    for t in tensors::released_vision() {
        add(&t.name, t.dtype, &t.shape);
        assert!(tensors::VISION_PREFIXES.iter().any(|p| t.name.starts_with(p)), "{}", t.name);
    }
    assert_eq!((count, bytes), (96_085, 510_286_023_000));
    let published = BTreeMap::from([
        ("BF16", 1_976_441_856),
        ("F8_E4M3", 204_015_223_296),
        ("F8_E8M0", 23_563_015_184),
        ("F32", 42_307_282),
        ("I8", 278_585_671_680),
    ]);
    assert_eq!(elements, published);
}

/// Catches a layout that asks for more or less than the model needs: the published always-active
/// bytes, one expert, and the rows of a token.
#[test]
fn the_released_layout_in_bytes() {
    let c = released();
    let layout = tensors::layout(&c);
    let backbone: usize = layout.layers[..40].iter().map(|l| l.bytes()).sum();
    // Published: 7,199,083,968 with the image biases of 40 routers, which text never reads.
    assert_eq!(backbone + 40 * 384 * 4, 7_199_083_968);
    assert!(layout.layers[..40].iter().all(|l| l.expert_bytes() == 18_800_640 && l.experts == 384));
    let rows: usize =
        layout.tables[1..].iter().flat_map(|t| &t.tensors).map(|t| t.row_bytes()).sum();
    assert_eq!(rows * 24, 12_672);
    let drafts: usize =
        layout.layers[40..].iter().map(|l| l.bytes() + l.experts * l.expert_bytes()).sum();
    assert_eq!(drafts + 3 * 128 * 4, 7_932_874_632);
}

/// Catches a bind that needs memory or time out of proportion, or misses a tensor: all 96,085 in
/// a map, bound, then each of a few taken away or changed.
#[test]
fn bind_names_the_tensor() {
    let c = released();
    let mut map: std::collections::HashMap<String, Stored> = Default::default();
    tensors::for_each(&c, |name, dtype, shape| {
        map.insert(
            name.to_owned(),
            Stored { dtype: dtype.name().to_owned(), shape: shape.to_vec() },
        );
    });
    let tokens: Vec<u32> = (0..129_280).map(|t| t % 99_092).collect();
    let options = Options { regime: Regime::W8a8, drafts: true };
    let bind = |map: &std::collections::HashMap<String, Stored>| {
        DeepSeekV41::bind(c.clone(), options, tokens.clone(), |n| map.get(n).cloned())
    };
    let model = bind(&map).unwrap();
    assert_eq!(model.layout().layers.len(), 43);
    for name in [
        "layers.7.attn.wq_b.scale",
        "layers.39.ffn.experts.383.w2.scale",
        "mtp.2.markov_head.embed.weight",
        "layers.1.engram.embed.scale",
        "norm.weight",
    ] {
        let taken = map.remove(name).unwrap();
        let error = bind(&map).unwrap_err();
        assert!(matches!(&error, BindError::Missing { name: n, .. } if n == name), "{error}");
        let mut fewer = taken.clone();
        fewer.shape[0] -= 1;
        map.insert(name.to_owned(), fewer);
        let error = bind(&map).unwrap_err();
        assert!(matches!(&error, BindError::Mismatch { name: n, .. } if n == name), "{error}");
        map.insert(name.to_owned(), taken);
    }
    // Without drafts their tensors need not be there.
    map.retain(|name, _| !name.starts_with("mtp."));
    assert!(bind(&map).is_err());
    let backbone =
        DeepSeekV41::bind(c.clone(), Options::default(), tokens.clone(), |n| map.get(n).cloned());
    assert!(backbone.is_ok());
}

/// Catches a reader that stops at the first problem or invents a default.
#[test]
fn all_missing_and_mistyped_fields_are_listed() {
    let mut v = json("tiny_model/config.json");
    let text = v["text_config"].as_object_mut().unwrap();
    text.remove("index_topk");
    text.remove("hc_eps");
    text["rope_scaling"].as_object_mut().unwrap().remove("factor");
    text["head_dim"] = json!("64");
    text["compress_ratios"] = json!([0, -1]);
    v["quantization_config"].as_object_mut().unwrap().remove("scale_fmt");
    let Err(ConfigError::Fields { mut missing, mut mistyped }) = parse(&v) else {
        panic!("{:?}", parse(&v));
    };
    missing.sort();
    mistyped.sort();
    assert_eq!(missing, ["factor", "hc_eps", "index_topk", "scale_fmt"]);
    assert_eq!(mistyped.len(), 2, "{mistyped:?}");
    assert!(mistyped[0].starts_with("compress_ratios") && mistyped[1].starts_with("head_dim"));
}

/// Catches the removal of any required field that goes unnoticed, in either form.
#[test]
fn every_field_is_required() {
    // Fields of the checkpoint that describe training or other software.
    let free = ["attention_dropout", "use_cache", "initializer_range", "model_type", "dtype"];
    let v = json("tiny_model/config.json");
    for key in v["text_config"].as_object().unwrap().keys() {
        if free.contains(&key.as_str()) {
            continue;
        }
        let mut edited = v.clone();
        edited["text_config"].as_object_mut().unwrap().remove(key);
        let error = parse(&edited).expect_err(key).to_string();
        assert!(error.contains(key.as_str()), "{key}: {error}");
    }
    let v = json("tiny_model/inference_config.json");
    for key in v.as_object().unwrap().keys() {
        let mut edited = v.clone();
        edited.as_object_mut().unwrap().remove(key);
        let error = parse(&edited).expect_err(key).to_string();
        assert!(error.contains(key.as_str()), "{key}: {error}");
    }
}

/// Catches values that would be computed with and give a wrong answer that looks right.
#[test]
fn values_that_are_not_implemented_or_contradict_are_refused_by_name() {
    let edits = [
        ("/text_config/compress_ratios/3", json!(4), "compress_ratios"),
        ("/text_config/compress_ratios/9", json!(1), "compress_ratios"),
        ("/text_config/compress_ratios", json!([0, 0, 2]), "compress_ratios"),
        ("/text_config/compress_ratios/3", json!(1), "compress_ratios"),
        ("/text_config/compress_ratios/1", json!(2), "compress_ratios"),
        ("/text_config/kv_source_layer_ids", json!([4, 2]), "kv_source_layer_ids"),
        ("/text_config/index_source_layer_ids", json!([2, 6]), "index_source_layer_ids"),
        ("/text_config/candidate_source_layer_id", json!(2), "candidate_source_layer_id"),
        ("/text_config/candidate_topk_blocks", json!(1), "candidate_topk_blocks"),
        ("/quantization_config/weight_block_size", json!([128, 128]), "weight_block_size"),
        ("/quantization_config/scale_fmt", json!("fp32"), "scale_fmt"),
        ("/quantization_config/expert_dtype", json!("fp8"), "expert_dtype"),
        ("/text_config/scoring_func", json!("sigmoid"), "scoring_func"),
        ("/text_config/n_shared_experts", json!(2), "n_shared_experts"),
        ("/text_config/tie_word_embeddings", json!(true), "tie_word_embeddings"),
        ("/text_config/head_dim", json!(48), "head_dim"),
        ("/text_config/hidden_size", json!(0), "hidden_size"),
        ("/text_config/hidden_size", json!(1u64 << 40), "hidden_size"),
        ("/text_config/hc_mult", json!(9), "hc_mult"),
        ("/text_config/o_groups", json!(3), "o_groups"),
        ("/text_config/num_experts_per_tok", json!(7), "num_experts_per_tok"),
        ("/text_config/qk_rope_head_dim", json!(15), "qk_rope_head_dim"),
        ("/text_config/rms_norm_eps", json!(0.0), "rms_norm_eps"),
        ("/text_config/engram_num_embeddings", json!([630]), "engram_num_embeddings"),
        ("/text_config/engram_compressed_vocab_size", json!(385), "engram_compressed_vocab_size"),
        ("/text_config/engram_vocab_size", json!(u64::MAX), "engram_vocab_size"),
        ("/text_config/dspark_noise_token_id", json!(384), "dspark_noise_token_id"),
        ("/text_config/dspark_target_layer_ids", json!([5, 6, 8]), "dspark_target_layer_ids"),
        ("/architectures/0", json!("DeepseekV4ForCausalLM"), "architectures"),
    ];
    for (path, value, field) in edits {
        let mut v = json("tiny_model/config.json");
        *v.pointer_mut(path).expect(path) = value.clone();
        let error = parse(&v).expect_err(path).to_string();
        assert!(error.contains(field), "{path} = {value}: {error}");
    }
}

/// Catches a DeepSeek-V4 configuration that is taken for V4.1, in both forms.
#[test]
fn v4_is_refused_as_another_model() {
    let mut v = json("tiny_model/config.json");
    v["model_type"] = json!("deepseek_v4");
    assert!(matches!(parse(&v), Err(ConfigError::Model { field: "model_type", .. })));
    let mut v = json("tiny_model/config.json");
    v["text_config"]["model_type"] = json!("deepseek_v4_text");
    assert!(matches!(parse(&v), Err(ConfigError::Model { field: "text_config.model_type", .. })));
    let mut v = json("tiny_model/inference_config.json");
    v["n_hash_layers"] = json!(3);
    assert!(matches!(parse(&v), Err(ConfigError::Model { field: "n_hash_layers", .. })));
    assert!(matches!(Config::from_json(b"[1]"), Err(ConfigError::Json(_))));
    assert!(matches!(
        Config::from_json(b"{\"model_type\": \"deepseek_v41\"}"),
        Err(ConfigError::Fields { .. })
    ));
}

/// Catches tables smaller than the hashes reach, token maps that do not fit, and drafts where
/// there are none.
#[test]
fn engram_sizes_and_token_maps_are_checked() {
    let host = tiny::resident();
    let bind = |c: Config, map: Vec<u32>, drafts| {
        let options = Options { drafts, ..Options::default() };
        DeepSeekV41::bind(c, options, map, host.lookup()).map(|_| ())
    };
    let mut c = tiny::config();
    c.engram.rows[1] -= 1;
    let error = bind(c, tiny::token_map(), false).unwrap_err().to_string();
    assert!(error.contains("engram_num_embeddings") && error.contains("834"), "{error}");
    for (edit, what) in [(0, "383 entries"), (1, "id 306 for token 7"), (2, "no token for id 305")]
    {
        let mut map = tiny::token_map();
        match edit {
            0 => drop(map.pop()),
            1 => map[7] = 306,
            _ => map[383] = 0,
        }
        let error = bind(tiny::config(), map, false).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let mut c = tiny::config();
    c.dspark.stages = 0;
    assert_eq!(bind(c, tiny::token_map(), true), Err(BindError::NoDrafts));
}
