//! Model directories from the command line: a small synthetic Kimi K3 and the committed small
//! DeepSeek-V4.1, as a stranger would use them.

mod common;

use std::path::Path;

use common::{arg, collect, command, deepseek, facit, find, kimi};

const IDS: &str = "1,2,3,4,5";

/// Catches a state that loses a bit, a pending token that is dropped or processed twice.
#[test]
fn a_saved_sequence_goes_on_as_if_it_had_never_stopped() {
    let dir = kimi();
    let model = arg(dir.path());
    let whole = facit(&["run", model, "--ids", IDS, "-n", "9"]).ok();
    for n in ["1", "4", "8"] {
        let state = dir.path().join("state.safetensors");
        let rest = (9 - n.parse::<u32>().unwrap()).to_string();
        let first = facit(&["run", model, "--ids", IDS, "-n", n, "--save-state", arg(&state)]).ok();
        let then = facit(&["run", model, "--resume", arg(&state), "-n", &rest]).ok();
        let joined = format!("{} {}", first.text().trim(), then.text().trim());
        assert_eq!(joined, whole.text().trim(), "stopped after {n}");
    }
}

/// Catches defaults that are longer than a model is, and a limit that is found too late.
#[test]
fn a_model_s_own_length_is_known_before_it_runs() {
    let dir = deepseek();
    let model = arg(dir.path());
    let state = dir.path().join("s");
    let run = |more: &[&str]| facit(&[&["run", model, "--json"], more].concat());
    let first = run(&["--ids", "3,4,5", "-n", "4", "--save-state", arg(&state)]).ok().json();
    let rest = run(&["--resume", arg(&state)]).ok().json();
    assert_eq!(first["usage"]["completion_tokens"], 4);
    let made = rest["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(rest["choices"][0]["finish_reason"] == "stop" || made == 64 - 3 - 4, "{rest}");
    run(&["--ids", "3,4,5", "-n", "62"]).ends(2, &["64 positions", "-n"]);
    run(&["--resume", arg(&state), "-n", "99"]).ends(2, &["64 positions"]);
    facit(&["plan", model, "--disk-rate", "1GB"]).ok();
    facit(&["plan", model, "--disk-rate", "1GB", "--context", "65"]).ends(2, &["64 positions"]);
    let (lines, out) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    std::fs::write(&lines, "{\"prompt\": [3]}\n{\"prompt\": [3], \"max_tokens\": 64}").unwrap();
    facit(&["batch", model, arg(&lines), arg(&out)]).ends(2, &["line 2", "64 positions"]);
    std::fs::write(&lines, "{\"prompt\": [3]}").unwrap();
    facit(&["batch", model, arg(&lines), arg(&out)]).ok();
}

/// Catches a state whose empty tensors lie in another order than they were written in.
#[test]
fn a_state_of_any_length_goes_on() {
    let dir = deepseek();
    let state = dir.path().join("s");
    for ids in ["72", "3,4", "3,4,5", "3,4,5,6,7"] {
        let run = |more: &[&str]| {
            let ran = facit(&[&["run", arg(dir.path()), "--json"], more].concat()).ok().json();
            ran["choices"][0]["token_ids"].as_array().unwrap().clone()
        };
        let whole = run(&["--ids", ids, "-n", "3"]);
        let first = run(&["--ids", ids, "-n", "1", "--save-state", arg(&state)]);
        let then = run(&["--resume", arg(&state), "-n", "2"]);
        assert_eq!([first, then].concat(), whole, "{ids}");
    }
}

/// Catches a prompt that loses what was not processed when its prefill was stopped.
#[cfg(unix)]
#[test]
fn a_prefill_that_is_stopped_goes_on_where_it_was() {
    let dir = kimi();
    let (state, steps) = (dir.path().join("s"), dir.path().join("steps"));
    let ids: Vec<String> = (0..1500).map(|i| (i * 7 % 300).to_string()).collect();
    let ids = ids.join(",");
    let common = ["run", arg(dir.path()), "--json", "--chunk", "1"];
    let from = ["--ids", &ids, "--save-state", arg(&state), "--report", arg(&steps)];
    let child = command(&[&common[..], &from].concat())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let began = std::time::Instant::now();
    let done = || std::fs::read(&steps).map_or(0, |b| b.iter().filter(|&&c| c == b'\n').count());
    while done() < 20 && began.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let pid = child.id().to_string();
    let kill = std::process::Command::new("kill").args(["-s", "INT", &pid]).status();
    assert!(kill.unwrap().success());
    let stopped = collect(child.wait_with_output().unwrap()).ends(130, &[]).json();
    let seen = stopped["facit"]["position"].as_u64().unwrap();
    assert!((20..1500).contains(&seen), "it was stopped too late or too soon: {seen}");
    let rest = facit(&[&common[..4], &["64", "--resume", arg(&state), "-n", "4"]].concat()).ok();
    let whole = facit(&["run", arg(dir.path()), "--json", "--ids", &ids, "-n", "4"]).ok();
    assert_eq!(rest.json()["choices"], whole.json()["choices"], "stopped at {seen}");
}

/// Catches a default where a state is damaged or of another model.
#[test]
fn a_damaged_or_foreign_state_is_refused() {
    let dir = kimi();
    let (model, state) = (arg(dir.path()), dir.path().join("s"));
    facit(&["run", model, "--ids", IDS, "-n", "2", "--save-state", arg(&state)]).ok();
    let good = std::fs::read(&state).unwrap();
    let resume = |model: &str| facit(&["run", model, "--resume", arg(&state), "-n", "1"]);
    for at in [0, 9, good.len() / 3, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&state, &bad).unwrap();
        let ran = resume(model);
        assert!([3, 6].contains(&ran.code), "byte {at}: {} {}", ran.code, ran.err);
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    }
    for bad in [&good[..0], &good[..7], &good[..good.len() - 1]] {
        std::fs::write(&state, bad).unwrap();
        resume(model).ends(6, &["s"]);
    }
    std::fs::write(&state, &good).unwrap();
    let other = tempfile::tempdir().unwrap();
    let shape = testkit::k3::Shape { vocab: 328, ..testkit::k3::Shape::tiny() };
    shape.checkpoint(1).write(other.path(), 400_000).unwrap();
    resume(arg(other.path())).ends(3, &["another model"]);
}

