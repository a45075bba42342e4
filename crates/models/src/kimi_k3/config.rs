//! The configuration reader that refuses to guess.
//!
//! A field that is absent or of the wrong type is an error, never a default: a config this
//! reader does not fully understand would silently run a *different* model (an empty
//! `full_attn_layers` still speaks English). All problems are listed at once.
//!
//! Two spellings are read: the released one (fields under `text_config`, the linear-attention
//! ones under `text_config.linear_attn_config`) and a flat one with the same meanings.

use serde_json::{Map, Value};

/// Largest value of any size, and of any product that is a tensor's dimension. Far above the
/// released model (163,840) and small enough that no shape can overflow.
pub const MAX_SIZE: usize = 1 << 22;

/// Most layers a config may have.
pub const MAX_LAYERS: usize = 4096;

/// Epsilon with which the released code builds the two norms inside MLA (a class default that
/// differs from `rms_norm_eps`, which every other norm uses).
pub const RELEASED_MLA_EPS: f64 = 1e-6;

/// Version of the arithmetic: changes whenever a release may give other bits.
const NUMERICS: &str = "kimi_k3-1";

/// Dimensions and constants of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Width of the residual stream (released model: 7168).
    pub hidden: usize,
    /// Number of layers (93).
    pub layers: usize,
    /// Vocabulary (163,840).
    pub vocab: usize,
    /// Epsilon of every norm except the two inside MLA (1e-5).
    pub rms_eps: f64,
    /// Epsilon of `q_a_layernorm` and `kv_a_layernorm`: [`RELEASED_MLA_EPS`] for the nested
    /// form, `rms_norm_eps` for the flat form; part of the numerics id.
    pub mla_eps: f64,

    /// KDA heads (96).
    pub kda_heads: usize,
    /// Width of a KDA head, keys and values alike (128).
    pub kda_head_dim: usize,
    /// Taps of the causal convolution (4).
    pub conv_kernel: usize,
    /// Lower bound of the log decay (-5).
    pub gate_lower_bound: f32,
    /// For each layer, whether it is full attention (MLA) rather than KDA.
    pub full_attention: Vec<bool>,

    /// MLA heads (96).
    pub heads: usize,
    /// Width of the compressed query (1536).
    pub q_lora: usize,
    /// Width of the cached latent (512).
    pub kv_lora: usize,
    /// Query and key values of a head that come from the latent (128).
    pub qk_nope: usize,
    /// Query and key values shared by all heads; despite the name never rotated (64).
    pub qk_rope: usize,
    /// Values of a head (128).
    pub v_head: usize,

    /// Routed experts of a layer (896).
    pub experts: usize,
    /// Experts chosen for a position (16).
    pub top_k: usize,
    /// Shared experts, stored as one feed-forward of `shared * expert_width` (2).
    pub shared: usize,
    /// Width of the routed experts' input and output (3584).
    pub latent: usize,
    /// Inner width of an expert (3072).
    pub expert_width: usize,
    /// Factor on the routing weights (1.0).
    pub routed_scale: f32,

    /// Leading layers with a dense feed-forward (1).
    pub dense_layers: usize,
    /// Inner width of the dense feed-forward (33,792).
    pub dense_width: usize,
    /// A snapshot of the residual is taken at layers divisible by this (12).
    pub block: usize,
    /// Cap of SiTU's gate (4).
    pub situ_beta: f32,
    /// Cap of SiTU's linear half (25).
    pub situ_linear_beta: f32,
}

/// A configuration that is not a Kimi K3 this engine computes. Lists every problem found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the config is refused (a guess would run a different model):{}",
    problems.iter().map(|p| format!("\n  {p}")).collect::<String>()
)]
pub struct ConfigError {
    /// One line a problem.
    pub problems: Vec<String>,
}

/// Reads fields of one object and collects what is wrong with them.
struct Reader<'a> {
    object: &'a Map<String, Value>,
    path: &'static str,
}

