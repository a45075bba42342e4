//! Every golden run, turn by turn through the public face: plan, charged work and state digest of
//! each turn, tokens, text. Catches any change of arithmetic, planning, state layout or conversion.

use fixed::arith::{Backend, Scratch};
use fixed::{Artifact, Cursor, StateInfo, init_state, output_text, output_tokens, state_size};
use testkit::fixed_goldens::{COMMITTED, Case, Goldens, SHARED, Turn, load};
use testkit::sha256;

fn check_conversion(g: &Goldens, artifact: &[u8]) {
    let digests = [&g.model.checkpoint, &g.model.tokenizer, &artifact.to_vec()].map(|b| sha256(b));
    assert_eq!(digests, g.digests, "{}: checkpoint, tokenizer, artifact", g.name);
    assert_eq!(artifact.len(), g.artifact_len);
    let m = Artifact::new(artifact).unwrap().metadata;
    assert_eq!(m.config.words(), g.config);
    let lens: Vec<u64> = (0..m.section_count()).map(|i| m.section_len(i) as u64).collect();
    assert_eq!(lens, g.section_lens);
}

fn fields(c: &Cursor) -> [u32; 8] {
    [c.phase, c.layer, c.row, c.position, c.generated, c.pass, c.stage, c.index]
}

fn check_case(g: &Goldens, case: &Case, artifact: &Artifact<'_>) {
    let at = format!("{} {}", g.name, case.name);
    let m = &artifact.metadata;
    let size = state_size(m.config, case.prompt.len(), case.max_tokens).unwrap();
    assert_eq!(size, case.state_size, "{at}");
    let mut state = vec![0xAA; size];
    let (max, temperature) = (case.max_tokens, case.temperature_q16);
    init_state(m.config, &mut state, &case.prompt, max, temperature, case.seed).unwrap();
    assert_eq!(sha256(&state), case.initial, "{at}: fresh state");

    let mut scratch = Scratch::default();
    for (i, want) in case.turns.iter().enumerate() {
        check_turn(
            &format!("{at} turn {}", i + 1),
            want,
            artifact,
            &mut state,
            &mut scratch,
            case.allowance,
        );
    }
    let info = StateInfo::read(&state).unwrap();
    assert_eq!(info.turns, case.turns.len() as u64, "{at}");
    if let Some((number, turn)) = case.error {
        assert_eq!(turn, case.turns.len() + 1, "{at}");
        let plan = fixed::planner::plan_turn_within(m.config, &state, case.allowance);
        let error = plan.and_then(|plan| {
            let sections = artifact.sections(&plan);
            let backend = Backend::detect();
            fixed::turn_with(backend, &mut scratch, m, &mut state, &sections, case.allowance)
        });
        assert_eq!(error.unwrap_err().number(), number, "{at}");
    }
    if let Some(want) = &case.output {
        assert!(info.complete, "{at}");
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes.as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect()
        };
        assert_eq!(words(output_tokens(m.config, &state)), want.tokens, "{at}");
        assert_eq!(output_text(m.config, &state), want.text, "{at}");
        assert_eq!(sha256(&state), want.state, "{at}: final state");
        let prompt_tokens = &words(&state[128 + case.prompt.len().next_multiple_of(8)..]);
        assert_eq!(prompt_tokens[..want.prompt_tokens.len()], want.prompt_tokens, "{at}");
        assert_eq!(info.prompt_tokens as usize, want.prompt_tokens.len(), "{at}");
        let quote = fixed::inference::quote_turns_within(
            m,
            &case.prompt,
            max,
            temperature,
            &mut state,
            case.allowance,
        );
        assert_eq!(quote, Ok(want.quote), "{at}");
    }
}

fn check_turn(
    at: &str,
    want: &Turn,
    artifact: &Artifact<'_>,
    state: &mut [u8],
    scratch: &mut Scratch,
    allowance: u32,
) {
    let m = &artifact.metadata;
    let plan = fixed::planner::plan_turn_within(m.config, state, allowance).unwrap();
    assert_eq!(plan.sections(), want.sections, "{at}");
    assert_eq!(plan.estimated_cu, want.estimated_cu, "{at}");
    assert_eq!(plan.max_generated, want.max_generated, "{at}");
    assert_eq!(fields(&plan.end), want.end, "{at}");
    let before = StateInfo::read(state).unwrap().generated;
    let sections = artifact.sections(&plan);
    let given = &sections[..plan.section_count];
    let result =
        fixed::turn_with(Backend::detect(), scratch, m, state, given, allowance).expect(at);
    let info = StateInfo::read(state).unwrap();
    assert_eq!(result.work, want.work, "{at}");
    assert_eq!(result.generated, want.generated, "{at}");
    assert_eq!(result.generated_this_turn, want.generated - before, "{at}");
    assert_eq!(result.complete, info.complete, "{at}");
    let last = output_tokens(m.config, state).last_chunk().map(|w| u32::from_le_bytes(*w));
    assert_eq!(result.token, last.filter(|_| want.generated > before), "{at}");
    let digest = sha256(state);
    assert_eq!(digest[..want.state.len()], want.state, "{at}: state");
}

fn check_file(name: &str) {
    let Some(g) = load(name) else {
        return testkit::skipped(name);
    };
    let bytes = g.model.artifact();
    check_conversion(&g, &bytes);
    let artifact = Artifact::new(&bytes).unwrap();
    assert!(!g.cases.is_empty());
    for case in &g.cases {
        check_case(&g, case, &artifact);
    }
}

#[test]
fn committed_models_run_as_defined() {
    for name in COMMITTED {
        check_file(name);
    }
}

#[test]
fn shared_models_run_as_defined() {
    for name in SHARED {
        check_file(name);
    }
}
