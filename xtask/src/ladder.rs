//! `cargo xtask ladder`: a model larger than memory under real memory limits. One row a budget,
//! the disk's own limit beside it, and a digest of all logits that must be the same on every row.
//!
//! Needs root (control groups), several GB of disk for the synthetic checkpoint, and a quiet
//! machine for its times to mean anything. Not part of CI.

use crate::shell;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What the rungs are, in thousandths of the checkpoint's size.
const RUNGS: [u64; 6] = [120, 150, 250, 500, 750, 1050];
/// Measured memory may exceed the plan by this much.
const SLACK: f64 = 1.02;
/// Prompts of the batch.
const PROMPTS: usize = 16;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// A model directory; without it a synthetic checkpoint is written into target/ladder
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The synthetic checkpoint to write: bench8g (Kimi K3) or deepseek-bench5g
    #[arg(long, value_name = "NAME", default_value = "bench8g")]
    preset: String,
    /// Budgets in bytes, separated by commas [default: 12 % to 105 % of the checkpoint]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    budgets: Vec<u64>,
    /// Tokens to decode on every rung
    #[arg(long, value_name = "N", default_value_t = 8)]
    tokens: usize,
    /// Also pack the smallest rung's layers, prefill 256 positions and run a batch of 16 prompts
    #[arg(long)]
    more: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<()> {
    shell::run("cargo", &["build", "--release", "--locked", "-p", "facit"])?;
    let ladder = Ladder::new(args)?;
    let mut budgets = args.budgets.clone();
    if budgets.is_empty() {
        budgets = RUNGS.iter().map(|r| ladder.size * r / 1000).collect();
    }
    println!(
        "{}: {:.2} GB, {} decoded tokens a row\n",
        ladder.model.display(),
        ladder.size as f64 / 1e9,
        args.tokens
    );
    println!("{}", Row::HEAD);
    let mut rows = Vec::new();
    for &budget in &budgets {
        let row = ladder.rung(budget, "")?;
        println!("{row}");
        rows.push(row);
    }
    if args.more {
        let smallest = budgets.iter().copied().min().unwrap_or(0);
        ladder.packed(smallest, &mut rows)?;
        ladder.prefill(smallest)?;
        ladder.batch(smallest)?;
    }
    if let Some(other) = rows.iter().find(|r| r.digest != rows[0].digest) {
        bail!("the logits of {} differ from those of {}", other.name(), rows[0].name());
    }
    if let Some(row) = rows.iter().find(|r| r.peak > SLACK * r.planned) {
        bail!("{}: peak memory {:.0} exceeds the plan {:.0}", row.name(), row.peak, row.planned);
    }
    println!("\nall {} rows have the same logits and stay within their plans", rows.len());
    Ok(())
}

/// A checkpoint and the programs that use it.
struct Ladder {
    model: PathBuf,
    size: u64,
    facit: PathBuf,
    scratch: PathBuf,
    tokens: usize,
}

/// What one rung showed.
struct Row {
    budget: u64,
    note: &'static str,
    pinned: String,
    bytes: f64,
    seconds: f64,
    /// Bytes a second that the disk gives, before and after.
    disk: f64,
    hits: f64,
    peak: f64,
    planned: f64,
    digest: String,
}

impl Row {
    const HEAD: &str = "\
| budget | pinned | GB/token | s/token | disk limit, s | of the limit | hits | peak / plan, MB | SHA-256 of all logits |
|---:|---:|---:|---:|---:|---:|---:|---:|---|";

    fn name(&self) -> String {
        format!("{:.2} GB{}", self.budget as f64 / 1e9, self.note)
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limit = self.bytes / self.disk;
        write!(
            f,
            "| {} | {} | {:.3} | {:.3} | {:.3} | {:.0} % | {:.1} % | {:.0} / {:.0} | `{}` |",
            self.name(),
            self.pinned,
            self.bytes / 1e9,
            self.seconds,
            limit,
            100.0 * limit / self.seconds,
            100.0 * self.hits,
            self.peak / 1e6,
            self.planned / 1e6,
            &self.digest[..16],
        )
    }
}

