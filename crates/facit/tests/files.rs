//! Files: conversion, inspection, and every file that is damaged, of another kind, or in the way.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Small, arg, facit, model};
use serde_json::Value;

/// A model, a saved state and a receipt in a directory of their own.
struct Files {
    dir: tempfile::TempDir,
    model: PathBuf,
    state: PathBuf,
    receipt: PathBuf,
}

fn files() -> Files {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path(), "tiny").unwrap();
    let (state, receipt) = (dir.path().join("state"), dir.path().join("receipt.json"));
    facit(&[
        "run",
        "--model",
        arg(&model),
        "ab",
        "-n9",
        "-q",
        "--turns",
        "1",
        "--save",
        arg(&state),
        "--receipt",
        arg(&receipt),
    ])
    .ok();
    Files { dir, model, state, receipt }
}

fn inspect(path: &Path) -> Value {
    facit(&["inspect", arg(path), "--json"]).ok().json()
}

#[test]
fn conversion_gives_the_golden_artifact_and_an_account() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["facit-tales", "stories260K"] {
        let (Some(goldens), Some(model)) =
            (testkit::fixed_goldens::load(name), testkit::fixed_models::model(name))
        else {
            testkit::skipped(name);
            continue;
        };
        let [checkpoint, tokenizer, out] =
            ["checkpoint", "tokenizer", "out"].map(|n| dir.path().join(format!("{name}.{n}")));
        fs::write(&checkpoint, &model.checkpoint).unwrap();
        fs::write(&tokenizer, &model.tokenizer).unwrap();
        let args = ["convert", arg(&checkpoint), arg(&tokenizer), "-o", arg(&out)];
        let report = facit(&[&args[..], &["--json"]].concat()).ok().json();
        let artifact = fs::read(&out).unwrap();
        assert_eq!(testkit::sha256(&artifact), goldens.digests[2]);
        assert_eq!(artifact.len(), goldens.artifact_len);
        assert_eq!(report["artifact"]["sha256"], goldens.digests[2]);
        let lens: Vec<u64> = report["artifact"]["sections"]
            .as_array()
            .unwrap()
            .iter()
            .map(|section| section["bytes"].as_u64().unwrap())
            .collect();
        assert_eq!(lens, goldens.section_lens);
        check_rounding(&report["quantisation"], &model.checkpoint, &artifact);
        let wrote = format!("wrote {}: ", arg(&out));
        let table = facit(&args).ends(0, &[&wrote, "B, sha256 ", &goldens.digests[2]]);
        assert!(table.text().contains(&goldens.digests[2]) && table.text().contains("w2 (down)"));
        let quiet = facit(&[&args[..], &["--quiet"]].concat()).ok();
        assert_eq!((quiet.out.as_slice(), quiet.err.as_str()), (&b""[..], ""));
    }
}

/// The embedding's error, computed again from the two files: it lies first in both.
fn check_rounding(report: &Value, checkpoint: &[u8], artifact: &[u8]) {
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (dim, vocab) = (word(checkpoint, 0) as usize, word(checkpoint, 20) as usize);
    let section = u64::from_le_bytes(artifact[136..144].try_into().unwrap()) as usize;
    let (mut error, mut square, mut largest) = (0.0, 0.0, 0.0f64);
    for i in 0..vocab * dim {
        let scale = f64::from(word(artifact, section + 4 * (i / dim))) / 16_777_216.0;
        let stored = (f64::from(artifact[section + 4 * vocab + i]) - 128.0) * scale;
        let float = f64::from(f32::from_bits(word(checkpoint, 28 + 4 * i)));
        error += (stored - float) * (stored - float);
        square += float * float;
        largest = largest.max((stored - float).abs());
    }
    assert_eq!(report[0]["name"], "embedding");
    assert_eq!(report[0]["weights"], vocab * dim);
    let close = |v: &Value, expected: f64| (v.as_f64().unwrap() / expected - 1.0).abs() < 1e-9;
    assert!(close(&report[0]["relative_rms"], (error / square).sqrt()), "{report}");
    assert!(close(&report[0]["largest"], largest), "{report}");
}

