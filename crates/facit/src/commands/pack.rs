//! `facit pack`: the weights every token needs, laid out as they are read.

use std::path::PathBuf;

use engine::giant::{Checkpoint, layout};
use store::io::Real;
use store::pack::{Codec, TRUNK_FILE, pack};

use super::options::all_threads;
use crate::exit::Code;
use crate::signals::Signals;
use crate::ui::{self, units};

/// Pack a model directory's always-active weights, so that they stream faster
///
/// Writes one file into the directory, which `facit run` then uses; the shards stay as they are.
/// An attempt that was stopped is continued. Results never change: packing is exact.
#[derive(clap::Args)]
pub struct Args {
    /// The model directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Compress without loss (bf16) or only lay out (none)
    #[arg(long, value_name = "NAME", value_parser = codec, default_value = "bf16")]
    codec: Codec,
    /// Threads that compress [default: all]
    #[arg(long, value_name = "N", value_parser = super::options::threads())]
    threads: Option<usize>,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let checkpoint = Checkpoint::open(&args.dir)?;
    let layout = layout(&checkpoint)?;
    let path = args.dir.join(TRUNK_FILE);
    let threads = args.threads.unwrap_or_else(all_threads);
    let signals = Signals::listen()?;
    let bar = ui::bytes_bar(0, "packing", args.quiet);
    let packed = pack(
        &Real::shared(),
        checkpoint.index(),
        &layout,
        &path,
        args.codec,
        threads,
        |progress| {
            bar.set_length(progress.of_bytes);
            bar.set_position(progress.bytes);
            signals.code().is_none()
        },
    );
    bar.finish_and_clear();
    let packed = match (packed, signals.code()) {
        (Err(_), Some(code)) => {
            ui::note("stopped; the same command goes on from here");
            return Ok(code);
        }
        (packed, _) => packed.map_err(engine::Error::from)?,
    };
    if !args.quiet {
        let runs = &packed.trunk.runs;
        let stored: u64 = runs.iter().map(|r| r.stored).sum();
        let raw: u64 = runs.iter().flat_map(|r| &r.tensors).filter_map(|t| t.spec.bytes()).sum();
        ui::note(&format!(
            "{}: {} of weights in {}, {:.1} % fewer bytes{}",
            path.display(),
            units::bytes(raw),
            units::bytes(stored),
            100.0 - 100.0 * stored as f64 / raw.max(1) as f64,
            match packed.resumed {
                0 => String::new(),
                n => format!(" ({} from an earlier attempt)", units::plural(n as u64, "run")),
            }
        ));
    }
    Ok(Code::Ok)
}

fn codec(name: &str) -> Result<Codec, String> {
    match name {
        "none" => Ok(Codec::None),
        "bf16" => Ok(Codec::Bf16),
        _ => Err("expected none or bf16".into()),
    }
}
