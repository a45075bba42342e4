//! `facit cache-sim`: what expert caches of several sizes would have hit.

use std::path::PathBuf;

use store::cache_sim::{SimRow, read_trace, simulate};
use store::io::Real;

use crate::exit::{Code, Usage};
use crate::ui::{Out, Table, units};

/// Sizes tried when none are named: parts of the experts that occur.
const PARTS: [usize; 6] = [64, 32, 16, 8, 4, 2];

/// Simulate expert caches on a trace of `facit run --record-trace`
///
/// Prints hits of least recently used, a pinned prefix, the policy `run` uses, and Belady's
/// bound, which knows the future.
#[derive(clap::Args)]
pub struct Args {
    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Cache sizes in experts, separated by commas [default: parts of all that occur]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    slots: Vec<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let trace = read_trace(&Real, &args.trace).map_err(engine::Error::from)?;
    let distinct = trace.iter().collect::<std::collections::HashSet<_>>().len();
    let slots = if args.slots.is_empty() {
        PARTS.iter().map(|part| distinct.div_ceil(*part)).collect()
    } else {
        args.slots
    };
    if slots.contains(&0) {
        return Err(Usage("--slots: a cache has at least one".into()).into());
    }
    let rows = simulate(&trace, &slots);
    let mut out = Out::default();
    if args.json {
        out.json(&rows)?
    } else {
        out.line(&table(&rows))?
    }
    Ok(Code::Ok)
}

fn table(rows: &[SimRow]) -> String {
    let mut table = Table::new([">slots", ">requests", ">lru", ">pinned", ">facit", ">belady"]);
    for row in rows {
        let share =
            |hits: u64| format!("{:.2} %", 100.0 * hits as f64 / row.requests.max(1) as f64);
        table.row([
            units::count(row.slots as u64),
            units::count(row.requests),
            share(row.lru),
            share(row.pinned),
            share(row.history),
            share(row.belady),
        ]);
    }
    table.to_string()
}