impl Ladder {
    fn new(args: &Args) -> Result<Self> {
        let root = shell::root();
        let scratch = root.join("target/ladder");
        fs::create_dir_all(&scratch)?;
        let model = match &args.model {
            Some(dir) => dir.clone(),
            None => {
                let dir = scratch.join(&args.preset);
                if !dir.join("model.safetensors.index.json").exists() {
                    let synth = ["run", "--release", "--locked", "-p", "facit-testkit"];
                    let example = ["--example", "synth", "--", &args.preset, path(&dir)?];
                    shell::run("cargo", &[&synth[..], &example].concat())?;
                }
                dir
            }
        };
        let mut size = 0;
        for entry in fs::read_dir(&model).with_context(|| model.display().to_string())? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|e| e == "safetensors") {
                size += entry.metadata()?.len();
            }
        }
        let facit = root.join("target/release/facit");
        Ok(Ladder { model, size, facit, scratch, tokens: args.tokens })
    }

    /// Decodes within `budget` bytes under a control group of that size.
    fn rung(&self, budget: u64, note: &'static str) -> Result<Row> {
        let logits = self.scratch.join("logits.safetensors");
        let n = (self.tokens + 1).to_string();
        let options = ["-n", &n, "--ids", "11,12,13,14", "--dump-logits", path(&logits)?];
        let before = self.plan(budget)?;
        let report = self.facit(budget, &["run", path(&self.model)?, "--json"], &options)?;
        let plan = self.plan(budget)?;
        let rate = |plan: &Value| number(&plan["disk_bytes_per_second"]);
        let disk = f64::midpoint(rate(&before)?, rate(&plan)?);
        let facit = &report["facit"];
        let decode = &facit["decode"];
        exact_bytes(&decode["read"], &plan["plan"], self.tokens as u64)
            .with_context(|| format!("{budget} bytes of memory"))?;
        let sum = shell::output("sha256sum", &[path(&logits)?])?;
        Ok(Row {
            budget,
            note,
            pinned: format!("{}/{}", plan["plan"]["pinned"], plan["plan"]["units"]),
            bytes: number(&decode["bytes_per_token"])?,
            seconds: number(&decode["seconds_per_token"])?,
            disk,
            hits: number(&decode["expert_hit_rate"])?,
            peak: number(&facit["peak_resident_bytes"])?,
            planned: number(&facit["planned_bytes"])?,
            digest: sum.split_whitespace().next().unwrap_or_default().to_owned(),
        })
    }

    /// The same rung with layers compressed without loss.
    fn packed(&self, budget: u64, rows: &mut Vec<Row>) -> Result<()> {
        let model = path(&self.model)?;
        shell::run(path(&self.facit)?, &["pack", model, "--quiet"])?;
        let row = self.rung(budget, ", packed");
        fs::remove_file(self.model.join("trunk.facit")).context("the packed trunk")?;
        let row = row?;
        println!("{row}");
        rows.push(row);
        Ok(())
    }

    fn prefill(&self, budget: u64) -> Result<()> {
        let ids: Vec<String> = (0..256).map(|i| (i * 97 % 1000).to_string()).collect();
        let options = ["-n", "1", "--ids", &ids.join(",")];
        let report = self.facit(budget, &["run", path(&self.model)?, "--json"], &options)?;
        let prefill = &report["facit"]["prefill"];
        println!(
            "\nprefill of 256 positions at {:.2} GB: {:.1} s, {:.2} GB read",
            budget as f64 / 1e9,
            number(&prefill["seconds"])?,
            number(&prefill["bytes_per_token"])? * 256.0 / 1e9,
        );
        Ok(())
    }

    /// A batch against the same prompts one after the other.
    fn batch(&self, budget: u64) -> Result<()> {
        let input = self.scratch.join("prompts.jsonl");
        let mut lines = String::new();
        for i in 0..PROMPTS {
            let n = self.tokens;
            writeln!(lines, "{{\"prompt\": [{i}, 5, {}, 7], \"max_tokens\": {n}}}", 40 * i)?;
        }
        fs::write(&input, lines)?;
        let run = |sequences: &str, out: &Path| -> Result<Value> {
            let _ = fs::remove_file(out);
            let command = ["batch", path(&self.model)?, path(&input)?, path(out)?, "--json"];
            let sequences: &[&str] =
                if sequences.is_empty() { &[] } else { &["--sequences", sequences] };
            self.facit(budget, &command, sequences)
        };
        let (a, b) = (self.scratch.join("together.jsonl"), self.scratch.join("alone.jsonl"));
        let (together, alone) = (run("", &a)?, run("1", &b)?);
        if fs::read(&a)? != fs::read(&b)? {
            bail!("the batch's answers are not those of single runs");
        }
        let rate = |v: &Value| number(&v["tokens_per_second"]);
        println!(
            "batch of {PROMPTS} at {:.2} GB: {:.2} tokens/s, {} at a time; alone {:.2}: {:.1}x, \
             the same bytes",
            budget as f64 / 1e9,
            rate(&together)?,
            together["sequences"],
            rate(&alone)?,
            rate(&together)? / rate(&alone)?,
        );
        Ok(())
    }

    /// What `facit plan` says, with the rate of large direct reads by the engine's own reader.
    fn plan(&self, budget: u64) -> Result<Value> {
        let memory = format!("{budget}B");
        let context = (self.tokens + 5).to_string();
        let args = ["plan", path(&self.model)?, "--json", "--memory", &memory];
        let more = ["--context", &context, "--prompt", "4"];
        let out = shell::output(path(&self.facit)?, &[&args[..], &more].concat())?;
        Ok(serde_json::from_str(&out)?)
    }

    /// Runs the binary with `--memory budget` in a control group of that size.
    fn facit(&self, budget: u64, command: &[&str], options: &[&str]) -> Result<Value> {
        let group = Group::new((budget as f64 * SLACK) as u64)?;
        let enter = format!("echo $$ > {} && exec \"$@\"", group.0.join("cgroup.procs").display());
        let memory = format!("{budget}B");
        let all = ["-c", &enter, "sh", path(&self.facit)?];
        let args = [&all[..], command, options, &["--memory", &memory, "--quiet"]].concat();
        Ok(serde_json::from_str(&shell::output("sh", &args)?)?)
    }
}

