//! Kimi K3 gives the same bits however it is run, and refuses to run on what is damaged. The
//! model is synthetic, with the released graph, names and formats (bf16 and MXFP4).

use models::kimi_k3::{BindError, Config, KimiK3, State};
use models::machine::{Chunk, Fed, Logits, Model, Part, SnapshotError, Step, StepError, Want};
use numerics::{Backend, Kernels};
use testkit::host::{Habits, HostError, Resident};
use testkit::k3::Shape;

const SEED: u64 = 11;
const CONTEXT: usize = 128;

fn model() -> (KimiK3, Resident) {
    model_of(Shape::tiny())
}

fn model_of(shape: Shape) -> (KimiK3, Resident) {
    let checkpoint = shape.checkpoint(SEED);
    let host = Resident::new(&checkpoint);
    let config = Config::parse(checkpoint.config.as_bytes()).unwrap();
    (KimiK3::bind(config, host.lookup()).unwrap(), host)
}

fn kernels() -> Kernels {
    Kernels::new(Backend::detect(), 2)
}

/// A prompt of a seed.
fn tokens(seed: u64, n: usize) -> Vec<u32> {
    (0..n as u64).map(|i| (testkit::random::hash(seed, i) % 320) as u32).collect()
}

/// Logits of every position of one sequence, fed in chunks.
fn run(model: &KimiK3, host: &Resident, k: &Kernels, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut state = model.new_state(CONTEXT).unwrap();
    host.logits(model, k, &mut state, tokens, chunk).unwrap()
}

/// Bitwise: `==` on floats would let -0.0 pass for 0.0.
#[track_caller]
fn same(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let differs = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "{what}: first logit that differs");
}

/// Catches: a kernel or a thread split that changes a sum.
#[test]
fn backends_and_threads() {
    let (model, host) = model();
    let tokens = tokens(1, 20);
    let want = run(&model, &host, &Kernels::new(Backend::scalar(), 1), &tokens, 20);
    assert!(want.iter().any(|l| l.abs() > 0.1), "the model says something");
    for backend in Backend::supported() {
        for threads in [1, 2, 3, 8] {
            let k = Kernels::new(backend, threads);
            let got = run(&model, &host, &k, &tokens, 20);
            same(&got, &want, &format!("{} with {threads} threads", backend.name()));
        }
    }
}

/// Catches: history, cache or recurrence that treats a chunk's border as a beginning.
#[test]
fn prefill_in_chunks_decode_and_recompute() {
    let (model, host) = model();
    let k = kernels();
    let tokens = tokens(2, 70);
    let want = run(&model, &host, &k, &tokens, 70);
    for chunk in [1, 2, 7, 64] {
        same(&run(&model, &host, &k, &tokens, chunk), &want, &format!("chunks of {chunk}"));
    }
    // Recompute of every prefix: the last position's logits are those of the long run.
    for n in [1, 2, 3, 33, 69] {
        let got = run(&model, &host, &k, &tokens[..n], n);
        same(&got, &want[..n * model.vocab()], &format!("prefix of {n}"));
    }
}

/// Catches: a block of attention queries that ends within a position (1024 queries are no
/// multiple of three heads), or sees rows its queries may not see.
#[test]
fn a_prefill_longer_than_a_block_of_queries() {
    let (model, host) =
        model_of(Shape { heads: 3, layers: 5, full_attention: vec![2, 5], ..Shape::tiny() });
    let k = kernels();
    let tokens = tokens(10, 380);
    let run = |chunk: usize| {
        let mut state = model.new_state(tokens.len()).unwrap();
        host.logits(&model, &k, &mut state, &tokens, chunk).unwrap()
    };
    let want = run(1);
    same(&run(380), &want, "all at once");
    same(&run(350), &want, "a block and the rest");
}

