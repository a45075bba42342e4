//! `facit check-op`: a kernel's results against the DeepSeek-V4.1 reference, from the shell.

use std::path::PathBuf;

use models::compare::{BINS, Place, Report};
use models::deepseek_v41::check::{CheckError, OPS, check_op};
use models::tensor_file::TensorFile;
use serde_json::{Value, json};

use crate::exit::{Code, Usage};
use crate::ui::Out;

/// Largest file of inputs and results that is read.
const MAX_BYTES: u64 = 8 << 30;

/// What `models::deepseek_v41::check` documents, for people without its source.
const OPERATIONS: &str = "\
Operations and the tensors of their file (bf16 or f32), inputs -> results; what is more than a
tensor is in the file's metadata:
  attn0         w.attn_sink w.wq_a w.q_norm w.wq_b w.wkv w.kv_norm w.wo_a w.wo_b and, for each
                step I from 0, stepI.x -> any of stepI. qr q kv_new kv_rows idx o o_rotated o_low
                out ring; metadata cfg (JSON sizes), regimes (JSON [[start, n], ...]), rope_theta
  sparse_attn   q [n, h, d], kv [rows, d], sink [h], idx [n, cols] -> o
  act_quant     x [.., d] -> y
  apply_rotary  x [n, .., d], pos [n] -> y; metadata rope_dim, rope_theta, inverse (true or false)
  rms_norm      x [.., d], w [d] -> y; metadata eps
  linear_bf16   x [.., k], w [m, k] -> y

Example, in the source tree:
  facit check-op attn0 vectors/deepseek_v41/attn0/seedlike.safetensors";

/// Check a kernel's results against the DeepSeek-V4.1 reference
///
/// The file holds an operation's inputs and the results to be judged; the reference computes its
/// own and compares element by element at bf16 tolerance. Exit code 0 if all are inside, 3 if
/// not.
#[derive(clap::Args)]
#[command(after_long_help = OPERATIONS)]
pub struct Args {
    /// The operation; --help lists them with their tensors
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(OPS))]
    op: String,
    /// Inputs and results, a safetensors file
    golden: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let bytes = engine::files::read(&args.golden, MAX_BYTES)?;
    let reports = TensorFile::parse(&bytes)
        .map_err(CheckError::from)
        .and_then(|file| check_op(&args.op, &file))
        .map_err(|e| refusal(&args, &e))?;
    let inside = reports.iter().filter(|r| r.passed()).count();
    let mut out = Out::default();
    if args.json {
        let results: Vec<Value> = reports.iter().map(as_json).collect();
        out.json(&json!({ "op": args.op, "results": results, "inside": inside }))?;
    } else {
        for report in &reports {
            out.line(&report.to_string())?;
        }
        out.line(&format!("{inside} of {} results inside", reports.len()))?;
    }
    Ok(if inside == reports.len() { Code::Ok } else { Code::Mismatch })
}

fn refusal(args: &Args, error: &CheckError) -> anyhow::Error {
    let what = args.golden.display().to_string();
    match error {
        CheckError::NoResult => Usage(format!("{what}: {error}")).into(),
        _ => engine::Error::Corrupt { what, why: error.to_string() }.into(),
    }
}

fn as_json(r: &Report) -> Value {
    let place = |p: &Option<Place>| {
        p.as_ref().map(|p| json!({ "index": p.index, "got": p.got, "want": p.want }))
    };
    json!({
        "name": r.name,
        "shape": r.shape,
        "passed": r.passed(),
        "wrong_length": r.wrong_length,
        "bound": r.bound,
        "largest_difference": r.largest,
        "outside": r.outside,
        "ulp_bins": BINS,
        "ulp_counts": r.ulps,
        "first_difference": place(&r.first_difference),
        "first_outside": place(&r.first_outside),
    })
}
