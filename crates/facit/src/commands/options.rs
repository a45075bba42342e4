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

/// What the exact core says to a model directory, which holds a model of another kind.
fn refuse_directory(path: &Path) -> Usage {
    Usage(format!(
        "{} is a model directory (it has a config.json), and this is for models made by `facit \
         convert` and the built-in one. Directories go to `facit run DIR` and to chat, batch, plan, \
         pack, inspect, tokenize, doctor and verify-model",
        path.display()
    ))
}

fn digest(text: &str) -> Result<Digest, String> {
    Digest::from_hex(text).ok_or_else(|| "not 64 lower-case hexadecimal digits".into())
}

#[derive(clap::Args)]
pub struct PromptOptions {
    /// The text to continue; `-` reads it from standard input [built-in model: "Once upon a time"]
    #[arg(value_name = "PROMPT", index = 1)]
    pub positional: Option<OsString>,
    /// Taken only to say where it belongs, which clap's own refusal does not.
    #[arg(hide = true, index = 2)]
    more: Vec<OsString>,
    /// The text to continue, whatever it looks like
    #[arg(long = "prompt", value_name = "TEXT", conflicts_with = "prompt_file")]
    text: Option<OsString>,
    /// Read the prompt from a file
    ///
    /// Here and on standard input, one line end at the very end is not part of the prompt.
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
}

impl PromptOptions {
    /// Whether there is a prompt.
    pub fn given(&self) -> bool {
        self.positional.is_some() || self.text.is_some() || self.prompt_file.is_some()
    }

    /// The prompt of a model directory, unless the positional is the directory itself.
    pub fn read_for(&self, dir: &Path) -> anyhow::Result<Option<String>> {
        let Some(bytes) = self.bytes(Some(dir), MAX_GIANT_PROMPT)? else { return Ok(None) };
        let text = String::from_utf8(bytes);
        Ok(Some(text.map_err(|e| Usage(format!("the prompt is not UTF-8: {e}")))?))
    }

    /// The exact core's prompt.
    pub fn read(&self) -> anyhow::Result<String> {
        let bytes = self.bytes(None, MAX_PROMPT_BYTES)?;
        Ok(prompt_from_bytes(bytes.unwrap_or_else(|| BUILTIN_PROMPT.into()))?)
    }

    fn bytes(&self, dir: Option<&Path>, most: usize) -> anyhow::Result<Option<Vec<u8>>> {
        self.check(dir)?;
        let positional = self.positional.as_ref().filter(|p| Some(Path::new(p)) != dir);
        Ok(Some(match (positional.or(self.text.as_ref()), &self.prompt_file) {
            (Some(dash), _) if dash == "-" && positional.is_some() => {
                if std::io::stdin().is_terminal() {
                    crate::ui::note("reading the prompt from the terminal; end it with Ctrl-D");
                }
                read_prompt(std::io::stdin().lock(), "standard input", most)?
            }
            (Some(text), _) => text.to_owned().into_encoded_bytes(),
            (None, Some(path)) => {
                let name = path.display();
                let file = std::fs::File::open(path)
                    .map_err(|e| Usage(format!("cannot read the prompt file {name}: {e}")))?;
                read_prompt(file, &name.to_string(), most)?
            }
            (None, None) => return Ok(None),
        }))
    }

    /// Refuses what is no prompt, and a second one. `dir` is the model if it is a directory.
    pub fn check(&self, dir: Option<&Path>) -> Result<(), Usage> {
        let positional = self.positional.as_deref().filter(|p| Some(Path::new(p)) != dir);
        if let Some(text) = positional.filter(|p| *p != "-") {
            refuse_path(Path::new(text), dir)?;
        }
        if !self.more.is_empty() {
            let more = self.more.join(" ".as_ref());
            let more = more.display();
            return Err(Usage(match positional {
                None => format!("after a model directory the prompt is --prompt \"{more}\""),
                Some(first) => format!(
                    "unexpected \"{more}\" after the prompt: a text of several words needs quotes, \
                     \"{} {more}\", and a model goes to -m/--model",
                    first.display()
                ),
            }));
        }
        if positional.is_some() && (self.text.is_some() || self.prompt_file.is_some()) {
            return Err(Usage(
                "two prompts: PROMPT cannot be used with --prompt or --prompt-file".into(),
            ));
        }
        Ok(())
    }
}

/// Refuses a positional that is meant as a path: a mistyped model would otherwise be continued as
/// a text, by another model, without an error.
fn refuse_path(text: &Path, dir: Option<&Path>) -> Result<(), Usage> {
    let is = if text.is_file() {
        "is a file"
    } else if text.join("config.json").is_file() {
        if dir.is_none() {
            return Err(refuse_directory(text));
        }
        "is a model directory"
    } else if text.is_dir() {
        "is a directory without a config.json"
    } else if looks_like_a_path(&text.to_string_lossy()) {
        "looks like a path, and nothing is there"
    } else {
        return Ok(());
    };
    Err(Usage(format!(
        "{} {is}; PROMPT is the text to continue: a model goes to -m/--model, a prompt in a file to \
         --prompt-file, and a text that looks like a path to --prompt",
        text.display()
    )))
}

fn looks_like_a_path(text: &str) -> bool {
    !text.contains(char::is_whitespace)
        && (text.contains(std::path::is_separator)
            || [".facit", ".safetensors", ".bin"].iter().any(|end| text.ends_with(end)))
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
    /// The arithmetic to use; `facit bench` lists what this machine has, and `scalar` is another
    /// name of `plain`. Never changes a bit
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

/// Finds a supported arithmetic by its name. What model directories call `scalar` is `plain` here;
/// either name is taken for both kinds of model.
pub fn backend(name: &str) -> Result<engine::Backend, String> {
    let name = if name == "scalar" { "plain" } else { name };
    engine::Backend::supported().find(|b| b.name() == name).ok_or_else(|| {
        let names: Vec<_> = engine::Backend::supported().map(|b| b.name()).collect();
        format!("this machine has {}", names.join(", "))
    })
}