/// Catches: sequences of one step that see each other, at different lengths and positions.
#[test]
fn batch_of_five() {
    let (model, host) = model();
    let k = kernels();
    let all: Vec<Vec<u32>> = (0..5).map(|i| tokens(30 + i, 12 + 5 * i as usize)).collect();
    let want: Vec<Vec<f32>> = all.iter().map(|t| run(&model, &host, &k, t, t.len())).collect();
    let mut states: Vec<State> = (0..5).map(|_| model.new_state(CONTEXT).unwrap()).collect();
    let mut got: Vec<Vec<f32>> = vec![Vec::new(); 5];
    let mut at = [0; 5];
    for round in 0.. {
        let mut chunks = Vec::new();
        let mut who = Vec::new();
        for (i, state) in states.iter_mut().enumerate() {
            // One to four tokens each, so that the sequences drift apart.
            let n = (1 + (round + i) % 4).min(all[i].len() - at[i]);
            if n > 0 {
                chunks.push(Chunk {
                    state,
                    tokens: &all[i][at[i]..at[i] + n],
                    logits: Logits::All,
                });
                who.push((i, n));
                at[i] += n;
            }
        }
        if chunks.is_empty() {
            break;
        }
        let logits = host.feed(&model, &k, model.step(chunks).unwrap()).unwrap();
        let mut rest = &logits[..];
        for (i, n) in who {
            let (mine, others) = rest.split_at(n * model.vocab());
            got[i].extend(mine);
            rest = others;
        }
        assert!(rest.is_empty());
    }
    for i in 0..5 {
        same(&got[i], &want[i], &format!("sequence {i}"));
    }
}

/// Catches: sums in the order of arrival, rows of the head counted wrong.
#[test]
fn experts_in_any_order_and_the_head_in_pieces() {
    let (model, mut host) = model();
    let k = kernels();
    let tokens = tokens(3, 20);
    let want = run(&model, &host, &k, &tokens, 10);
    for seed in 0..4 {
        host.habits = Habits {
            shuffle: Some(seed),
            head_rows: Some(1 + 77 * seed as usize),
            ..Habits::default()
        };
        same(&run(&model, &host, &k, &tokens, 10), &want, &format!("order {seed}"));
    }
}

/// Catches: a position without logits that is computed otherwise, logits of the wrong position.
#[test]
fn logits_only_where_asked() {
    let (model, host) = model();
    let k = kernels();
    let tokens = tokens(4, 12);
    let want = run(&model, &host, &k, &tokens, 12);
    let v = model.vocab();
    let mut state = model.new_state(CONTEXT).unwrap();
    let mut take = |range: std::ops::Range<usize>, logits| {
        let chunk = Chunk { state: &mut state, tokens: &tokens[range], logits };
        host.feed(&model, &k, model.step(vec![chunk]).unwrap()).unwrap()
    };
    same(&take(0..5, Logits::None), &[], "none");
    same(&take(5..9, Logits::Last), &want[8 * v..9 * v], "last");
    same(&take(9..12, Logits::All), &want[9 * v..], "all");
}

/// Catches: weights read for nobody. Without logits nothing is wanted after the last attention.
#[test]
fn a_step_without_logits_ends_early() {
    let (model, host) = model();
    let k = kernels();
    let mut state = model.new_state(CONTEXT).unwrap();
    let mut wants = |logits| {
        let chunk = Chunk { state: &mut state, tokens: &[1, 2, 3], logits };
        let mut step = model.step(vec![chunk]).unwrap();
        let mut wants = Vec::new();
        host.drive_watched(model.layout(), &k, &mut step, |want| wants.push(want)).unwrap();
        wants
    };
    assert!(wants(Logits::None).last().unwrap().starts_with("Mix"));
    let all = wants(Logits::Last);
    assert_eq!(all.last().unwrap(), "the head");
    // One row goes on in the last layer: exactly top_k experts.
    let after = all.iter().rposition(|w| w.starts_with("Rest")).unwrap();
    assert_eq!(all[after + 1..].iter().filter(|w| *w == "an expert").count(), 3);
}