/// Catches threads, chunks or a backend that change a bit of any logit.
#[test]
fn logits_are_the_same_bits_on_every_path_and_compare_says_so() {
    let dir = kimi();
    let model = arg(dir.path());
    let (a, b) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    let dump = |more: &[&str], to: &Path| {
        let common = ["run", model, "--ids", IDS, "-n", "4", "--dump-logits", arg(to)];
        facit(&[&common[..], more].concat()).ok();
    };
    dump(&["--backend", "scalar", "--threads", "1"], &a);
    for more in [
        &["--threads", "3"][..],
        &["--chunk", "1"],
        &["--chunk", "2", "--threads", "2"],
        &["--backend", "plain"],
    ] {
        dump(more, &b);
        let same = facit(&["compare", arg(&a), arg(&b), "--exact", "--json"]).ok();
        assert_eq!(same.json()["verdict"], "identical", "{more:?}");
    }
    let mut bytes = std::fs::read(&b).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x40;
    std::fs::write(&b, &bytes).unwrap();
    let other = facit(&["compare", arg(&a), arg(&b), "--json"]).ends(3, &[]);
    assert_eq!(other.json()["first_difference"][0], 3);
    facit(&["compare", arg(&a), "no-such-file"]).ends(6, &["no-such-file"]);
}

/// Catches a NaN that is picked, an expert that is skipped, a config that is guessed.
#[test]
fn a_broken_model_stops_with_the_place_named() {
    let name = "language_model.model.layers.5.input_layernorm.weight";
    let dir = kimi();
    let (shard, at) = find(dir.path(), name);
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&shard, &bytes).unwrap();
    facit(&["run", arg(dir.path()), "--ids", IDS, "-n", "1"]).ends(4, &["layer 5"]);

    let dir = kimi();
    let expert = "language_model.model.layers.7.block_sparse_moe.experts.3.w2.weight_packed";
    let renamed = expert.replace("experts.3", "experts.x");
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(expert.len()).position(|w| w == expert.as_bytes());
        if let Some(at) = at {
            let mut bytes = bytes;
            bytes[at..at + expert.len()].copy_from_slice(renamed.as_bytes());
            std::fs::write(&path, bytes).unwrap();
        }
    }
    facit(&["run", arg(dir.path()), "--ids", IDS, "-n", "1"]).ends(6, &[expert]);

    let dir = kimi();
    let config = dir.path().join("config.json");
    let good = std::fs::read_to_string(&config).unwrap();
    let wrong = good.replacen("\"full_attn_layers\": [4", "\"full_attn_layers\": [0", 1);
    assert_ne!(good, wrong);
    std::fs::write(&config, wrong).unwrap();
    facit(&["run", arg(dir.path()), "--ids", IDS]).ends(2, &["full_attn_layers"]);
}

