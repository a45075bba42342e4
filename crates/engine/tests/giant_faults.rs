//! Disks that fail under a streamed model: a run either has the bits of a run on a sound disk, or
//! stops with the tensor named. It never gives a wrong token.

use std::path::Path;
use std::sync::Arc;

use engine::Error;
use engine::giant::{
    Checkpoint, Demand, Engine, Event, Request, Sampler, Sampling, generate, prepare,
};
use numerics::{Backend, Kernels};
use store::Kind;
use store::io::{Action, Disk, Faulty, Op, Rule};

const PROMPT: [u32; 5] = [11, 40, 7, 7, 200];

fn on_disk() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    testkit::k3::Shape::tiny().checkpoint(3).write(dir.path(), 300_000).unwrap();
    dir
}

/// An engine that streams everything it can through `disk`.
fn engine(disk: &Faulty, dir: &Path) -> Result<Box<dyn Engine>, Error> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let checkpoint = Checkpoint::open_on(&disk, dir)?;
    let demand = Demand {
        memory: Some(store::plan::PROCESS + 1_700_000),
        context: 32,
        sequences: 1,
        fewer: false,
        work: (5, 8),
        chunk: Some(3),
        record: false,
        threads: 2,
    };
    let prepared = prepare(&checkpoint, Default::default(), demand)?;
    assert!(prepared.plan().pinned < prepared.plan().units, "{}", prepared.plan());
    prepared.load(Kernels::new(Backend::detect(), 2), &mut |_| ())
}

/// Tokens and bits of all logits up to the end or an error.
fn run(engine: &mut dyn Engine) -> (Vec<u32>, Vec<u32>, Result<(), Error>) {
    let sequence = engine.open(32).unwrap();
    let mut sampler = Sampler::new(Sampling::GREEDY, 0).unwrap();
    let (mut ids, mut bits) = (Vec::new(), Vec::new());
    let request = Request { prompt: &PROMPT, max_tokens: 8, end: &[], chunk: 3, drafts: 0 };
    let result = generate(engine, sequence, &request, &mut sampler, &mut |event| {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Logits(logits) => bits.extend(logits.iter().map(|l| l.to_bits())),
            Event::Prefilled { .. } => (),
        }
        true
    });
    engine.close(sequence);
    (ids, bits, result.map(drop))
}

fn sound(dir: &Path) -> (Vec<u32>, Vec<u32>) {
    let (ids, bits, result) = run(&mut *engine(&Faulty::default(), dir).unwrap());
    result.unwrap();
    (ids, bits)
}

/// Catches a fault that a system may show at any time and that stops a run or changes a bit.
#[test]
fn what_can_be_retried_changes_nothing() {
    let dir = on_disk();
    let want = sound(dir.path());
    for (name, rules) in [
        ("short reads", vec![Rule::new(Op::ReadDirect, Action::Short(8192))]),
        ("a byte at a time, once", vec![Rule::new(Op::ReadDirect, Action::Short(1)).nth(40)]),
        (
            "a byte at a time",
            vec![
                Rule::new(Op::OpenDirect, Action::EINVAL),
                Rule::new(Op::Read, Action::Short(1)).after(60).on("00002"),
            ],
        ),
        (
            "interrupted",
            (0..200).map(|n| Rule::new(Op::ReadDirect, Action::EINTR).nth(3 * n)).collect(),
        ),
        ("no direct reads", vec![Rule::new(Op::OpenDirect, Action::EINVAL)]),
        ("refused at the second", vec![Rule::new(Op::ReadDirect, Action::EINVAL).nth(1)]),
    ] {
        let disk = Faulty::new(rules);
        let (ids, bits, result) = run(&mut *engine(&disk, dir.path()).unwrap());
        result.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!((ids, bits) == want, "{name}");
    }
}

/// Catches a failed read that is used, retried for ever, or reported without its place; and an
/// engine that cannot go on when the disk can again.
#[test]
fn what_cannot_be_read_stops_the_run_with_the_tensor_named() {
    let dir = on_disk();
    let want = sound(dir.path());
    for (name, action, kind) in [
        ("EIO", Action::EIO, Kind::Disk),
        ("truncated in the middle of the run", Action::EndAt(50_000), Kind::ModelFile),
    ] {
        for after in [0, 5, 50] {
            let disk = Faulty::default();
            let mut engine = engine(&disk, dir.path()).unwrap();
            // Whatever has been read ahead by now is sound.
            disk.set([Rule::new(Op::ReadDirect, action).on("00003").after(after)]);
            let (ids, bits, result) = run(&mut *engine);
            let error = result.expect_err(name);
            let Error::Store(e) = &error else { panic!("{name}: {error}") };
            assert_eq!(e.kind(), kind, "{name}: {error}");
            let text = error.to_string();
            assert!(text.contains("tensor") && text.contains("00003"), "{name}: {text}");
            assert!(want.0.starts_with(&ids) && want.1.starts_with(&bits), "{name}: a wrong token");
            disk.set([]);
            let (ids, bits, result) = run(&mut *engine);
            result.unwrap_or_else(|e| panic!("{name}, when the disk works again: {e}"));
            assert!((ids, bits) == want, "{name}, when the disk works again");
        }
    }
}

/// Catches a shard that was cut before the start and is taken for whole.
#[test]
fn a_shard_cut_before_the_start_is_refused() {
    let dir = on_disk();
    let mut files = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    let shard = files.find(|p| p.to_string_lossy().contains("model-00003")).unwrap();
    let len = std::fs::metadata(&shard).unwrap().len();
    for cut in [0, 4, 100, len / 2, len - 1] {
        std::fs::File::options().write(true).open(&shard).unwrap().set_len(cut).unwrap();
        let error = engine(&Faulty::default(), dir.path()).err().expect("refused");
        let Error::Store(e) = &error else { panic!("{error}") };
        assert_eq!(e.kind(), Kind::ModelFile, "{error}");
        assert!(error.to_string().contains("00003"), "{error}");
    }
}
