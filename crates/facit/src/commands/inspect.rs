//! `facit inspect`.

use std::path::PathBuf;

use engine::giant::Checkpoint;
use engine::inspect::{
    ArtifactReport, ConfigReport, Inspection, ReceiptReport, SectionReport, StateReport,
};
use engine::{Temperature, inspect};

use crate::exit::Code;
use crate::ui::{Out, Table, units};

/// Show what is in a model (file or directory), a saved state or a receipt
#[derive(clap::Args)]
pub struct Args {
    /// The file or model directory
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    if Checkpoint::is_at(&args.file) {
        return super::giant::inspect::run(&args.file, args.json);
    }
    let inspection = inspect::inspect(&args.file)?;
    let mut out = Out::default();
    if args.json {
        out.json(&inspection)?;
    } else {
        out.line(&match &inspection {
            Inspection::Artifact(report) => artifact(report),
            Inspection::State(report) => state(report),
            Inspection::Receipt(report) => receipt(report),
        })?;
    }
    Ok(Code::Ok)
}

/// A model's header and sections.
pub fn artifact(report: &ArtifactReport) -> String {
    let mut table = Table::new(["model", ""]);
    let mut row = |name: &str, value: String| table.row([name.into(), value]);
    row("size", size(report.bytes));
    row("sha256", report.sha256.to_string());
    row("parameters", units::count(report.parameters));
    row("configuration", config(&report.config));
    let mut sections = Table::new([">section", ">offset", ">bytes", "sha256", "content"]);
    for section in &report.sections {
        sections.row([
            section.index.to_string(),
            units::count(section.offset),
            units::count(section.bytes),
            format!("{}…", &section.sha256.to_string()[..16]),
            content(section),
        ]);
    }
    format!("{table}\n\n{sections}")
}

fn size(bytes: u64) -> String {
    format!("{} bytes ({})", units::count(bytes), units::bytes(bytes))
}

fn config(c: &ConfigReport) -> String {
    format!(
        "dim {}, hidden {}, {}, {}, {}, vocabulary {}, context {}, {} classifier",
        c.dim,
        c.hidden,
        units::plural(c.layers as u64, "layer"),
        units::plural(c.heads as u64, "head"),
        units::plural(c.kv_heads as u64, "key/value head"),
        c.vocab,
        c.seq,
        if c.own_classifier { "own" } else { "shared" }
    )
}

fn content(section: &SectionReport) -> String {
    let [first, .., last] = section.matrices.as_slice() else {
        return match section.matrices.as_slice() {
            [only] => format!("{} of layer {}", only.name, only.layer),
            _ => "header, tables, norms, tokenizer".into(),
        };
    };
    let name = |m: &engine::inspect::MatrixReport| match m.name {
        "embedding" | "classifier" => m.name.to_string(),
        name => format!("{name} of layer {}", m.layer),
    };
    format!("{} matrices, {} to {}", section.matrices.len(), name(first), name(last))
}

fn state(report: &StateReport) -> String {
    let mut table = Table::new(["state", ""]);
    let mut row = |name: &str, value: String| table.row([name.into(), value]);
    match &report.envelope {
        Some(envelope) => {
            row("model sha256", envelope.model_sha256.to_string());
            row("numerics", envelope.numerics.into());
            row("configuration", config(&envelope.config));
        }
        None => row("envelope", "none: a bare state, of which only the header was checked".into()),
    }
    row("size", size(report.bytes));
    row("sha256", report.sha256.to_string());
    row("stands at", format!("{} (phase {})", report.phase_name, report.phase));
    row(
        "cursor",
        format!("position {}, layer {}, row {}", report.position, report.layer, report.row),
    );
    row("turns", units::count(report.turns));
    row("prompt tokens", units::count(report.prompt_tokens.into()));
    row(
        "generated",
        format!(
            "{} of at most {}",
            report.generated,
            units::plural(report.max_tokens.into(), "token")
        ),
    );
    row("temperature", temperature(report.temperature_q16));
    row("seed", report.seed.to_string());
    for (name, text) in [("prompt", &report.prompt), ("text", &report.text)] {
        if let Some(text) = text {
            row(name, format!("{text:?}"));
        }
    }
    table.to_string()
}

fn temperature(q16: u32) -> String {
    match Temperature::from_q16(q16) {
        Some(temperature) => format!("{temperature} ({q16} / 65536)"),
        None => format!("{q16} / 65536, out of range"),
    }
}

fn receipt(report: &ReceiptReport) -> String {
    let mut table = Table::new(["receipt", ""]);
    let mut row = |name: &str, value: String| table.row([name.into(), value]);
    row("model sha256", report.model_sha256.to_string());
    row("numerics", report.numerics.clone());
    row("prompt", format!("{:?}", report.prompt));
    row("temperature", temperature(report.temperature_q16));
    row("seed", report.seed.to_string());
    row(
        "turns",
        format!(
            "{}, {}",
            units::count(report.turns as u64),
            units::plural(report.checkpoints as u64, "checkpoint")
        ),
    );
    row("compute units", units::count(report.work));
    row("tokens", format!("{} of at most {}", report.tokens, report.max_tokens));
    row("complete", report.complete.to_string());
    row("final state sha256", report.final_state_sha256.to_string());
    row("text", format!("{:?}", report.text));
    table.row(["checked".into(), "its own digest; the turns are for `facit verify`".into()]);
    table.to_string()
}