/// Catches options that are silently ignored.
#[test]
fn options_of_the_other_kind_of_model_are_refused() {
    let dir = kimi();
    let model = arg(dir.path());
    facit(&["run", "--top-p", "0.5", "hello"]).ends(2, &["--top-p"]);
    facit(&["run", model, "--ids", IDS, "--turns", "3"]).ends(2, &["--turns"]);
    facit(&["run", model, "--prompt", "hello"]).ends(2, &["tokenizer", "--ids"]);
    facit(&["run", model]).ends(2, &["no prompt"]);
    facit(&["run", model, "hello", "you"]).ends(2, &["--prompt \"hello you\""]);
    facit(&["run", "--model", model, "hello", "--ids", IDS]).ends(2, &["two prompts"]);
    facit(&["run", "--model", model, "hello", "--prompt", "you"]).ends(2, &["two prompts"]);
    facit(&["run", "--model", "builtin", model]).ends(2, &["is a model directory"]);
    facit(&["quote", model]).ends(2, &["is a model directory", "facit run DIR"]);
    let file = dir.path().join("prompt");
    std::fs::write(&file, "hello").unwrap();
    facit(&["run", model, "--prompt-file", arg(&file)]).ends(2, &["has no tokenizer"]);
    facit(&["run", model, "--ids", "1,x"]).ends(2, &["\"x\""]);
    facit(&["run", model, "--ids", "99999"]).ends(2, &["99999"]);
    facit(&["run", model, "--ids", IDS, "--top-p", "0"]).ends(2, &["top-p"]);
    facit(&["run", model, "--ids", IDS, "--backend", "none"]).ends(2, &["scalar"]);
    facit(&["run", model, "--ids", IDS, "--drafts", "2"]).ends(2, &["draft"]);
}

/// Catches drafts that change a token or a logit, resident or streamed, and a state saved between
/// the tokens of one step.
#[test]
fn drafts_change_no_token() {
    let dir = deepseek();
    let model = dir.path().to_owned();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let state = dir.path().join("state");
    let ids = "5,9,2,31,7,7,12,40,3,18,5,9";
    let run = |n: &str, to: &Path, more: &[&str]| {
        let args = ["run", arg(&model), "--ids", ids, "-n", n, "--json", "--dump-logits", arg(to)];
        facit(&[&args[..], more].concat()).ok().json()
    };
    let plain = run("12", &a, &[]);
    assert!(plain["facit"]["drafts"].is_null());
    for (packed, more) in [
        (false, &["--drafts", "4"][..]),
        (false, &["--drafts", "2", "--memory", "54MB"]),
        (true, &["--drafts", "2", "--memory", "54MB"]),
    ] {
        // The draft stages are packed with the layers, and a run without them needs none.
        if packed {
            facit(&["pack", arg(&model), "--quiet"]).ok();
            run("12", &b, &["--memory", "53MB"]);
            facit(&["compare", arg(&a), arg(&b), "--exact"]).ok();
        }
        let with = run("12", &b, more);
        assert_eq!(with["choices"][0]["token_ids"], plain["choices"][0]["token_ids"]);
        let drafts = &with["facit"]["drafts"];
        assert!(drafts["drafted"].as_u64() > Some(0), "{drafts}");
        facit(&["compare", arg(&a), arg(&b), "--exact"]).ok();
    }
    for n in 1..12 {
        let more = ["--drafts", "4", "--save-state", arg(&state)];
        let first = run(&n.to_string(), &b, &more);
        let rest = (12 - n).to_string();
        let args = ["run", arg(&model), "--resume", arg(&state), "-n", &rest, "--json"];
        let then = facit(&[&args[..], &["--drafts", "1"]].concat()).ok().json();
        let ids = |r: &serde_json::Value| r["choices"][0]["token_ids"].as_array().unwrap().clone();
        assert_eq!([ids(&first), ids(&then)].concat(), ids(&plain), "saved after {n}");
    }
}

