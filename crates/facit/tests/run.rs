//! `facit run`, `quote` and `help` end to end: the bytes are the golden ones, and what cannot be
//! done is refused with the reason.

mod common;

use std::process::Stdio;

use common::{arg, command, decimal, facit, facit_with_input, model};
use testkit::fixed_goldens::{Case, Goldens, load};

/// The allowance of the command line's turns.
const ALLOWANCE: u32 = 1_350_000;

/// The golden runs the command line can express, of a model file or the built-in one.
fn check_goldens(goldens: &Goldens, model: &[&str]) {
    let mut ran = 0;
    for case in goldens.cases.iter().filter(|case| case.allowance == ALLOWANCE) {
        let Ok(prompt) = std::str::from_utf8(&case.prompt) else { continue };
        // `-` means standard input.
        if prompt == "-" || prompt.starts_with('-') || prompt.contains('\0') {
            continue;
        }
        check_golden(case, prompt, model);
        ran += 1;
    }
    assert!(ran > 0, "{}: no case was run", goldens.name);
}

fn check_golden(case: &Case, prompt: &str, model: &[&str]) {
    let (max, seed) = (case.max_tokens.to_string(), case.seed.to_string());
    let temperature = decimal(case.temperature_q16);
    let request = [prompt, "-n", &max, "--temperature", &temperature, "--seed", &seed];
    let args = |command, more: &[&'static str]| [&[command], model, &request, more].concat();
    let Some(output) = &case.output else {
        let code = match case.error {
            Some((8, _)) => 4, // a number outside the cache's range
            _ => 2,            // a prompt that does not fit
        };
        facit(&args("run", &[])).ends(code, &["error:"]);
        return;
    };
    let text = facit(&args("run", &["--quiet"])).ends(0, &[]);
    assert!(text.out == output.text, "{}: text", case.name);
    assert_eq!(text.err, "", "{}: --quiet", case.name);
    let json = facit(&args("run", &["--json", "--quiet"])).ok().json();
    let choice = &json["choices"][0];
    assert_eq!(choice["token_ids"], serde_json::json!(output.tokens), "{}", case.name);
    assert_eq!(choice["text"], String::from_utf8_lossy(&output.text).as_ref());
    let stopped = output.tokens.last().is_some_and(|token| *token <= 2);
    assert_eq!(choice["finish_reason"], if stopped { "stop" } else { "length" });
    assert_eq!(json["usage"]["prompt_tokens"], output.prompt_tokens.len());
    assert_eq!(json["usage"]["completion_tokens"], output.tokens.len());
    assert_eq!(json["facit"]["turns"], case.turns.len());
    assert_eq!(json["facit"]["state_sha256"], output.state, "{}", case.name);
    let quote = facit(&args("quote", &["--json"])).ok().json();
    assert_eq!(quote["turns"], output.quote, "{}", case.name);
    if !stopped {
        // Without a stop token the quote is what the run is charged, to the unit.
        let work: u64 = case.turns.iter().map(|turn| u64::from(turn.work)).sum();
        assert_eq!(quote["compute_units"], work, "{}", case.name);
    }
}

#[test]
fn the_builtin_model_gives_the_golden_runs() {
    check_goldens(&load("facit-tales").unwrap(), &[]);
}

/// Odd shapes: grouped heads, an own classifier, numbers that overflow.
#[test]
fn other_models_give_the_golden_runs() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tiny", "gqa", "own", "overflow"] {
        let path = model(dir.path(), name).unwrap();
        check_goldens(&load(&format!("synthetic_{name}")).unwrap(), &["--model", arg(&path)]);
    }
}

#[test]
fn stories260k_gives_the_golden_runs_and_the_published_figures() {
    let dir = tempfile::tempdir().unwrap();
    let (Some(goldens), Some(path)) = (load("stories260K"), model(dir.path(), "stories260K"))
    else {
        return testkit::skipped("stories260K from the command line");
    };
    check_goldens(&goldens, &["--model", arg(&path)]);
    let args = ["quote", "--model", arg(&path), "Once upon a time", "-n", "12", "--json"];
    assert_eq!(facit(&args).ok().json()["turns"], 20);
}

#[test]
fn the_first_command_tells_a_story() {
    let ran = facit(&["run"]).ends(0, &["facit-tales: 9 prompt + ", "state sha256 "]);
    assert!(ran.text().starts_with(", there was"), "{}", ran.text());
    assert!(ran.text().ends_with('.'), "{}", ran.text());
}

