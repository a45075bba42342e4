//! `facit batch`: many prompts at once, as a stranger would use it, and as a machine that dies.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{arg, command, facit, kimi};
use serde_json::Value;

/// Prompts of different lengths, greedy and sampled, with the options of a run that is the same.
const LINES: [(&str, &[&str]); 5] = [
    (r#"{"prompt": [1, 2, 3, 4, 5], "max_tokens": 6}"#, &["--ids", "1,2,3,4,5", "-n", "6"]),
    (r#"{"prompt": [7], "custom_id": "seven"}"#, &["--ids", "7", "-n", "4"]),
    (
        r#"{"prompt": [9, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9], "temperature": 0.7, "seed": 5}"#,
        &["--ids", "9,8,9,8,9,8,9,8,9,8,9,8,9", "--temperature", "0.7", "--seed", "5", "-n", "4"],
    ),
    (
        r#"{"prompt": [300, 200], "top_p": 0.5, "max_tokens": 9}"#,
        &["--ids", "300,200", "--top-p", "0.5", "-n", "9"],
    ),
    (
        r#"{"prompt": [4, 4, 4], "top_k": 3, "max_tokens": 1}"#,
        &["--ids", "4,4,4", "--top-k", "3", "-n", "1"],
    ),
];

fn input(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("in.jsonl");
    let lines: Vec<&str> = LINES.iter().map(|(line, _)| *line).collect();
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    path
}

/// Catches a neighbour, a chunk, a budget or the order of ends that changes a byte of an answer,
/// and answers in another order than their prompts.
#[test]
fn answers_are_those_of_single_runs() {
    let dir = kimi();
    let (model, input) = (arg(dir.path()), input(dir.path()));
    let out = dir.path().join("out.jsonl");
    let mut first = Vec::new();
    for more in [
        &[][..],
        &["--sequences", "1"],
        &["--sequences", "2", "--chunk", "3"],
        &["--chunk", "1", "--threads", "3"],
        &["--memory", "53MB"],
    ] {
        let args = ["batch", model, arg(&input), arg(&out), "-n", "4", "--json"];
        let report = facit(&[&args[..], more].concat()).ok().json();
        assert_eq!(report["completion_tokens"], 24, "{report}");
        assert_eq!(report["prompt_tokens"], 24, "{report}");
        let got = std::fs::read(&out).unwrap();
        if first.is_empty() {
            first = got;
        } else {
            assert!(got == first, "{more:?}");
        }
        std::fs::remove_file(&out).unwrap();
    }
    let answers: Vec<Value> = std::str::from_utf8(&first)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), LINES.len());
    assert_eq!(answers[1]["custom_id"], "seven");
    for (answer, (_, args)) in answers.iter().zip(LINES) {
        let alone = facit(&[&["run", model, "--json"], args].concat()).ok().json();
        assert_eq!(answer["choices"], alone["choices"], "{args:?}");
        assert_eq!(answer["usage"], alone["usage"], "{args:?}");
    }
}

/// Catches finished lines that are lost with the process, or a torn one that is kept.
#[test]
fn a_killed_batch_goes_on() {
    let dir = kimi();
    let model = arg(dir.path());
    let (input, whole, out) =
        (dir.path().join("in"), dir.path().join("whole"), dir.path().join("out"));
    let line = |i: usize| format!("{{\"prompt\": [{}, {}], \"max_tokens\": 12}}\n", i, i + 1);
    std::fs::write(&input, (0..30).map(line).collect::<String>()).unwrap();
    let args = |out: &Path| {
        let args = ["batch", model, arg(&input), arg(out), "--sequences", "2", "--json"];
        args.map(str::to_owned)
    };
    facit(&args(&whole)).ok();
    let part = dir.path().join("out.part");
    let finished = || std::fs::read(&part).map_or(0, |b| b.split(|&b| b == b'\n').count());
    let mut child = command(&args(&out)).spawn().unwrap();
    let began = Instant::now();
    while finished() < 5 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!out.exists(), "it was too quick to be killed");
    // Whatever a crash may have left at the end.
    let mut torn = std::fs::read(&part).unwrap();
    torn.extend(b"0123456789abcdef 29 {\"half");
    std::fs::write(&part, torn).unwrap();
    let report = facit(&args(&out)).ok().json();
    assert!(report["resumed"].as_u64() >= Some(3), "{report}");
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&whole).unwrap());
    assert!(!part.exists());
}

/// Catches a line that is guessed or skipped, and answers written over others.
#[test]
fn what_is_wrong_is_named_before_anything_runs() {
    let dir = kimi();
    let model = arg(dir.path());
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let run = || facit(&["batch", model, arg(&input), arg(&out)]);
    for (content, says) in [
        ("", &["no lines"][..]),
        ("{\"prompt\": [1]}\n{\"prompt\": [1]", &["line 2"]),
        ("{\"prompt\": [1], \"max_token\": 3}", &["line 1", "max_token"]),
        ("{\"prompt\": [1], \"max_tokens\": 0}", &["line 1", "max_tokens"]),
        ("{\"prompt\": []}", &["line 1", "no tokens"]),
        ("{\"prompt\": \"text\"}", &["line 1", "tokenizer"]),
        ("{\"prompt\": [1], \"temperature\": -1}", &["line 1", "temperature"]),
        ("{\"prompt\": [1], \"top_p\": 2}", &["line 1", "top-p"]),
        (
            "{\"prompt\": [1], \"custom_id\": \"a\"}\n{\"prompt\": [2], \"custom_id\": \"a\"}",
            &["line 2", "line 1"],
        ),
        ("\u{1}", &["line 1"]),
    ] {
        std::fs::write(&input, content).unwrap();
        run().ends(2, says);
        assert!(!out.exists());
    }
    std::fs::write(&input, "{\"prompt\": [99999]}").unwrap();
    run().ends(2, &["99999"]);
    std::fs::write(&input, "{\"prompt\": [1], \"max_tokens\": 1}").unwrap();
    // The journal of the job that failed holds no finished line.
    run().ok();
    run().ends(2, &["exists"]);
    facit(&["batch", model, "no-such-file", "x"]).ends(6, &["no-such-file"]);
}
