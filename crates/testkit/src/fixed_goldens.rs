//! The integer core's golden files (vectors/fixed/README.md): runs of the Python definition with the
//! plan, the charged work and the state's digest of every turn.

use std::path::PathBuf;

use serde_json::Value;

use crate::fixed_models::{Model, model};

/// Golden files committed with the repository, without their ending.
pub const COMMITTED: [&str; 7] = [
    "synthetic_tiny",
    "synthetic_gqa",
    "synthetic_own",
    "synthetic_wild",
    "synthetic_overflow",
    "facit-tales",
    "sections3",
];
/// Golden files that need models beside the repository.
pub const SHARED: [&str; 4] = ["stories260K", "stories260K_long", "stories260K_full", "rand15M"];

/// A golden file: one model, many runs.
pub struct Goldens {
    /// The model's name.
    pub name: String,
    /// The model.
    pub model: Model,
    /// The seven configuration words.
    pub config: [u32; 7],
    /// SHA-256 of the checkpoint, the tokenizer and the artifact.
    pub digests: [String; 3],
    /// The artifact's length.
    pub artifact_len: usize,
    /// Lengths of its sections, section zero first.
    pub section_lens: Vec<u64>,
    /// The runs.
    pub cases: Vec<Case>,
}

/// One run.
pub struct Case {
    /// Name in the file.
    pub name: String,
    /// Prompt bytes.
    pub prompt: Vec<u8>,
    /// Most tokens.
    pub max_tokens: u32,
    /// Temperature, 16 fractional bits.
    pub temperature_q16: u32,
    /// Seed.
    pub seed: u64,
    /// Compute units a turn.
    pub allowance: u32,
    /// Bytes of the state.
    pub state_size: usize,
    /// SHA-256 of the fresh state.
    pub initial: String,
    /// The error's number and the turn (from 1) that raises it.
    pub error: Option<(u32, usize)>,
    /// All turns; up to the error if there is one.
    pub turns: Vec<Turn>,
    /// What a run without an error produces.
    pub output: Option<Output>,
}

/// What a run produces.
pub struct Output {
    /// Tokens of the prompt.
    pub prompt_tokens: Vec<u32>,
    /// Tokens generated.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: Vec<u8>,
    /// Turns if no stop token comes.
    pub quote: u64,
    /// SHA-256 of the last state.
    pub state: String,
}

/// One turn.
pub struct Turn {
    /// Sections the plan names.
    pub sections: Vec<u32>,
    /// Compute units the plan charges.
    pub estimated_cu: u32,
    /// The most tokens it may complete.
    pub max_generated: u32,
    /// The cursor after it, as planned: phase, layer, row, position, generated, pass, stage, index.
    pub end: [u32; 8],
    /// Compute units the turn charged.
    pub work: u32,
    /// Tokens generated after it.
    pub generated: u32,
    /// SHA-256 of the state after it, possibly only its first 16 digits.
    pub state: String,
}

/// Reads a JSON file of the goldens: the committed copy, else the one beside the repository.
pub fn json(name: &str) -> Option<Value> {
    let committed = crate::root().join("vectors/fixed").join(format!("{name}.json"));
    let shared = |s: PathBuf| s.join("goldens/fixed").join(format!("{name}.json"));
    let path = if committed.is_file() { committed } else { crate::shared().map(shared)? };
    let text = std::fs::read_to_string(&path).ok()?;
    Some(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

/// Reads a golden file and its model; `None` when either is not beside the repository.
///
/// # Panics
/// If the file is not of the expected form.
pub fn load(name: &str) -> Option<Goldens> {
    let file = json(name)?;
    let base = name.strip_prefix("synthetic_").unwrap_or(name);
    let base = base.split('_').next().unwrap_or(base);
    let text = |key: &str| string(&file[key]);
    Some(Goldens {
        name: name.into(),
        model: model(base)?,
        config: words(&file["config"]).try_into().expect("seven words"),
        digests: ["checkpoint_sha256", "tokenizer_sha256", "artifact_sha256"].map(text),
        artifact_len: number(&file["artifact_len"]) as usize,
        section_lens: list(&file["section_lens"]).iter().map(number).collect(),
        cases: list(&file["cases"]).iter().map(case).collect(),
    })
}

fn case(v: &Value) -> Case {
    let error = v.get("error").map(|e| (number(e) as u32, number(&v["error_turn"]) as usize));
    let output = error.is_none().then(|| Output {
        prompt_tokens: words(&v["prompt_tokens"]),
        tokens: words(&v["tokens"]),
        text: crate::unhex(&string(&v["text_hex"])),
        quote: number(&v["quote_turns"]),
        state: string(&v["final_sha256"]),
    });
    Case {
        name: string(&v["name"]),
        prompt: crate::unhex(&string(&v["prompt_hex"])),
        max_tokens: number(&v["max_tokens"]) as u32,
        temperature_q16: number(&v["temperature_q16"]) as u32,
        seed: string(&v["seed"]).parse().expect("a seed"),
        allowance: number(&v["allowance"]) as u32,
        state_size: number(&v["state_size"]) as usize,
        initial: string(&v["initial_sha256"]),
        error,
        turns: list(&v["turns"]).iter().map(turn).collect(),
        output,
    }
}

fn turn(v: &Value) -> Turn {
    Turn {
        sections: words(&v[0]),
        estimated_cu: number(&v[1]) as u32,
        max_generated: number(&v[2]) as u32,
        end: words(&v[3]).try_into().expect("eight cursor fields"),
        work: number(&v[4]) as u32,
        generated: number(&v[5]) as u32,
        state: string(&v[6]),
    }
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("a number, got {v}"))
}

fn string(v: &Value) -> String {
    v.as_str().unwrap_or_else(|| panic!("a string, got {v}")).into()
}

fn list(v: &Value) -> &[Value] {
    v.as_array().unwrap_or_else(|| panic!("a list, got {v}"))
}

fn words(v: &Value) -> Vec<u32> {
    list(v).iter().map(|w| number(w) as u32).collect()
}
