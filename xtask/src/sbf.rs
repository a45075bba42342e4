//! `cargo xtask sbf`: builds the Solana program and runs it in two virtual machines.
//!
//! The linker is ours (`onchain/sbf-ld`); the compiler is Debian's, because it carries the library for
//! the target (`scripts/setup.sh`). Then the tests: `onchain/vm` in `solana-sbpf`, and `onchain/client`
//! as whole transactions in LiteSVM.

use crate::arch::{CARGO, RUSTC, need};
use crate::shell;
use anyhow::Result;

/// Builds everything and runs all tests.
pub fn run() -> Result<()> {
    build()?;
    cargo(&["test", "--locked", "--manifest-path", "onchain/vm/Cargo.toml", "--", "--nocapture"])
}

/// Builds the linker and the program.
pub fn build() -> Result<()> {
    need(RUSTC)?;
    for tool in ["llvm-link", "opt", "llc", "llvm-ar"] {
        need(&format!("/usr/bin/{tool}-22"))?;
    }
    cargo(&["test", "--locked", "--manifest-path", "onchain/sbf-ld/Cargo.toml"])?;
    cargo(&["build", "--release", "--locked", "--manifest-path", "onchain/sbf-ld/Cargo.toml"])?;
    let linker = shell::root().join("onchain/sbf-ld/target/release/sbf-ld");
    shell::run_with(
        CARGO,
        &[
            "build",
            "--release",
            "--locked",
            "--target",
            "bpfel-unknown-none",
            "--manifest-path",
            "onchain/program/Cargo.toml",
        ],
        &[
            ("RUSTC", RUSTC),
            // For assembly on this target, which the stable language does not have yet.
            ("RUSTC_BOOTSTRAP", "1"),
            ("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &linker.to_string_lossy()),
        ],
    )
}

/// Runs the usual cargo; `onchain` is not part of the workspace.
fn cargo(args: &[&str]) -> Result<()> {
    shell::run("cargo", args)
}
