//! The draft stages: drafts against golden data, and decoding with them against decoding without.

mod ds41_common;

use ds41_common::tiny::{ids, model, resident};
use ds41_common::{bytes, check, check_ints};
use models::compare::{Tolerance, compare};
use models::deepseek_v41::{DeepSeekV41, Probe, Regime, State};
use models::machine::{Acceptance, Choice, Model, StepError};
use models::tensor_file::TensorFile;
use numerics::{Backend, Kernels, argmax, elementary};
use std::collections::BTreeMap;
use testkit::host::{HostError, Resident};

const REGIMES: [Regime; 2] = [Regime::Bf16, Regime::W8a8];

fn kernels() -> Kernels {
    Kernels::new(Backend::detect(), 2)
}

fn feed(host: &Resident, m: &DeepSeekV41, state: &mut State, tokens: &[u32]) -> Vec<f32> {
    host.logits(m, &kernels(), state, tokens, tokens.len()).unwrap()
}

#[derive(Default)]
struct Seen(BTreeMap<String, Vec<f32>>);

impl Probe for Seen {
    fn see(&mut self, layer: usize, name: &'static str, values: &[f32]) {
        self.0.insert(format!("spec11.mtp{}.{name}", layer - 8), values.to_vec());
    }
}

/// Catches a block at the wrong positions, a causal mask inside it, hidden states taken after
/// instead of before a layer, a Markov head that reads the wrong token, and rings seeded or
/// filled wrongly. Logits of every draft; tokens where the golden margin is safe.
#[test]
fn drafts_equal_the_golden_ones() {
    let host = resident();
    let bytes = bytes("tiny_expect/logits.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let ids = ids();
    for regime in REGIMES {
        let m = model(&host, regime, true);
        let mut state = m.new_state(64).unwrap();
        feed(&host, &m, &mut state, &ids[..11]);
        for p in 11..16 {
            // The golden run goes on from token to token, position 15 from its own greedy one.
            feed(&host, &m, &mut state, &ids[p..p + 1]);
            let token = ids.get(p + 1).copied().unwrap_or(72);
            let mut draft = m.draft(&mut state, token).unwrap();
            host.drive(m.layout(), &kernels(), &mut draft).unwrap();
            let name = |what: &str| format!("{}.spec{p}.{what}", regime.name());
            let logits = models::machine::Step::logits(&draft);
            let near = Tolerance { relative: 0.0, absolute: 1e-3 };
            check(&file, &name("draft_logits"), logits, near);
            check(&file, &name("confidence"), draft.confidence(), near);
            if (12..15).contains(&p) {
                let all = [&[token], draft.drafted()].concat();
                check_ints(
                    &file,
                    &name("draft_ids"),
                    &all.iter().map(|&t| i64::from(t)).collect::<Vec<_>>(),
                );
            }
        }
    }
}

/// Catches an error inside a stage and names the first intermediate that is wrong.
#[test]
fn every_intermediate_of_a_draft() {
    let host = resident();
    let ids = ids();
    for regime in REGIMES {
        let bytes = bytes(&format!("tiny_expect/trace_{}.safetensors", regime.name()));
        let golden = TensorFile::parse(&bytes).unwrap();
        let m = model(&host, regime, true);
        let mut state = m.new_state(64).unwrap();
        feed(&host, &m, &mut state, &ids[..12]);
        let mut seen = Seen::default();
        let mut draft = m.draft(&mut state, ids[12]).unwrap().with_probe(&mut seen);
        host.drive(m.layout(), &kernels(), &mut draft).unwrap();
        drop(draft);
        let mut compared = 0;
        // The golden draft trace calls the output after the inverse rotation `sa_o`.
        for stage in ["spec11.mtp0", "spec11.mtp1"] {
            let rotated = seen.0.remove(&format!("{stage}.o_rot")).unwrap();
            seen.0.insert(format!("{stage}.sa_o"), rotated);
        }
        for (name, got) in seen.0.iter().filter(|(name, _)| golden.has(name)) {
            if name.ends_with("moe_indices") {
                check_ints(&golden, name, &got.iter().map(|&v| v as i64).collect::<Vec<_>>());
            } else {
                let (shape, want) = golden.floats(name).unwrap();
                let report = compare(name, &shape, got, &want, Tolerance::BF16);
                assert!(report.passed(), "{} {report}", regime.name());
            }
            compared += 1;
        }
        assert!(compared >= 34, "{compared} intermediates of two stages");
    }
}

/// A sampler that draws one number a call, so that a call too many or too few changes everything
/// that follows.
struct Sampler(u64);

impl Sampler {
    fn choose(&mut self, logits: &[f32]) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let uniform = (self.0 >> 40) as f64 / (1u64 << 24) as f64;
        let max = logits.iter().fold(f32::NEG_INFINITY, |m, &l| m.max(l));
        let p: Vec<f64> = logits.iter().map(|&l| f64::from(elementary::exp(l - max))).collect();
        let mut left = uniform * p.iter().sum::<f64>();
        let found = p.iter().position(|p| {
            left -= p;
            left < 0.0
        });
        found.unwrap_or(p.len() - 1) as u32
    }
}

