//! `facit bench`.

use std::path::PathBuf;
use std::time::Duration;

use engine::bench::{Measurement, measure, random_15m};
use engine::{Artifact, Backend};
use serde::Serialize;

use crate::exit::Code;
use crate::ui::{self, Out, Table, units};

/// Measure the exact core on this machine, every arithmetic beside the plain one
///
/// Without --model: the built-in model, and random weights in the shape of stories15M. All ways
/// must leave the same state, or the command fails.
#[derive(clap::Args)]
pub struct Args {
    /// Measure these models instead
    #[arg(short, long, value_name = "PATH")]
    model: Vec<PathBuf>,
    /// The most threads [default: all]
    #[arg(long, value_name = "N", value_parser = super::options::threads())]
    threads: Option<usize>,
    /// Seconds for each way to run each model
    #[arg(long, value_name = "S", default_value = "1", value_parser = clap::value_parser!(u64).range(..=600))]
    seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    supported: Vec<&'static str>,
    chosen: &'static str,
    measurements: Vec<Measurement>,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let bar = ui::bar(0, "runs", args.json);
    let mut artifacts = Vec::new();
    if args.model.is_empty() {
        artifacts.extend([Artifact::builtin(), random_15m()?]);
    }
    for path in &args.model {
        artifacts.push(Artifact::open(path)?);
    }
    let threads = args.threads.unwrap_or_else(super::options::all_threads);
    let mut measurements = Vec::new();
    for artifact in &artifacts {
        let each = Duration::from_secs(args.seconds);
        measurements.extend(measure(artifact.model(), threads, each, &mut || bar.inc(1))?);
    }
    bar.finish_and_clear();
    let report = Report {
        supported: Backend::supported().map(Backend::name).collect(),
        chosen: Backend::detect().name(),
        measurements,
    };
    let mut out = Out::default();
    if args.json {
        out.json(&report)?;
    } else {
        out.line(&show(&report))?;
    }
    Ok(Code::Ok)
}

fn show(report: &Report) -> String {
    let mut table =
        Table::new(["model", "backend", ">threads", ">positions/s", ">beside plain", ">runs"]);
    for m in &report.measurements {
        table.row([
            m.model.clone(),
            m.backend.into(),
            m.threads.to_string(),
            units::count(m.positions_per_second as u64),
            format!("{:.2}x", m.ratio),
            m.runs.to_string(),
        ]);
    }
    format!(
        "this machine supports {}; chosen: {}\nall ways left the same state\n\n{table}",
        report.supported.join(", "),
        report.chosen
    )
}
