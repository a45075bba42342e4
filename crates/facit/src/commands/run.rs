//! `facit run`.

use std::path::{Path, PathBuf};

use engine::Session;
use engine::params::DEFAULT_MAX_TOKENS;

use super::exact::{RunOptions, drive};
use super::giant::{self, GiantOptions};
use super::given::Given;
use super::options::{
    BUILTIN_PROMPT, MachineOptions, ModelOptions, PromptOptions, SamplingOptions, all_threads,
};
use crate::exit::{Code, Usage};
use crate::ui;

/// Continue a prompt with a model
///
/// The text goes to standard output, exactly its bytes; the report goes to standard error. The
/// output depends on the model, the prompt, -n, --temperature, --seed and, in model directories,
/// --top-p, --top-k, --regime and --resume alone: never on the machine, --backend or pauses.
#[derive(clap::Args)]
// What only `run` takes is said here; the options are those of other commands too.
#[command(mut_arg("positional", |arg| arg.value_name("PROMPT|DIR").help(
    "The text to continue, or a model directory (then the text goes to --prompt); `-` reads the \
     text from standard input [built-in model: \"Once upon a time\"]"
)))]
#[command(mut_arg("model", |arg| arg.value_name("PATH|DIR|builtin").help(
    "A file made by `facit convert`, a model directory (Kimi K3, DeepSeek-V4.1: a folder with \
     config.json), or `builtin`, which tells short children's stories [default: builtin]"
)))]
#[command(mut_arg("max_tokens", |arg| arg.help(format!(
    "The most tokens to make [default: {DEFAULT_MAX_TOKENS}, or as many as the context has room \
     for; in model directories {}]",
    giant::run::DEFAULT_MAX_TOKENS
))))]
pub struct Args {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    run: RunOptions,
    /// Record every turn, for `facit verify`
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineOptions,
    #[command(flatten)]
    giant: Given<GiantOptions>,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let dir = giant::directory(args.model.model.as_deref(), args.prompt.positional.as_deref());
    if let Some(dir) = dir {
        return run_directory(&args, dir);
    }
    args.prompt.check(None)?;
    if let Some(option) = &args.giant.first {
        return Err(Usage(format!(
            "--{option} is for model directories (a folder with config.json), and none was named"
        ))
        .into());
    }
    if !args.prompt.given() && args.model.model.as_ref().is_some_and(|m| m.as_os_str() != "builtin")
    {
        return Err(Usage(format!(
            "no prompt: give one, such as {BUILTIN_PROMPT:?}, or `-` to read standard input"
        ))
        .into());
    }
    let prompt = args.prompt.read()?;
    let artifact = args.model.open()?;
    let params = args.sampling.params(artifact.model(), prompt)?;
    let session = Session::new(artifact.model(), &params)?
        .on(args.machine.backend()?, args.machine.threads.unwrap_or(1));
    // On a terminal the text reads on from its prompt; a pipe gets the continuation alone.
    if ui::interactive() && !args.run.json && !args.run.quiet {
        eprint_prompt(&params.prompt);
    }
    drive(session, &args.run, &args.model, args.receipt.as_ref().map(|path| (path, &params)))
}

fn run_directory(args: &Args, dir: &Path) -> anyhow::Result<Code> {
    let (run, receipt) = (&args.run, args.receipt.is_some());
    if run.turns.is_some() || run.save.is_some() || receipt || args.model.expect_digest.is_some() {
        return Err(Usage(
            "--turns, --save, --receipt and --expect-digest are for the exact core; a model \
             directory has --save-state and --resume"
                .into(),
        )
        .into());
    }
    let options = &args.giant.options;
    let prompt = args.prompt.read_for(dir)?;
    if options.ids.is_some() && prompt.is_some() {
        return Err(Usage("two prompts: --ids cannot be used with a text".into()).into());
    }
    giant::run::run(&giant::run::Asked {
        dir,
        prompt,
        max_tokens: args.sampling.max_tokens,
        temperature: args.sampling.temperature.map(giant::temperature),
        seed: args.sampling.seed,
        json: run.json,
        quiet: run.quiet,
        backend: args.machine.backend.as_deref(),
        threads: args.machine.threads.unwrap_or_else(all_threads),
        options,
    })
}

fn eprint_prompt(prompt: &str) {
    use std::io::Write as _;
    let _ = write!(std::io::stderr(), "{}", ui::dim(prompt));
}
