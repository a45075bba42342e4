//! Memory budgets under a real limit: a control group that allows the plan and 2 % more.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "says when it is skipped")]

mod common;

use std::path::{Path, PathBuf};

use common::{collect, facit};
use serde_json::Value;

/// A control group that limits memory, of version 1 or 2; removed when dropped.
struct Group(PathBuf);

impl Group {
    /// `None` where this process may not make one.
    fn new(name: &str, limit: u64) -> Option<Group> {
        let one = Path::new("/sys/fs/cgroup/memory");
        let (parent, file) = match one.join("memory.limit_in_bytes").exists() {
            true => (one, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max"),
        };
        let dir = parent.join(format!("facit-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).ok()?;
        let group = Group(dir);
        std::fs::write(group.0.join(file), limit.to_string()).ok()?;
        Some(group)
    }

    /// Runs the binary in it.
    fn facit(&self, args: &[&str]) -> common::Ran {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &enter, "sh", env!("CARGO_BIN_EXE_facit")]).args(args);
        collect(command.output().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Catches a run that takes more than its plan: it would be killed, or measure more than it said.
#[test]
fn a_run_stays_within_its_plan() {
    let k3 = tempfile::tempdir().unwrap();
    testkit::k3::Shape::tiny().checkpoint(1).write(k3.path(), 400_000).unwrap();
    let deepseek = testkit::root().join("vectors/deepseek_v41/tiny_model");
    for (name, model) in [("k3", k3.path()), ("deepseek", &deepseek)] {
        let model = model.to_str().unwrap();
        let mut ids: Vec<Value> = Vec::new();
        for budget in [53_000_000u64, 60_000_000, 80_000_000] {
            let Some(group) = Group::new(name, budget + budget / 50) else {
                eprintln!("skipped: this process may not make control groups (run as root)");
                return;
            };
            let memory = format!("{budget}B");
            let args = ["run", model, "--ids", "1,2,3,4,5,6,7", "-n", "6", "--json", "--memory"];
            let report = group.facit(&[&args[..], &[&memory]].concat()).ok().json();
            let of = |what: &str| report["facit"][what].as_u64().unwrap();
            assert!(of("planned_bytes") <= budget, "{report}");
            let (peak, plan) = (of("peak_resident_bytes"), of("planned_bytes"));
            assert!(peak <= plan + plan / 50, "{name}: {peak} bytes of {plan} planned");
            ids.push(report["choices"][0]["token_ids"].clone());
        }
        let args = ["run", model, "--ids", "1,2,3,4,5,6,7", "-n", "6", "--json"];
        let free = facit(&args).ok().json()["choices"][0]["token_ids"].clone();
        assert!(ids.iter().all(|i| *i == free), "{name}");
    }
}
