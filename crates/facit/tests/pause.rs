//! Pausing: `--turns`, `--save`, `resume` and signals. However a run is cut, the bytes are those of
//! one that was not.

mod common;

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{arg, command, facit, model};

/// A run with every sampling pass in it.
const RUN: [&str; 7] = ["run", "One day", "-n", "24", "--temperature", "0.9", "-q"];

fn run(more: &[&str]) -> common::Ran {
    facit(&[&RUN, more].concat())
}

/// The unpaused run: text, digest of the last state, turns.
fn whole() -> (Vec<u8>, String, u64) {
    let json = run(&["--json"]).ok().json();
    let facit = &json["facit"];
    let digest = facit["state_sha256"].as_str().unwrap().to_string();
    (run(&[]).ok().out, digest, facit["turns"].as_u64().unwrap())
}

fn inspect(state: &Path) -> serde_json::Value {
    facit(&["inspect", arg(state), "--json"]).ok().json()
}

/// Where a pause falls (tokenizing, inside attention, between tokens, at the very end) must not show.
#[test]
fn a_pause_after_any_turn_leaves_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let (text, digest, turns) = whole();
    assert!(turns > 40, "a run of {turns} turns has too few places to pause at");
    for pause in (0..turns + 2).step_by(3).chain([1, 2, turns - 1, turns]) {
        let (count, path) = (pause.to_string(), arg(&state));
        let first = run(&["--turns", &count, "--save", path]).ok();
        assert_eq!(inspect(&state)["turns"], pause.min(turns));
        let before = std::fs::read(&state).unwrap();
        let rest = facit(&["resume", path, "-q"]).ok();
        assert!([first.out, rest.out].concat() == text, "paused after {pause} turns");
        assert_eq!(std::fs::read(&state).unwrap(), before, "resume without --save changes nothing");
        let json = facit(&["resume", path, "-q", "--json"]).ok().json();
        assert_eq!(json["facit"]["state_sha256"], digest, "paused after {pause} turns");
        assert_eq!(json["choices"][0]["text"].as_str().unwrap().as_bytes(), text);
    }
}

#[test]
fn a_run_may_be_paused_again_and_again_in_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let (text, digest, turns) = whole();
    let mut pieces = run(&["--turns", "7", "--save", arg(&state)]).ok().out;
    let mut resumed = 0;
    while inspect(&state)["complete"] == false {
        let args = ["resume", arg(&state), "--turns", "7", "--save", arg(&state), "-q"];
        pieces.extend(facit(&args).ok().out);
        resumed += 1;
    }
    assert_eq!(resumed, turns.div_ceil(7) - 1);
    assert!(pieces == text);
    let report = inspect(&state);
    assert_eq!(report["sha256"], digest);
    assert_eq!(report["prompt"], "One day");
    // A complete run resumes to nothing.
    assert_eq!(facit(&["resume", arg(&state), "-q"]).ok().out, b"");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn another_backend_may_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let (_, digest, _) = whole();
    run(&["--backend", "plain", "--turns", "33", "--save", arg(&state)]).ok();
    let json = facit(&["resume", arg(&state), "--threads", "2", "--json"]).ok().json();
    assert_eq!(json["facit"]["state_sha256"], digest);
}

#[test]
fn a_state_of_another_model_is_refused_with_both_digests() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let tiny = model(dir.path(), "tiny").unwrap();
    run(&["--turns", "5", "--save", arg(&state)]).ok();
    let digest = |path: &Path| inspect(path)["sha256"].as_str().unwrap().to_string();
    let builtin = inspect(&state)["envelope"]["model_sha256"].as_str().unwrap().to_string();
    facit(&["resume", arg(&state), "--model", arg(&tiny)])
        .ends(3, &[&builtin, &digest(&tiny), "--model"]);
    // And the other way round, where the built-in model is only the default.
    facit(&["run", "--model", arg(&tiny), "ab", "-n2", "--turns", "1", "--save", arg(&state)]).ok();
    facit(&["resume", arg(&state)]).ends(3, &[&builtin, &digest(&tiny)]);
    facit(&["resume", arg(&state), "--model", arg(&tiny)]).ok();
}

/// The first signal ends the run where a turn ends, and what was saved goes on to the same bytes.
#[cfg(unix)]
#[test]
fn signals_stop_cleanly_and_save() {
    let dir = tempfile::tempdir().unwrap();
    let request = ["One day", "-n", "400", "--temperature", "1.2", "--seed", "5", "-q"];
    let whole = facit(&[&["run"], &request[..]].concat()).ok().out;
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        // The run may be over before the signal comes: try until one was caught in time.
        let paused = (0..20).find_map(|attempt| {
            let state = dir.path().join(format!("{signal}{attempt}"));
            // Turn by turn on the plain arithmetic: slow enough to be caught.
            let receipt = dir.path().join("receipt");
            let slow = ["--backend", "plain", "--save", arg(&state), "--receipt", arg(&receipt)];
            let mut child = command(&[&["run"], &request[..], &slow].concat())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdout = child.stdout.take().unwrap();
            let mut text = vec![0];
            stdout.read_exact(&mut text).unwrap();
            let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
            assert!(kill.unwrap().success());
            stdout.read_to_end(&mut text).unwrap();
            let mut ran = common::collect(child.wait_with_output().unwrap());
            ran.out = text;
            (ran.code != 0).then_some((ran, state, receipt))
        });
        let (ran, state, receipt) = paused.expect("a signal in time, in one of twenty attempts");
        let ran = ran.ends(code, &[]);
        let rest = facit(&["resume", arg(&state), "-q"]).ok();
        assert!([ran.out, rest.out].concat() == whole, "SIG{signal}");
        // The receipt holds what was run, and says that it is not the whole run.
        let report = facit(&["verify", arg(&receipt), "--json"]).ok().json();
        assert_eq!(report["complete"], false);
    }
}
