//! The giant models' engine through its public face, on a small synthetic Kimi K3 on disk.

use std::collections::HashSet;
use std::path::Path;

use engine::giant::{
    Checkpoint, Demand, Engine, Event, FinishReason, Prepared, Request, Sampler, Sampling, Work,
    generate, layout, prepare,
};
use models::machine::Logits;
use numerics::{Backend, Kernels};
use store::Kind;
use store::io::Real;
use store::pack::{Codec, TRUNK_FILE};

const SEED: u64 = 20;

fn on_disk() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    testkit::k3::Shape::tiny().checkpoint(SEED).write(dir.path(), 1 << 20).unwrap();
    dir
}

/// Room for what the tests do; whatever memory there is.
const DEMAND: Demand = Demand {
    memory: None,
    context: 24,
    sequences: 1,
    fewer: false,
    work: (8, 16),
    chunk: Some(8),
    record: false,
    threads: 2,
};

fn load(prepared: Prepared<'_>) -> Box<dyn Engine> {
    prepared.load(Kernels::new(Backend::detect(), 2), &mut |_| ()).unwrap()
}

fn engine(dir: &Path) -> Box<dyn Engine> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let prepared = prepare(&checkpoint, Default::default(), DEMAND).unwrap();
    assert!(prepared.resident());
    load(prepared)
}

fn tokens(engine: &mut dyn Engine, prompt: &[u32], chunk: usize, n: usize) -> (Vec<u32>, Vec<u32>) {
    let sequence = engine.open(prompt.len() + n).unwrap();
    let mut sampler = Sampler::new(Sampling::GREEDY, 0).unwrap();
    let (mut ids, mut bits) = (Vec::new(), Vec::new());
    let request = Request { prompt, max_tokens: n, end: &[], chunk, drafts: 0 };
    let finish = generate(engine, sequence, &request, &mut sampler, &mut |event| {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Logits(logits) => bits.extend(logits.iter().map(|l| l.to_bits())),
            Event::Prefilled { .. } => (),
        }
        true
    });
    assert_eq!(finish.unwrap().reason, FinishReason::Length);
    engine.close(sequence);
    (ids, bits)
}

/// Catches a chunk boundary, a reused sequence slot or a lost position that changes a bit.
#[test]
fn chunks_of_the_prefill_do_not_change_a_bit() {
    let dir = on_disk();
    let mut engine = engine(dir.path());
    let prompt: Vec<u32> = (0..17).map(|i| i * 7 % 250).collect();
    let whole = tokens(&mut *engine, &prompt, 64, 6);
    for chunk in [1, 3, 16] {
        assert_eq!(tokens(&mut *engine, &prompt, chunk, 6), whole, "chunk {chunk}");
    }
}

/// Catches a state that is not whole after being saved.
#[test]
fn a_restored_sequence_goes_on_with_the_same_bits() {
    let dir = on_disk();
    let mut engine = engine(dir.path());
    let a = engine.open(8).unwrap();
    engine.step(&[Work { sequence: a, tokens: &[1, 2, 3], logits: Logits::None }]).unwrap();
    let saved = engine.save(a).write();
    let b = engine.restore(&saved, 8).unwrap();
    assert_eq!(engine.position(b), 3);
    let go = |sequence, engine: &mut dyn Engine| {
        engine.step(&[Work { sequence, tokens: &[9], logits: Logits::Last }]).unwrap().to_vec()
    };
    assert_eq!(go(a, &mut *engine), go(b, &mut *engine));
}

/// Catches a default where a file is damaged, missing or of another kind.
#[test]
fn a_directory_that_is_not_a_whole_model_is_refused_by_name() {
    let refusal = |dir: &std::path::Path| {
        let open = Checkpoint::open(dir).and_then(|c| c.kimi_k3().map(drop));
        open.unwrap_err().to_string()
    };
    let dir = on_disk();
    let config = dir.path().join("config.json");
    let good = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, good.replace("\"q_lora_rank\"", "\"q_lora\"")).unwrap();
    assert!(refusal(dir.path()).contains("q_lora_rank"), "{}", refusal(dir.path()));
    std::fs::write(&config, "{\"model_type\": \"llama\"}").unwrap();
    assert!(refusal(dir.path()).contains("llama"));
    std::fs::write(&config, "").unwrap();
    assert!(refusal(dir.path()).contains("config.json"));
    std::fs::remove_file(&config).unwrap();
    assert!(!Checkpoint::is_at(dir.path()));
    assert!(refusal(dir.path()).contains("config.json"));
}