impl Reader<'_> {
    fn value<'v>(&'v self, key: &str, problems: &mut Vec<String>) -> Option<&'v Value> {
        let value = self.object.get(key);
        if value.is_none() {
            problems.push(format!("{}{key} is missing", self.path));
        }
        value
    }

    fn wrong<T>(
        &self,
        key: &str,
        want: &str,
        got: &Value,
        problems: &mut Vec<String>,
    ) -> Option<T> {
        let mut shown = got.to_string();
        if let Some((cut, _)) = shown.char_indices().nth(60) {
            shown.truncate(cut);
            shown.push_str("...");
        }
        problems.push(format!("{}{key}: expected {want}, got {shown}", self.path));
        None
    }

    /// An integer in `1..=MAX_SIZE`; 0 when missing or wrong (and then there is a problem).
    fn size(&self, key: &str, problems: &mut Vec<String>) -> usize {
        let Some(v) = self.value(key, problems) else { return 0 };
        let in_range = v.as_u64().and_then(|n| usize::try_from(n).ok());
        in_range.filter(|n| (1..=MAX_SIZE).contains(n)).unwrap_or_else(|| {
            self.wrong::<usize>(key, &format!("an integer from 1 to {MAX_SIZE}"), v, problems)
                .unwrap_or(0)
        })
    }

    /// A count that may be zero.
    fn count(&self, key: &str, problems: &mut Vec<String>) -> usize {
        match self.object.get(key).and_then(Value::as_u64) {
            Some(0) => 0,
            _ => self.size(key, problems),
        }
    }

    /// A number that is finite in f32; 0 when missing or wrong.
    fn number(&self, key: &str, problems: &mut Vec<String>) -> f64 {
        let Some(v) = self.value(key, problems) else { return 0.0 };
        v.as_f64()
            .filter(|x| (*x as f32).is_finite())
            .unwrap_or_else(|| self.wrong::<f64>(key, "a number", v, problems).unwrap_or(0.0))
    }

    /// A number above zero.
    fn positive(&self, key: &str, problems: &mut Vec<String>) -> f64 {
        let before = problems.len();
        let x = self.number(key, problems);
        // In f32, as it is used: 1e-300 would pass as f64 and then divide by zero.
        if problems.len() == before && x as f32 <= 0.0 {
            problems.push(format!("{}{key}: expected a number above 0, got {x}", self.path));
        }
        x
    }

    /// A switch for which this engine implements one value only.
    fn must_be(&self, key: &str, only: bool, optional: bool, problems: &mut Vec<String>) {
        if optional && !self.object.contains_key(key) {
            return;
        }
        let Some(v) = self.value(key, problems) else { return };
        if v.as_bool() != Some(only) {
            self.wrong::<()>(key, &format!("{only} (the only form implemented)"), v, problems);
        }
    }
}

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// Everything that is missing, mistyped, out of range or contradictory, at once.
    pub fn parse(json: &[u8]) -> Result<Config, ConfigError> {
        let fail = |problem: String| Err(ConfigError { problems: vec![problem] });
        let root: Value = match serde_json::from_slice(json) {
            Ok(v) => v,
            Err(e) => return fail(format!("not JSON: {e}")),
        };
        let Value::Object(root) = &root else {
            return fail("the config is not a JSON object".into());
        };
        if let Some(kind) = root.get("model_type").and_then(Value::as_str)
            && !kind.starts_with("kimi")
        {
            return fail(format!("model_type is {kind:?}, not a Kimi model"));
        }
        match root.get("text_config") {
            None => Self::read(&Reader { object: root, path: "" }, None),
            Some(Value::Object(text)) => {
                let text = Reader { object: text, path: "text_config." };
                let empty = Map::new();
                let linear = match text.object.get("linear_attn_config") {
                    Some(Value::Object(linear)) => linear,
                    // Reported as each of its fields missing, which names them.
                    _ => &empty,
                };
                let path = "text_config.linear_attn_config.";
                Self::read(&text, Some(&Reader { object: linear, path }))
            }
            Some(_) => fail("text_config is not an object".into()),
        }
    }

    /// `linear` is the nested reader of the linear-attention fields, absent in the flat form.
    fn read(text: &Reader<'_>, linear: Option<&Reader<'_>>) -> Result<Config, ConfigError> {
        let problems = &mut Vec::new();
        let nested = linear.is_some();
        let lin = linear.unwrap_or(text);
        let name = |released, flat| if nested { released } else { flat };

        let layers = text.size("num_hidden_layers", problems);
        let rms_eps = text.positive("rms_norm_eps", problems);
        let config = Config {
            hidden: text.size("hidden_size", problems),
            layers,
            vocab: text.size("vocab_size", problems),
            rms_eps,
            mla_eps: if nested { RELEASED_MLA_EPS } else { rms_eps },
            kda_heads: lin.size(name("num_heads", "kda_num_heads"), problems),
            kda_head_dim: lin.size(name("head_dim", "kda_head_dim"), problems),
            conv_kernel: lin.size("short_conv_kernel_size", problems),
            gate_lower_bound: lin.number("gate_lower_bound", problems) as f32,
            full_attention: full_attention(lin, layers, problems),
            heads: text.size("num_attention_heads", problems),
            q_lora: text.size("q_lora_rank", problems),
            kv_lora: text.size("kv_lora_rank", problems),
            qk_nope: text.size("qk_nope_head_dim", problems),
            qk_rope: text.size("qk_rope_head_dim", problems),
            v_head: text.size("v_head_dim", problems),
            experts: text.size("num_experts", problems),
            top_k: text.size("num_experts_per_token", problems),
            shared: text.size("num_shared_experts", problems),
            latent: text.size("routed_expert_hidden_size", problems),
            expert_width: text.size("moe_intermediate_size", problems),
            routed_scale: text.positive("routed_scaling_factor", problems) as f32,
            dense_layers: text.count("first_k_dense_replace", problems),
            dense_width: text.size("intermediate_size", problems),
            block: text.size("attn_res_block_size", problems),
            situ_beta: text.positive(name("activation_situ_beta", "situ_beta"), problems) as f32,
            situ_linear_beta: text
                .positive(name("activation_situ_linear_beta", "situ_linear_beta"), problems)
                as f32,
        };
        text.must_be("moe_renormalize", true, false, problems);
        text.must_be("tie_word_embeddings", false, false, problems);
        text.must_be("mla_use_output_gate", true, true, problems);
        text.must_be("latent_moe_use_norm", true, true, problems);
        if problems.is_empty() {
            config.check(problems);
        }
        match problems.is_empty() {
            true => Ok(config),
            false => Err(ConfigError { problems: std::mem::take(problems) }),
        }
    }

    /// What no single field can show.
    fn check(&self, problems: &mut Vec<String>) {
        let mut refuse = |wrong: bool, text: String| {
            if wrong {
                problems.push(text);
            }
        };
        refuse(
            self.layers > MAX_LAYERS,
            format!("num_hidden_layers: {} is above {MAX_LAYERS}", self.layers),
        );
        refuse(
            self.top_k > self.experts,
            format!(
                "num_experts_per_token: {} of only {} experts (num_experts)",
                self.top_k, self.experts
            ),
        );
        refuse(
            self.dense_layers > self.layers,
            format!("first_k_dense_replace: {} of only {} layers", self.dense_layers, self.layers),
        );
        refuse(
            self.gate_lower_bound >= 0.0,
            format!(
                "gate_lower_bound: expected a number below 0 (it bounds a decay), got {}",
                self.gate_lower_bound
            ),
        );
        for (what, width) in [
            ("KDA heads times head size", self.kda_width()),
            ("heads times query size", self.heads * self.qk()),
            ("heads times key and value size", self.heads * (self.qk_nope + self.v_head)),
            ("shared experts times expert width", self.shared_width()),
        ] {
            refuse(width > MAX_SIZE, format!("{what}: {width} is above {MAX_SIZE}"));
        }
    }

    /// Names the arithmetic: its version, and what a user may set that changes bits.
    pub fn numerics_id(&self) -> String {
        format!("{NUMERICS} mla_eps={:e}", self.mla_eps)
    }

    /// Width of KDA's projections: heads times head size.
    pub fn kda_width(&self) -> usize {
        self.kda_heads * self.kda_head_dim
    }

    /// Width of an MLA query: from the latent, then shared.
    pub fn qk(&self) -> usize {
        self.qk_nope + self.qk_rope
    }

    /// Width of a row of the MLA cache.
    pub fn cache_width(&self) -> usize {
        self.kv_lora + self.qk_rope
    }

    /// Width of MLA's concatenated head outputs.
    pub fn v_width(&self) -> usize {
        self.heads * self.v_head
    }

    /// Inner width of the shared experts taken together.
    pub fn shared_width(&self) -> usize {
        self.shared * self.expert_width
    }

    /// Whether a layer's feed-forward is dense.
    pub fn is_dense(&self, layer: usize) -> bool {
        layer < self.dense_layers
    }
}

