//! Whole runs on the program leave the tokens, text and state bytes that native turns leave.

mod common;

use common::{facit_tales, four_sections, place, root};
use facit_program_vm::machine::Ended;
use facit_program_vm::world::{Request, World, fixed_state, section_key};
use facit_program_vm::{Key, LIMIT};
use fixed::planner::plan_turn;
use fixed::protocol::{Instruction, Refusal, Status, TurnEvent};
use fixed::{Artifact, StateInfo, output_text, output_tokens, turn};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

const MODEL: Key = [1; 32];
const RUN: Key = [2; 32];
const PROMPT: &[u8] = b"Once upon a time";

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

/// Runs on the program and natively, turn beside turn; prints what the turns cost. What sections
/// turns read.
fn same_as_native(name: &str, bytes: &[u8], request: &Request<'_>) -> BTreeSet<Vec<u32>> {
    let artifact = Artifact::new(bytes).unwrap();
    let config = artifact.metadata.config;
    let mut world = World::new(5_000, 1_000);
    world.upload(MODEL, &artifact, 700);
    let seal = world.seal(MODEL, &artifact);
    world.open(RUN, MODEL, &artifact, request);
    let mut native = request.state(&artifact);
    assert_eq!(world.state(RUN), native.bytes());

    let (mut units, mut unused, mut read) = (Vec::new(), Vec::new(), BTreeSet::new());
    while !StateInfo::read(native.bytes()).unwrap().complete {
        let plan = plan_turn(config, native.bytes()).unwrap();
        read.insert(plan.sections().to_vec());
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
    read
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

/// Weights in several accounts: turns that read one of them, and turns that read two, in either order.
/// Catches a section taken for another, and a plan whose second section is lost.
#[test]
fn a_model_of_four_sections_runs_as_it_does_natively() {
    let bytes = four_sections();
    let artifact = Artifact::new(&bytes).unwrap();
    assert_eq!(artifact.metadata.section_count(), 4);
    let request = Request { prompt: b"", max_tokens: 2, temperature_q16: 65536, seed: 7 };
    let read = same_as_native("four sections", &bytes, &request);
    for sections in [&[1][..], &[2], &[3], &[1, 2], &[2, 3], &[3, 1]] {
        assert!(read.contains(sections), "no turn reads {sections:?}: {read:?}");
    }
    // The model's own other section, in place of the one the turn needs or of the second one.
    let mut world = World::new(5_000, 1_000);
    world.upload(MODEL, &artifact, 700);
    world.seal(MODEL, &artifact);
    world.open(RUN, MODEL, &artifact, &request);
    for count in [1, 2] {
        while world.turn_metas(RUN, MODEL, &artifact).len() != 6 + count {
            assert_eq!(world.turn(RUN, MODEL, &artifact).ended, Ended::Done);
        }
        let metas = world.turn_metas(RUN, MODEL, &artifact);
        let last = metas.len() - 1;
        let other = (1..4).map(|i| section_key(MODEL, i)).find(|k| metas.iter().all(|m| m.0 != *k));
        let mut wrong = metas.clone();
        wrong[last].0 = other.expect("a turn reads two of three");
        let before = world.accounts.clone();
        let turns = StateInfo::read(world.state(RUN)).unwrap().turns;
        let ended = world.send(&Instruction::Turn { turns }, &wrong).ended;
        assert_eq!(ended, Ended::Refused(Refusal::WrongSection.number() as u64));
        assert_eq!(world.accounts, before);
    }
}

/// The built-in model's sealed, with a run of an empty prompt that has tokenized.
fn tokenized(bytes: &[u8], max_tokens: u32) -> World {
    let artifact = Artifact::new(bytes).unwrap();
    let mut world = World::new(5_000, 1_000);
    world.upload(MODEL, &artifact, 700);
    world.seal(MODEL, &artifact);
    let request = Request { prompt: b"", max_tokens, temperature_q16: 0, seed: 1 };
    world.open(RUN, MODEL, &artifact, &request);
    while StateInfo::read(world.state(RUN)).unwrap().phase < 3 {
        assert_eq!(world.turn(RUN, MODEL, &artifact).ended, Ended::Done);
    }
    world
}

/// Every turn of the position with the most attention fits a transaction, with native's bytes.
#[test]
fn the_last_position_of_a_full_context_fits() {
    let models = [("facit-tales", Some(facit_tales())), ("stories260K", stories260k())];
    for (name, bytes) in models.into_iter().filter_map(|(n, b)| Some((n, b?))) {
        let artifact = Artifact::new(&bytes).unwrap();
        let config = artifact.metadata.config;
        let seq = config.seq() as u32;
        let mut world = tokenized(&bytes, seq);
        place(world.state_mut(RUN), 3, 0, seq - 1);
        let mut native = fixed_state(world.state(RUN));
        let mut units = Vec::new();
        while !StateInfo::read(world.state(RUN)).unwrap().complete {
            let plan = plan_turn(config, native.bytes()).unwrap();
            let sections = artifact.sections(&plan);
            let sections = &sections[..plan.section_count];
            turn(config, native.bytes(), artifact.metadata.bytes, sections).unwrap();
            let report = world.turn(RUN, MODEL, &artifact);
            assert_eq!(report.ended, Ended::Done, "{} units", report.units);
            assert_eq!(world.state(RUN), native.bytes());
            units.push(report.units);
        }
        println!("{name}: position {} of {seq}: {units:?} compute units", seq - 1);
    }
}

/// The price of a product of the row kernel: the slope between turns that differ only in rows.
#[test]
fn a_product_costs_at_most_4_1_compute_units() {
    let models = [("facit-tales", Some(facit_tales())), ("stories260K", stories260k())];
    for (name, bytes) in models.into_iter().filter_map(|(n, b)| Some((n, b?))) {
        let artifact = Artifact::new(&bytes).unwrap();
        let config = artifact.metadata.config;
        let fresh = tokenized(&bytes, 4).accounts;
        let [few, many] = [30, 330].map(|rows| {
            let mut world = World::bare();
            world.accounts = fresh.clone();
            // The last classifier rows of the last token: then the run is complete.
            place(world.state_mut(RUN), 18, config.vocab() as u32 - rows, 3);
            let report = world.turn(RUN, MODEL, &artifact);
            assert_eq!(report.ended, Ended::Done);
            assert!(StateInfo::read(world.state(RUN)).unwrap().complete);
            report.units
        });
        let products = 300 * config.dim() as u64;
        let slope = (many - few) as f64 / products as f64;
        println!("{name}: {slope:.3} compute units a product of {} columns", config.dim());
        assert!(slope <= 4.1, "{slope}");
    }
}

/// The interpreter and compiled code meter the same and leave the same bytes.
#[test]
fn the_interpreter_agrees() {
    let bytes = facit_tales();
    let artifact = Artifact::new(&bytes).unwrap();
    let mut compiled = tokenized(&bytes, 4);
    let mut interpreted = World::bare();
    interpreted.accounts = compiled.accounts.clone();
    interpreted.machine.interpret = true;
    let [a, b] = [&mut compiled, &mut interpreted].map(|w| w.turn(RUN, MODEL, &artifact));
    assert_eq!((a.ended, a.units, a.logs), (b.ended, b.units, b.logs));
    assert_eq!(compiled.accounts, interpreted.accounts);
}
