//! Whole runs against the golden turns: the same bytes, whatever the backend, the threads and the
//! pauses. Golden states come from the Python definition, so nothing here is compared with itself.
#![cfg(feature = "std")]

use fixed::arith::Backend;
use fixed::run::{Model, Options, Report, Token, Until};
use fixed::{Artifact, Error, StateInfo, init_state, output_text, output_tokens, state_size};
use std::ops::ControlFlow;
use testkit::fixed_goldens::{COMMITTED, Case, SHARED, load};
use testkit::sha256;

fn fresh(artifact: &Artifact<'_>, case: &Case) -> Vec<u8> {
    let config = artifact.metadata.config;
    let mut state = vec![0; state_size(config, case.prompt.len(), case.max_tokens).unwrap()];
    let (max, temperature, seed) = (case.max_tokens, case.temperature_q16, case.seed);
    init_state(config, &mut state, &case.prompt, max, temperature, seed).unwrap();
    state
}

/// All backends on one and two threads, and the fastest on more than there are heads.
fn all_options(allowance: u32) -> impl Iterator<Item = Options> + Clone {
    let backends: Vec<Backend> = Backend::supported().collect();
    let each = backends.into_iter().flat_map(|backend| [1, 2].map(|threads| (backend, threads)));
    each.chain([(Backend::detect(), 7)]).map(move |(backend, threads)| Options {
        backend,
        threads,
        allowance,
    })
}

/// `check` for every case of some golden files.
fn for_cases(names: &[&str], check: impl Fn(&str, &Model<'_>, &Case)) {
    for name in names {
        let Some(goldens) = load(name) else {
            testkit::skipped(name);
            continue;
        };
        let bytes = goldens.model.artifact();
        let model = Model::new(Artifact::new(&bytes).unwrap());
        for case in &goldens.cases {
            check(&format!("{name} {}", case.name), &model, case);
        }
    }
}

fn run_to_the_end(at: &str, model: &Model<'_>, case: &Case) {
    let config = model.artifact().metadata.config;
    for options in all_options(case.allowance) {
        let at = format!("{at}, {} on {} threads", options.backend.name(), options.threads);
        let mut state = fresh(&model.artifact(), case);
        let (mut tokens, mut text) = (Vec::new(), Vec::new());
        let mut on_token = |token: Token<'_>| {
            tokens.push(token.id);
            text.extend_from_slice(token.text);
            assert_eq!(token.generated as usize, tokens.len(), "{at}");
            ControlFlow::Continue(())
        };
        let result = model.run(&mut state, options, Until::Complete, &mut on_token);
        if let Some((number, _)) = case.error {
            assert_eq!(result.unwrap_err().number(), number, "{at}");
            continue;
        }
        let want = case.output.as_ref().unwrap();
        let report = Report {
            complete: true,
            generated: want.tokens.len() as u32,
            turns: case.turns.len() as u64,
            work: case.turns.iter().map(|t| t.work as u64).sum(),
        };
        assert_eq!(result, Ok(report), "{at}");
        assert_eq!((tokens, &text), (want.tokens.clone(), &want.text), "{at}: as told");
        assert_eq!(output_text(config, &state), want.text, "{at}");
        assert_eq!(output_tokens(config, &state).len(), 4 * want.tokens.len(), "{at}");
        assert_eq!(sha256(&state), want.state, "{at}: final state");
        let again = model.run(&mut state, options, Until::Complete, &mut |_| unreachable!());
        assert_eq!(again, Err(Error::InvalidState), "{at}: a complete run cannot go on");
    }
}

/// Catches bytes that depend on threads, backend or the way of running, and miscounted turns.
#[test]
fn committed_models_run_to_the_golden_state() {
    for_cases(&COMMITTED, run_to_the_end);
}

/// As for the committed models.
#[test]
fn shared_models_run_to_the_golden_state() {
    for_cases(&SHARED, run_to_the_end);
}