fn pack(dir: &Path, codec: Codec) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let (disk, layout) = (Real::shared(), layout(&checkpoint).unwrap());
    let path = dir.join(TRUNK_FILE);
    store::pack::pack(&disk, checkpoint.index(), &layout, &path, codec, 2, |_| true).unwrap();
}

/// Runs at budgets from everything down to what is refused; returns how many different plans
/// there were. Every run must have the logits of `want`, bit for bit, and read what its plan says.
fn budgets(dir: &Path, prompt: &[u32], want: &(Vec<u32>, Vec<u32>)) -> usize {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let prepared = |memory| {
        prepare(&checkpoint, Default::default(), Demand { memory: Some(memory), ..DEMAND })
    };
    let most = prepared(1 << 32).unwrap().plan().total();
    let step = (most - store::plan::PROCESS) / 9;
    let (mut memory, mut plans) = (most, HashSet::new());
    loop {
        let prepared = match prepared(memory) {
            Ok(prepared) => prepared,
            Err(engine::Error::Store(e)) if e.kind() == Kind::DoesNotFit => {
                assert!(e.to_string().contains("allow at least"), "{e}");
                return plans.len();
            }
            Err(e) => panic!("{e}"),
        };
        let plan = prepared.plan().clone();
        assert!(!prepared.resident() && plan.total() <= memory);
        let mut engine = load(prepared);
        assert_eq!(tokens(&mut *engine, prompt, 3, 6), *want, "{memory} bytes: {plan}");
        bytes_are_those_of(&plan, &mut *engine);
        plans.insert((plan.pinned, plan.expert_slots));
        memory -= step;
    }
}

/// A token on its own, when all that is pinned has come in.
fn bytes_are_those_of(plan: &store::plan::Plan, engine: &mut dyn Engine) {
    let sequence = engine.open(4).unwrap();
    for token in 1..4 {
        let before = engine.counters();
        engine.step(&[Work { sequence, tokens: &[token], logits: Logits::Last }]).unwrap();
        let read = engine.counters().since(&before);
        let experts = plan.experts_per_token as u128 * u128::from(read.expert_requests);
        let missed = u128::from(read.expert_requests - read.expert_hits);
        assert_eq!(read.trunk_bytes, plan.trunk_per_token, "{plan}");
        assert_eq!(read.other_bytes, plan.rows_per_token, "{plan}");
        assert!(read.expert_requests > 0);
        let requests = u128::from(read.expert_requests);
        assert_eq!(u128::from(read.expert_bytes) * requests * requests, experts * missed, "{plan}");
    }
    engine.close(sequence);
}

/// Catches any way in which a budget, a ring slot used too early, the order in which experts
/// arrive, or a codec could change a bit; and counters or plans that are not exact.
#[test]
fn a_streamed_model_has_the_bits_of_a_resident_one() {
    let dir = on_disk();
    let prompt: Vec<u32> = (0..11).map(|i| i * 13 % 250).collect();
    let want = tokens(&mut *engine(dir.path()), &prompt, 64, 6);
    assert!(budgets(dir.path(), &prompt, &want) >= 6);
    for codec in [Codec::None, Codec::Bf16] {
        pack(dir.path(), codec);
        assert!(budgets(dir.path(), &prompt, &want) >= 4, "{codec:?}");
        std::fs::remove_file(dir.path().join(TRUNK_FILE)).unwrap();
    }
}

/// The same of the committed DeepSeek-V4.1, whose engram tables are read by row.
#[test]
fn a_streamed_deepseek_has_the_bits_of_a_resident_one() {
    let model = testkit::root().join("vectors/deepseek_v41/tiny_model");
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(model).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let prompt: Vec<u32> = (3..14).collect();
    let want = tokens(&mut *engine(dir.path()), &prompt, 64, 6);
    assert!(budgets(dir.path(), &prompt, &want) >= 4);
    pack(dir.path(), Codec::Bf16);
    assert!(budgets(dir.path(), &prompt, &want) >= 3);
}

/// Catches a step that fails and leaves the store unable to go on, or goes on with wrong bytes.
#[test]
fn after_a_refused_step_the_next_one_is_right() {
    let dir = on_disk();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let want = tokens(&mut *engine(dir.path()), &[5, 6, 7], 8, 4);
    let demand = Demand { memory: Some(store::plan::PROCESS + (2 << 20)), ..DEMAND };
    let mut engine = load(prepare(&checkpoint, Default::default(), demand).unwrap());
    let sequence = engine.open(1).unwrap();
    let too_long = Work { sequence, tokens: &[1, 2], logits: Logits::Last };
    assert!(engine.step(&[too_long]).is_err());
    assert_eq!(tokens(&mut *engine, &[5, 6, 7], 8, 4), want);
}
