//! `pack` and `--save-state`, killed without warning at any moment: what is left is the old file,
//! the new one or nothing, and the same command goes on. (`pull` and `batch` have theirs.)

mod common;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{arg, command, facit, kimi};

/// Longest time to wait for a moment to kill at.
const PATIENCE: Duration = Duration::from_secs(300);

fn start(args: &[&str]) -> Child {
    command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts")
}

/// Kills the child as soon as `now` says so; whether it was killed before it was done.
fn kill_when(mut child: Child, now: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !now() && child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < PATIENCE, "the moment never came");
    }
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

/// Bytes of a file, 0 if it is not there.
fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |m| m.len())
}

/// Catches a trunk that is used although its end was never written, and one that is begun again
/// with what an earlier attempt left in it.
#[test]
fn a_killed_pack_is_continued_to_the_same_bytes() {
    let (dir, other) = (kimi(), kimi());
    let (model, trunk) = (arg(dir.path()), dir.path().join("trunk.facit"));
    facit(&["pack", arg(other.path()), "--quiet"]).ok();
    let whole = std::fs::read(other.path().join("trunk.facit")).unwrap();
    let run = || facit(&["run", model, "--ids", "1,2,3", "-n", "3", "--memory", "60MB"]).ok().out;
    let tokens = run();
    let partial = dir.path().join("trunk.facit.partial");
    let mut killed = 0;
    // At the first byte, and then ever further on.
    for part in 0..12 {
        let from = size(&partial);
        let to = whole.len() as u64 * part / 12;
        let child = start(&["pack", model, "--quiet", "--threads", "1"]);
        killed += u32::from(kill_when(child, || size(&partial) > from.max(to)));
        if trunk.exists() {
            break;
        }
        assert_eq!(run(), tokens, "what is not finished is not used");
        facit(&["verify-model", model]).ok();
    }
    assert!(killed > 0, "no attempt was killed in time");
    facit(&["pack", model, "--quiet"]).ok();
    assert!(std::fs::read(&trunk).unwrap() == whole, "packed in pieces, other bytes");
    assert!(!partial.exists());
    facit(&["verify-model", model]).ok();
    assert_eq!(run(), tokens);
}

/// Catches a state that is half the old and half the new, or gone.
#[test]
fn a_killed_run_leaves_the_old_state_or_the_new_one() {
    let dir = kimi();
    let states = tempfile::tempdir().unwrap();
    let (model, state) = (arg(dir.path()), states.path().join("state"));
    let ids: Vec<String> = (0..300).map(|i| (i % 250).to_string()).collect();
    let run = |seed: u32, to: &Path| -> Vec<String> {
        let seed = seed.to_string();
        let words = ["run", model, "--ids", &ids.join(","), "-n", "2", "--seed", &seed];
        words.into_iter().chain(["--save-state", arg(to)]).map(str::to_owned).collect()
    };
    let as_args = |args: &[String]| facit(args).ok();
    as_args(&run(0, &state));
    let mut old = std::fs::read(&state).unwrap();
    // A temporary file beside the state with something in it, the state being written.
    let writing = || {
        let entries = std::fs::read_dir(states.path()).unwrap().map(|e| e.unwrap());
        entries
            .filter(|e| e.file_name() != "state" && e.file_name() != "new")
            .any(|e| e.metadata().is_ok_and(|m| m.len() > 0))
    };
    let (mut killed, mut torn) = (0, 0);
    for seed in 1..=6 {
        let new = states.path().join("new");
        as_args(&run(seed, &new));
        let new = std::fs::read(&new).unwrap();
        let args = run(seed, &state);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // Early, while it is written, and late.
        let began = Instant::now();
        killed += u32::from(kill_when(start(&args), || match seed % 3 {
            0 => began.elapsed() > Duration::from_millis(20 * u64::from(seed)),
            _ => writing(),
        }));
        let now = std::fs::read(&state).unwrap();
        assert!(now == old || now == new, "neither the old state nor the new one");
        facit(&["run", model, "--resume", arg(&state), "-n", "1"]).ok();
        old = now;
        // What a killed run leaves beside the state is in nobody's way.
        for entry in std::fs::read_dir(states.path()).unwrap().map(|e| e.unwrap()) {
            if entry.file_name() != "state" {
                torn += u32::from(entry.file_name() != "new");
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    assert!(killed > 0, "no run was killed in time");
    testkit::note(format_args!("{killed} runs killed, {torn} of them while they wrote"));
    as_args(&run(99, &state));
    facit(&["run", model, "--resume", arg(&state), "-n", "1"]).ok();
}
