//! `facit resume`.

use std::path::PathBuf;

use engine::Session;
use engine::saved::Saved;

use super::exact::{RunOptions, drive};
use super::options::{MachineOptions, ModelOptions};
use crate::exit::Code;

/// Go on with a run that `facit run --save` paused
///
/// Standard output gets the text from where the run was paused; together with what was printed
/// before it is what an unpaused run prints. With --json the text is the whole of it.
#[derive(clap::Args)]
pub struct Args {
    /// The saved state; it stays as it is unless --save names it again
    state: PathBuf,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    run: RunOptions,
    #[command(flatten)]
    machine: MachineOptions,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let saved = Saved::open(&args.state)?;
    let artifact = args.model.open()?;
    let model = artifact.model();
    saved.check_model(&model, &args.state.display().to_string())?;
    let session = Session::from_state(model, saved.state)?
        .on(args.machine.backend()?, args.machine.threads.unwrap_or(1));
    drive(session, &args.run, &args.model, None)
}
