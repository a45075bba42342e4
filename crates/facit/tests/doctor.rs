//! `facit doctor`: it measures, plans as `facit plan` does, and names a command that works.

mod common;

use std::path::Path;

use common::{Ran, arg, collect, command, deepseek, facit, flip, kimi, shard};

/// Measurements short enough for a test.
const QUICK: [&str; 2] = ["--seconds", "0.02"];

fn doctor(args: &[&str]) -> Ran {
    facit(&[&["doctor"], args, &QUICK].concat())
}

fn names(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// Catches rates that were not measured, and a scratch file that stays.
#[test]
fn a_machine_without_a_model_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let args = [&["doctor", "--json"], &QUICK[..]].concat();
    let mut run = command(&args);
    let json = collect(run.current_dir(dir.path()).output().unwrap()).ok().json();
    let disk = &json["disk"];
    for (kind, depths) in [("large", &[1, 4, 16][..]), ("small", &[1, 16])] {
        let rates = disk[kind].as_array().unwrap();
        let measured: Vec<_> = rates.iter().map(|r| r["depth"].as_u64().unwrap()).collect();
        assert_eq!(measured, depths);
        assert!(rates.iter().all(|r| r["reads"].as_f64() > Some(0.0)), "{rates:?}");
    }
    assert!(json["memory"]["total"].as_u64() > Some(0) && json["free_space"].as_u64() > Some(0));
    let backend = json["cpu"]["backend"].as_str().unwrap();
    assert_eq!(backend, numerics::Backend::detect().name());
    assert_eq!(json["next"], serde_json::json!([["facit", "run"]]));
    assert_eq!(names(dir.path()), 0, "nothing is left behind");
    let mut run = command(&[&["doctor"], &QUICK[..]].concat());
    let table = collect(run.current_dir(dir.path()).output().unwrap()).ok();
    for says in [backend, "control group", "1 MiB in order", "264 bytes", "next:  facit run"] {
        assert!(table.text().contains(says), "{says}: {}", table.text());
    }
}

/// Catches a plan of its own, and advice that does not work: the commands are run as they stand.
#[test]
fn a_model_is_planned_and_the_commands_named_run() {
    for (dir, budgets) in [(kimi(), &["auto", "70MB"][..]), (deepseek(), &["70MB"])] {
        let model = arg(dir.path());
        for &memory in budgets {
            let before = names(dir.path());
            let json = doctor(&[model, "--memory", memory, "--json"]).ok().json();
            assert_eq!(names(dir.path()), before, "nothing is left behind");
            let plan = facit(&["plan", model, "--memory", memory, "--json"]).ok().json();
            for field in ["resident", "chunk", "bytes_per_token"] {
                assert_eq!(json["model"][field], plan[field], "{field}");
            }
            if memory != "auto" {
                assert_eq!(json["model"]["plan"], plan["plan"]);
            }
            let next = json["next"].as_array().unwrap();
            assert_eq!(next.len() == 2, memory != "auto", "packing helps what is streamed");
            for words in next {
                let words: Vec<&str> =
                    words.as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
                assert_eq!(words[0], "facit");
                facit(&words[1..]).ok();
            }
        }
        assert!(dir.path().join("trunk.facit").exists(), "it was packed as advised");
    }
}

/// Catches a model that "runs" although it cannot.
#[test]
fn what_cannot_run_says_why() {
    let dir = kimi();
    let model = arg(dir.path());
    let small = doctor(&[model, "--memory", "49MB", "--json"]).ends(5, &["allow at least"]);
    let json = small.json();
    assert!(json["model"].is_null() && json["next"].as_array().unwrap().is_empty(), "{json}");
    assert!(json["problem"].as_str().unwrap().contains("allow at least"));
    assert!(json["disk"]["large"].is_array(), "the machine is looked at all the same");
    flip(&shard(dir.path()), 3);
    doctor(&[model]).ends(6, &["model-00001"]);
    doctor(&["no-such-directory"]).ends(6, &["no-such-directory"]);
    facit(&["doctor", "--seconds", "0"]).ends(2, &["--seconds"]);
}
