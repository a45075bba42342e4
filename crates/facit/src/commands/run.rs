//! `facit run`.

use std::path::{Path, PathBuf};

use engine::Session;

use super::exact::{RunOptions, drive};
use super::giant::{self, GiantOptions};
use super::options::{
    BUILTIN_PROMPT, MachineOptions, ModelOptions, PromptOptions, SamplingOptions, all_threads,
};
use crate::exit::{Code, Usage};
use crate::ui;

/// Continue a prompt with a model
///
/// The text goes to standard output, exactly its bytes; the report goes to standard error. The
/// output depends on the model, the prompt, -n, --temperature and --seed alone: never on the
/// machine, --backend or pauses.
#[derive(clap::Args)]
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
    giant: GiantOptions,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let dir = giant::directory(args.model.model.as_ref(), args.prompt.prompt.as_ref());
    if let Some(dir) = dir {
        return run_directory(&args, dir);
    }
    if let Some(option) = args.giant.first_given() {
        return Err(Usage(format!(
            "{option} is for model directories (a folder with config.json), and none was named"
        ))
        .into());
    }
    let nothing_said = args.prompt.prompt.is_none() && args.prompt.prompt_file.is_none();
    if nothing_said && args.model.model.as_ref().is_some_and(|m| m.as_os_str() != "builtin") {
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
    let file_or_dash = args.prompt.read_for(dir)?;
    if args.giant.text.is_some() && file_or_dash.is_some() {
        return Err(Usage("two prompts: give one of --prompt, --prompt-file or text".into()).into());
    }
    giant::run::run(&giant::run::Asked {
        dir,
        prompt: args.giant.text.clone().or(file_or_dash),
        max_tokens: args.sampling.max_tokens,
        temperature: args.sampling.temperature.map(giant::temperature),
        seed: args.sampling.seed,
        json: run.json,
        quiet: run.quiet,
        backend: args.machine.backend.as_deref(),
        threads: args.machine.threads.unwrap_or_else(all_threads),
        options: &args.giant,
    })
}

fn eprint_prompt(prompt: &str) {
    use std::io::Write as _;
    let _ = write!(std::io::stderr(), "{}", ui::dim(prompt));
}
