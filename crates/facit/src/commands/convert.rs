//! `facit convert`.

use std::path::PathBuf;

use engine::convert::{Conversion, Step, convert};

use crate::exit::Code;
use crate::ui::{self, Out, Table, units};

/// Convert a llama2.c checkpoint (version 0) into a model
#[derive(clap::Args)]
pub struct Args {
    /// The checkpoint, such as stories15M.bin
    checkpoint: PathBuf,
    /// Its tokenizer, such as tokenizer.bin
    tokenizer: PathBuf,
    /// The model to write; replaced whole or not at all
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let bar = ui::bar(0, "reading", args.quiet || args.json);
    let conversion =
        convert(&args.checkpoint, &args.tokenizer, &args.output, &mut |step| match step {
            Step::Read => bar.set_message("reading"),
            Step::Convert { done, of } => {
                bar.set_message("converting");
                bar.set_length(of);
                bar.set_position(done);
            }
            Step::Write => bar.set_message("writing"),
        });
    bar.finish_and_clear();
    let conversion = conversion?;
    let mut out = Out::default();
    if args.json {
        out.json(&conversion)?;
    } else if !args.quiet {
        out.line(&summary(&conversion))?;
    }
    if !args.quiet {
        let model = &conversion.artifact;
        let (path, size) = (args.output.display(), units::bytes(model.bytes));
        ui::note(&format!("wrote {path}: {size}, sha256 {}", model.sha256));
    }
    Ok(Code::Ok)
}

fn summary(conversion: &Conversion) -> String {
    let artifact = super::inspect::artifact(&conversion.artifact);
    let mut table =
        Table::new(["rounding to 8 bits", ">weights", ">relative error", ">largest error"]);
    for kind in &conversion.quantisation {
        table.row([
            kind.name.into(),
            units::count(kind.weights),
            format!("{:.3} %", 100.0 * kind.relative_rms),
            format!("{:.2e}", kind.largest),
        ]);
    }
    format!("{artifact}\n\n{table}")
}
