//! Arbitrary bytes against the integer core: each target must refuse them with an error or run them
//! to a valid end, never panic. `cargo test` feeds them mutations of real files
//! (`crates/fixed/tests/hostile.rs`), `fuzz/` feeds them whatever libFuzzer invents.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use fixed::arith::{Backend, Scratch};
use fixed::planner::{ALLOWANCE, phase, plan_turn, plan_turn_within};
use fixed::run::{Model, Options, Until};
use fixed::{Artifact, Config, Error, Metadata, StateInfo, check_state, init_state, state_size};
use fixed::{WeightSection, read_u32, tokenizer, turn_with};

use crate::fixed_models::model;
use crate::random::hash;

/// Turns that one input may cost.
const MAX_TURNS: usize = 6;
/// States above this are not run: a mutated configuration may ask for gigabytes.
const MAX_STATE: usize = 4 << 20;

/// The models whose files are mutated.
pub const NAMES: [&str; 2] = ["tiny", "own"];

static ARTIFACTS: LazyLock<[Vec<u8>; 2]> =
    LazyLock::new(|| NAMES.map(|name| model(name).expect("a committed model").artifact()));

/// A whole artifact. Returns whether it was accepted, as all targets do.
pub fn artifact(bytes: &[u8]) -> bool {
    let Ok(artifact) = Artifact::new(bytes) else {
        sealed(bytes);
        return false;
    };
    let m = artifact.metadata;
    assert_eq!(Artifact::new(bytes).map(|a| a.bytes().len()), Ok(bytes.len()));
    let prompt = "a é";
    if let Some(size) = state_size(m.config, prompt.len(), 1).ok().filter(|s| *s <= MAX_STATE) {
        let mut state = vec![0; size];
        init_state(m.config, &mut state, prompt.as_bytes(), 1, 9_999, 1).expect("a valid request");
        run(&artifact, state);
    }
    true
}

/// Section zero that nobody checked, as a host that trusts a digest reads it.
fn sealed(bytes: &[u8]) {
    let Ok(m) = Metadata::sealed(bytes) else {
        return;
    };
    for id in [0, 1, 2, 3, m.config.vocab() as u32 - 1, u32::MAX] {
        let _ = (m.token_text(id), m.score_key(id), tokenizer::decode(&m, 1, id));
    }
    let _ = (tokenizer::lookup(&m, b"a"), m.check_tables(), m.check_tokens(0..usize::MAX));
    let mut state = vec![0; state_size(m.config, 2, 1).unwrap_or(usize::MAX).min(MAX_STATE)];
    if init_state(m.config, &mut state, b"ab", 1, 0, 1).is_ok() {
        let mut scratch = Scratch::default();
        // More than any section of the small models holds, and not their weights.
        let sections = [1, 2].map(|index| WeightSection { index, bytes: &[0x5A; 50_000] });
        for _ in 0..MAX_TURNS {
            let backend = Backend::plain();
            if turn_with(backend, &mut scratch, &m, &mut state, &sections, ALLOWANCE).is_err() {
                break;
            }
        }
    }
}

/// A state of one of [`NAMES`], chosen by the first byte; the rest is the state.
pub fn state(bytes: &[u8]) -> bool {
    let Some((which, bytes)) = bytes.split_first() else {
        return false;
    };
    let artifact = Artifact::new(&ARTIFACTS[*which as usize % 2]).expect("a committed model");
    let config = artifact.metadata.config;
    let info = StateInfo::read(bytes);
    let checked = check_state(config, bytes);
    // Words keep the copy aligned, whatever the input's address was.
    let state = bytes.to_vec();
    let planned = plan_turn(config, &state);
    match checked {
        Err(fault) => {
            assert_eq!(fault.error, Error::InvalidState);
            assert_eq!(planned, Err(Error::InvalidState));
            assert!(fixed::output_text(config, &state).is_empty());
            false
        }
        Ok(()) => {
            let info = info.expect("a checked state has a header");
            assert_eq!(planned.is_ok(), !info.complete);
            let text = fixed::output_text(config, &state);
            assert_eq!(text.len(), info.text_len as usize);
            run(&artifact, state);
            true
        }
    }
}

