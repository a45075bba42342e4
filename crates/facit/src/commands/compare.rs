//! `facit compare`: how the logits of two runs differ.

use std::path::PathBuf;

use engine::giant::logits::{Comparison, Logits, Verdict, compare};

use crate::exit::Code;
use crate::ui::{Out, Table, units};

/// Compare two files of logits, the second being the reference
///
/// Files are what `facit run DIR --dump-logits` writes, raw little-endian f32, or JSON with
/// `logits` or `logits_bits`. Exit code 0 if they are identical or close, 3 if not.
#[derive(clap::Args)]
pub struct Args {
    /// Logits to judge
    a: PathBuf,
    /// The reference
    b: PathBuf,
    /// Largest difference that is close, as a share of the reference's largest magnitude
    #[arg(long, value_name = "SHARE", default_value_t = 5e-4)]
    tolerance: f64,
    /// Demand equal bits
    #[arg(long)]
    exact: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let (a, b) = (Logits::read(&args.a)?, Logits::read(&args.b)?);
    let comparison = compare(&a, &b, args.tolerance)?;
    let mut out = Out::default();
    if args.json {
        out.json(&comparison)?;
    } else {
        out.line(&table(&comparison))?;
    }
    let good = match comparison.verdict {
        Verdict::Identical => true,
        Verdict::Close => !args.exact,
        Verdict::Different => false,
    };
    Ok(if good { Code::Ok } else { Code::Mismatch })
}

fn table(c: &Comparison) -> String {
    let mut table = Table::new(["logits", ""]);
    let mut row = |name: &str, value: String| table.row([name.into(), value]);
    let positions = units::plural(c.positions as u64, "position");
    row("compared", format!("{positions} of {}", units::plural(c.vocab as u64, "logit")));
    row("max |difference|", format!("{:.6e}", c.max_difference));
    row("relative to max |b|", format!("{:.6e} (tolerance {:.1e})", c.relative, c.tolerance));
    row("mean |difference|", format!("{:.6e}", c.mean_difference));
    row("correlation", format!("{:.9}", c.correlation));
    row("same argmax", format!("{} of {positions}", c.same_argmax));
    row("argmax of the last", format!("{} and {}", c.argmax[0], c.argmax[1]));
    row("top-10 overlap", format!("{}/10", c.top_10_overlap));
    row("not finite", c.not_finite.to_string());
    row(
        "first difference",
        c.first_difference.map_or("none".into(), |(position, token, a, b)| {
            format!("position {position}, token {token}: {a:e} and {b:e}")
        }),
    );
    row("verdict", format!("{:?}", c.verdict).to_lowercase());
    table.to_string()
}