/// The committed small DeepSeek-V4.1: greedy tokens of its golden, text both ways.
#[test]
fn deepseek_gives_the_golden_tokens() {
    let vectors = testkit::root().join("vectors/deepseek_v41");
    let model = vectors.join("tiny_model");
    let expect = std::fs::read(vectors.join("tiny_expect/expect.json")).unwrap();
    let expect: serde_json::Value = serde_json::from_slice(&expect).unwrap();
    let prompt = expect["prompt"].to_string();
    for regime in ["bf16", "w8a8"] {
        let args = ["run", arg(&model), "--ids", &prompt, "-n", "5", "--regime", regime, "--json"];
        let ran = facit(&args).ok().json();
        let ids = &ran["choices"][0]["token_ids"];
        let want = expect["modes"][regime]["greedy"].as_array().unwrap();
        assert_eq!(ids.as_array().unwrap()[..], want[..5], "{regime}");
    }
    let ids = facit(&["tokenize", arg(&model), "hello  wörld"]).ok();
    let back = facit(&["detokenize", arg(&model), ids.text().trim()]).ok();
    assert_eq!(back.text(), "hello  wörld");
}

/// A table that says what a directory holds.
#[test]
fn inspect_shows_a_directory() {
    let dir = kimi();
    let table = facit(&["inspect", arg(dir.path())]).ok();
    assert!(table.text().contains("Kimi K3") && table.text().contains("1,206"));
    let json = facit(&["inspect", arg(dir.path()), "--json"]).ok().json();
    assert_eq!(json["layers"], 13);
}

/// Catches a budget that changes a bit, a plan that is not kept, a packed trunk that is not used.
#[test]
fn budgets_and_packing_change_no_bit_and_what_does_not_fit_says_so() {
    let dir = kimi();
    let model = arg(dir.path());
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let dump = |more: &[&str], to: &Path| {
        let common = ["run", model, "--ids", IDS, "-n", "4", "--json", "--dump-logits", arg(to)];
        facit(&[&common[..], more].concat()).ok().json()
    };
    assert_eq!(dump(&[], &a)["facit"]["read"]["trunk_bytes"], 0);
    let same = || facit(&["compare", arg(&a), arg(&b), "--exact"]).ok();
    let mut read = Vec::new();
    for packed in [false, true] {
        if packed {
            facit(&["pack", model, "--quiet"]).ok();
        }
        for memory in ["51.5MB", "60MB", "1GB"] {
            let report = dump(&["--memory", memory], &b);
            same();
            read.push(report["facit"]["read"]["trunk_bytes"].as_u64().unwrap());
        }
    }
    assert!(read[0] > read[2] && read[3] < read[0], "{read:?}");
    facit(&["run", model, "--ids", IDS, "--memory", "49MB"]).ends(5, &["allow at least"]);
    facit(&["run", model, "--ids", IDS, "--memory", "12"]).ends(2, &["1.2GB"]);
    facit(&["plan", model, "--memory", "49MB"]).ends(5, &["allow at least"]);
    let told = facit(&["run", model, "--ids", IDS, "-n", "1", "--memory", "60MB"]).ok();
    assert!(told.err.contains("expert cache") && told.err.contains("budget"), "{}", told.err);
    facit(&["run", "--memory", "1GB", "hello"]).ends(2, &["--memory"]);
    let plan = facit(&["plan", model, "--memory", "60MB", "--json"]).ok().json();
    assert!(plan["total"].as_u64().unwrap() <= 60_000_000 && plan["packed"] == true, "{plan}");
    // Its shards are too small to measure a disk with, and nothing is guessed.
    assert!(plan["seconds_per_token"].is_null(), "{plan}");
    let plan = facit(&["plan", model, "--memory", "60MB", "--disk-rate", "1GB"]).ok();
    assert!(plan.text().contains("disk: 1.00 GB/s, so at least"), "{}", plan.text());
}

