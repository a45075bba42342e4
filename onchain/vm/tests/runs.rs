//! Whole runs on the program leave the tokens, text and state bytes that native turns leave.

use facit_program_vm::machine::Ended;
use facit_program_vm::world::{Request, World};
use facit_program_vm::{Key, LIMIT};
use fixed::planner::plan_turn;
use fixed::protocol::{Status, TurnEvent};
use fixed::{Artifact, StateInfo, output_text, output_tokens, turn};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const MODEL: Key = [1; 32];
const RUN: Key = [2; 32];
const PROMPT: &[u8] = b"Once upon a time";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The built-in model.
fn facit_tales() -> Vec<u8> {
    std::fs::read(root().join("assets/facit-tales/facit-tales.facit")).unwrap()
}

/// stories260K, when the shared models are there.
fn stories260k() -> Option<Vec<u8>> {
    let models = root().join("../shared/models");
    let checkpoint = std::fs::read(models.join("stories260K.bin")).ok();
    let Some((checkpoint, tokenizer)) =
        checkpoint.zip(std::fs::read(models.join("tok512.bin")).ok())
    else {
        println!("skipped: {} has no stories260K", models.display());
        return None;
    };
    Some(fixed::convert::convert(&checkpoint, &tokenizer).unwrap())
}

/// Runs on the program and natively, turn beside turn; prints what the turns cost.
fn same_as_native(name: &str, bytes: &[u8], request: &Request<'_>) {
    let artifact = Artifact::new(bytes).unwrap();
    let config = artifact.metadata.config;
    let mut world = World::new(5_000, 1_000);
    world.upload(MODEL, &artifact, 700);
    let seal = world.seal(MODEL, &artifact);
    world.open(RUN, MODEL, &artifact, request);
    let mut native = request.state(&artifact);
    assert_eq!(world.state(RUN), native.bytes());

    let (mut units, mut unused) = (Vec::new(), Vec::new());
    while !StateInfo::read(native.bytes()).unwrap().complete {
        let plan = plan_turn(config, native.bytes()).unwrap();
        let sections = artifact.sections(&plan);
        let sections = &sections[..plan.section_count];
        let want = turn(config, native.bytes(), artifact.metadata.bytes, sections).unwrap();
        let report = world.turn(RUN, MODEL, &artifact);
        assert_eq!(report.ended, Ended::Done, "turn {}: {} units", units.len(), report.units);
        assert_eq!(world.state(RUN), native.bytes(), "turn {}", units.len());
        let event = TurnEvent::read(&report.logs[0]).unwrap();
        assert_eq!((event.generated, event.token), (want.generated, want.token));
        assert_eq!((event.work, event.complete), (want.work, want.complete));
        assert_eq!(event.paid, 5_000 + 700 * want.generated_this_turn as u64);
        units.push(report.units);
        unused.push(want.work as i64 - report.units as i64);
    }
    let header = world.run(RUN);
    let state = native.bytes();
    let generated = StateInfo::read(state).unwrap().generated as u64;
    assert_eq!(header.status, Status::Complete);
    assert_eq!(header.paid, 5_000 * units.len() as u64 + 700 * generated);

    let digest: [u8; 32] = Sha256::digest(&state).into();
    let digest: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let text = String::from_utf8_lossy(output_text(config, state)).into_owned();
    let turns = units.len();
    units.sort();
    unused.sort();
    let median = (units[(turns - 1) / 2] + units[turns / 2]) as f64 / 2.0;
    println!("{name}: {text:?}");
    println!(
        "{name}: {turns} turns, compute units a turn: median {median}, peak {} of {LIMIT}; of what \
         the planner charged unused: median {}, least {}; most of a seal {seal}",
        units[turns - 1],
        unused[turns / 2],
        unused[0]
    );
    println!("sbf-digest solana-sbpf {name} {generated} {turns} {digest}");
    assert_eq!(output_tokens(config, state).len() as u64, 4 * generated);
}

#[test]
fn facit_tales_runs_as_it_does_natively() {
    let request = Request { prompt: PROMPT, max_tokens: 12, temperature_q16: 0, seed: 42 };
    same_as_native("facit-tales", &facit_tales(), &request);
}

#[test]
fn stories260k_runs_as_it_does_natively() {
    let Some(bytes) = stories260k() else { return };
    let request = Request { prompt: PROMPT, max_tokens: 12, temperature_q16: 0, seed: 42 };
    same_as_native("stories260K", &bytes, &request);
}
