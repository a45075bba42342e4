//! What must not change a bit of the result: threads, backend, order of experts, pieces of the
//! head, other sequences in the step, a pause, a saved state. And what must leave no trace: a
//! step that fails.

mod ds41_common;

use ds41_common::tiny::{ids, model, resident};
use models::deepseek_v41::{DeepSeekV41, Options, Regime};
use models::machine::{Chunk, Fed, Logits, Model, Part, SnapshotError, Step, StepError, Want};
use numerics::{Backend, Kernels};
use testkit::host::{Habits, HostError, Resident};

fn kernels() -> Kernels {
    Kernels::new(Backend::detect(), 2)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn plain(host: &Resident, m: &DeepSeekV41, tokens: &[u32]) -> Vec<u32> {
    let mut state = m.new_state(64).unwrap();
    bits(&host.logits(m, &kernels(), &mut state, tokens, tokens.len()).unwrap())
}

/// Catches a kernel or a split of work that changes a sum.
#[test]
fn threads_and_backends() {
    let host = resident();
    let m = model(&host, Regime::W8a8, false);
    let want = plain(&host, &m, &ids());
    for backend in Backend::supported() {
        for threads in [1, 3] {
            let k = Kernels::new(backend, threads);
            let mut state = m.new_state(64).unwrap();
            let got = host.logits(&m, &k, &mut state, &ids(), 16).unwrap();
            assert_eq!(bits(&got), want, "{} with {threads} threads", backend.name());
        }
    }
}

/// Catches outputs that are added as they arrive, and a head that depends on its pieces.
#[test]
fn order_of_experts_and_pieces_of_the_head() {
    let mut host = resident();
    let m = model(&host, Regime::W8a8, false);
    let want = plain(&host, &m, &ids());
    for (seed, rows) in [(1, 1), (2, 7), (3, 383)] {
        host.habits = Habits { shuffle: Some(seed), head_rows: Some(rows), fail_at: None };
        let mut state = m.new_state(64).unwrap();
        let got = host.logits(&m, &kernels(), &mut state, &ids(), 16).unwrap();
        assert_eq!(bits(&got), want, "seed {seed}, {rows} rows");
    }
}

/// Catches sequences that see each other: three of different lengths and positions in lockstep,
/// each as if alone.
#[test]
fn other_sequences_in_the_step() {
    let host = resident();
    let k = kernels();
    for regime in [Regime::Bf16, Regime::W8a8] {
        let m = model(&host, regime, true);
        let all = ids();
        let texts: [&[u32]; 3] = [&all[..13], &all[3..16], &all[..9]];
        let wants = texts.map(|t| plain(&host, &m, t));
        let mut states = [(); 3].map(|()| m.new_state(64).unwrap());
        let mut got: [Vec<u32>; 3] = Default::default();
        let mut done = [0; 3];
        for lengths in [[5, 1, 0], [1, 7, 2], [7, 5, 7]] {
            let mut chunks = Vec::new();
            for (i, state) in states.iter_mut().enumerate() {
                if lengths[i] > 0 {
                    let tokens = &texts[i][done[i]..done[i] + lengths[i]];
                    chunks.push(Chunk { state, tokens, logits: Logits::All });
                }
            }
            let logits = host.feed(&m, &k, m.step(chunks).unwrap()).unwrap();
            let mut rows = logits.chunks(384);
            for i in 0..3 {
                (0..lengths[i]).for_each(|_| got[i].extend(bits(rows.next().unwrap())));
                done[i] += lengths[i];
            }
        }
        assert!(got == wants, "{}", regime.name());
    }
}

/// Catches logits at the wrong positions when only some are wanted.
#[test]
fn logits_only_where_they_are_wanted() {
    let host = resident();
    let m = model(&host, Regime::W8a8, false);
    let want = plain(&host, &m, &ids());
    let mut states = [(); 2].map(|()| m.new_state(64).unwrap());
    let all = ids();
    let [a, b] = &mut states;
    let chunks = vec![
        Chunk { state: a, tokens: &all[..7], logits: Logits::None },
        Chunk { state: b, tokens: &all[..12], logits: Logits::Last },
    ];
    let got = host.feed(&m, &kernels(), m.step(chunks).unwrap()).unwrap();
    assert_eq!(bits(&got), want[11 * 384..12 * 384]);
    let chunk = Chunk { state: &mut states[0], tokens: &all[7..8], logits: Logits::None };
    assert!(host.feed(&m, &kernels(), m.step(vec![chunk]).unwrap()).unwrap().is_empty());
    assert_eq!(m.position(&states[0]), 8);
}

/// Catches anything a saved state forgets: saved after every position, restored, gone on with.
#[test]
fn saved_and_restored_at_every_position() {
    let host = resident();
    let all = ids();
    for drafts in [false, true] {
        let m = model(&host, Regime::W8a8, drafts);
        let want = plain(&host, &m, &all);
        let mut state = m.new_state(64).unwrap();
        let mut got = Vec::new();
        for token in &all {
            let saved = m.save(&state, "digest").write();
            state = m.restore(&saved, "digest", 64).unwrap();
            assert!(m.save(&state, "digest").write() == saved);
            got.extend(bits(&host.logits(&m, &kernels(), &mut state, &[*token], 1).unwrap()));
        }
        assert_eq!(got, want);
    }
}

/// Catches a damaged or foreign state that is taken, and panics on any of them.
#[test]
fn foreign_and_damaged_states_are_refused() {
    let host = resident();
    let m = model(&host, Regime::W8a8, true);
    let mut state = m.new_state(64).unwrap();
    host.logits(&m, &kernels(), &mut state, &ids(), 16).unwrap();
    let saved = m.save(&state, "digest").write();
    let differs = |r: Result<_, SnapshotError>| matches!(r, Err(SnapshotError::Differs { .. }));
    assert!(differs(m.restore(&saved, "other", 64).map(|_| ())));
    assert!(differs(model(&host, Regime::Bf16, true).restore(&saved, "digest", 64).map(|_| ())));
    assert!(differs(model(&host, Regime::W8a8, false).restore(&saved, "digest", 64).map(|_| ())));
    let short = m.restore(&saved, "digest", 15).map(|_| ());
    assert!(matches!(short, Err(SnapshotError::Context { position: 16, context: 15 })));
    assert!(m.restore(&saved, "digest", 65).is_err(), "beyond the model's positions");
    for cut in (0..saved.len()).step_by(97) {
        assert!(m.restore(&saved[..cut], "digest", 64).is_err(), "cut at {cut}");
    }
    let header = 8 + u64::from_le_bytes(saved[..8].try_into().unwrap()) as usize;
    for at in (8..header).step_by(5) {
        let mut bad = saved.clone();
        bad[at] ^= 1;
        // Refused, or something that does not matter was hit; never a panic.
        if let Ok(state) = m.restore(&bad, "digest", 64) {
            assert_eq!(m.position(&state), 16, "byte {at}");
        }
    }
    let mut other = model(&host, Regime::Bf16, true).new_state(64).unwrap();
    let chunk = Chunk { state: &mut other, tokens: &[1], logits: Logits::None };
    assert!(matches!(m.step(vec![chunk]), Err(StepError::State { .. })));
}

/// Catches a step that fails and leaves part of itself in a state: every read failing once.
#[test]
fn a_failing_read_leaves_the_state_as_it_was() {
    let mut host = resident();
    let m = model(&host, Regime::W8a8, true);
    let mut state = m.new_state(64).unwrap();
    host.logits(&m, &kernels(), &mut state, &ids()[..9], 9).unwrap();
    let before = m.save(&state, "").write();
    let mut reads = 0;
    loop {
        host.habits.fail_at = Some(reads);
        let result = host.logits(&m, &kernels(), &mut state, &ids()[9..12], 3);
        if result.is_ok() {
            break;
        }
        assert_eq!(result, Err(HostError::Fault(reads)));
        assert!(m.save(&state, "").write() == before, "read {reads}");
        reads += 1;
    }
    assert!(reads > 40, "{reads} reads");
    assert!(m.save(&state, "").write() != before);
}

/// Catches a machine that asks in another order than its host may rely on, or asks again for
/// what it has: rows first and known before any weight; every layer twice; the head last.
#[test]
fn order_of_wants() {
    let host = resident();
    let m = model(&host, Regime::W8a8, false);
    let k = kernels();
    let mut state = m.new_state(64).unwrap();
    let tokens = ids();
    let chunk = Chunk { state: &mut state, tokens: &tokens[..4], logits: Logits::Last };
    let step = m.step(vec![chunk]).unwrap();
    // Table 0 holds the tokens, the others the engram rows the ids alone decide.
    let mut distinct: Vec<u64> = tokens[..4].iter().map(|&t| u64::from(t)).collect();
    distinct.sort_unstable();
    assert_eq!(step.want(), Some(Want::Rows { table: 0, ids: &distinct }));
    assert_eq!(step.upcoming().layers, 0..8);
    assert!(step.upcoming().head);
    let mut rows: Vec<u64> = m.engram_rows(0, &tokens[..4]).concat();
    rows.sort_unstable();
    rows.dedup();
    let step = std::cell::RefCell::new(step);
    let feed_rows = |table: usize| {
        let ids = match step.borrow().want() {
            Some(Want::Rows { table: t, ids }) if t == table => ids.to_vec(),
            other => panic!("{other:?}"),
        };
        let specs = &m.layout().tables[table].tensors;
        let bytes: Vec<Vec<u8>> =
            ids.iter().flat_map(|_| specs.iter().map(|s| vec![0x30; s.row_bytes()])).collect();
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        step.borrow_mut().feed(&k, Fed::Rows { rows: &slices }).unwrap();
        ids
    };
    feed_rows(0);
    assert_eq!(feed_rows(1), rows);
    feed_rows(2);
    assert_eq!(step.borrow().want(), Some(Want::Layer { layer: 0, part: Part::Mix }));
    assert_eq!(step.borrow().upcoming().layers, 1..8);
}

/// Catches panics and silent acceptance of what was not asked for or is damaged: each refusal
/// names the block or the tensor.
#[test]
fn what_is_fed_is_checked() {
    let mut host = resident();
    let m = model(&host, Regime::W8a8, false);
    let run = |host: &Resident| {
        let mut state = m.new_state(64).unwrap();
        host.logits(&m, &kernels(), &mut state, &ids(), 16)
    };
    for name in [
        "layers.3.attn.wq_b.scale",
        "layers.0.attn.wo_a.scale",
        "layers.5.ffn.shared_experts.w2.scale",
        "layers.2.attn.indexer.wq_b.scale",
        "layers.1.engram.wkv.scale",
    ] {
        let old = host.bytes_mut(name).clone();
        host.bytes_mut(name)[1] = 255;
        let want = StepError::NanScale { name: name.to_owned(), index: 1 };
        assert_eq!(run(&host), Err(HostError::Step(want)));
        host.bytes_mut(name).pop();
        assert!(
            matches!(run(&host), Err(HostError::Step(StepError::Bytes { name: n, .. })) if n == name)
        );
        *host.bytes_mut(name) = old;
    }
    let rows = host.bytes_mut("layers.1.engram.embed.scale").clone();
    host.bytes_mut("layers.1.engram.embed.scale").fill(255);
    assert!(
        matches!(run(&host), Err(HostError::Step(StepError::NanScale { name, .. })) if name == "layers.1.engram.embed.scale")
    );
    *host.bytes_mut("layers.1.engram.embed.scale") = rows;
    for expert in 0..6 {
        host.bytes_mut(&format!("layers.4.ffn.experts.{expert}.w3.scale")).fill(255);
    }
    assert!(
        matches!(run(&host), Err(HostError::Step(StepError::NanScale { name, index: 0 })) if name.starts_with("layers.4.ffn.experts.") && name.ends_with(".w3.scale"))
    );
    let mut host = resident();
    // A NaN code (not scale) in a weight reaches the numbers and is found where it first shows.
    host.bytes_mut("layers.2.attn.wo_b.weight")[7] = 0x7F;
    let error = run(&host).unwrap_err();
    assert!(matches!(error, HostError::Step(StepError::NonFinite { layer: 2, .. })), "{error}");
    let mut host = resident();
    host.bytes_mut("norm.weight")[..2].copy_from_slice(&0x7FC0u16.to_le_bytes());
    let error = run(&host).unwrap_err();
    assert!(matches!(error, HostError::Step(StepError::NonFinite { layer: 8, .. })), "{error}");

    let mut state = m.new_state(4).unwrap();
    let chunk = Chunk { state: &mut state, tokens: &[384], logits: Logits::None };
    assert!(matches!(m.step(vec![chunk]), Err(StepError::Token { id: 384, vocab: 384 })));
    let chunk = Chunk { state: &mut state, tokens: &[1; 5], logits: Logits::None };
    assert!(matches!(m.step(vec![chunk]), Err(StepError::Context { needed: 5, context: 4 })));
    let chunk = Chunk { state: &mut state, tokens: &[], logits: Logits::None };
    assert!(matches!(m.step(vec![chunk]), Err(StepError::Empty)));
    assert!(matches!(m.step(vec![]), Err(StepError::Empty)));
    assert!(m.new_state(65).is_err(), "more positions than the model has");
    let chunk = Chunk { state: &mut state, tokens: &[1], logits: Logits::None };
    let mut step = m.step(vec![chunk]).unwrap();
    assert!(matches!(
        step.feed(&kernels(), Fed::Layer { tensors: &[] }),
        Err(StepError::Unexpected { .. })
    ));
    assert_eq!(step.feed(&kernels(), Fed::Rows { rows: &[] }), Err(StepError::Failed));
}

/// Catches a synthetic checkpoint that is not the model's graph or blows up: bound, run in two
/// ways to the same finite logits, and different for another seed.
#[test]
fn synthetic_checkpoints_run() {
    let config = testkit::deepseek_v41::preset("tiny").unwrap();
    let parsed = models::deepseek_v41::Config::from_json(config.to_string().as_bytes()).unwrap();
    let run = |seed: u64, chunk: usize| {
        let host = Resident::new(&testkit::deepseek_v41::checkpoint(&config, seed));
        let options = Options { regime: Regime::W8a8, drafts: true };
        let map = ds41_common::tiny::token_map();
        let m = DeepSeekV41::bind(parsed.clone(), options, map, host.lookup()).unwrap();
        let mut state = m.new_state(64).unwrap();
        bits(&host.logits(&m, &kernels(), &mut state, &ids(), chunk).unwrap())
    };
    let logits = run(1, 16);
    assert_eq!(logits, run(1, 5));
    assert_ne!(logits, run(2, 16));
    let largest = logits.iter().map(|&b| f32::from_bits(b).abs()).fold(0.0, f32::max);
    assert!((0.5..100.0).contains(&largest), "{largest}");
}