/// Nothing about the machine may show in the output.
#[test]
fn backends_and_threads_leave_the_same_bytes() {
    let run = |more: &[&str]| {
        let json = facit(&[&["run", "-n", "40", "--temperature", "1", "--json"], more].concat())
            .ok()
            .json();
        (json["choices"][0]["text"].clone(), json["facit"]["state_sha256"].clone())
    };
    let expected = run(&[]);
    let refused = facit(&["run", "--backend", "?"]).ends(2, &["this machine has plain"]).err;
    let (_, names) = refused.split_once("this machine has ").unwrap();
    for backend in names.lines().next().unwrap().split(", ") {
        for threads in ["1", "2", "3"] {
            assert_eq!(run(&["--backend", backend, "--threads", threads]), expected, "{backend}");
        }
    }
    // The name that model directories have for it.
    assert_eq!(run(&["--backend", "scalar"]), expected);
}

#[test]
fn prompts_come_from_arguments_files_and_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt");
    let expected = facit(&["run", "-qn8", "One day, a shy bear"]).ok().out;
    for input in ["One day, a shy bear", "One day, a shy bear\n", "One day, a shy bear\r\n"] {
        let read = facit_with_input(&["run", "-qn8", "-"], input.as_bytes()).ok();
        assert_eq!(read.out, expected, "{input:?}");
        std::fs::write(&file, input).unwrap();
        assert_eq!(facit(&["run", "-qn8", "--prompt-file", arg(&file)]).ok().out, expected);
    }
    // Only one line end is taken away: a prompt may end in an empty line.
    let two =
        facit_with_input(&["run", "-qn8", "--json", "-"], b"One day, a shy bear\n\n").ok().json();
    let one = facit(&["run", "-qn8", "--json", "One day, a shy bear\n"]).ok().json();
    assert_eq!(two["facit"]["state_sha256"], one["facit"]["state_sha256"]);
}

#[test]
fn refusals_name_the_reason_and_exit_with_2() {
    let long = "a".repeat(1025);
    for (args, says) in [
        (&["run", "--temperature", "16.1"][..], "above 16"),
        (&["run", "--temperature", "1e-3"], "not a plain decimal number"),
        (&["run", "-n", "0"], "0 is not in 1.."),
        (&["run", "-n", "513"], "1 to 512"),
        (&["run", "-n", "512"], "room for the prompt's 9 tokens and 504 more"),
        (&["run", &long], "1025 bytes"),
        (&["run", &long[1..].replace('a', "Q")], "more tokens than the context of 512"),
        (&["run", "-n3", &long[1..].replace('a', "Q")], "more tokens than the context of 512"),
        (&["run", "--prompt-file", "/no/such/file"], "/no/such/file"),
        (&["run", "--prompt-file", "x", "prompt"], "cannot be used with"),
        (&["run", "--prompt-file", "x", "--prompt", "y"], "cannot be used with"),
        (&["run", "--prompt", "x", "prompt"], "cannot be used with"),
        (&["run", "Once", "upon"], "needs quotes, \"Once upon\""),
        (&["run", "x", "--chunk", "5", "--regime", "bf16"], "--chunk is for model directories"),
        (&["run", "x", "--regime", "w8a8"], "--regime is for model directories"),
        (&["run", "x", "--memory", "auto"], "--memory is for model directories"),
        (&["run", "--turns", "3"], "--save"),
        (&["run", "--save", "/tmp/x", "--receipt", "/tmp/x"], "same file"),
        (&["run", "--threads", "0"], "0 is not in 1.."),
        (&["run", "--expect-digest", "ABC"], "hexadecimal"),
        (&["run", "--model", "some.facit"], "no prompt"),
        (&["run", "--no-such-option"], "--no-such-option"),
        (&["no-such-command"], "no-such-command"),
        (&["help", "no-such-topic"], "no-such-topic"),
        (&[], "Usage"),
    ] {
        assert_eq!(facit(args).ends(2, &[says]).out, b"", "{args:?}");
    }
    facit_with_input(&["run", "-"], long.as_bytes()).ends(2, &["1025 bytes"]);
    facit_with_input(&["run", "-"], &[b'a'; 5000]).ends(2, &["standard input", "1024 bytes"]);
    facit_with_input(&["run", "-"], b"a\0b").ends(2, &["zero byte"]);
    facit_with_input(&["run", "-"], b"a\xffb").ends(2, &["not UTF-8"]);
}

#[test]
fn a_directory_of_an_unknown_model_is_refused_by_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    facit(&["run", arg(dir.path())]).ends(2, &["config.json", "Kimi K3"]);
    facit(&["run", "--model", arg(dir.path()), "hello"]).ends(2, &["config.json", "Kimi K3"]);
}

