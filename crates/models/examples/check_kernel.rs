//! Checks a kernel against the DeepSeek-V4.1 reference.
//!
//! Write the inputs of an operation and your kernel's results to a safetensors file (names in
//! the table of `models::deepseek_v41::check`), then:
//!
//! ```text
//! cargo run -p facit-models --example check_kernel -- attn0 vectors/deepseek_v41/attn0/seedlike.safetensors
//! ```
//!
//! Each result is compared element by element at bf16 tolerance; the report shows a histogram of
//! the distances in bf16 units in the last place and the first element that differs.
//! Exit codes: 0 all inside, 2 usage, 3 something outside, 6 the file cannot be used.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use models::deepseek_v41::check::{OPS, check_op};
use models::tensor_file::TensorFile;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [op, path] = arguments.as_slice() else {
        eprintln!("usage: check_kernel OP FILE.safetensors\nOP is one of {}", OPS.join(", "));
        return ExitCode::from(2);
    };
    let reports = std::fs::read(path).map_err(|e| e.to_string()).and_then(|bytes| {
        let file = TensorFile::parse(&bytes).map_err(|e| e.to_string())?;
        check_op(op, &file).map_err(|e| e.to_string())
    });
    match reports {
        Err(e) => {
            eprintln!("{path}: {e}");
            ExitCode::from(6)
        }
        Ok(reports) => {
            reports.iter().for_each(|r| println!("{r}"));
            let failed = reports.iter().filter(|r| !r.passed()).count();
            println!("{} of {} results inside", reports.len() - failed, reports.len());
            ExitCode::from(if failed == 0 { 0 } else { 3 })
        }
    }
}
