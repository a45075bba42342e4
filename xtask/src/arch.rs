//! `cargo xtask arch`: the test suites of `fixed` and `numerics` on other architectures, under qemu.
//!
//! aarch64 executes the NEON paths; s390x is big-endian. Both need `scripts/setup.sh`: Debian's
//! compiler carries the standard library's source, from which it is built for each target.

use crate::shell;
use anyhow::{Result, bail};
use std::path::Path;

/// Debian's compiler, beside the one that builds Facit.
pub const RUSTC: &str = "/usr/bin/rustc";
/// Its cargo.
pub const CARGO: &str = "/usr/bin/cargo";

/// Architectures with their suite's own expectations (the tests read the machine, not a flag).
const ARCHITECTURES: &[&str] = &["aarch64", "s390x"];

/// Builds and runs both suites for each architecture.
pub fn run() -> Result<()> {
    for arch in ARCHITECTURES {
        for package in ["facit-fixed", "facit-numerics"] {
            let features: &[&str] =
                if package == "facit-fixed" { &["--features", "std"] } else { &[] };
            cargo(arch, &[&["test", "-p", package, "--lib", "--tests"], features].concat())?;
        }
    }
    Ok(())
}

/// Runs Debian's cargo for `arch` with a linker and qemu as the runner.
pub fn cargo(arch: &str, args: &[&str]) -> Result<()> {
    with_cargo(arch, args, |args, env| shell::run_with(CARGO, args, env))
}

/// As [`cargo`]; what it prints to standard output.
pub fn output(arch: &str, args: &[&str]) -> Result<String> {
    with_cargo(arch, args, |args, env| shell::output_with(CARGO, args, env))
}

fn with_cargo<T>(
    arch: &str,
    args: &[&str],
    run: impl FnOnce(&[&str], &[(&str, &str)]) -> Result<T>,
) -> Result<T> {
    let qemu = format!("qemu-{arch}");
    let linker = format!("{arch}-linux-gnu-gcc");
    need(RUSTC)?;
    need(&format!("/usr/bin/{qemu}"))?;
    need(&format!("/usr/bin/{linker}"))?;
    let triple = format!("{arch}-unknown-linux-gnu");
    let target_dir = format!("target/arch-{arch}");
    let runner = format!("{qemu} -L /usr/{arch}-linux-gnu");
    let key =
        |what: &str| format!("CARGO_TARGET_{}_{what}", triple.to_uppercase().replace('-', "_"));
    let all: Vec<&str> = args
        .iter()
        .copied()
        .chain(["--target", &triple, "--target-dir", &target_dir, "-Z", "build-std", "--locked"])
        .collect();
    run(
        &all,
        &[
            ("RUSTC", RUSTC),
            ("RUSTDOC", "/usr/bin/rustdoc"),
            ("RUSTC_BOOTSTRAP", "1"),
            (&key("LINKER"), &linker),
            (&key("RUNNER"), &runner),
        ],
    )
}

/// Fails with what to install unless the file is there.
pub fn need(path: &str) -> Result<()> {
    if !Path::new(path).exists() {
        bail!("{path} is missing: run scripts/setup.sh as root (Debian 12), then try again");
    }
    Ok(())
}