/// Catches a mistyped or misplaced model that is continued as a text, by the built-in model.
#[test]
fn a_path_is_no_prompt_unless_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model");
    std::fs::write(&file, "x").unwrap();
    let (nothing, says) = ("looks like a path, and nothing is there", "--model");
    for (text, is) in [
        (arg(&file), "is a file"),
        (arg(dir.path()), "is a directory without a config.json"),
        ("/no/such/directory", nothing),
        ("./x.facit", nothing),
        ("x.facit", nothing),
        ("x.safetensors", nothing),
        ("x.bin", nothing),
    ] {
        for more in [&[][..], &["--ids", "1,2"], &["hello"]] {
            let ran = facit(&[&["run", text], more].concat());
            assert_eq!(ran.ends(2, &[text, is, says, "--prompt"]).out, b"");
        }
        facit(&["quote", text]).ends(2, &[text, is, says, "--prompt"]);
    }
    let state = |args: &[&str]| {
        let json = facit(&[&["run", "-n2", "--json"], args].concat()).ok().json();
        json["facit"]["state_sha256"].clone()
    };
    assert_eq!(state(&["--prompt", "He ran"]), state(&["He ran"]));
    assert_ne!(state(&["--prompt", "x.facit"]), state(&[]));
    // `-` is standard input as the positional alone.
    assert_ne!(state(&["--prompt", "-"]), state(&[]));
    state(&["a cat and/or a dog"]);
}

#[test]
fn a_model_may_be_held_to_its_digest() {
    let json = facit(&["run", "-n1", "--json"]).ok().json();
    let digest = json["facit"]["model_sha256"].as_str().unwrap();
    facit(&["run", "-n1", "--expect-digest", digest]).ok();
    let other = "0".repeat(64);
    facit(&["run", "-n1", "--expect-digest", &other]).ends(3, &[digest, &other]);
}

/// `facit run | head -c 1` is no error and no panic; a full disk behind standard output is one.
#[test]
fn a_reader_who_leaves_and_a_full_disk() {
    let mut child = command(&["run", "-n", "200"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    common::collect(child.wait_with_output().unwrap()).ok();
    for args in [&["run", "-n3"][..], &["run", "-n3", "--json"], &["help"], &["quote", "-n3"]] {
        let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
            return testkit::skipped("a full standard output (there is no /dev/full)");
        };
        let output = command(args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        common::collect(output).ends(7, &["standard output"]);
    }
}

#[test]
fn a_reader_who_leaves_does_not_cost_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let receipt = dir.path().join("r.json");
    let mut child = command(&["run", "-n", "60", "--receipt", arg(&receipt)])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    let report = facit(&["verify", arg(&receipt), "--json"]).ok().json();
    assert_eq!(report["complete"], true);
}

#[test]
fn quotes_show_every_turn_when_asked() {
    let brief = facit(&["quote", "-n", "8"]).ok();
    assert!(brief.text().contains("compute units"), "{}", brief.text());
    let json = facit(&["quote", "-n", "8", "--verbose", "--json"]).ok().json();
    let turns = json["plan"]["turns"].as_array().unwrap();
    assert_eq!(json["turns"], turns.len());
    let sum: u64 = turns.iter().map(|turn| turn["compute_units"].as_u64().unwrap()).sum();
    assert_eq!(json["compute_units"], sum);
    let verbose = facit(&["quote", "-n", "8", "--verbose"]).ok();
    assert_eq!(verbose.text().lines().count(), brief.text().lines().count() + turns.len() + 2);
    // The totals first: the plan may be longer than a screen.
    assert!(verbose.text().starts_with(brief.text()), "{}", verbose.text());
}

#[test]
fn bench_shows_every_way_beside_the_plain_one() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = model(dir.path(), "tiny").unwrap();
    let args = ["bench", "--seconds", "0", "--threads", "2", "--model", arg(&tiny)];
    let json = facit(&[&args[..], &["--json"]].concat()).ok().json();
    let supported = json["supported"].as_array().unwrap();
    assert!(supported.contains(&json["chosen"]), "{json}");
    let rows = json["measurements"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * supported.len());
    for row in rows {
        assert!(row["positions_per_second"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(facit(&args).ok().text().contains("beside plain"));
}

#[test]
fn help_explains_commands_and_exit_codes() {
    let codes = facit(&["help", "exit-codes"]).ok();
    for code in ["0", "1", "2", "3", "4", "5", "6", "7", "8", "130", "143"] {
        assert!(
            codes.text().lines().any(|line| line.trim_start().starts_with(&format!("{code}  "))),
            "{code}: {}",
            codes.text()
        );
    }
    for command in ["run", "resume", "verify", "quote", "inspect", "convert", "bench"] {
        let help = facit(&["help", command]).ok();
        assert!(help.text().contains(&format!("facit {command}")), "{}", help.text());
    }
    // Catches a preset without its size, a default said for one kind of model alone.
    let run = facit(&["help", "run"]).ok().text().split_whitespace().collect::<Vec<_>>().join(" ");
    for says in ["ultra (4 GiB)", "max (224 GiB)", "256, or as", "in model directories 64"] {
        assert!(run.contains(says), "{says}: {run}");
    }
    assert!(facit(&["help", "chat"]).ok().text().contains(r#"{"role": "user", "content": "..."}"#));
    assert!(facit(&["help"]).ok().text().contains("exit-codes"));
    assert!(facit(&["--version"]).ok().text().starts_with("facit "));
}
