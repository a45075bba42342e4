//! `facit plan`: how a memory budget is divided and what a token then reads, without running.

use std::path::PathBuf;
use std::time::Duration;

use engine::giant::{Checkpoint, Demand, prepare};
use serde::Serialize;
use store::plan::Plan;

use super::giant::run::DEFAULT_MAX_TOKENS;
use super::giant::{GiantOptions, Memory};
use super::options::all_threads;
use crate::exit::Code;
use crate::ui::{Out, units};

/// Positions that are planned for when nobody says, at most.
const USUAL_CONTEXT: usize = 4096;

/// What memory is planned for.
#[derive(clap::Args)]
pub struct DemandOptions {
    /// As for `facit run`: a size, auto, or a preset
    #[arg(long, value_name = "SIZE", value_parser = Memory::parse, default_value = "auto")]
    pub memory: Memory,
    /// Positions of the longest sequence [default: 4096, or as many as the model has]
    #[arg(long, value_name = "N")]
    pub context: Option<u32>,
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
/// Nothing is read but headers and, to measure the disk, a second's worth of one shard; nothing of
/// the plan is allocated. Exit code 5 if it does not fit.
#[derive(clap::Args)]
pub struct Args {
    /// The model directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    demand: DemandOptions,
    /// Bytes a second that the disk reads, such as 3.5GB [default: measured now]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    disk_rate: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How long the disk is measured.
const MEASURED: Duration = Duration::from_secs(1);

fn rate(text: &str) -> Result<f64, String> {
    match Memory::parse(text)?.0 {
        Some(bytes) => Ok(bytes as f64),
        None => Err("expected a size such as 3.5GB".into()),
    }
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
        let usual = checkpoint.max_context()?.min(USUAL_CONTEXT);
        let demand = Demand {
            memory: options.memory.0,
            context: options.context.map_or(usual, |n| n as usize),
            sequences: 1,
            fewer: false,
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
    let disk = match args.disk_rate {
        Some(rate) => Ok(rate),
        None => measure(&checkpoint).map_err(|e| e.to_string()),
    };
    let mut out = Out::default();
    if args.json {
        out.json(&WithDisk::new(report, disk))?;
        return Ok(Code::Ok);
    }
    out.line(report.plan.to_string().trim_end())?;
    out.line(&format!(
        "  prefill: {} at a time, each reading the layers once",
        units::plural(report.chunk as u64, "position")
    ))?;
    let seconds = |bytes: u64, rate: &f64| units::seconds(bytes as f64 / rate);
    match &disk {
        Ok(rate) => out.line(&format!(
            "  disk: {}/s{}, so at least {} a token, {} where every expert is in memory",
            units::bytes(*rate as u64),
            if args.disk_rate.is_some() { "" } else { " measured now" },
            seconds(report.bytes_per_token, rate),
            seconds(report.bytes_per_token - report.plan.experts_per_token, rate),
        ))?,
        Err(why) => out.line(&format!("  disk: not measured: {why}"))?,
    }
    if report.resident {
        out.line("  all weights fit: `facit run` without --memory reads them once, at the start")?;
    }
    Ok(Code::Ok)
}

/// Bytes a second of large reads, as the engine makes them, of the largest shard.
fn measure(checkpoint: &Checkpoint) -> Result<f64, store::Error> {
    let shards = checkpoint.index().shards().iter();
    let largest = shards.max_by_key(|s| s.path().metadata().map_or(0, |m| m.len()));
    let path = largest.map_or(checkpoint.dir(), |s| s.path());
    store::doctor::rate(&**checkpoint.disk(), path, MEASURED)
}

/// The report with what the disk makes of it.
#[derive(Serialize)]
struct WithDisk {
    #[serde(flatten)]
    report: Report,
    disk_bytes_per_second: Option<f64>,
    /// Reading alone, no expert in memory.
    seconds_per_token: Option<f64>,
    disk_problem: Option<String>,
}

impl WithDisk {
    fn new(report: Report, disk: Result<f64, String>) -> Self {
        let (rate, disk_problem) = match disk {
            Ok(rate) => (Some(rate), None),
            Err(why) => (None, Some(why)),
        };
        let seconds_per_token = rate.map(|rate| report.plan.seconds(rate));
        WithDisk { report, disk_bytes_per_second: rate, seconds_per_token, disk_problem }
    }
}
