//! `cargo xtask targets`: one run on every target, and one table that shows it is the same run.
//!
//! Each target tells the built-in model's story and prints lines of backend, tokens, turns and the
//! SHA-256 of its final state. The chore fails unless all lines agree with the golden data, which
//! the Python definition made. It needs what `scripts/setup.sh` installs.

use crate::{arch, avx512, sbf, shell, wasm};
use anyhow::{Context, Result, ensure};

/// The run of `vectors/fixed/facit-tales.json` that every target repeats.
const MODEL: &str = "facit-tales";
const CASE: &str = "greedy";
/// The program that runs it natively.
const EXAMPLE: [&str; 6] = ["-p", "facit-fixed", "--features", "std", "--example", "digest"];

/// What one backend of a target computed.
#[derive(Debug, PartialEq)]
struct Outcome {
    tokens: u64,
    turns: u64,
    digest: String,
}

struct Row {
    target: &'static str,
    backend: String,
    outcome: Outcome,
}

/// Runs all targets, prints the table and compares.
pub fn run() -> Result<()> {
    let golden = golden()?;
    let mut rows = Vec::new();
    let lines = shell::output("cargo", &[&["run", "--locked"], &EXAMPLE[..]].concat())?;
    rows.extend(parse(std::env::consts::ARCH, &lines)?);
    // Emulated where the machine has none.
    if !rows.iter().any(|row| row.backend == "avx512-vnni") {
        rows.extend(parse("x86_64 (Bochs)", &avx512::story()?)?);
    }
    for (target, arch) in [("aarch64 (qemu)", "aarch64"), ("s390x (qemu)", "s390x")] {
        rows.extend(parse(target, &arch::output(arch, &[&["run"], &EXAMPLE[..]].concat())?)?);
    }
    wasm::run()?;
    wasm::need_node_modules()?;
    for (target, way) in
        [("wasm32 (node)", "plain"), ("wasm32 (node)", "simd128"), ("Chromium", "chromium")]
    {
        rows.extend(parse(target, &shell::output("node", &["web/test/digest.js", way])?)?);
    }
    sbf::build()?;
    for (target, line) in sbf::digests()? {
        rows.extend(parse(target, &line)?);
    }
    print!("{}", table(&rows));
    compare(&rows, &golden)
}

/// The outcome that the Python definition computed.
fn golden() -> Result<Outcome> {
    let path = shell::root().join("vectors/fixed").join(format!("{MODEL}.json"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let goldens: serde_json::Value = serde_json::from_str(&text)?;
    let cases = goldens["cases"].as_array().context("no cases")?;
    let case = cases.iter().find(|c| c["name"] == CASE).context("the case is missing")?;
    let count = |name: &str| case[name].as_array().map(|all| all.len() as u64);
    Ok(Outcome {
        tokens: count("tokens").context("no tokens")?,
        turns: count("turns").context("no turns")?,
        digest: case["final_sha256"].as_str().context("no digest")?.to_owned(),
    })
}

/// The rows that a target printed; it must have printed some.
fn parse(target: &'static str, lines: &str) -> Result<Vec<Row>> {
    let row = |line: &str| {
        let [backend, tokens, turns, digest] = line.split('\t').collect::<Vec<_>>()[..] else {
            return None;
        };
        let outcome = Outcome {
            tokens: tokens.parse().ok()?,
            turns: turns.parse().ok()?,
            digest: digest.to_owned(),
        };
        Some(Row { target, backend: backend.to_owned(), outcome })
    };
    let rows: Option<Vec<Row>> = lines.lines().map(row).collect();
    let rows = rows.with_context(|| format!("{target} printed something else:\n{lines}"))?;
    ensure!(!rows.is_empty(), "{target} printed nothing");
    Ok(rows)
}

/// The table in Markdown, as in the README.
fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "\n| target | backend | model | tokens | turns | SHA-256 of the final state |\n|---|---|---|---:|---:|---|\n",
    );
    for Row { target, backend, outcome: Outcome { tokens, turns, digest } } in rows {
        out += &format!("| {target} | {backend} | {MODEL} | {tokens} | {turns} | `{digest}` |\n");
    }
    out
}

fn compare(rows: &[Row], golden: &Outcome) -> Result<()> {
    for Row { target, backend, outcome } in rows {
        ensure!(
            outcome == golden,
            "{target}, {backend} differs: {outcome:?}; the definition says {golden:?}"
        );
    }
    println!("\n{} targets and backends: the same run, to the bit", rows.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "plain\t120\t350\tabcd\n";

    #[test]
    fn one_different_digest_fails() {
        let golden = Outcome { tokens: 120, turns: 350, digest: "abcd".into() };
        let mut rows = parse("here", &LINE.repeat(3)).unwrap();
        compare(&rows, &golden).unwrap();
        rows[1].outcome.digest = "abce".into();
        assert!(compare(&rows, &golden).unwrap_err().to_string().contains("here, plain"));
    }

    #[test]
    fn a_target_that_prints_nothing_or_something_else_fails() {
        assert!(parse("here", "").is_err());
        assert!(parse("here", "plain\t120\t350\n").is_err());
        assert!(parse("here", "plain\t120\tx\tabcd\n").is_err());
    }
}