/// Pauses after every few turns; every pause must leave the golden state of its turn.
fn run_with_pauses(at: &str, model: &Model<'_>, case: &Case) {
    for (steps, options) in
        [&[1u64][..], &[2, 1, 5, 13], &[40, 3]].iter().zip(all_options(case.allowance))
    {
        let mut state = fresh(&model.artifact(), case);
        let mut done = 0;
        for step in steps.iter().cycle() {
            let left = case.turns.len() - done;
            if left == 0 || (case.error.is_some() && (left as u64) < *step) {
                break;
            }
            let silent = &mut |_: Token<'_>| ControlFlow::Continue(());
            let report = model.run(&mut state, options, Until::Turns(*step), silent).expect(at);
            let turns = (*step as usize).min(left);
            assert_eq!(report.turns, turns as u64, "{at}, turn {done} and {step} more");
            done += turns;
            let want = &case.turns[done - 1];
            assert_eq!(report.generated, want.generated, "{at}, turn {done}");
            assert_eq!(report.complete, done == case.turns.len() && case.error.is_none(), "{at}");
            assert_eq!(
                sha256(&state)[..want.state.len()],
                want.state,
                "{at}: state of turn {done}"
            );
        }
    }
}

/// Catches a pause that stops a chunk early or late, and a resumption that repeats or skips one.
#[test]
fn a_run_paused_anywhere_leaves_the_golden_state_of_that_turn() {
    for_cases(&COMMITTED, run_with_pauses);
}

/// Catches an interruption that leaves a state between two turns.
#[test]
fn a_run_broken_off_at_a_token_ends_with_its_turn() {
    for_cases(&["facit-tales", "synthetic_gqa", "synthetic_own"], |at, model, case| {
        if case.error.is_some() {
            return;
        }
        for (wanted, options) in
            (1..=case.max_tokens).step_by(5).zip(all_options(case.allowance).cycle())
        {
            let Some(turn) = case.turns.iter().position(|t| t.generated >= wanted) else { return };
            let mut state = fresh(&model.artifact(), case);
            let mut told = 0;
            let mut stop = |token: Token<'_>| {
                told = token.generated;
                if told == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let report = model.run(&mut state, options, Until::Complete, &mut stop).expect(at);
            let want = &case.turns[turn];
            // The turn may go on to further tokens, and tells of them too.
            assert_eq!(told, want.generated, "{at}, token {wanted}");
            assert_eq!(report.turns, turn as u64 + 1, "{at}, token {wanted}");
            assert_eq!(sha256(&state)[..want.state.len()], want.state, "{at}, token {wanted}");
            assert_eq!(StateInfo::read(&state).unwrap().turns, report.turns);
        }
    });
}

/// Catches a run that starts before it has looked at what it was given.
#[test]
fn a_run_refuses_what_a_turn_refuses() {
    let bytes = testkit::fixed_models::model("tiny").unwrap().artifact();
    let model = Model::new(Artifact::new(&bytes).unwrap());
    let config = model.artifact().metadata.config;
    let mut state = vec![0u8; state_size(config, 0, 4).unwrap()];
    init_state(config, &mut state, b"", 4, 0, 0).unwrap();
    let run = |state: &mut [u8], allowance| {
        let options = Options { allowance, ..Options::default() };
        model.run(state, options, Until::Complete, &mut |_| ControlFlow::Continue(()))
    };
    assert_eq!(run(&mut state, 22_095), Err(Error::InvalidConfig));
    let mut damaged = state.clone();
    damaged[8] = 21;
    assert_eq!(run(&mut damaged, 1_350_000), Err(Error::InvalidState));
    let mut longer = vec![0u8; state.len() + 8];
    let crooked = &mut longer[1..=state.len()];
    crooked.copy_from_slice(&state);
    assert_eq!(run(crooked, 1_350_000), Err(Error::InvalidState));
    let nothing =
        model.run(&mut state, Options::default(), Until::Turns(0), &mut |_| unreachable!());
    assert_eq!(nothing.unwrap().turns, 0);
    assert!(run(&mut state, 1_350_000).unwrap().complete);
}
