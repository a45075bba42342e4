//! `facit inspect DIR`: what a model directory holds, from headers alone.

use std::path::Path;

use engine::giant::{Checkpoint, Family};
use models::machine::Layout;
use serde::Serialize;

use super::GiantOptions;
use crate::exit::Code;
use crate::ui::{Out, Table, units};

/// Everything the table and `--json` show. Sizes in bytes.
#[derive(Serialize)]
struct Report {
    family: Family,
    digest: String,
    numerics: String,
    shards: usize,
    tensors: usize,
    bytes: u64,
    vocabulary: usize,
    layers: usize,
    trunk_bytes: u64,
    largest_layer_bytes: u64,
    experts: usize,
    expert_bytes: u64,
    all_experts_bytes: u64,
    tables_bytes: u64,
    head_bytes: u64,
    state_bytes_at_4096: u64,
    tokenizer: bool,
}

/// Opens the directory, binds every tensor of its model and reports.
pub fn run(dir: &Path, json: bool) -> anyhow::Result<Code> {
    let checkpoint = Checkpoint::open(dir)?;
    let report = match checkpoint.family() {
        Family::KimiK3 => report(&checkpoint, &checkpoint.kimi_k3()?)?,
        Family::DeepseekV41 => {
            let options = GiantOptions::default().model_options();
            report(&checkpoint, &checkpoint.deepseek_v41(options)?)?
        }
    };
    let mut out = Out::default();
    if json {
        out.json(&report)?
    } else {
        out.line(&table(&report))?
    }
    Ok(Code::Ok)
}

fn report(checkpoint: &Checkpoint, model: &impl models::machine::Model) -> anyhow::Result<Report> {
    let layout: &Layout = model.layout();
    let index = checkpoint.index();
    let sum = |f: &dyn Fn(&models::machine::LayerSpec) -> usize| -> u64 {
        layout.layers.iter().map(|l| f(l) as u64).sum()
    };
    let tables = layout.tables.iter().flat_map(|t| &t.tensors).map(|t| t.bytes() as u64).sum();
    let head = layout.head.tensors.iter().chain([&layout.head.matrix]).map(|t| t.bytes() as u64);
    Ok(Report {
        family: checkpoint.family(),
        digest: checkpoint.digest().to_string(),
        numerics: model.numerics_id(),
        shards: index.shards().len(),
        tensors: index.len(),
        bytes: index.iter().map(|t| t.len).sum(),
        vocabulary: model.vocab(),
        layers: layout.layers.len(),
        trunk_bytes: sum(&|l| l.bytes()),
        largest_layer_bytes: layout.layers.iter().map(|l| l.bytes() as u64).max().unwrap_or(0),
        experts: layout.layers.iter().map(|l| l.experts).sum(),
        expert_bytes: layout.layers.iter().map(|l| l.expert_bytes() as u64).max().unwrap_or(0),
        all_experts_bytes: sum(&|l| l.experts * l.expert_bytes()),
        tables_bytes: tables,
        head_bytes: head.sum(),
        state_bytes_at_4096: model.state_bytes(4096) as u64,
        tokenizer: checkpoint.tokenizer()?.is_some(),
    })
}

fn table(r: &Report) -> String {
    let mut table = Table::new(["model directory", ""]);
    let mut row = |name: &str, value: String| table.row([name.into(), value]);
    let size = |n: u64| format!("{} bytes ({})", units::count(n), units::bytes(n));
    row("family", r.family.name().into());
    row("digest", format!("{} (config and headers)", r.digest));
    row("numerics", r.numerics.clone());
    let shards = units::plural(r.shards as u64, "shard");
    row("tensors", format!("{} in {shards}", units::count(r.tensors as u64)));
    row("size", size(r.bytes));
    row("vocabulary", units::count(r.vocabulary as u64));
    row("layers", r.layers.to_string());
    row("always active", size(r.trunk_bytes));
    row("largest layer", size(r.largest_layer_bytes));
    row("experts", format!("{} of {}", units::count(r.experts as u64), size(r.expert_bytes)));
    row("all experts", size(r.all_experts_bytes));
    row("tables", size(r.tables_bytes));
    row("head", size(r.head_bytes));
    row("state at 4,096 positions", size(r.state_bytes_at_4096));
    row("tokenizer", if r.tokenizer { "there".into() } else { "none: use --ids".into() });
    table.to_string()
}
