//! `facit plan`: how a memory budget is divided and what a token then reads, without running.

use std::path::{Path, PathBuf};

use engine::giant::{Checkpoint, Demand, prepare};
use serde::Serialize;
use store::plan::Plan;

use super::giant::run::DEFAULT_MAX_TOKENS;
use super::giant::{GiantOptions, Memory};
use super::options::all_threads;
use crate::exit::Code;
use crate::ui::{Out, units};

/// Show how a memory budget is divided for a model directory, and what a token then reads
///
/// Nothing is read but headers, and nothing is allocated. Exit code 5 if it does not fit.
#[derive(clap::Args)]
pub struct Args {
    /// The model directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// As for `facit run`: a size, auto, or a preset
    #[arg(long, value_name = "SIZE", value_parser = Memory::parse, default_value = "auto")]
    memory: Memory,
    /// Positions of the longest sequence
    #[arg(long, value_name = "N", default_value_t = 4096)]
    context: u32,
    /// Positions of the prompt, for the choice of a chunk
    #[arg(long, value_name = "N", default_value_t = 256)]
    prompt: u32,
    /// Prefill so many positions at a time, or fewer if they do not fit [default: what makes the
    /// prompt and 64 new tokens read the fewest bytes]
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    plan: &'a Plan,
    total: u64,
    bytes_per_token: u64,
    chunk: usize,
    packed: bool,
    resident: bool,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let dir: &Path = &args.dir;
    let checkpoint = Checkpoint::open(dir)?;
    let demand = Demand {
        memory: args.memory.0,
        context: args.context as usize,
        sequences: 1,
        work: (args.prompt as usize, DEFAULT_MAX_TOKENS),
        chunk: args.chunk,
        record: false,
        threads: all_threads(),
    };
    let prepared = prepare(&checkpoint, GiantOptions::default().model_options(), demand)?;
    let plan = prepared.plan();
    let report = Report {
        plan,
        total: plan.total(),
        bytes_per_token: plan.per_token(),
        chunk: prepared.chunk(),
        packed: prepared.packed(),
        resident: prepared.resident(),
    };
    let mut out = Out::default();
    if args.json {
        out.json(&report)?;
        return Ok(Code::Ok);
    }
    out.line(plan.to_string().trim_end())?;
    out.line(&format!(
        "  prefill: {} at a time, each reading the layers once",
        units::plural(report.chunk as u64, "position")
    ))?;
    if report.resident {
        out.line("  all weights fit: `facit run` without --memory reads them once, at the start")?;
    }
    Ok(Code::Ok)
}
