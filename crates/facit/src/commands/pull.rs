//! `facit pull`: a checkpoint from a hub, complete and checked, or continued later.

use std::path::PathBuf;

use engine::giant::parse_memory;
use serde::Serialize;
use store::io::Real;
use store::pull::{Hub, MANIFEST, PullOptions, pull};

use crate::exit::Code;
use crate::signals::Signals;
use crate::ui::{self, Out, units};

/// Largest range asked for in one request.
const MAX_CHUNK: u64 = 1 << 30;

/// Download a model directory from a hub, and check it
///
/// Fetches ranges over several connections; whatever stops it, the same command goes on where it
/// was. A file gets its name only after its size and digest are right. The hub is that of
/// HF_ENDPOINT (default `https://huggingface.co`), the token that of HF_TOKEN or of the file `token`
/// in HF_HOME.
#[derive(clap::Args)]
pub struct Args {
    /// The repository, OWNER/NAME
    #[arg(value_name = "REPO")]
    repo: String,
    /// Where to put it [default: ./NAME]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Branch, tag or commit
    #[arg(long, value_name = "REV", default_value = "main")]
    revision: String,
    /// Only the shards that the first so many layers need
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    connections: u8,
    /// Size of a request; a download that was killed goes on from its last whole ones
    #[arg(long, value_name = "SIZE", value_parser = chunk, default_value = "64MiB")]
    chunk: u64,
    /// Attempts without any progress after which a file is given up
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    attempts: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

fn chunk(text: &str) -> Result<u64, String> {
    let bytes = parse_memory(text)?.filter(|b| (4096..=MAX_CHUNK).contains(b));
    bytes.ok_or_else(|| "expected a size from 4KiB to 1GiB".into())
}

#[derive(Serialize)]
struct Report<'a> {
    repo: &'a str,
    commit: &'a str,
    dir: &'a std::path::Path,
    manifest: &'static str,
    files: usize,
    bytes: u64,
    layers: Option<u32>,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let name = args.repo.rsplit('/').next().unwrap_or_default();
    let dir = args.dir.clone().unwrap_or_else(|| name.into());
    let options = PullOptions {
        revision: args.revision.clone(),
        layers: args.layers,
        connections: args.connections.into(),
        chunk: args.chunk,
        attempts: args.attempts,
        ..PullOptions::default()
    };
    let hub = Hub::from_env(|name| std::env::var(name).ok());
    let signals = Signals::listen()?;
    let bar = ui::bytes_bar(0, "pulling", args.quiet);
    let pulled = pull(&Real::shared(), &hub, &args.repo, &dir, &options, &|progress| {
        bar.set_length(progress.of_bytes);
        bar.set_position(progress.bytes);
        bar.set_message(format!("{}/{} files", progress.files, progress.of_files));
        signals.code().is_none()
    });
    bar.finish_and_clear();
    let manifest = match (pulled, signals.code()) {
        (Err(_), Some(code)) => {
            ui::note("stopped; the same command goes on from here");
            return Ok(code);
        }
        (pulled, _) => pulled.map_err(engine::Error::from)?,
    };
    let report = Report {
        repo: &manifest.repo,
        commit: &manifest.commit,
        dir: &dir,
        manifest: MANIFEST,
        files: manifest.files.len(),
        bytes: manifest.files.iter().map(|f| f.size).sum(),
        layers: args.layers,
    };
    if args.json {
        Out::default().json(&report)?;
    } else if !args.quiet {
        ui::note(&format!(
            "{}: {}, {}, all checked, of commit {}",
            dir.display(),
            units::plural(report.files as u64, "file"),
            units::bytes(report.bytes),
            report.commit
        ));
        ui::note(&format!("next: facit doctor {}", dir.display()));
    }
    Ok(Code::Ok)
}
