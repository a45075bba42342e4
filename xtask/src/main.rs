//! Facit's own chores, `cargo xtask <chore>`: what CI runs, and what a developer runs before CI does.
//!
//! Nothing here is shipped. A chore that misses a tool says what to install and fails; it never skips.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod arch;
mod avx512;
mod ci;
mod ladder;
mod sbf;
mod shell;
mod targets;
mod tidy;
mod wasm;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Facit's own chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Formatting, lints, documentation and tidy checks: everything CI asks besides the tests.
    Ci,
    /// The suites of `fixed` and `numerics` under qemu: aarch64 (NEON) and s390x (big-endian).
    Arch,
    /// The arithmetic of `fixed` on an emulated processor with AVX-512 VNNI.
    Avx512,
    /// The Solana program: built with Debian's compiler, run in the validators' virtual machine.
    Sbf,
    /// The core as WebAssembly, with and without SIMD, and the web page in target/web.
    Wasm,
    /// Package and page, tested in node and Chromium.
    Web,
    /// One run on every target and architecture, in a table; fails unless all agree to the bit.
    Targets,
    /// A model larger than memory under real memory limits: one row a budget, the same logits.
    Ladder(ladder::Args),
    /// House rules: file headers and lengths, dependency table, licences, unsafe code, links.
    Tidy,
}

fn main() -> anyhow::Result<()> {
    match Args::parse().chore {
        Chore::Ci => ci::run(),
        Chore::Arch => arch::run(),
        Chore::Avx512 => avx512::run(),
        Chore::Sbf => sbf::run(),
        Chore::Wasm => wasm::run(),
        Chore::Web => wasm::test(),
        Chore::Targets => targets::run(),
        Chore::Ladder(args) => ladder::run(&args),
        Chore::Tidy => tidy::run(),
    }
}