/// Decodes `count` tokens after the golden prompt, with at most `most` drafts a round.
fn decode(
    host: &Resident,
    m: &DeepSeekV41,
    count: usize,
    most: usize,
    sampled: bool,
) -> (Vec<u32>, Vec<u8>, Acceptance) {
    let k = kernels();
    let mut state = m.new_state(64).unwrap();
    let prompt = &ids()[..11];
    let logits = feed(host, m, &mut state, prompt);
    let mut sampler = Sampler(7);
    let mut pick = |logits: &[f32]| match sampled {
        true => sampler.choose(logits),
        false => argmax(logits).unwrap().unwrap(),
    };
    let mut tokens = vec![pick(&logits[10 * 384..])];
    let mut acceptance = Acceptance::default();
    while tokens.len() < count {
        let mut left = count - tokens.len();
        let last = *tokens.last().unwrap();
        let run = |step: &mut dyn models::machine::Step| host.drive(m.layout(), &k, step);
        let choose = |logits: &[f32]| {
            left -= 1;
            Ok::<_, HostError>(Choice { token: pick(logits), last: left == 0 })
        };
        let r = m.round(&mut state, last, most, run, choose).unwrap();
        acceptance.add(&r);
        tokens.extend(&r.tokens);
    }
    assert_eq!(m.position(&state), 11 + count - 1);
    // The rings depend on when drafts were made; the backbone's state must not.
    let mut plain = m.save(&state, "d").write();
    let cut = plain.windows(4).position(|w| w == b"mtp.").unwrap_or(plain.len());
    plain.truncate(cut);
    (tokens, plain, acceptance)
}

/// Catches drafts that change the output: greedy and sampled, with one to three drafts a round;
/// also that some are accepted, so that the comparison is one.
#[test]
fn speculation_on_and_off_give_the_same_tokens() {
    let host = resident();
    let mut accepted = 0;
    for regime in REGIMES {
        let m = model(&host, regime, true);
        for sampled in [false, true] {
            let (want, _, none) = decode(&host, &m, 20, 0, sampled);
            assert_eq!(none.drafted, 0);
            for most in 1..=3 {
                let (got, _, acceptance) = decode(&host, &m, 20, most, sampled);
                assert_eq!(got, want, "{} {most} drafts, sampled: {sampled}", regime.name());
                assert!(acceptance.drafted > 10);
                accepted += acceptance.accepted;
                testkit::note(format_args!(
                    "{} sampled: {sampled}, {most} drafts a round: {} of {} accepted ({:?})",
                    regime.name(),
                    acceptance.accepted,
                    acceptance.drafted,
                    acceptance.rate()
                ));
            }
        }
    }
    assert!(accepted > 10, "{accepted} drafts accepted");
}

/// Catches a commit of part of a step that leaves something of the rest: after every possible
/// prefix the state goes on like one that never saw the others.
#[test]
fn a_committed_prefix_is_as_if_the_rest_had_not_been() {
    let host = resident();
    let m = model(&host, Regime::W8a8, true);
    let ids = ids();
    for start in [0, 1, 6, 9] {
        for keep in 0..=5 {
            let mut plain = m.new_state(64).unwrap();
            let mut state = m.new_state(64).unwrap();
            if start > 0 {
                feed(&host, &m, &mut plain, &ids[..start]);
                feed(&host, &m, &mut state, &ids[..start]);
            }
            if keep > 0 {
                feed(&host, &m, &mut plain, &ids[start..start + keep]);
            }
            let tokens = &ids[start..start + 5];
            let chunk = models::machine::Chunk {
                state: &mut state,
                tokens,
                logits: models::machine::Logits::All,
            };
            let mut step = m.step(vec![chunk]).unwrap().hold();
            host.drive(m.layout(), &kernels(), &mut step).unwrap();
            step.commit(&[keep]).unwrap();
            assert!(
                m.save(&state, "").write() == m.save(&plain, "").write(),
                "{keep} of 5 after {start}"
            );
        }
    }
}

/// Catches a failing read in the middle of a draft or a verification that leaves a trace, and
/// misuse that is not refused.
#[test]
fn failures_leave_the_state_alone_and_misuse_is_refused() {
    let mut host = resident();
    let m = model(&host, Regime::W8a8, true);
    let k = kernels();
    let mut state = m.new_state(20).unwrap();
    assert_eq!(m.draft(&mut state, 5).map(|_| ()), Err(StepError::Empty));
    feed(&host, &m, &mut state, &ids()[..11]);
    let before = m.save(&state, "").write();
    for fail_at in 0..12 {
        host.habits.fail_at = Some(fail_at);
        let mut draft = m.draft(&mut state, 303).unwrap();
        if host.drive(m.layout(), &k, &mut draft).is_err() {
            assert!(m.save(&state, "").write() == before, "read {fail_at}");
        }
    }
    host.habits.fail_at = None;
    assert!(matches!(m.draft(&mut state, 384), Err(StepError::Token { .. })));
    let plain = model(&host, Regime::W8a8, false);
    assert!(matches!(plain.draft(&mut state, 3), Err(StepError::State { .. })));
    let chunk = models::machine::Chunk {
        state: &mut state,
        tokens: &[1, 2],
        logits: models::machine::Logits::None,
    };
    let step = m.step(vec![chunk]).unwrap().hold();
    assert!(step.commit(&[1]).is_err(), "a commit before the end");
    // Close to the end of the context, fewer drafts are verified and none at the last position.
    let run = |step: &mut dyn models::machine::Step| host.drive(m.layout(), &k, step);
    let mut tokens = vec![303];
    while m.position(&state) < 20 {
        let r = m.round(&mut state, *tokens.last().unwrap(), 9, run, |l: &[f32]| {
            Ok::<_, HostError>(Choice { token: argmax(l).unwrap().unwrap(), last: false })
        });
        tokens.extend(r.unwrap().tokens);
    }
    assert_eq!(tokens[..6], [303, 324, 15, 140, 346, 72]);
}