/// What was decoded must have read exactly what the plan says.
fn exact_bytes(read: &Value, plan: &Value, tokens: u64) -> Result<()> {
    let of = |v: &Value, key: &str| v[key].as_u64().with_context(|| format!("no {key}"));
    for (counted, planned) in
        [("trunk_bytes", "trunk_per_token"), ("other_bytes", "rows_per_token")]
    {
        let (got, want) = (of(read, counted)?, of(plan, planned)? * tokens);
        if got != want {
            bail!("{counted}: {got} read, {want} planned");
        }
    }
    // All experts of these checkpoints have one size.
    let (requests, hits) = (of(read, "expert_requests")?, of(read, "expert_hits")?);
    let (got, all) = (of(read, "expert_bytes")?, of(plan, "experts_per_token")? * tokens);
    if u128::from(got) * u128::from(requests) != u128::from(all) * u128::from(requests - hits) {
        bail!("experts: {got} bytes read, {hits} hits of {requests}, {all} bytes without a cache");
    }
    Ok(())
}

/// A control group that limits memory, of version 1 or 2; removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Result<Group> {
        let one = Path::new("/sys/fs/cgroup/memory");
        let two = Path::new("/sys/fs/cgroup");
        let (parent, file) = if one.join("memory.limit_in_bytes").exists() {
            (one, "memory.limit_in_bytes")
        } else if two.join("cgroup.controllers").exists() {
            fs::write(two.join("cgroup.subtree_control"), "+memory")
                .context("cannot use control groups: run as root")?;
            (two, "memory.max")
        } else {
            bail!("no control groups under /sys/fs/cgroup");
        };
        let dir = parent.join(format!("facit-ladder-{}", std::process::id()));
        fs::create_dir(&dir).context("cannot make a control group: run as root")?;
        let group = Group(dir);
        fs::write(group.0.join(file), limit.to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended; if the kernel still holds it, it holds nothing.
        let _ = fs::remove_dir(&self.0);
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("a number is missing in facit's report: {value}"))
}