/// Catches: anything a state forgets.
#[test]
fn save_and_resume_at_every_token() {
    let (model, host) = model();
    let k = kernels();
    let tokens = tokens(5, 16);
    let want = run(&model, &host, &k, &tokens, 16);
    let v = model.vocab();
    let mut state = model.new_state(CONTEXT).unwrap();
    for (i, token) in tokens.iter().enumerate() {
        let saved = model.save(&state, "digest").write();
        state = model.restore(&saved, "digest", CONTEXT).unwrap();
        assert_eq!(model.position(&state), i);
        assert_eq!(model.save(&state, "digest").write(), saved, "saved again at {i}");
        let got = host.logits(&model, &k, &mut state, &[*token], 1).unwrap();
        same(&got, &want[i * v..(i + 1) * v], &format!("after resuming at {i}"));
    }
}

/// Catches: a state half changed by a step that did not end.
#[test]
fn a_failed_read_leaves_the_state_untouched() {
    let (model, mut host) = model();
    let k = kernels();
    let tokens = tokens(6, 8);
    let want = run(&model, &host, &k, &tokens, 8);
    let v = model.vocab();
    let mut state = model.new_state(CONTEXT).unwrap();
    host.logits(&model, &k, &mut state, &tokens[..5], 5).unwrap();
    let before = model.save(&state, "").write();
    for read in 0.. {
        host.habits.fail_at = Some(read);
        match host.logits(&model, &k, &mut state, &tokens[5..], 3) {
            Err(e) => assert_eq!(e, HostError::Fault(read)),
            Ok(got) => {
                assert!(read > 13 * 3, "every read was failed once");
                same(&got, &want[5 * v..], "after all the failures");
                break;
            }
        }
        assert!(model.save(&state, "").write() == before, "read {read} left a trace");
    }
}

