//! Model directories (Kimi K3, DeepSeek-V4.1) from the command line: options that several
//! commands share, and opening a directory with a progress bar.

pub mod inspect;
mod phase;
pub mod run;
mod steps;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use engine::giant::{self, Checkpoint, Engine, Prepared};
use models::deepseek_v41::{Options, Regime};
use numerics::{Backend, Kernels};
use store::plan::{PRESETS, Preset};

use crate::exit::Usage;
use crate::ui;

/// The options of `run` that only model directories know.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Model directories (Kimi K3, DeepSeek-V4.1)")]
pub struct GiantOptions {
    /// The prompt as token ids, separated by commas or blanks; needs no tokenizer
    #[arg(long, value_name = "IDS", conflicts_with_all = ["text", "prompt_file"])]
    pub ids: Option<String>,
    /// Sample from the most probable tokens that hold this share of the probability [default:
    /// 0.95 once --seed, --temperature or --top-k asks for sampling]
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Sample from this many of the most probable tokens
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Write the logits of every chosen token, for `facit compare`
    #[arg(long, value_name = "FILE")]
    pub dump_logits: Option<PathBuf>,
    /// Save the sequence when the run ends, for --resume
    #[arg(long, value_name = "STATE")]
    pub save_state: Option<PathBuf>,
    /// Go on from a saved sequence; a prompt is then optional and is appended
    #[arg(long, value_name = "STATE")]
    pub resume: Option<PathBuf>,
    /// Prefill so many positions at a time [default: what reads the fewest bytes]. Never changes
    /// a bit
    #[arg(long, value_name = "N")]
    pub chunk: Option<usize>,
    // The names and sizes are the planner's.
    #[arg(long, value_name = "SIZE", value_parser = Memory::parse, default_value = "auto")]
    #[arg(help = memory_help())]
    pub memory: Memory,
    /// DeepSeek-V4.1: draft up to N tokens ahead and verify them together. Never changes a token
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub drafts: usize,
    /// Record which experts are asked for, for `facit cache-sim`
    #[arg(long, value_name = "FILE")]
    pub record_trace: Option<PathBuf>,
    /// Write what every step cost as JSON lines, while the run goes on
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// DeepSeek-V4.1: arithmetic of the quantised linears, w8a8 (the released model's) or bf16
    #[arg(long, value_name = "NAME", value_parser = regime, default_value = "w8a8")]
    pub regime: Regime,
}

impl GiantOptions {
    /// How the model is bound.
    pub fn model_options(&self) -> Options {
        Options { regime: self.regime, drafts: self.drafts > 0 }
    }
}

/// A memory budget: bytes, or what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory(pub Option<u64>);

impl Memory {
    /// From the command line.
    pub fn parse(text: &str) -> Result<Memory, String> {
        giant::parse_memory(text).map(Memory)
    }
}

fn memory_help() -> String {
    let preset = |p: &Preset| format!("{} ({} GiB)", p.name, p.memory >> 30);
    let presets: Vec<_> = PRESETS.iter().map(preset).collect();
    format!(
        "Memory to stay within: a size (1.2GB, 700MiB), `auto` (what the system and its control \
         groups leave free), or {}. Never changes a bit",
        presets.join(", ")
    )
}

/// The model directory among the arguments, if there is one: `--model DIR`, or the positional if
/// no other model is named.
pub fn directory<'a>(model: Option<&'a Path>, positional: Option<&'a OsStr>) -> Option<&'a Path> {
    model.or(positional.map(Path::new)).filter(|path| Checkpoint::is_at(path))
}

/// Kernels on this machine.
pub fn kernels(backend: Option<&str>, threads: usize) -> anyhow::Result<Kernels> {
    let backend = match backend {
        None => Backend::detect(),
        Some(name) => {
            // The exact core's name for the same.
            let known = if name == "plain" { "scalar" } else { name };
            let found = Backend::supported().into_iter().find(|b| b.name() == known);
            found.ok_or_else(|| {
                let names: Vec<_> = Backend::supported().iter().map(|b| b.name()).collect();
                Usage(format!(
                    "--backend {name}: for model directories this machine has {}",
                    names.join(", ")
                ))
            })?
        }
    };
    Ok(Kernels::new(backend, threads))
}

/// Tells how the memory is divided, takes it and opens the model.
pub fn load(
    checkpoint: &Checkpoint,
    prepared: Prepared<'_>,
    kernels: Kernels,
    quiet: bool,
) -> anyhow::Result<Box<dyn Engine>> {
    if !quiet && !prepared.resident() {
        ui::note(&format!("memory for {}:", checkpoint.dir().display()));
        ui::note(prepared.plan().to_string().trim_end());
    }
    let total = checkpoint.index().iter().map(|t| t.len).sum();
    let bar = ui::bytes_bar(total, "weights", quiet || !prepared.resident());
    let mut engine = prepared.load(kernels, &mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    engine.events().iter().for_each(|event| ui::note(&event.to_string()));
    Ok(engine)
}

/// What model directories take for a temperature.
pub fn temperature(t: engine::Temperature) -> f32 {
    t.q16() as f32 / 65536.0
}

/// A regime by its name.
pub fn regime(name: &str) -> Result<Regime, String> {
    match name {
        "w8a8" => Ok(Regime::W8a8),
        "bf16" => Ok(Regime::Bf16),
        _ => Err("expected w8a8 or bf16".into()),
    }
}
