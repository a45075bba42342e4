//! `facit plan`: how a memory budget is divided and what a token then reads, without running.

use std::path::PathBuf;

use engine::giant::{Checkpoint, Demand, prepare};
use serde::Serialize;
use store::plan::Plan;

use super::giant::run::DEFAULT_MAX_TOKENS;
use super::giant::{GiantOptions, Memory};
use super::options::all_threads;
use crate::exit::Code;
use crate::ui::{Out, units};

/// What memory is planned for.
#[derive(clap::Args)]
pub struct DemandOptions {
    /// As for `facit run`: a size, auto, or a preset
    #[arg(long, value_name = "SIZE", value_parser = Memory::parse, default_value = "auto")]
    pub memory: Memory,
    /// Positions of the longest sequence
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub context: u32,
    /// Positions of the prompt, for the choice of a chunk
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub prompt: u32,
    /// Prefill so many positions at a time, or fewer if they do not fit [default: what makes the
    /// prompt and 64 new tokens read the fewest bytes]
    #[arg(long, value_name = "N")]
    pub chunk: Option<usize>,
}

/// Show how a memory budget is divided for a model directory, and what a token then reads
///
/// Nothing is read but headers, and nothing is allocated. Exit code 5 if it does not fit.
#[derive(clap::Args)]
pub struct Args {
    /// The model directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    demand: DemandOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a prepared model will do with its memory.
#[derive(Serialize)]
pub struct Report {
    pub plan: Plan,
    pub total: u64,
    pub bytes_per_token: u64,
    /// Bytes of all layers and the head as they lie on disk.
    pub trunk_bytes: u64,
    pub chunk: usize,
    pub packed: bool,
    pub resident: bool,
}

impl Report {
    /// Of a checkpoint on this machine, for one sequence.
    ///
    /// # Errors
    /// As [`prepare`]; that it does not fit is one.
    pub fn of(checkpoint: &Checkpoint, options: &DemandOptions) -> Result<Self, engine::Error> {
        let demand = Demand {
            memory: options.memory.0,
            context: options.context as usize,
            sequences: 1,
            work: (options.prompt as usize, DEFAULT_MAX_TOKENS),
            chunk: options.chunk,
            record: false,
            threads: all_threads(),
        };
        let prepared = prepare(checkpoint, GiantOptions::default().model_options(), demand)?;
        let plan = prepared.plan();
        Ok(Self {
            plan: plan.clone(),
            total: plan.total(),
            bytes_per_token: plan.per_token(),
            trunk_bytes: prepared.shape().units.iter().map(|u| u.stored).sum(),
            chunk: prepared.chunk(),
            packed: prepared.packed(),
            resident: prepared.resident(),
        })
    }
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let checkpoint = Checkpoint::open(&args.dir)?;
    let report = Report::of(&checkpoint, &args.demand)?;
    let mut out = Out::default();
    if args.json {
        out.json(&report)?;
        return Ok(Code::Ok);
    }
    out.line(report.plan.to_string().trim_end())?;
    out.line(&format!(
        "  prefill: {} at a time, each reading the layers once",
        units::plural(report.chunk as u64, "position")
    ))?;
    if report.resident {
        out.line("  all weights fit: `facit run` without --memory reads them once, at the start")?;
    }
    Ok(Code::Ok)
}
