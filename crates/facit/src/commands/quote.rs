//! `facit quote`.

use engine::inspect::phase_name;
use engine::quote::{Quote, quote};
use serde::Serialize;

use super::options::{ModelOptions, PromptOptions, SamplingOptions};
use crate::exit::Code;
use crate::ui::{Out, Table, units};

/// Say how many turns and compute units a run takes, without running it
///
/// A run that ends early with a stop token takes fewer.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Also the plan of every turn
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    model_sha256: engine::Digest,
    prompt_tokens: u32,
    max_tokens: u32,
    temperature_q16: u32,
    state_bytes: u64,
    turns: usize,
    compute_units: u64,
    largest_turn: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a Quote>,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let prompt = args.prompt.read()?;
    let artifact = args.model.open()?;
    let model = artifact.model();
    let params = args.sampling.params(model, prompt)?;
    let quote = quote(model, &params)?;
    let report = Report {
        model: model.name(),
        model_sha256: model.digest(),
        prompt_tokens: quote.prompt_tokens,
        max_tokens: params.max_tokens,
        temperature_q16: params.temperature.q16(),
        state_bytes: quote.state_bytes,
        turns: quote.turns.len(),
        compute_units: quote.total(),
        largest_turn: quote.turns.iter().map(|turn| turn.compute_units).max().unwrap_or(0),
        plan: args.verbose.then_some(&quote),
    };
    let mut out = Out::default();
    if args.json {
        out.json(&report)?;
        return Ok(Code::Ok);
    }
    out.line(&summary(&report).to_string())?;
    if args.verbose {
        out.line("")?;
        out.line(&plan(&quote).to_string())?;
    }
    Ok(Code::Ok)
}

fn plan(quote: &Quote) -> Table {
    let mut table = Table::new([
        ">turn",
        "sections",
        ">compute units",
        ">tokens",
        ">position",
        ">layer",
        "starts at",
    ]);
    for (i, turn) in quote.turns.iter().enumerate() {
        let sections: Vec<_> = turn.sections.iter().map(u32::to_string).collect();
        table.row([
            (i + 1).to_string(),
            if sections.is_empty() { "-".into() } else { sections.join(" ") },
            units::count(turn.compute_units.into()),
            turn.max_generated.to_string(),
            turn.position.to_string(),
            turn.layer.to_string(),
            phase_name(turn.phase).into(),
        ]);
    }
    table
}

fn summary(report: &Report<'_>) -> Table {
    let mut table = Table::new(["a run of", report.model]);
    let mut row = |name: &str, value: String| table.row([name.into(), value]);
    let turns = report.turns as u64;
    row("prompt tokens", units::count(report.prompt_tokens.into()));
    row("at most generated", units::count(report.max_tokens.into()));
    row("state", format!("{} bytes", units::count(report.state_bytes)));
    row("turns", units::count(turns));
    row("compute units", units::count(report.compute_units));
    row("a turn, on average", units::count(report.compute_units / turns.max(1)));
    row("a turn, at most", units::count(report.largest_turn.into()));
    table
}
