//! `facit chat`: what it keeps between turns never shows in a reply, for both families.

mod common;

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{
    Ran, arg, collect, command, deepseek_talks, facit_with_input, kimi, kimi_talks, kimi_talks_on,
};
use serde_json::{Value, json};

const QUESTIONS: [&str; 3] = ["hello", "a b c", "and then?"];

fn chat(dir: &Path, more: &[&str], input: &str) -> Ran {
    let args = [&["chat", arg(dir), "--context", "2000", "-n", "9"], more].concat();
    facit_with_input(&args, input.as_bytes())
}

/// One reply a line.
fn replies(ran: &Ran) -> Vec<Value> {
    ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Catches a state that is not what the conversation says: each reply is compared with that of a
/// process to which the whole conversation is new.
#[test]
fn a_kept_state_gives_the_replies_of_fresh_runs() {
    for (dir, drafts) in [(kimi_talks(), &[][..]), (deepseek_talks(), &["--drafts", "3"])] {
        let budget = ["--memory", "70MB", "--chunk", "64"];
        let streamed = [&["--json", "--system", "be brief"], &budget[..], drafts].concat();
        for more in [
            &["--json", "--thinking", "off"][..],
            &["--json", "--effort", "high", "--temperature", "0.8", "--seed", "5"],
            &streamed,
        ] {
            let user = |text: &str| json!({ "role": "user", "content": text });
            let lines: String = QUESTIONS.iter().map(|q| format!("{}\n", user(q))).collect();
            let kept = replies(&chat(dir.path(), more, &lines).ok());
            assert_eq!(kept.len(), QUESTIONS.len());
            let mut conversation = Vec::new();
            for (turn, (question, reply)) in QUESTIONS.iter().zip(&kept).enumerate() {
                conversation.push(user(question));
                if turn == 0 {
                    conversation.push(reply["message"].clone());
                    continue;
                }
                let line = format!("{}\n", Value::Array(conversation.clone()));
                // Memory, chunks and drafts change nothing either.
                let more: Vec<&str> = match more.iter().position(|o| *o == "--memory") {
                    Some(at) => more[..at].to_vec(),
                    None => more.to_vec(),
                };
                let fresh = replies(&chat(dir.path(), &more, &line).ok());
                for field in ["message", "token_ids", "finish_reason", "problem"] {
                    assert_eq!(fresh[0][field], reply[field], "{field} of turn {turn}, {more:?}");
                }
                let used = |reply: &Value, what: &str| reply["usage"][what].as_u64().unwrap();
                assert_eq!(used(&fresh[0], "prompt_tokens"), used(reply, "prompt_tokens"));
                assert_eq!(used(&fresh[0], "reused_tokens"), 0);
                assert!(turn < 2 || used(reply, "reused_tokens") > 0, "nothing was kept");
                conversation.push(reply["message"].clone());
            }
        }
    }
}

/// Catches reasoning among the answers, and an answer that depends on how it is shown.
#[test]
fn answers_are_lines_and_reasoning_is_apart() {
    for dir in [kimi_talks(), deepseek_talks()] {
        for thinking in ["on", "off"] {
            let more = ["--thinking", thinking, "--seed", "7"];
            let text = chat(dir.path(), &more, "hello\nonce more\r\n").ok();
            let lines = "{\"role\":\"user\",\"content\":\"hello\"}\n\
                         {\"role\":\"user\",\"content\":\"once more\"}\n";
            let json = replies(&chat(dir.path(), &[&more[..], &["--json"]].concat(), lines).ok());
            let of = |field: &str| -> Vec<&str> {
                json.iter().map(|r| r["message"][field].as_str().unwrap_or("")).collect()
            };
            let answers: String = of("content").iter().map(|c| format!("{c}\n")).collect();
            assert_eq!(text.text(), answers);
            for reasoning in of("reasoning_content") {
                assert!(text.err.contains(reasoning), "{reasoning:?} is not in {:?}", text.err);
            }
            let quiet = chat(dir.path(), &[&more[..], &["-q"]].concat(), "hello\nonce more\n").ok();
            assert_eq!((quiet.text(), quiet.err.as_str()), (answers.as_str(), ""));
        }
    }
}

/// Catches a conversation that is not the same after it was stored.
#[test]
fn a_history_goes_on_where_it_was() {
    for dir in [kimi_talks(), deepseek_talks()] {
        let talk = |history: &Path, input: &str| {
            chat(dir.path(), &["--history", arg(history), "-q", "--system", "be brief"], input)
        };
        let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
        let at_once = talk(&whole, "hello\na b c\n").ok().out;
        let first = talk(&parts, "hello\n").ok().out;
        let second = talk(&parts, "a b c\n").ok().out;
        assert_eq!([first, second].concat(), at_once);
        let stored = std::fs::read(&whole).unwrap();
        assert_eq!(std::fs::read(&parts).unwrap(), stored);
        // A question that was not answered is answered first.
        let lines: Vec<&str> = std::str::from_utf8(&stored).unwrap().lines().collect();
        assert_eq!(lines.len(), 5);
        std::fs::write(&parts, lines[..4].join("\n")).unwrap();
        talk(&parts, "").ok();
        assert_eq!(std::fs::read(&parts).unwrap(), stored);
        std::fs::write(&parts, &stored[..stored.len() - 3]).unwrap();
        talk(&parts, "x\n").ends(6, &["parts", "line 5"]);
        let other = ["--history", arg(&whole), "--system", "be long"];
        chat(dir.path(), &other, "x\n").ends(2, &["system"]);
        assert_eq!(std::fs::read(&whole).unwrap(), stored, "what is refused changes nothing");
    }
}

/// Catches a request that is bent into another.
#[test]
fn what_a_model_cannot_do_is_refused() {
    let (kimi_talks, deepseek) = (kimi_talks(), deepseek_talks());
    let k3 = |more: &[&str], input: &str| chat(kimi_talks.path(), more, input);
    k3(&["--thinking", "off", "--effort", "low"], "x\n").ends(2, &["--thinking on"]);
    k3(&["--effort", "medium"], "x\n").ends(2, &["medium"]);
    k3(&["--effort", "30"], "x\n").ends(2, &["low, high and max"]);
    chat(deepseek.path(), &["--effort", "30"], "x\n").ok();
    k3(&["--drafts", "2"], "x\n").ends(2, &["no draft stages"]);
    let short = common::deepseek();
    chat(short.path(), &[], "x\n").ends(2, &["2000 positions", "64 positions"]);
    k3(&["--top-p", "0"], "x\n").ends(2, &["top-p"]);
    k3(&["--json"], "hello\n").ends(2, &["not JSON"]);
    k3(&["--json"], "{\"role\":\"user\"}x\n").ends(2, &["JSON"]);
    k3(&["--json"], "{\"role\":\"latest_reminder\",\"content\":\"x\"}\n").ends(2, &["role"]);
    k3(&["--memory", "49MB"], "x\n").ends(5, &["allow at least"]);
    k3(&[], &"word ".repeat(3000)).ends(2, &["2000 positions"]);
    let mute = kimi();
    chat(mute.path(), &[], "x\n").ends(2, &["tokenizer"]);
    k3(&[], "\u{0}\u{fffd}<|end_of_msg|>[EOS]\n").ok();
    let bytes = facit_with_input(&["chat", arg(kimi_talks.path())], b"\xff\n");
    bytes.ends(2, &["UTF-8"]);
}

/// Catches an interrupt that loses what was said, or that is not heard.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_reply_and_keeps_it() {
    let dir = kimi_talks_on();
    let history = dir.path().join("history");
    let args = ["chat", arg(dir.path()), "--thinking", "off", "--history", arg(&history)];
    let mut child = command(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "hello").unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    assert!(!out.fill_buf().unwrap().is_empty(), "the reply streams");
    let kill = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut out, &mut said).unwrap();
    let ran = collect(child.wait_with_output().unwrap());
    ran.ends(130, &["not complete"]);
    let stored = std::fs::read_to_string(&history).unwrap();
    let reply: Value = serde_json::from_str(stored.lines().nth(1).unwrap()).unwrap();
    assert_eq!(format!("{}\n", reply["content"].as_str().unwrap()).as_bytes(), said);
}