#[test]
fn conversion_names_what_is_wrong_and_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = testkit::fixed_models::model("tiny").unwrap();
    let [checkpoint, tokenizer, out] = ["c", "t", "out"].map(|n| dir.path().join(n));
    fs::write(&out, "old").unwrap();
    let convert = |c: &[u8], t: &[u8], says: &str| {
        fs::write(&checkpoint, c).unwrap();
        fs::write(&tokenizer, t).unwrap();
        facit(&["convert", arg(&checkpoint), arg(&tokenizer), "-o", arg(&out)]).ends(6, &[says]);
        assert_eq!(fs::read(&out).unwrap(), b"old");
    };
    let (c, t) = (&tiny.checkpoint, &tiny.tokenizer);
    convert(b"", t, "0 bytes");
    convert(&c[..c.len() - 1], t, "checkpoint");
    convert(c, b"", "tokenizer");
    convert(c, &t[..t.len() - 1], "token");
    convert(t, c, "header");
    let mut nan = c.clone();
    nan[28..32].copy_from_slice(&f32::NAN.to_le_bytes());
    convert(&nan, t, "row 0 of the embedding");
    let missing = dir.path().join("missing");
    facit(&["convert", arg(&missing), arg(&tokenizer), "-o", arg(&out)]).ends(6, &["missing"]);
    let nowhere = dir.path().join("no/out");
    facit(&["convert", arg(&checkpoint), arg(&tokenizer), "-o", arg(&nowhere)])
        .ends(7, &["no/out"]);
}

#[test]
fn inspection_tells_what_is_there() {
    let f = files();
    let model = inspect(&f.model);
    assert_eq!(model["kind"], "artifact");
    assert_eq!(model["config"]["vocab"], 17);
    assert_eq!(model["sections"].as_array().unwrap().len(), 2);
    assert_eq!(model["sha256"], testkit::sha256(&fs::read(&f.model).unwrap()));
    let state = inspect(&f.state);
    assert_eq!(state["kind"], "state");
    assert_eq!(state["envelope"]["model_sha256"], model["sha256"]);
    assert_eq!((&state["turns"], &state["complete"]), (&Value::from(1), &Value::from(false)));
    assert_eq!((&state["prompt"], &state["max_tokens"]), (&Value::from("ab"), &Value::from(9)));
    let receipt = inspect(&f.receipt);
    assert_eq!(receipt["kind"], "receipt");
    assert_eq!(receipt["final_state_sha256"], state["sha256"]);
    // The state without its envelope, as another target may have left it.
    let bytes = fs::read(&f.state).unwrap();
    let bare = f.dir.path().join("bare");
    fs::write(&bare, &bytes[112..bytes.len() - 32]).unwrap();
    let mut expected = state.clone();
    for absent in ["envelope", "prompt", "text"] {
        expected[absent] = Value::Null;
    }
    assert_eq!(inspect(&bare), expected);
    for (path, says) in [
        (&f.model, "vocabulary 17"),
        (&f.state, "embedding"),
        (&f.receipt, "checkpoints"),
        (&bare, "bare state"),
    ] {
        let shown = facit(&["inspect", arg(path)]).ok();
        assert!(shown.text().contains(says), "{}", shown.text());
    }
}

/// Giving a file to the wrong command is answered with what it is and where it belongs.
#[test]
fn files_of_another_kind_are_called_by_their_name() {
    let f = files();
    let checkpoint = f.dir.path().join("checkpoint");
    fs::write(&checkpoint, testkit::fixed_models::model("tiny").unwrap().checkpoint).unwrap();
    let text = f.dir.path().join("text");
    fs::write(&text, "hello").unwrap();
    let says = |path: &Path| match path {
        p if p == f.model => "it is a model",
        p if p == f.state => "it is a saved state",
        p if p == f.receipt => "it is a receipt",
        p if p == checkpoint => "llama2.c checkpoint, for `facit convert`",
        _ => "none of the tags",
    };
    for path in [&f.model, &f.state, &f.receipt, &checkpoint, &text] {
        let path = path.as_path();
        if path != f.model {
            facit(&["run", "--model", arg(path), "x"]).ends(6, &[says(path)]);
        }
        if path != f.state {
            facit(&["resume", arg(path)]).ends(6, &[arg(path), says(path)]);
        }
        if path != f.receipt {
            facit(&["verify", arg(path)]).ends(6, &[arg(path), says(path)]);
        }
    }
    facit(&["inspect", arg(&checkpoint)]).ends(6, &[says(&checkpoint)]);
    facit(&["inspect", arg(&text)]).ends(6, &[says(&text)]);
    facit(&["inspect", arg(f.dir.path())]).ends(6, &["directory"]);
}

