//! `facit doctor`: what this machine is, what its disk does, whether and how a model runs here.

mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::giant::Checkpoint;
use store::doctor::{DiskReport, SHORTEST, Scratch, free_space, measure};
use store::io::{Disk, Real};
use store::memory;
use store::pack::TRUNK_FILE;
use store::pull::Manifest;

use self::report::{Cpu, ModelReport, Report};
use super::plan;
use crate::exit::Code;
use crate::signals::Signals;
use crate::ui::{self, Out};

/// Bytes of the file a disk is measured with where no model is.
const SCRATCH: u64 = 64 << 20;

/// Look at this machine: processor, memory, disk, and whether and how a model runs on it
///
/// The disk is measured the way the engine reads: large direct reads at depth 1, 4 and 16, and
/// rows of 264 bytes at random places. Ends with the command to run next. Exit code 5 if the
/// model cannot run here at all, 6 if it is damaged or incomplete.
#[derive(clap::Args)]
pub struct Args {
    /// The model directory; without one, the disk of the current directory is measured with a
    /// scratch file of 64 MiB, which is deleted again
    #[arg(value_name = "MODEL_DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    demand: plan::DemandOptions,
    /// Seconds for each of the five measurements of the disk
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    seconds: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Longest time of one measurement, in seconds.
const MAX_SECONDS: f64 = 600.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let value: Option<f64> = text.parse().ok().filter(|s| (0.01..=MAX_SECONDS).contains(s));
    value.map(Duration::from_secs_f64).ok_or_else(|| format!("expected 0.01 to {MAX_SECONDS}"))
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let place = args.dir.as_deref().unwrap_or(Path::new("."));
    let opened = args.dir.as_deref().map(Checkpoint::open).transpose();
    let (checkpoint, mut problem) = match opened {
        Ok(checkpoint) => (checkpoint, None),
        Err(e) => (None, Some(e)),
    };
    if !args.json {
        ui::note("measuring the disk ...");
    }
    // A signal must not leave the scratch file behind.
    let signals = Signals::listen()?;
    let (disk, disk_problem) = match disk(place, checkpoint.as_ref(), args.seconds) {
        Ok(report) => (Some(report), None),
        Err((why, fails)) => {
            let why_text = why.to_string();
            if fails {
                problem.get_or_insert(why.into());
            }
            (None, Some(why_text))
        }
    };
    if let Some(code) = signals.code() {
        return Ok(code);
    }
    let model = checkpoint.as_ref().and_then(|checkpoint| {
        let plan = plan::Report::of(checkpoint, &args.demand);
        match ModelReport::of(checkpoint, plan, disk.as_ref()) {
            Ok(report) => Some(report),
            Err(e) => {
                problem.get_or_insert(e);
                None
            }
        }
    });
    let free = free_space(place).ok();
    let next = match (&args.dir, &model, &problem) {
        (Some(dir), Some(model), None) => model.next(dir, &args, free),
        (Some(dir), _, Some(e)) => pull_again(dir, e),
        _ => vec![vec!["facit".into(), "run".into()]],
    };
    let report = Report {
        cpu: Cpu::read(),
        memory: memory::Memory::read(),
        place: place.to_owned(),
        disk,
        disk_problem,
        free_space: free,
        model,
        problem: problem.as_ref().map(ToString::to_string),
        next,
    };
    let mut out = Out::default();
    if args.json {
        out.json(&report)?;
    } else {
        out.line(&report.to_string())?;
    }
    problem.map_or(Ok(Code::Ok), |e| Err(e.into()))
}

/// Measures the disk with the model's largest file, or with a scratch file. An error of a model's
/// own file is a failure (`true`); a directory that takes no scratch file is only not measured.
fn disk(
    dir: &Path,
    checkpoint: Option<&Checkpoint>,
    time: Duration,
) -> Result<DiskReport, (store::Error, bool)> {
    let trunk = dir.join(TRUNK_FILE);
    let trunk = trunk.metadata().ok().map(|m| (m.len(), trunk));
    let shards = checkpoint.iter().flat_map(|c| c.index().shards());
    let shards = shards.map(|s| (s.size(), s.path().to_owned()));
    if let Some((_, file)) = shards.chain(trunk).filter(|f| f.0 >= SHORTEST).max() {
        return measure(&Real, &file, time).map_err(|e| (e, true));
    }
    let real: Arc<dyn Disk> = Real::shared();
    let scratch = Scratch::create(&real, dir, SCRATCH).map_err(|e| (e, false))?;
    measure(&Real, scratch.path(), time).map_err(|e| (e, true))
}

/// A download that is damaged or incomplete is mended by the same download.
fn pull_again(dir: &Path, problem: &engine::Error) -> Vec<Vec<String>> {
    let incomplete = matches!(Code::of_engine(problem), Code::Model);
    let manifest = Manifest::read(&Real, dir).ok().flatten().filter(|_| incomplete);
    let pull = |m: Manifest| {
        let dir = dir.display().to_string();
        ["facit", "pull", &m.repo, &dir, "--revision", &m.commit].map(str::to_owned).to_vec()
    };
    manifest.map(pull).into_iter().collect()
}
