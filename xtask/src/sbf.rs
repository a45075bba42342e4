//! `cargo xtask sbf`: builds the Solana program and runs it in two virtual machines.
//!
//! The linker is ours (`onchain/sbf-ld`); the compiler is Debian's, because it carries the library for
//! the target (`scripts/setup.sh`). Then the tests: `onchain/vm` in `solana-sbpf`, and `onchain/client`
//! as whole transactions in LiteSVM.

use crate::arch::{CARGO, RUSTC, llvm, need};
use crate::{shell, wasm};
use anyhow::{Result, ensure};

/// Builds everything and runs all tests.
pub fn run() -> Result<()> {
    build()?;
    shell::run("cargo", &["test", "--locked", "--manifest-path", SBF_LD])?;
    shell::run("cargo", &["test", "--locked", "--manifest-path", VM, "--", "--nocapture"])?;
    // The client plans and replays with the same core in WebAssembly.
    wasm::run()?;
    need_node_modules()?;
    shell::run("node", &["--test", "--test-reporter=spec", "onchain/client/test/client.test.js"])
}

const SBF_LD: &str = "onchain/sbf-ld/Cargo.toml";
const PROGRAM: &str = "onchain/program/Cargo.toml";
const VM: &str = "onchain/vm/Cargo.toml";

/// Builds the linker and the program.
pub fn build() -> Result<()> {
    let llvm = format!("-{}", llvm()?);
    for tool in ["llvm-link", "opt", "llc", "llvm-ar"] {
        need(&format!("/usr/bin/{tool}{llvm}"))?;
    }
    shell::run("cargo", &["build", "--release", "--locked", "--manifest-path", SBF_LD])?;
    let linker = shell::root().join("onchain/sbf-ld/target/release/sbf-ld");
    let target = ["--target", "bpfel-unknown-none", "--manifest-path", PROGRAM];
    shell::run_with(
        CARGO,
        &[&["build", "--release", "--locked"], &target[..]].concat(),
        &[
            ("RUSTC", RUSTC),
            ("SBF_LLVM", &llvm),
            // For assembly on this target, which the stable language does not have yet.
            ("RUSTC_BOOTSTRAP", "1"),
            ("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &linker.to_string_lossy()),
        ],
    )
}

/// The built-in model's story in each virtual machine, as a line for the table of targets. Needs the
/// program and the WebAssembly modules built.
pub fn digests() -> Result<[(&'static str, String); 2]> {
    need_node_modules()?;
    let example = ["run", "--locked", "--manifest-path", VM, "--example", "digest"];
    Ok([
        ("Solana VM (solana-sbpf)", shell::output("cargo", &example)?),
        ("Solana VM (LiteSVM)", shell::output("node", &["onchain/client/digest.js"])?),
    ])
}

/// Fails with what to do unless the client's packages are installed.
fn need_node_modules() -> Result<()> {
    let litesvm = shell::root().join("onchain/client/node_modules/litesvm");
    ensure!(
        litesvm.exists(),
        "{} is missing: run scripts/setup.sh, or `npm install --no-save` in onchain/client",
        litesvm.display()
    );
    Ok(())
}