#[test]
fn missing_empty_and_truncated_files_are_named() {
    let f = files();
    let bad = f.dir.path().join("bad");
    let uses: [(&[&str], &Path); 3] =
        [(&["run", "x", "--model"], &f.model), (&["resume"], &f.state), (&["verify"], &f.receipt)];
    for (command, good) in uses {
        let args = |path| [command, &[path]].concat();
        facit(&args("/no/such/file")).ends(6, &["/no/such/file"]);
        fs::write(&bad, "").unwrap();
        facit(&args(arg(&bad))).ends(6, &["empty"]);
        facit(&["inspect", arg(&bad)]).ends(6, &["empty"]);
        let bytes = fs::read(good).unwrap();
        for len in [1, 9, 60, 130, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&bad, &bytes[..len]).unwrap();
            facit(&args(arg(&bad))).ends(6, &["bad"]);
            facit(&["inspect", arg(&bad)]).ends(6, &["bad"]);
        }
        fs::write(&bad, [&bytes[..], b"x"].concat()).unwrap();
        facit(&args(arg(&bad))).ends(6, &["bad"]);
    }
}

/// One changed byte in any file is named by `verify` or `resume`. The artifact itself may hold any
/// weight, so there it is the receipt and the state that notice, by its digest.
#[test]
fn one_changed_byte_is_named() {
    let f = files();
    let bad = f.dir.path().join("bad");
    let places = |len: usize| (0..len).step_by(len / 13).chain([len - 1]);
    let change = |good: &Path, at: usize| {
        let mut bytes = fs::read(good).unwrap();
        bytes[at] ^= 4;
        fs::write(&bad, bytes).unwrap();
    };
    let len = |path: &Path| fs::metadata(path).unwrap().len() as usize;
    for at in places(len(&f.receipt)) {
        change(&f.receipt, at);
        facit(&["verify", arg(&bad), "--model", arg(&f.model)]).ends(6, &["bad"]);
    }
    for at in places(len(&f.state)) {
        change(&f.state, at);
        facit(&["resume", arg(&bad), "--model", arg(&f.model)]).ends(6, &["bad"]);
    }
    for at in places(len(&f.model)) {
        change(&f.model, at);
        for (command, file) in [("verify", &f.receipt), ("resume", &f.state)] {
            let ran = facit(&[command, arg(file), "--model", arg(&bad)]);
            // Either its structure is broken, or its digest is another.
            let says = if ran.code == 6 { "bad: " } else { "SHA-256" };
            let code = if ran.code == 6 { 6 } else { 3 };
            ran.ends(code, &[says]);
        }
    }
}

/// A receipt that lies about a turn under a correct seal, told by the command with its number.
#[test]
fn verify_names_the_first_turn_that_differs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.json");
    facit(&["run", "-n", "9", "-q", "--receipt", arg(&path)]).ok();
    facit(&["verify", arg(&path)]).ok();
    let json = facit(&["verify", arg(&path), "--backend", "plain", "--json"]).ok().json();
    assert_eq!((&json["verified"], &json["differs"]), (&true.into(), &Value::Null));
    let mut receipt = engine::receipt::Receipt::open(&path).unwrap();
    receipt.turns[18].work += 1;
    receipt.turns[20].work += 1;
    receipt.write(&path).unwrap();
    for order in [&["verify", arg(&path)][..], &["verify", arg(&path), "--sequential"]] {
        let ran = facit(order).ends(3, &["turn 19 differs", "work"]);
        assert_eq!(ran.out, b"");
    }
    let json = facit(&["verify", arg(&path), "--json"]).ends(3, &["turn 19"]).json();
    assert_eq!((&json["verified"], &json["differs"]["turn"]), (&false.into(), &19.into()));
}

#[test]
fn a_full_disk_leaves_the_old_file_and_exits_with_7() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Small::mount(dir.path()) else {
        return testkit::note(format_args!("skipped: a full disk needs the right to mount one"));
    };
    let (model, state, receipt) =
        (disk.0.join("model"), disk.0.join("state"), disk.0.join("receipt"));
    for path in [&model, &state, &receipt] {
        fs::write(path, "old").unwrap();
    }
    let assets = testkit::root().join("assets/facit-tales");
    let (checkpoint, tokenizer) = (assets.join("model.bin"), assets.join("tokenizer.bin"));
    let long = ["run", "-n", "400", "--temperature", "1", "--seed", "5"];
    for (args, path) in [
        (vec!["convert", arg(&checkpoint), arg(&tokenizer), "-o", arg(&model)], &model),
        ([&long[..], &["--save", arg(&state)]].concat(), &state),
        ([&long[..], &["--receipt", arg(&receipt)]].concat(), &receipt),
    ] {
        facit(&args).ends(7, &[arg(path), "unchanged"]);
        assert_eq!(fs::read(path).unwrap(), b"old", "{args:?}");
        assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 3, "a temporary file is left");
    }
}
