//! `facit verify-model`: a model directory checked again, without the network.

use std::path::PathBuf;

use engine::giant::{Checkpoint, check_tensors};
use serde::Serialize;
use store::io::Real;
use store::verify::{Area, Check, VerifyOptions, VerifyReport, verify_model};

use super::options::all_threads;
use crate::exit::Code;
use crate::ui::{self, Out, Table, units};

/// Check a model directory offline: headers, shapes, digests
///
/// Sizes and SHA-256 of every file that `facit pull` recorded, the index and all headers, names,
/// types and shapes of all tensors against config.json, and every run of a packed trunk. Exit
/// code 6 if anything is damaged; each problem names its file or tensor.
#[derive(clap::Args)]
pub struct Args {
    /// The model directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Look at every weight too: values that are not finite
    #[arg(long)]
    deep: bool,
    /// Threads that decode a packed trunk [default: all]
    #[arg(long, value_name = "N", value_parser = super::options::threads())]
    threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    dir: &'a std::path::Path,
    sound: bool,
    #[serde(flatten)]
    report: &'a VerifyReport,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let threads = args.threads.unwrap_or_else(all_threads);
    let options = VerifyOptions { deep: args.deep, threads };
    let bar = ui::bytes_bar(0, "checking", args.quiet);
    let report = verify_model(&Real::shared(), &args.dir, options, |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let mut report = report.map_err(engine::Error::from)?;
    let whole = report.absent.is_empty() && report.tensors > 0;
    if whole {
        let problem = Checkpoint::open(&args.dir).and_then(|c| check_tensors(&c)).err();
        let problem = problem.map(|e| e.to_string());
        let what = "tensors against config.json".to_owned();
        report.checks.push(Check { area: Area::Tensors, what, bytes: 0, problem });
    }
    let sound = report.problems().next().is_none();
    let mut out = Out::default();
    if args.json {
        out.json(&Report { dir: &args.dir, sound, report: &report })?;
    } else {
        out.line(&table(&report).to_string())?;
        notes(&report, whole);
    }
    for check in report.problems() {
        let problem = check.problem.as_deref().unwrap_or_default();
        ui::error(&anyhow::anyhow!("{}: {problem}", check.what));
    }
    Ok(if sound { Code::Ok } else { Code::Model })
}

/// One line a kind of check.
fn table(report: &VerifyReport) -> Table {
    let mut table = Table::new(["checked", ">right", ">of", ">bytes"]);
    for (area, name) in [
        (Area::File, "files: size and SHA-256"),
        (Area::Headers, "index and headers of all shards"),
        (Area::Tensors, "tensors against config.json"),
        (Area::Packed, "runs of the packed trunk"),
    ] {
        let checks = || report.checks.iter().filter(|c| c.area == area);
        if checks().next().is_some() {
            let right = checks().filter(|c| c.problem.is_none()).count();
            let bytes = checks().map(|c| c.bytes).sum();
            table.row([
                name.into(),
                right.to_string(),
                checks().count().to_string(),
                if bytes == 0 { String::new() } else { units::bytes(bytes) },
            ]);
        }
    }
    if report.deep > 0 {
        let bad = report.checks.iter().filter(|c| c.area == Area::Values).count();
        table.row([
            "tensors, every value".into(),
            (report.deep - bad).to_string(),
            report.deep.to_string(),
            String::new(),
        ]);
    }
    table
}

/// What was not checked, and what is worth knowing.
fn notes(report: &VerifyReport, whole: bool) {
    if !report.manifest {
        ui::note("no digests of the files are known: `facit pull` records them");
    }
    if !report.absent.is_empty() {
        ui::note(&format!(
            "a partial set: {} of the index are not here, so its tensors were not compared with \
             config.json",
            units::plural(report.absent.len() as u64, "shard")
        ));
    } else if !whole {
        ui::note("the headers are damaged, so the tensors were not compared with config.json");
    }
    for (tensor, what, count) in &report.findings {
        ui::note(&format!("tensor {tensor}: {what}: {}", units::count(*count)));
    }
}
