//! Running commands: one line says what runs, a failure names the command and its exit status.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The workspace's root folder.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

/// Runs `program` with `args` in the root folder and fails unless it succeeds.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
    run_with(program, args, &[])
}

/// As [`run`], with environment variables added.
pub fn run_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    eprintln!("$ {program} {}", args.join(" "));
    let began = Instant::now();
    let status = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot start `{program}`: is it installed?"))?;
    if !status.success() {
        bail!("`{program} {}` failed: {status}", args.join(" "));
    }
    eprintln!("  {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// The standard output of a command, which must succeed.
pub fn output(program: &str, args: &[&str]) -> Result<String> {
    output_with(program, args, &[])
}

/// As [`output`], with environment variables added. What goes to standard error is shown.
pub fn output_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<String> {
    let out = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .stderr(Stdio::inherit())
        .current_dir(root())
        .output()
        .with_context(|| format!("cannot start `{program}`: is it installed?"))?;
    if !out.status.success() {
        bail!("`{program} {}` failed: {}", args.join(" "), out.status);
    }
    Ok(String::from_utf8(out.stdout)?)
}