/// The editor, the commands and Ctrl-C, on a terminal that `script` makes.
#[cfg(target_os = "linux")]
#[test]
fn on_a_terminal_a_reply_is_stopped_and_the_talk_goes_on() {
    if Command::new("script").arg("--version").output().is_err() {
        testkit::skipped("a terminal (`script` of util-linux)");
        return;
    }
    let dir = kimi_talks_on();
    let facit = env!("CARGO_BIN_EXE_facit");
    // `exec`, for a shell that stays between ends by Ctrl-C itself.
    let run = format!("exec {facit} chat {} --thinking off --threads 1", arg(dir.path()));
    let script = Command::new("timeout")
        .args(["300", "script", "-qec", &run, "/dev/null"])
        .envs([("SHELL", "/bin/sh"), ("TERM", "xterm")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = script.expect("timeout, of the coreutils");
    let mut keys = child.stdin.take().unwrap();
    let mut screen = std::io::BufReader::new(child.stdout.take().unwrap());
    let (mut shown, mut read_to) = (Vec::new(), 0);
    // Reads on until something is shown after what was read before; false at the end.
    let mut until = |what: &str| {
        loop {
            let found = shown[read_to..].windows(what.len()).position(|w| w == what.as_bytes());
            if let Some(at) = found {
                read_to += at + what.len();
                return true;
            }
            let more = screen.fill_buf().unwrap();
            if more.is_empty() {
                return false;
            }
            let n = more.len();
            shown.extend_from_slice(more);
            screen.consume(n);
        }
    };
    let mut type_in = |text: &str| keys.write_all(text.as_bytes()).unwrap();
    assert!(until("Ctrl-D ends") && until("> "));
    type_in("/help\r");
    assert!(until("begin a new conversation") && until("> "));
    for _ in 0..2 {
        type_in("hello\r");
        assert!(until("prompt"), "the progress of the prefill");
        type_in("\x03");
        assert!(until("not complete") && until("> "), "a reply is stopped, and another asked for");
        type_in("/reset\r");
        assert!(until("a new conversation") && until("> "));
    }
    type_in("\x04");
    assert!(!until("nothing more"));
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&shown));
}
