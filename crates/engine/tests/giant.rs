//! The giant models' engine through its public face, on a small synthetic Kimi K3 on disk.

use engine::giant::{
    Checkpoint, Engine, Event, FinishReason, Request, Sampler, Sampling, Work, generate, open,
};
use models::machine::Logits;
use numerics::{Backend, Kernels};

const SEED: u64 = 20;

fn on_disk() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    testkit::k3::Shape::tiny().checkpoint(SEED).write(dir.path(), 1 << 20).unwrap();
    dir
}

fn engine(dir: &std::path::Path) -> Box<dyn Engine> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    open(&checkpoint, Default::default(), Kernels::new(Backend::detect(), 2), &mut |_| ()).unwrap()
}

fn tokens(engine: &mut dyn Engine, prompt: &[u32], chunk: usize, n: usize) -> (Vec<u32>, Vec<u32>) {
    let sequence = engine.open(prompt.len() + n).unwrap();
    let mut sampler = Sampler::new(Sampling::GREEDY, 0).unwrap();
    let (mut ids, mut bits) = (Vec::new(), Vec::new());
    let request = Request { prompt, max_tokens: n, end: &[], chunk };
    let finish = generate(engine, sequence, &request, &mut sampler, &mut |event| {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Logits(logits) => bits.extend(logits.iter().map(|l| l.to_bits())),
            Event::Prefilled { .. } => (),
        }
        true
    });
    assert_eq!(finish.unwrap(), FinishReason::Length);
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
    let saved = engine.save(a);
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
