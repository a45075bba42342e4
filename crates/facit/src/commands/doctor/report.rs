//! What the doctor found, as JSON and as tables.

use std::fmt;
use std::path::{Path, PathBuf};

use engine::giant::{Checkpoint, Family};
use serde::Serialize;
use store::doctor::{DiskReport, Rate, SMALL};
use store::memory::Memory;

use super::Args;
use crate::commands::options::all_threads;
use crate::commands::plan;
use crate::ui::{self, Table, units};

/// Everything; sizes in bytes, rates a second.
#[derive(Serialize)]
pub struct Report {
    pub cpu: Cpu,
    pub memory: Memory,
    pub place: PathBuf,
    pub disk: Option<DiskReport>,
    /// Why the disk was not measured.
    pub disk_problem: Option<String>,
    /// Bytes that may still be written beside the model.
    pub free_space: Option<u64>,
    pub model: Option<ModelReport>,
    /// Why the model does not run here.
    pub problem: Option<String>,
    /// Commands to run next, in order.
    pub next: Vec<Vec<String>>,
}

#[derive(Serialize)]
pub struct Cpu {
    arch: &'static str,
    threads: usize,
    features: Vec<&'static str>,
    /// What model directories run on.
    backend: &'static str,
    /// What the exact core runs on.
    exact_backend: &'static str,
}

impl Cpu {
    pub fn read() -> Self {
        Self {
            arch: std::env::consts::ARCH,
            threads: all_threads(),
            features: features(),
            backend: numerics::Backend::detect().name(),
            exact_backend: engine::Backend::detect().name(),
        }
    }
}

