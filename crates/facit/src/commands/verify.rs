//! `facit verify`.

use std::path::PathBuf;
use std::time::Instant;

use engine::receipt::Receipt;
use engine::verify::{Order, verify};
use engine::{Backend, Error};
use serde::Serialize;

use super::options::ModelOptions;
use crate::exit::Code;
use crate::ui::{self, Out, units};

/// Replay a receipt and name the first turn that differs
#[derive(clap::Args)]
pub struct Args {
    /// The receipt, made by `facit run --receipt`
    receipt: PathBuf,
    #[command(flatten)]
    model: ModelOptions,
    /// Run every turn in order instead of stretches of turns at the same time
    #[arg(long)]
    sequential: bool,
    /// Threads to replay with [default: all]
    #[arg(long, value_name = "N", conflicts_with = "sequential", value_parser = super::options::threads())]
    threads: Option<usize>,
    /// The arithmetic to replay with; `plain` is the definition, and slow
    #[arg(long, value_name = "NAME", value_parser = super::options::backend)]
    backend: Option<Backend>,
    /// Print one JSON object, also when something differs
    #[arg(long)]
    json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Serialize)]
struct Report {
    verified: bool,
    model_sha256: engine::Digest,
    numerics: String,
    turns: usize,
    tokens: usize,
    complete: bool,
    seconds: f64,
    differs: Option<Differs>,
}

/// What an unverified receipt is wrong about.
#[derive(Serialize)]
struct Differs {
    /// The first turn that differs, from 1; absent when it is none of the turns.
    turn: Option<usize>,
    error: String,
}

impl Differs {
    fn of(error: &Error) -> Self {
        let turn = match error {
            Error::TurnDiffers { turn, .. } => Some(*turn),
            _ => None,
        };
        Self { turn, error: error.to_string() }
    }
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let receipt = Receipt::open(&args.receipt)?;
    let artifact = args.model.open()?;
    let threads = args.threads.unwrap_or_else(super::options::all_threads);
    let order = if args.sequential { Order::Sequential } else { Order::Parallel { threads } };
    let bar = ui::bar(receipt.turns.len() as u64, "turns", args.quiet || args.json);
    let started = Instant::now();
    let backend = args.backend.unwrap_or_else(Backend::detect);
    let outcome = verify(&receipt, artifact.model(), order, backend, &|| bar.inc(1));
    bar.finish_and_clear();
    let report = Report {
        verified: outcome.is_ok(),
        differs: outcome.as_ref().err().map(Differs::of),
        model_sha256: receipt.model.sha256,
        numerics: receipt.numerics,
        turns: receipt.turns.len(),
        tokens: receipt.tokens.len(),
        complete: receipt.complete,
        seconds: started.elapsed().as_secs_f64(),
    };
    let mut out = Out::default();
    if args.json {
        out.json(&report)?;
    }
    outcome?;
    if !args.quiet && !args.json {
        out.line(&format!(
            "verified: {} and {} of {} are as recorded ({})",
            units::plural(report.turns as u64, "turn"),
            units::plural(report.tokens as u64, "token"),
            if report.complete { "a complete run" } else { "a paused run" },
            units::seconds(report.seconds),
        ))?;
    }
    Ok(Code::Ok)
}
