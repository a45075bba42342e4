//! Options that several commands share, and how they become what the engine takes.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use engine::params::{DEFAULT_MAX_TOKENS, MAX_PROMPT_BYTES, prompt_from_bytes};
use engine::{Artifact, Digest, Params, Temperature};

use crate::exit::Usage;

/// Longest prompt of a model directory, in bytes.
const MAX_GIANT_PROMPT: usize = 16 << 20;

/// What the built-in model continues when nobody says.
pub const BUILTIN_PROMPT: &str = "Once upon a time";

#[derive(clap::Args)]
pub struct ModelOptions {
    /// A file made by `facit convert`, or `builtin`, which tells short children's stories
    /// [default: builtin]
    #[arg(short, long, value_name = "PATH|builtin")]
    pub model: Option<PathBuf>,
    /// Refuse the model unless its SHA-256 is this one
    #[arg(long, value_name = "SHA256", value_parser = digest)]
    pub expect_digest: Option<Digest>,
}

impl ModelOptions {
    /// Opens the model; the built-in one when none is named.
    pub fn open(&self) -> anyhow::Result<Artifact> {
        let artifact = match &self.model {
            Some(path) if path != Path::new("builtin") => {
                if path.join("config.json").is_file() {
                    return Err(refuse_directory(path).into());
                }
                Artifact::open(path)?
            }
            _ => Artifact::builtin(),
        };
        if let Some(expected) = self.expect_digest {
            artifact.model().check_digest(expected)?;
        }
        Ok(artifact)
    }

    /// What another command needs to find the same model.
    pub fn again(&self) -> String {
        self.model.as_ref().map(|path| format!(" --model {}", path.display())).unwrap_or_default()
    }
}

/// Directories hold models of another kind than the exact core's; only `run` takes both.
pub fn refuse_directory(path: &Path) -> Usage {
    Usage(format!(
        "{} is a model directory (it has a config.json), and this command is for models made by \
         `facit convert` and the built-in one: `facit run` and `facit plan` take directories",
        path.display()
    ))
}

fn digest(text: &str) -> Result<Digest, String> {
    Digest::from_hex(text).ok_or_else(|| "not 64 lower-case hexadecimal digits".into())
}

#[derive(clap::Args)]
pub struct PromptOptions {
    /// The text to continue; `-` reads it from standard input [built-in model: "Once upon a time"]
    #[arg(value_name = "PROMPT")]
    pub prompt: Option<OsString>,
    /// Read the prompt from a file
    ///
    /// Here and on standard input, one line end at the very end is not part of the prompt.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
}

impl PromptOptions {
    /// The prompt of a model directory: text from `-`, the file, or the positional unless that is
    /// the directory itself.
    pub fn read_for(&self, dir: &Path) -> anyhow::Result<Option<String>> {
        let positional = self.prompt.as_ref().filter(|p| Path::new(p) != dir);
        let bytes = match (positional, &self.prompt_file) {
            (Some(dash), _) if dash == "-" => {
                read_prompt(std::io::stdin().lock(), "standard input", MAX_GIANT_PROMPT)?
            }
            (Some(prompt), _) => prompt.to_owned().into_encoded_bytes(),
            (None, Some(path)) => {
                let name = path.display();
                let file = std::fs::File::open(path)
                    .map_err(|e| Usage(format!("cannot read the prompt file {name}: {e}")))?;
                read_prompt(file, &name.to_string(), MAX_GIANT_PROMPT)?
            }
            (None, None) => return Ok(None),
        };
        let text = String::from_utf8(bytes);
        Ok(Some(text.map_err(|e| Usage(format!("the prompt is not UTF-8: {e}")))?))
    }

    /// The prompt's text.
    pub fn read(&self) -> anyhow::Result<String> {
        let bytes = match (&self.prompt, &self.prompt_file) {
            (Some(dash), _) if dash == "-" => {
                if std::io::stdin().is_terminal() {
                    crate::ui::note("reading the prompt from the terminal; end it with Ctrl-D");
                }
                read_prompt(std::io::stdin().lock(), "standard input", MAX_PROMPT_BYTES)?
            }
            (Some(prompt), _) => {
                if Path::new(prompt).join("config.json").is_file() {
                    return Err(refuse_directory(Path::new(prompt)).into());
                }
                prompt.to_owned().into_encoded_bytes()
            }
            (None, Some(path)) => {
                let name = path.display();
                let file = std::fs::File::open(path)
                    .map_err(|e| Usage(format!("cannot read the prompt file {name}: {e}")))?;
                read_prompt(file, &name.to_string(), MAX_PROMPT_BYTES)?
            }
            (None, None) => BUILTIN_PROMPT.into(),
        };
        Ok(prompt_from_bytes(bytes)?)
    }
}

/// Reads no more than it takes to see that a prompt is too long.
fn read_prompt(from: impl std::io::Read, name: &str, most: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = most as u64 + 3;
    from.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|e| Usage(format!("cannot read the prompt from {name}: {e}")))?;
    if bytes.len() as u64 == limit {
        return Err(Usage(format!(
            "the prompt from {name} is longer than the {most} bytes this model's runs take"
        ))
        .into());
    }
    if bytes.pop_if(|byte| *byte == b'\n').is_some() {
        bytes.pop_if(|byte| *byte == b'\r');
    }
    Ok(bytes)
}

#[derive(clap::Args)]
pub struct SamplingOptions {
    /// The most tokens to make [default: 256, or as many as the context has room for]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// 0 (always the most probable token) to 16; a decimal number, rounded to 1/65536 exactly
    /// [default: 0, or 1 in model directories once --seed, --top-p or --top-k asks for sampling]
    #[arg(long, value_name = "T")]
    pub temperature: Option<Temperature>,
    /// The start of the random numbers, used above temperature 0 [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl SamplingOptions {
    /// The run's parameters for `prompt`.
    pub fn params(&self, model: engine::Model<'_>, prompt: String) -> anyhow::Result<Params> {
        let max_tokens = match self.max_tokens {
            Some(n) => n,
            None => {
                let (_, room) = engine::session::room(model, &prompt)?;
                room.min(DEFAULT_MAX_TOKENS)
            }
        };
        Ok(Params {
            prompt,
            max_tokens,
            temperature: self.temperature.unwrap_or_default(),
            seed: self.seed.unwrap_or(0),
        })
    }
}

#[derive(clap::Args)]
pub struct MachineOptions {
    /// The arithmetic to use; `facit bench` lists what this machine has. Never changes a bit
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Threads to run on [default: 1, and all for model directories]. Never changes a bit
    #[arg(long, value_name = "N", value_parser = threads())]
    pub threads: Option<usize>,
}

impl MachineOptions {
    /// The exact core's backend asked for, or its fastest.
    pub fn backend(&self) -> anyhow::Result<engine::Backend> {
        let Some(name) = &self.backend else { return Ok(engine::Backend::detect()) };
        Ok(backend(name).map_err(|why| Usage(format!("--backend {name}: {why}")))?)
    }
}

/// What the exact core can use.
const MAX_THREADS: i64 = engine::MAX_THREADS as i64;

/// Parses a number of threads.
pub fn threads() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser as _;
    clap::value_parser!(u16).range(1..=MAX_THREADS).map(usize::from)
}

/// As many threads as the machine runs at once.
pub fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Finds a supported arithmetic by its name.
pub fn backend(name: &str) -> Result<engine::Backend, String> {
    engine::Backend::supported().find(|b| b.name() == name).ok_or_else(|| {
        let names: Vec<_> = engine::Backend::supported().map(|b| b.name()).collect();
        format!("this machine has {}", names.join(", "))
    })
}
