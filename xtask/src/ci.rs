//! `cargo xtask ci`: what CI asks besides the tests, cheapest first.

use crate::{shell, tidy};
use anyhow::Result;

/// Runs every check; stops at the first that fails.
pub fn run() -> Result<()> {
    shell::run("cargo", &["fmt", "--all", "--check"])?;
    tidy::run()?;
    shell::run(
        "cargo",
        &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
    )?;
    shell::run_with(
        "cargo",
        &["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"],
        &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")],
    )?;
    // The integer core without `std`: no allocator, no floats, no I/O to lean on.
    shell::run("cargo", &["check", "-p", "facit-fixed", "--no-default-features", "--locked"])
}