/// Catches steps that are left out of the report, and bytes counted twice or not at all.
#[test]
fn every_step_is_reported_as_a_line() {
    let dir = kimi();
    let path = dir.path().join("steps.jsonl");
    let args =
        ["run", arg(dir.path()), "--ids", IDS, "-n", "4", "--memory", "60MB", "--chunk", "2"];
    let ran = facit(&[&args[..], &["--json", "--report", arg(&path)]].concat()).ok().json();
    let lines = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<_> =
        lines.iter().map(|l| (l["step"].as_str().unwrap(), &l["positions"])).collect();
    let positions: Vec<_> = steps.iter().map(|s| s.1.as_u64().unwrap()).collect();
    assert_eq!(steps.iter().filter(|s| s.0 == "prefill").count(), 3, "{steps:?}");
    assert_eq!(positions, [2, 2, 1, 1, 1, 1, 1]);
    let ids: Vec<_> = lines[3..].iter().map(|l| l["token_id"].clone()).collect();
    assert_eq!(ran["choices"][0]["token_ids"], serde_json::Value::from(ids));
    for key in ["trunk_bytes", "expert_bytes", "other_bytes"] {
        let sum: u64 = lines.iter().map(|l| l["read"][key].as_u64().unwrap()).sum();
        assert_eq!(ran["facit"]["read"][key], sum, "{key}");
    }
    if let Ok(full) = Path::new("/dev/full").canonicalize() {
        facit(&[&args[..], &["--report", arg(&full)]].concat()).ends(7, &["/dev/full"]);
    }
}

/// Catches a trace that does not hold every request.
#[test]
fn a_recorded_trace_is_simulated() {
    let dir = kimi();
    let trace = dir.path().join("trace");
    let args = ["run", arg(dir.path()), "--ids", IDS, "-n", "4", "--json"];
    let ran = facit(&[&args[..], &["--record-trace", arg(&trace)]].concat()).ok().json();
    let sim = facit(&["cache-sim", arg(&trace), "--slots", "3,1000", "--json"]).ok().json();
    assert_eq!(sim[0]["requests"], ran["facit"]["read"]["expert_requests"]);
    assert!(sim[1]["belady"].as_u64() > sim[0]["belady"].as_u64(), "{sim}");
    facit(&["cache-sim", arg(&trace), "--slots", "0"]).ends(2, &["--slots"]);
    std::fs::write(&trace, "no trace").unwrap();
    facit(&["cache-sim", arg(&trace)]).ends(6, &["trace"]);
}

/// Catches a shard that is cut while the run reads it and is taken for whole.
#[test]
fn a_shard_cut_in_the_middle_of_a_run_stops_it() {
    use std::io::Read as _;
    let dir = kimi();
    let args = ["run", arg(dir.path()), "--ids", IDS, "-n", "5000", "--memory", "60MB"];
    let mut child = common::command(&args)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // It has begun to make tokens.
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 8]).unwrap();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let len = std::fs::metadata(&path).unwrap().len();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(len / 2).unwrap();
        }
    }
    let drain = std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    let ran = common::collect(child.wait_with_output().unwrap());
    drain.join().unwrap().unwrap();
    ran.ends(6, &["tensor", ".safetensors"]);
}

/// Catches half a state, half a trace or a lost batch on a disk that is full.
#[test]
fn a_full_disk_leaves_the_old_file_and_exits_with_7() {
    let small = tempfile::tempdir().unwrap();
    let Some(disk) = common::Small::mount(small.path()) else {
        return testkit::note(format_args!("skipped: a full disk needs the right to mount one"));
    };
    let dir = kimi();
    let input = dir.path().join("in.jsonl");
    std::fs::write(&input, "{\"prompt\": [1, 2]}").unwrap();
    let out = disk.0.join("out");
    std::fs::write(&out, "old").unwrap();
    let mut filler = std::fs::File::create(disk.0.join("filler")).unwrap();
    while std::io::Write::write(&mut filler, &[0; 4096]).is_ok_and(|n| n > 0) {}
    for option in ["--save-state", "--dump-logits", "--record-trace"] {
        let args = ["run", arg(dir.path()), "--ids", IDS, "-n", "3", option, arg(&out)];
        facit(&args).ends(7, &[arg(&out)]);
        assert_eq!(std::fs::read(&out).unwrap(), b"old", "{option}");
        assert_eq!(std::fs::read_dir(&disk.0).unwrap().count(), 2, "{option} left a file");
    }
    let answers = disk.0.join("answers");
    facit(&["batch", arg(dir.path()), arg(&input), arg(&answers)]).ends(7, &["answers"]);
    assert!(!answers.exists());
}