/// The processor's features that some kernel looks for.
fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let all = {
        macro_rules! look {
            ($($name:tt)*) => { vec![$(($name, std::arch::is_x86_feature_detected!($name))),*] };
        }
        look!("avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512vl" "avx512vnni")
    };
    #[cfg(target_arch = "aarch64")]
    let all = vec![("neon", std::arch::is_aarch64_feature_detected!("neon"))];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let all: Vec<(&'static str, bool)> = Vec::new();
    all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// How a model runs here.
#[derive(Serialize)]
pub struct ModelReport {
    family: Family,
    bytes: u64,
    tokenizer: bool,
    /// Seconds of reading for a token at the measured rate, if no expert is in memory; none if
    /// the disk was not measured directly.
    seconds_per_token: Option<f64>,
    #[serde(flatten)]
    plan: plan::Report,
}

impl ModelReport {
    pub fn of(
        checkpoint: &Checkpoint,
        plan: Result<plan::Report, engine::Error>,
        disk: Option<&DiskReport>,
    ) -> Result<Self, engine::Error> {
        let plan = plan?;
        let rate = disk.filter(|d| d.direct).map(DiskReport::best);
        let seconds = if plan.resident { Some(0.0) } else { rate.map(|r| plan.plan.seconds(r)) };
        Ok(Self {
            family: checkpoint.family(),
            bytes: checkpoint.index().iter().map(|t| t.len).sum(),
            tokenizer: checkpoint.tokenizer()?.is_some(),
            seconds_per_token: seconds,
            plan,
        })
    }

    /// What to run: first packing, where it would help and there is room, then the model.
    pub fn next(&self, dir: &Path, args: &Args, free: Option<u64>) -> Vec<Vec<String>> {
        let dir = dir.display().to_string();
        let words = |words: &[&str]| words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>();
        let mut next = Vec::new();
        let streams = !self.plan.resident && !self.plan.packed;
        if streams && free.is_some_and(|f| f > self.plan.trunk_bytes) {
            next.push(words(&["facit", "pack", &dir]));
        }
        let mut run = words(&["facit", "run", &dir]);
        run.extend(if self.tokenizer {
            words(&["--prompt", "The capital of France is"])
        } else {
            words(&["--ids", "1,2,3"])
        });
        run.extend(words(&["-n", "16"]));
        if let Some(bytes) = args.demand.memory.0 {
            let size = match bytes % 1_000_000 {
                0 => format!("{}MB", bytes / 1_000_000),
                _ => format!("{bytes}B"),
            };
            run.extend(words(&["--memory", &size]));
        }
        next.push(run);
        next
    }

    fn rows(&self, table: &mut Table) {
        let plan = &self.plan;
        let size = units::bytes;
        let mut row = |name: &str, value: String| table.row([name.into(), value]);
        row("family", self.family.name().into());
        row("size", size(self.bytes));
        let how = if plan.resident {
            "with all weights in memory".to_owned()
        } else {
            let kept =
                format!("{} of {} layers and head pieces", plan.plan.pinned, plan.plan.units);
            let packed = if plan.packed { "packed" } else { "as published" };
            let experts = units::plural(plan.plan.expert_slots as u64, "expert");
            format!("streamed ({packed}), {kept} and {experts} kept")
        };
        row("runs", how);
        row("memory", format!("{} of {} planned", size(plan.total), size(plan.plan.memory)));
        if plan.resident {
            return;
        }
        row("read for a token", format!("{}, no expert cached", size(plan.bytes_per_token)));
        if let Some(seconds) = self.seconds_per_token {
            row("", format!("{} of this disk's time", units::seconds(seconds)));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n\n{}", self.machine(), self.disk_table())?;
        if self.model.is_some() || self.problem.is_some() {
            writeln!(f, "\n{}", self.model_table())?;
        }
        for (i, command) in self.next.iter().enumerate() {
            let word = if i == 0 { "\nnext: " } else { "then: " };
            writeln!(f, "{word} {}", ui::bold(&shell(command)))?;
        }
        Ok(())
    }
}

impl Report {
    fn machine(&self) -> Table {
        let mut table = Table::new(["machine", ""]);
        let (cpu, memory) = (&self.cpu, &self.memory);
        let mut row = |name: &str, value: String| table.row([name.into(), value]);
        row("processor", format!("{}, {}", cpu.arch, units::plural(cpu.threads as u64, "thread")));
        row("features", cpu.features.join(" "));
        row("backend", format!("{} ({} for the exact core)", cpu.backend, cpu.exact_backend));
        let (total, available) = (units::bytes(memory.total), units::bytes(memory.available));
        row("memory", format!("{total}, {available} available"));
        row(
            "control group",
            match memory.cgroup_limit {
                None => "no limit".into(),
                Some(limit) => {
                    format!("{}, {} used", units::bytes(limit), units::bytes(memory.cgroup_used))
                }
            },
        );
        row("free for a model", units::bytes(memory.free()));
        table
    }

    fn disk_table(&self) -> String {
        let mut text = String::new();
        if let Some(disk) = &self.disk {
            let mut table = Table::new(["disk", ">depth", ">bytes/s", ">reads/s"]);
            let row = |table: &mut Table, what: &str, rate: &Rate| {
                let reads = units::count(rate.reads as u64);
                let bytes = units::bytes(rate.bytes as u64);
                table.row([what.into(), rate.depth.to_string(), bytes, reads]);
            };
            disk.large.iter().for_each(|r| row(&mut table, "1 MiB in order", r));
            let small = format!("{SMALL} bytes at random");
            disk.small.iter().for_each(|r| row(&mut table, &small, r));
            let how = if disk.direct {
                format!("direct, {}", disk.reader)
            } else {
                "through the page cache, so these are the numbers of memory".into()
            };
            text = format!("{table}\nread from {} ({how})\n", disk.file.display());
        }
        if let Some(problem) = &self.disk_problem {
            text += &format!("the disk was not measured: {problem}\n");
        }
        let free = self.free_space.map_or("unknown".into(), units::bytes);
        text + &format!("free space in {}: {free}", self.place.display())
    }

    fn model_table(&self) -> Table {
        let mut table = Table::new(["model", ""]);
        table.row(["directory".into(), self.place.display().to_string()]);
        if let Some(model) = &self.model {
            model.rows(&mut table);
        }
        if self.problem.is_some() {
            table.row(["runs".into(), "not here, see the error below".into()]);
        }
        table
    }
}

/// A command as a shell takes it.
fn shell(words: &[String]) -> String {
    let plain = |w: &str| {
        !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./,:=+@%".contains(&b))
    };
    let quoted = words
        .iter()
        .map(|w| if plain(w) { w.clone() } else { format!("'{}'", w.replace('\'', "'\\''")) });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::shell;

    /// Catches a directory whose name the shell would take apart.
    #[test]
    fn commands_can_be_pasted() {
        let words = ["facit", "run", "my model's", "a/b-1.2"].map(str::to_owned);
        assert_eq!(shell(&words), "facit run 'my model'\\''s' a/b-1.2");
    }
}