/// Runs a checked state some turns: every turn leaves a state that passes the checks again and stands
/// where the plan said, all backends leave the same bytes, and so does a whole run.
fn run(artifact: &Artifact<'_>, start: Vec<u8>) {
    let config = artifact.metadata.config;
    let results: Vec<_> = Backend::supported()
        .map(|backend| {
            let mut state = start.clone();
            let mut scratch = Scratch::default();
            let mut turns = 0;
            while turns < MAX_TURNS && !complete(&state) {
                one_turn(artifact, backend, &mut scratch, &mut state)?;
                let checked = check_state(config, &state);
                // While tokenizing, the rules leave position and tokens open; the next turn refuses.
                if checked.is_err() {
                    assert!(tokenizes(&start), "a turn leaves a state that can go on: {checked:?}");
                    return Err(Error::InvalidState);
                }
                turns += 1;
            }
            Ok((turns, state))
        })
        .collect();
    for (i, result) in results.iter().enumerate() {
        let backend = Backend::supported().nth(i).expect("as many as before").name();
        assert!(*result == results[0], "{backend} differs from plain");
    }
    let (turns, expected) = match &results[0] {
        Ok((turns, state)) => (*turns, Some(state)),
        Err(_) => (MAX_TURNS, None),
    };
    let mut state = start;
    let model = Model::new(*artifact);
    let until = Until::Turns(turns as u64);
    if turns > 0 {
        let mut ignore = |_: fixed::run::Token<'_>| ControlFlow::Continue(());
        let report = model.run(&mut state, Options::default(), until, &mut ignore);
        assert_eq!(report.is_ok(), expected.is_some(), "whole run: {:?}", report.err());
        assert!(expected.is_none_or(|e| *e == state), "a whole run differs from turns");
    }
}

fn tokenizes(state: &[u8]) -> bool {
    StateInfo::read(state).expect("a checked state has a header").phase < phase::EMBEDDING
}

fn complete(state: &[u8]) -> bool {
    StateInfo::read(state).expect("a checked state has a header").complete
}

fn one_turn(
    artifact: &Artifact<'_>,
    backend: Backend,
    scratch: &mut Scratch,
    state: &mut [u8],
) -> Result<(), Error> {
    let m = &artifact.metadata;
    let plan = plan_turn_within(m.config, state, ALLOWANCE)?;
    let sections = artifact.sections(&plan);
    let given = &sections[..plan.section_count];
    let result = turn_with(backend, scratch, m, state, given, ALLOWANCE)?;
    let info = StateInfo::read(state)?;
    assert_eq!((result.complete, result.generated), (info.complete, info.generated));
    if plan.section_count > 0 && !result.complete {
        let end = plan.end;
        assert_eq!((info.phase, info.row, info.position), (end.phase, end.row, end.position));
    }
    assert!(result.generated_this_turn <= plan.max_generated && result.work <= ALLOWANCE);
    Ok(())
}

/// A tokenizer file, for a model of 17 tokens.
pub fn tokenizer_file(bytes: &[u8]) -> bool {
    static CHECKPOINT: LazyLock<Vec<u8>> =
        LazyLock::new(|| model("tiny").expect("a committed model").checkpoint);
    converted(&CHECKPOINT, bytes)
}

/// A checkpoint, with a tokenizer of 17 tokens.
pub fn checkpoint(bytes: &[u8]) -> bool {
    static TOKENIZER: LazyLock<Vec<u8>> =
        LazyLock::new(|| model("tiny").expect("a committed model").tokenizer);
    converted(bytes, &TOKENIZER)
}

fn converted(checkpoint: &[u8], tokenizer: &[u8]) -> bool {
    match fixed::convert::convert(checkpoint, tokenizer) {
        Err(refused) => {
            assert!(matches!(refused.error, Error::InvalidConfig | Error::InvalidFormat));
            assert!(!refused.why.is_empty());
            false
        }
        Ok(bytes) => {
            assert!(artifact(&bytes), "what was converted is an artifact");
            true
        }
    }
}

/// A prompt, on a model with all byte tokens and on one without.
pub fn prompt(bytes: &[u8]) -> bool {
    let valid = std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0);
    for artifact in ARTIFACTS.iter().map(|a| Artifact::new(a).expect("a committed model")) {
        let m = artifact.metadata;
        let Ok(size) = state_size(m.config, bytes.len(), 1) else {
            assert!(bytes.len() > fixed::MAX_PROMPT);
            return false;
        };
        let mut state = vec![0; size];
        let started = init_state(m.config, &mut state, bytes, 1, 0, 0);
        assert_eq!(started.is_ok(), valid);
        if valid {
            encode(&m, state, bytes);
        }
    }
    valid
}

