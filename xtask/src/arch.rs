//! `cargo xtask arch`: the test suites of `fixed` and `numerics` on other architectures, under qemu.
//!
//! aarch64 executes the NEON paths; s390x is big-endian. Both need `scripts/setup.sh`: Debian's
//! compiler carries the standard library's source, from which it is built for each target. One cargo
//! builds for both at once, into one folder that `cargo xtask targets` uses too.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::path::Path;

/// Debian's compiler, beside the one that builds Facit.
pub const RUSTC: &str = "/usr/bin/rustc";
/// Its cargo.
pub const CARGO: &str = "/usr/bin/cargo";

/// The architectures. (The tests read what the machine is, not a flag.)
const ARCHITECTURES: [&str; 2] = ["aarch64", "s390x"];
/// Tests that would take longer than all others together; the committed models are run.
const LEFT_OUT: &str = "shared_models";

/// Builds and runs both suites for all architectures.
pub fn run() -> Result<()> {
    let suites = ["test", "-p", "facit-fixed", "-p", "facit-numerics", "--lib", "--tests"];
    let to_the_end = ["--features", "facit-fixed/std", "--no-fail-fast"];
    let tests = ["--", "--skip", LEFT_OUT];
    println!("left out under emulation: tests named {LEFT_OUT}…, of models beside the repository");
    with_cargo(&ARCHITECTURES, &[&suites[..], &to_the_end].concat(), &tests, |args, env| {
        shell::run_with(CARGO, args, env)
    })
}

/// Standard output of Debian's cargo with `args`, for one architecture.
pub fn output(arch: &str, args: &[&str]) -> Result<String> {
    with_cargo(&[arch], args, &[], |args, env| shell::output_with(CARGO, args, env))
}

/// Gives `run` the arguments and environment for Debian's cargo to build for `architectures`, each
/// with a linker and qemu as the runner. `last` are the arguments of what is built.
fn with_cargo<T>(
    architectures: &[&str],
    args: &[&str],
    last: &[&str],
    run: impl FnOnce(&[&str], &[(&str, &str)]) -> Result<T>,
) -> Result<T> {
    need(RUSTC)?;
    let mut targets = Vec::new();
    let mut env: Vec<(String, String)> = [
        ("RUSTC", RUSTC),
        ("RUSTDOC", "/usr/bin/rustdoc"),
        ("RUSTC_BOOTSTRAP", "1"),
        // (Lints are asked for by `cargo xtask ci`.)
        ("RUSTFLAGS", "--cfg facit_emulated --cap-lints allow"),
        ("CARGO_PROFILE_DEV_DEBUG", "false"),
        ("CARGO_INCREMENTAL", "0"),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .into();
    for arch in architectures {
        let (qemu, linker) = (format!("qemu-{arch}"), format!("{arch}-linux-gnu-gcc"));
        need(&format!("/usr/bin/{qemu}"))?;
        need(&format!("/usr/bin/{linker}"))?;
        let triple = format!("{arch}-unknown-linux-gnu");
        let key = format!("CARGO_TARGET_{}", triple.to_uppercase().replace('-', "_"));
        env.push((format!("{key}_LINKER"), linker));
        env.push((format!("{key}_RUNNER"), format!("{qemu} -L /usr/{arch}-linux-gnu")));
        targets.extend(["--target".to_owned(), triple]);
    }
    // `test` is named, or what is built to be run could not use what was built to be tested.
    let ours = ["--target-dir", "target/arch", "-Z", "build-std=std,test", "--locked"];
    let all: Vec<&str> = args
        .iter()
        .copied()
        .chain(targets.iter().map(String::as_str))
        .chain(ours)
        .chain(last.iter().copied())
        .collect();
    let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    run(&all, &env)
}

/// The major version of the compiler's LLVM: its tools must be of the same.
pub fn llvm() -> Result<String> {
    need(RUSTC)?;
    let version = shell::output(RUSTC, &["-vV"])?;
    let major = version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: ")?.split('.').next())
        .with_context(|| format!("{RUSTC} -vV names no LLVM version"))?;
    Ok(major.to_owned())
}

/// Fails with what to install unless the file is there.
pub fn need(path: &str) -> Result<()> {
    if !Path::new(path).exists() {
        bail!("{path} is missing: run scripts/setup.sh as root (Debian 12), then try again");
    }
    Ok(())
}