/// The layer map from the one-based list.
fn full_attention(lin: &Reader<'_>, layers: usize, problems: &mut Vec<String>) -> Vec<bool> {
    let key = "full_attn_layers";
    let Some(value) = lin.value(key, problems) else { return Vec::new() };
    let Some(list) = value.as_array().filter(|l| !l.is_empty()) else {
        lin.wrong::<()>(key, "a list of layer numbers, the first layer being 1", value, problems);
        return Vec::new();
    };
    let layers = layers.min(MAX_LAYERS); // more is refused elsewhere; do not allocate for it
    let mut map = vec![false; layers];
    let mut last = 0;
    for (i, entry) in list.iter().enumerate() {
        match entry.as_u64() {
            None => {
                lin.wrong::<()>(&format!("{key}[{i}]"), "a layer number", entry, problems);
            }
            Some(n) if n < 1 || n > layers as u64 => problems.push(format!(
                "{}{key}[{i}]: {n} is outside 1..={layers} (the list counts from 1)",
                lin.path
            )),
            Some(n) if n <= last => problems.push(format!(
                "{}{key}[{i}]: {n} does not follow {last} (sorted, each once)",
                lin.path
            )),
            Some(n) => {
                last = n;
                map[n as usize - 1] = true;
            }
        }
    }
    if layers > 0 && map.iter().all(|&full| full) {
        problems.push(format!("{}{key}: every layer is full attention, none is KDA", lin.path));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn flat() -> Value {
        json!({
            "hidden_size": 128, "num_hidden_layers": 13, "vocab_size": 256,
            "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "kda_num_heads": 4,
            "kda_head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
            "num_attention_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32,
            "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "mla_use_output_gate": true, "num_experts": 8, "num_experts_per_token": 2,
            "num_shared_experts": 2, "routed_expert_hidden_size": 64,
            "moe_intermediate_size": 48, "routed_scaling_factor": 1.0,
            "moe_renormalize": true, "latent_moe_use_norm": true, "first_k_dense_replace": 1,
            "intermediate_size": 96, "attn_res_block_size": 3, "situ_beta": 4.0,
            "situ_linear_beta": 25.0, "full_attn_layers": [4, 8, 12, 13]
        })
    }

    fn nested() -> Value {
        let mut text = flat();
        let object = text.as_object_mut().unwrap();
        let mut linear = Map::new();
        for (flat, name) in [
            ("kda_num_heads", "num_heads"),
            ("kda_head_dim", "head_dim"),
            ("short_conv_kernel_size", "short_conv_kernel_size"),
            ("gate_lower_bound", "gate_lower_bound"),
            ("full_attn_layers", "full_attn_layers"),
        ] {
            linear.insert(name.into(), object.remove(flat).unwrap());
        }
        for (flat, name) in [
            ("situ_beta", "activation_situ_beta"),
            ("situ_linear_beta", "activation_situ_linear_beta"),
        ] {
            let v = object.remove(flat).unwrap();
            object.insert(name.into(), v);
        }
        object.insert("linear_attn_config".into(), linear.into());
        json!({ "text_config": text })
    }

    fn parse(v: &Value) -> Result<Config, ConfigError> {
        Config::parse(v.to_string().as_bytes())
    }

    #[test]
    fn both_forms_read_the_same_but_for_the_mla_epsilon() {
        let (a, b) = (parse(&flat()).unwrap(), parse(&nested()).unwrap());
        assert_eq!((a.mla_eps, b.mla_eps), (1e-5, 1e-6));
        assert_eq!(a, Config { mla_eps: 1e-5, ..b });
        // One-based: layers 4, 8, 12 and 13 are indices 3, 7, 11 and 12.
        let full: Vec<usize> = (0..13).filter(|&l| a.full_attention[l]).collect();
        assert_eq!(full, [3, 7, 11, 12]);
    }

    #[test]
    fn every_field_is_required_in_both_forms() {
        for form in [flat(), nested()] {
            let text = form.pointer("/text_config").unwrap_or(&form).clone();
            let optional = ["mla_use_output_gate", "latent_moe_use_norm"];
            for key in text.as_object().unwrap().keys() {
                let mut cut = text.clone();
                cut.as_object_mut().unwrap().remove(key);
                let whole = if form.get("text_config").is_some() {
                    json!({ "text_config": cut })
                } else {
                    cut
                };
                let result = parse(&whole);
                assert_eq!(result.is_ok(), optional.contains(&key.as_str()), "without {key}");
                if let Err(e) = result {
                    let wanted = if key == "linear_attn_config" { "num_heads" } else { key };
                    assert!(e.to_string().contains(wanted), "{e}");
                }
            }
        }
    }

    #[test]
    fn all_problems_are_listed_at_once() {
        let mut v = flat();
        let o = v.as_object_mut().unwrap();
        o.remove("situ_beta");
        o.remove("full_attn_layers");
        o.insert("vocab_size".into(), json!("256"));
        o.insert("hidden_size".into(), json!(12.5));
        let e = parse(&v).unwrap_err();
        assert_eq!(e.problems.len(), 4, "{e}");
    }

    #[test]
    fn structural_mistakes_are_refused() {
        for (key, value, says) in [
            ("full_attn_layers", json!([4, 8, 999, 13]), "outside 1..=13"),
            ("full_attn_layers", json!([0, 4]), "counts from 1"),
            ("full_attn_layers", json!([4, 4]), "does not follow"),
            ("full_attn_layers", json!([8, 4]), "does not follow"),
            ("full_attn_layers", json!([]), "expected a list"),
            ("full_attn_layers", json!([4, "8"]), "[1]: expected a layer number"),
            ("full_attn_layers", json!((1..=13).collect::<Vec<_>>()), "none is KDA"),
            ("num_experts_per_token", json!(9), "of only 8 experts"),
            ("attn_res_block_size", json!(0), "from 1 to"),
            ("short_conv_kernel_size", json!(0), "from 1 to"),
            ("hidden_size", json!(-128), "from 1 to"),
            ("hidden_size", json!(1u64 << 40), "from 1 to"),
            ("kda_num_heads", json!(1 << 20), "is above"),
            ("num_hidden_layers", json!(1 << 20), "is above"),
            ("first_k_dense_replace", json!(14), "of only 13 layers"),
            ("moe_renormalize", json!(false), "only form implemented"),
            ("tie_word_embeddings", json!(true), "only form implemented"),
            ("mla_use_output_gate", json!(false), "only form implemented"),
            ("latent_moe_use_norm", json!(null), "only form implemented"),
            ("rms_norm_eps", json!(0), "above 0"),
            ("situ_beta", json!(1e-60), "above 0"),
            ("routed_scaling_factor", json!(1e300), "a number"),
            ("gate_lower_bound", json!(5.0), "below 0"),
        ] {
            let mut v = flat();
            v.as_object_mut().unwrap().insert(key.into(), value.clone());
            let e = parse(&v).expect_err(&format!("{key} = {value}")).to_string();
            assert!(e.contains(says), "{key} = {value}: {e}");
        }
    }

    #[test]
    fn not_a_config_at_all() {
        for text in ["", "[]", "{", "nul", "{\"text_config\": 3}", "{\"model_type\": \"llama\"}"] {
            assert!(Config::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