/// Tokenizes; the tokens' texts must be the prompt again.
fn encode(m: &Metadata<'_>, mut state: Vec<u8>, prompt: &[u8]) {
    let mut scratch = Scratch::default();
    while StateInfo::read(&state).expect("a state").phase < phase::EMBEDDING {
        let turn = turn_with(Backend::plain(), &mut scratch, m, &mut state, &[], ALLOWANCE);
        if let Err(error) = turn {
            assert!(matches!(error, Error::InvalidPrompt | Error::ContextExceeded));
            return;
        }
    }
    let count = StateInfo::read(&state).expect("a state").prompt_tokens as usize;
    let at = 128 + prompt.len().next_multiple_of(8);
    let tokens: Vec<u32> = (0..count).map(|i| read_u32(&state, at + 4 * i)).collect();
    let text: Vec<u8> = tokens
        .windows(2)
        .flat_map(|t| tokenizer::decode(m, t[0], t[1]).expect("tokens of the vocabulary"))
        .copied()
        .collect();
    // Only the larger vocabulary has all byte tokens. A prompt may spell one out, or hold the texts
    // of tokens 1 and 2, which say nothing.
    if m.config.vocab() > 256 && !prompt.contains(&b'<') {
        assert_eq!(text, prompt);
    }
}

/// States of the models at many phases, each behind the byte that names its model.
pub fn states() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (which, bytes) in ARTIFACTS.iter().enumerate() {
        let artifact = Artifact::new(bytes).expect("a committed model");
        let config: Config = artifact.metadata.config;
        for (max, temperature, allowance) in [(3, 0, 27_000), (2, 70_000, 60_000)] {
            let mut state = vec![0; state_size(config, 5, max).expect("a valid request")];
            init_state(config, &mut state, b"ab a!", max, temperature, 5).expect("a valid prompt");
            if which == 0 {
                // The small vocabulary has no token for the mark.
                init_state(config, &mut state, b"ab aa", max, temperature, 5).expect("valid");
            }
            let mut scratch = Scratch::default();
            while !complete(&state) {
                all.push([&[which as u8], &state[..]].concat());
                let plan = plan_turn_within(config, &state, allowance).expect("a plan");
                let sections = artifact.sections(&plan);
                let given = &sections[..plan.section_count];
                let backend = Backend::plain();
                let m = &artifact.metadata;
                turn_with(backend, &mut scratch, m, &mut state, given, allowance).expect("a turn");
            }
            all.push([&[which as u8], &state[..]].concat());
        }
    }
    all
}

/// Artifacts of [`NAMES`].
pub fn artifacts() -> &'static [Vec<u8>] {
    &*ARTIFACTS
}

/// Mutation `i` of some real inputs, by flips, edge values, cuts, insertions and splices, a function
/// of `i` alone. `hot` is how many bytes at the start deserve most of the attention.
pub fn mutate(seeds: &[Vec<u8>], i: u64, hot: usize) -> Vec<u8> {
    let mut draws = 0;
    let mut below = |n: usize| {
        draws += 1;
        (hash(i, draws) % n.max(1) as u64) as usize
    };
    let mut bytes = seeds[below(seeds.len())].clone();
    for _ in 0..=below(4) {
        let reach = if below(4) > 0 { hot.min(bytes.len()) } else { bytes.len() };
        let at = below(reach);
        match below(8) {
            0 => bytes.truncate(below(bytes.len() + 1)),
            1 => {
                let extra = vec![below(256) as u8; below(16)];
                bytes.splice(at..at, extra);
            }
            2 => {
                let other = &seeds[below(seeds.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(other.get(at..).unwrap_or_default());
            }
            3 | 4 => {
                let edges = [0, 1, 2, 3, 7, 8, 20, 127, 255, 1 << 16, u32::MAX >> 1, u32::MAX];
                let word = edges[below(edges.len())].to_le_bytes();
                if let Some(place) = bytes.get_mut(at & !3..).and_then(|b| b.first_chunk_mut()) {
                    *place = word;
                }
            }
            _ => {
                let mask = 1u8 << below(8);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= mask;
                }
            }
        }
    }
    bytes
}