#[test]
fn a_nan_weight_names_its_layer() {
    let (model, host) = model();
    let k = kernels();
    let prefix = "language_model.model.layers";
    for (layer, name, part) in [
        (0, "mlp.down_proj.weight", "output"),
        (1, "self_attn.f_a_proj.weight", "attention"),
        (3, "self_attn.kv_b_proj.weight", "attention"),
        (5, "self_attn.q_conv1d.weight", "attention"),
        (7, "block_sparse_moe.gate.weight", "router"),
        (8, "mlp_res_norm.weight", "router"),
        (9, "block_sparse_moe.routed_expert_up_proj.weight", "output"),
        (12, "self_attn.o_proj.weight", "attention"),
    ] {
        let mut bad = host.clone();
        let bytes = bad.bytes_mut(&format!("{prefix}.{layer}.{name}"));
        // A NaN in bf16, and the upper half of a NaN in f32.
        bytes[2..4].copy_from_slice(&[0xc0, 0x7f]);
        let mut state = model.new_state(CONTEXT).unwrap();
        let e = bad.logits(&model, &k, &mut state, &tokens(7, 4), 4).unwrap_err();
        match &e {
            HostError::Step(StepError::NonFinite { layer: l, what, .. }) => {
                assert!(*l == layer && what.contains(part), "{name}: {e}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert!(e.to_string().contains(&format!("layer {layer}")), "{e}");
        assert_eq!(model.position(&state), 0);
    }
    // In the head it is a logit, and an error, never a pick.
    let mut bad = host.clone();
    bad.bytes_mut("language_model.lm_head.weight")[2 * 96 * 17..][..2]
        .copy_from_slice(&[0xc0, 0x7f]);
    let mut state = model.new_state(CONTEXT).unwrap();
    let e = bad.logits(&model, &k, &mut state, &[1], 1).unwrap_err();
    assert_eq!(e, HostError::Step(StepError::Logit { token: 17, position: 0 }));
}

/// Catches: `A_log` read per channel. The released tensor has head_dim values of which the
/// first `heads` count, one a head.
#[test]
fn padding_of_a_log_is_not_read() {
    let (model, mut host) = model();
    let k = kernels();
    let tokens = tokens(9, 6);
    let want = run(&model, &host, &k, &tokens, 6);
    let name = "language_model.model.layers.1.self_attn.A_log";
    host.bytes_mut(name)[4 * 3..].fill(0xff);
    same(&run(&model, &host, &k, &tokens, 6), &want, "NaN in the padding");
    host.bytes_mut(name)[4 * 2..4 * 3].copy_from_slice(&0.25f32.to_le_bytes());
    assert_ne!(run(&model, &host, &k, &tokens, 6), want, "the last head's value counts");
}

#[test]
fn a_checkpoint_is_refused_by_name() {
    let (_, host) = model();
    let config = || Config::parse(Shape::tiny().config().as_bytes()).unwrap();
    let expert = "language_model.model.layers.6.block_sparse_moe.experts.7.w2.weight_scale";

    let mut bad = host.clone();
    bad.remove(expert);
    let e = KimiK3::bind(config(), bad.lookup()).unwrap_err();
    assert!(matches!(&e, BindError::Missing { name, .. } if name == expert), "{e}");

    let mut bad = host.clone();
    bad.insert(expert, "U8", &[64, 2], vec![0; 128]);
    let e = KimiK3::bind(config(), bad.lookup()).unwrap_err();
    assert!(matches!(&e, BindError::Mismatch { name, .. } if name == expert), "{e}");

    let norm = "language_model.model.norm.weight";
    let mut bad = host.clone();
    bad.insert(norm, "F16", &[96], vec![0; 192]);
    let e = KimiK3::bind(config(), bad.lookup()).unwrap_err().to_string();
    assert!(e.contains(norm) && e.contains("F16"), "{e}");

    // One wrong layer index, inside the range: the layer then lacks the other kind's tensors.
    let text = Shape::tiny().config().replace("[4, 8, 12, 13]", "[4, 9, 12, 13]");
    let config = Config::parse(text.as_bytes()).unwrap();
    let e = KimiK3::bind(config, host.lookup()).unwrap_err().to_string();
    assert!(e.contains("layers.7.self_attn") && e.contains("missing"), "{e}");
}

#[test]
fn a_state_of_something_else_is_refused() {
    let (model, host) = model();
    let k = kernels();
    let mut state = model.new_state(CONTEXT).unwrap();
    host.logits(&model, &k, &mut state, &tokens(8, 6), 6).unwrap();
    let saved = model.save(&state, "digest A").write();

    let e = model.restore(&saved, "digest B", CONTEXT).unwrap_err().to_string();
    assert!(e.contains("digest A") && e.contains("digest B"), "{e}");
    let e = model.restore(&saved, "digest A", 5).unwrap_err();
    assert_eq!(e, SnapshotError::Context { position: 6, context: 5 });
    assert!(model.restore(&saved[..saved.len() - 1], "digest A", CONTEXT).is_err());

    // The same weights under another epsilon are other arithmetic.
    let config = Config { mla_eps: 1e-5, ..model.config().clone() };
    let other = KimiK3::bind(config, host.lookup()).unwrap();
    assert_ne!(other.numerics_id(), model.numerics_id());
    let e = other.restore(&saved, "digest A", CONTEXT).unwrap_err().to_string();
    assert!(e.contains("numerics"), "{e}");
    let chunk = Chunk { state: &mut state, tokens: &[1], logits: Logits::Last };
    assert!(matches!(other.step(vec![chunk]), Err(StepError::State { .. })));

    // A model of other dimensions.
    let shape = Shape { kv_lora: 25, ..Shape::tiny() };
    let checkpoint = shape.checkpoint(SEED);
    let config = Config::parse(checkpoint.config.as_bytes()).unwrap();
    let other = KimiK3::bind(config, Resident::new(&checkpoint).lookup()).unwrap();
    assert!(matches!(other.restore(&saved, "digest A", CONTEXT), Err(SnapshotError::Damaged(_))));
}

#[test]
fn bad_steps_and_feeds_are_refused() {
    let (model, _) = model();
    let k = kernels();
    let mut state = model.new_state(4).unwrap();
    let mut refuse = |tokens: &[u32]| {
        let chunk = Chunk { state: &mut state, tokens, logits: Logits::Last };
        model.step(vec![chunk]).expect_err("refused")
    };
    assert_eq!(refuse(&[]), StepError::Empty);
    assert_eq!(refuse(&[1, 320]), StepError::Token { id: 320, vocab: 320 });
    assert_eq!(refuse(&[1; 5]), StepError::Context { needed: 5, context: 4 });
    assert_eq!(model.step(vec![]).err(), Some(StepError::Empty));
    assert!(model.new_state(usize::MAX).is_err());

    let mut begin = |fed: &[Fed<'_>]| {
        let chunk = Chunk { state: &mut state, tokens: &[3, 1, 3], logits: Logits::Last };
        let mut step = model.step(vec![chunk]).unwrap();
        assert_eq!(step.want(), Some(Want::Rows { table: 0, ids: &[1, 3] }));
        let mut last = Ok(());
        for fed in fed {
            last = step.feed(&k, *fed);
        }
        assert!(last.is_err() && step.want().is_none());
        last.unwrap_err().to_string()
    };
    let row = [0u8; 192];
    let rows: &[&[u8]] = &[&row, &row];
    assert!(begin(&[Fed::Layer { tensors: &[] }]).contains("wants rows now and was fed a layer"));
    assert!(begin(&[Fed::Rows { rows: &rows[..1] }]).contains("expected 2 pieces, got 1"));
    assert!(
        begin(&[Fed::Rows { rows: &[&row, &row[1..]] }]).contains("expected 192 bytes, got 191")
    );
    let layer = Fed::Layer { tensors: &rows[..1] };
    assert!(begin(&[Fed::Rows { rows }, layer]).contains("layer 0: expected 23 pieces, got 1"));
    assert!(begin(&[Fed::Rows { rows }, layer, layer]).contains("already failed"));
}

/// Catches: a forecast a host could not trust.
#[test]
fn upcoming_says_what_will_be_wanted() {
    let (model, host) = model();
    let k = kernels();
    let mut state = model.new_state(CONTEXT).unwrap();
    let chunk = Chunk { state: &mut state, tokens: &[5, 6, 7], logits: Logits::Last };
    let mut step = model.step(vec![chunk]).unwrap();
    let up = step.upcoming();
    assert_eq!((up.experts, up.layers, up.head), (None, 0..13, true));
    let row = host.f32s("language_model.model.embed_tokens.weight")[..96]
        .iter()
        .flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes())
        .collect::<Vec<u8>>();
    step.feed(&k, Fed::Rows { rows: &[&row, &row, &row] }).unwrap();
    let layout = model.layout();
    let mut host = host;
    for layer in 0..2 {
        let tensors: Vec<Vec<u8>> =
            layout.layer(layer).iter().map(|s| host.bytes_mut(&s.name).clone()).collect();
        let tensors: Vec<&[u8]> = tensors.iter().map(Vec::as_slice).collect();
        assert_eq!(step.want(), Some(Want::Layer { layer, part: Part::Mix }));
        assert_eq!(step.upcoming().layers, layer + 1..13);
        assert_eq!(step.upcoming().experts, None);
        step.feed(&k, Fed::Layer { tensors: &tensors }).unwrap();
        assert_eq!(step.want(), Some(Want::Layer { layer, part: Part::Rest }));
        let foreseen = step.upcoming().experts.map(|(l, ids)| (l, ids.to_vec()));
        assert_eq!(foreseen.is_some(), layer == 1);
        step.feed(&k, Fed::Layer { tensors: &tensors }).unwrap();
        if let Some((layer, ids)) = foreseen {
            assert_eq!(step.want(), Some(Want::Experts { layer, ids: &ids }));
            assert!((3..=9).contains(&ids.len()) && ids.is_sorted());
        }
    }
}
