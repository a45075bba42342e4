//! `facit run`.

use std::path::PathBuf;

use engine::Session;

use super::exact::{RunOptions, drive};
use super::options::{
    BUILTIN_PROMPT, MachineOptions, ModelOptions, PromptOptions, SamplingOptions,
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
}

pub fn run(args: Args) -> anyhow::Result<Code> {
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
    let session =
        Session::new(artifact.model(), &params)?.on(args.machine.backend(), args.machine.threads);
    // On a terminal the text reads on from its prompt; a pipe gets the continuation alone.
    if ui::interactive() && !args.run.json && !args.run.quiet {
        eprint_prompt(&params.prompt);
    }
    drive(session, &args.run, &args.model, args.receipt.as_ref().map(|path| (path, &params)))
}

fn eprint_prompt(prompt: &str) {
    use std::io::Write as _;
    let _ = write!(std::io::stderr(), "{}", ui::dim(prompt));
}
