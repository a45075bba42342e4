//! The safetensors reader and writer through their public face: the committed corpus, random
//! damage, round trips, and faults of the disk.

mod common;

use common::{Random, files, shared, spec, vectors};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use store::io::{Action, Disk, Faulty, Memory, Op, Real, Rule};
use store::safetensors::{Dtype, INDEX_FILE, Index, Writer, write};
use store::{Error, Kind};

/// Catches a check that was dropped or a message that no longer says what is wrong.
#[test]
fn every_bad_file_is_refused_with_its_problem() {
    let expect: std::collections::BTreeMap<String, String> =
        serde_json::from_slice(&fs::read(vectors("safetensors").join("expect.json")).unwrap())
            .unwrap();
    let bad = files(&vectors("safetensors").join("bad"));
    assert_eq!(bad.len(), expect.len());
    for path in bad {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let error = Index::open(&path).expect_err(&name);
        let text = error.to_string();
        assert!(text.contains(&expect[&name]), "{name}: {text}");
        assert!(text.contains(&format!("{name}.safetensors")), "{name} is not named: {text}");
        assert_eq!(error.kind(), Kind::ModelFile, "{name}");
    }
}

#[test]
fn every_good_file_is_accepted() {
    for path in files(&vectors("safetensors").join("good")) {
        let index = Index::open(&path).unwrap_or_else(|e| panic!("{e}"));
        for t in index.iter() {
            assert_eq!(index.read(&t).unwrap().len() as u64, t.len);
            assert_eq!(index.get(t.name), Some(t));
        }
    }
    let all = Index::open(&vectors("safetensors").join("good/every_dtype.safetensors")).unwrap();
    for dtype in Dtype::ALL {
        assert_eq!(all.get(dtype.name()).unwrap().dtype, *dtype);
    }
    let odd = Index::open(&vectors("safetensors").join("good/escaped_name.safetensors")).unwrap();
    assert!(odd.get("a😀\"\\").is_some());
    let zero = Index::open(&vectors("safetensors").join("good/shape_zero.safetensors")).unwrap();
    assert_eq!((zero.get("z").unwrap().len, zero.get("a").unwrap().len), (0, 16));
}

/// Damages every file of the corpus at random: no panic, and whatever is still accepted can
/// be read in full. Catches unchecked arithmetic and offsets that slip past validation.
#[test]
fn random_damage_never_panics() {
    let read =
        |d: &str| files(&vectors("safetensors").join(d)).into_iter().map(|p| fs::read(p).unwrap());
    let (good, bad): (Vec<_>, Vec<_>) = (read("good").collect(), read("bad").collect());
    let mut random = Random(7);
    let mut accepted = 0;
    for round in 0..20_000 {
        let from = if round % 3 == 0 { &bad } else { &good };
        let mut bytes = from[random.below(from.len())].clone();
        for _ in 0..=random.below(2) {
            let at = random.below(bytes.len().max(1));
            match random.below(4) {
                0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
                1 if at < bytes.len() => bytes[at] = b"0123456789{}[]\",:\\ \0"[random.below(20)],
                2 => bytes.truncate(at),
                _ => bytes.insert(at.min(bytes.len()), b"019{}[]\","[random.below(9)]),
            }
        }
        // Half of the time the length prefix is made right again, so that damage reaches the
        // parser.
        if bytes.len() > 8
            && random.below(2) == 0
            && let Some(end) = bytes.iter().rposition(|&b| b == b'}')
        {
            bytes[..8].copy_from_slice(&((end as u64).wrapping_sub(7)).to_le_bytes());
        }
        let size = bytes.len();
        if let Ok(index) = Index::open_file(&*Memory::shared(bytes), Path::new("x")) {
            accepted += 1;
            let total: usize = index.iter().map(|t| index.read(&t).unwrap().len()).sum();
            assert!(total <= size);
        }
    }
    assert!(accepted > 500, "damage that always kills tests nothing: {accepted}");
}

#[test]
fn public_fixtures_read_exactly() {
    let Some(dir) = shared("goldens/public/kimi-k3") else { return };
    let st = Index::open(&dir.join("st")).unwrap();
    assert_eq!(st.len(), 13);
    assert_eq!(st.shards().len(), 2);
    let tricky = st.get("tricky.f16.1d").unwrap();
    assert_eq!((tricky.dtype, tricky.shape, tricky.shard), (Dtype::F16, &[64][..], 0));
    let second = st.get("second.shard.u8").unwrap();
    assert_eq!((second.shard, second.len), (1, 300));
    let file = fs::read(st.shards()[1].path()).unwrap();
    assert_eq!(st.read(&second).unwrap(), file[file.len() - 312..file.len() - 12]);
    assert!(st.get("weird\\name.\"with\"quotes").is_some());
    assert_eq!(st.get("scalar.f32").unwrap().shape, &[] as &[u64]);
    assert!(st.get("__metadata__").is_none());
    let cache = Index::open(&dir.join("cache")).unwrap();
    let w2 =
        cache.require("language_model.model.layers.0.block_sparse_moe.experts.3.w2.weight_scale");
    assert_eq!(w2.unwrap().shape, &[8, 4]);
}

fn two_shards(dir: &Path) {
    let disk = Real::shared();
    let data: Vec<u8> = (0..=255).collect();
    for (file, name) in [("a.safetensors", "x"), ("b.safetensors", "y")] {
        write(&disk, &dir.join(file), &[(spec(name, Dtype::U8, &[16, 16]), &data)], &[("k", "v")])
            .unwrap();
    }
}

fn with_map(dir: &Path, map: &str) -> Result<Index, Error> {
    fs::write(
        dir.join(INDEX_FILE),
        format!("{{\"metadata\":{{\"t\":[1.5e3,null,\"}}\"]}},\"weight_map\":{map}}}"),
    )
    .unwrap();
    Index::open(dir)
}

/// Catches an index file that is believed instead of checked.
#[test]
fn index_file_and_shards_must_agree() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    two_shards(dir);
    assert_eq!(Index::open(dir).unwrap().len(), 2);
    let good = r#"{"y":"b.safetensors","x":"a.safetensors"}"#;
    assert_eq!(with_map(dir, good).unwrap().len(), 2);
    for (map, says) in [
        (
            r#"{"x":"a.safetensors","y":"a.safetensors"}"#,
            "tensor y should be in a.safetensors, but is in no shard",
        ),
        (r#"{"x":"b.safetensors","y":"b.safetensors"}"#, "tensor x should be in b.safetensors"),
        (
            r#"{"x":"a.safetensors","y":"b.safetensors","z":"b.safetensors"}"#,
            "tensor z should be in",
        ),
        (r#"{"x":"a.safetensors","q":"b.safetensors"}"#, "tensor q should be in"),
        (r#"{"x":"a.safetensors","y":"b.safetensors","y":"b.safetensors"}"#, "or one twice"),
        (r#"{"x":"a.safetensors","y":"../b.safetensors"}"#, "not the plain name"),
        (r#"{"x":"a.safetensors","y":"c.safetensors"}"#, "c.safetensors"),
        (r#"{}"#, "names no tensors"),
        (r#"{"x":1}"#, "expected a string"),
    ] {
        let text = with_map(dir, map).expect_err(map).to_string();
        assert!(text.contains(says), "{map}: {text}");
        assert!(text.contains(INDEX_FILE) || text.contains("c.safetensors"), "{text}");
    }
}

#[test]
fn a_partial_set_opens_only_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path());
    with_map(dir.path(), r#"{"x":"a.safetensors","y":"b.safetensors"}"#).unwrap();
    fs::remove_file(dir.path().join("b.safetensors")).unwrap();
    let error = Index::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::ModelFile);
    let part = Index::open_partial(&Real::shared(), dir.path()).unwrap();
    assert_eq!((part.len(), part.absent()), (1, &["b.safetensors".to_owned()][..]));
}

#[test]
fn the_same_name_in_two_shards_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path());
    fs::copy(dir.path().join("a.safetensors"), dir.path().join("c.safetensors")).unwrap();
    let text = Index::open(dir.path()).unwrap_err().to_string();
    assert!(text.contains("tensor x is also in"), "{text}");
}

#[test]
fn what_is_written_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.safetensors");
    let disk = Real::shared();
    let (a, b) = ([1u8, 2, 3, 4], [9u8; 3]);
    let tensors = [
        (spec("s \"q\"", Dtype::F32, &[]), &a[..]),
        (spec("u", Dtype::U8, &[3, 1]), &b[..]),
        (spec("z", Dtype::F64, &[0]), &[]),
    ];
    write(&disk, &path, &tensors, &[("position", "17"), ("é", "\n")]).unwrap();
    let index = Index::open(&path).unwrap();
    for (spec, bytes) in &tensors {
        let t = index.require(&spec.name).unwrap();
        assert_eq!((t.dtype, t.shape), (spec.dtype, &spec.shape[..]));
        assert_eq!(index.read(&t).unwrap(), *bytes);
    }
    let meta: Vec<_> =
        index.shards()[0].metadata().iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(meta, [("position", "17"), ("é", "\n")]);
    assert_eq!(files(dir.path()).len(), 1, "no temporary file is left");
}

/// A half-written file must never be seen under its name, whichever write fails.
#[test]
fn a_full_disk_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.safetensors");
    let old = vec![7u8; 5_000_000];
    let new = vec![8u8; 5_000_000];
    let tensor = spec("t", Dtype::U8, &[5_000_000]);
    let mut failures = 0;
    let reset = || write(&Real::shared(), &path, &[(tensor.clone(), &old)], &[]).unwrap();
    for (op, action) in [
        (Op::Open, Action::EIO),
        (Op::Write, Action::ENOSPC),
        (Op::Sync, Action::EIO),
        (Op::Rename, Action::EIO),
    ] {
        for n in 0.. {
            reset();
            let faulty = Faulty::new([Rule::new(op, action).nth(n)]);
            let disk: Arc<dyn Disk> = Arc::new(faulty.clone());
            let result = write(&disk, &path, &[(tensor.clone(), &new)], &[]);
            let index = Index::open(&path).unwrap();
            let content = index.read(&index.require("t").unwrap()).unwrap();
            match result {
                Ok(()) => {
                    assert!(faulty.count(op) <= n, "the fault was reached and ignored");
                    break;
                }
                Err(e) => {
                    failures += 1;
                    assert_eq!(e.kind(), Kind::Disk);
                    // Only a failing sync of the directory comes after the rename.
                    assert!(content == old || (op == Op::Sync && n == 1 && content == new));
                }
            }
            assert_eq!(files(dir.path()).len(), 1, "no temporary file is left");
        }
    }
    assert!(failures >= 6, "{failures}");
}

#[test]
fn the_writer_refuses_the_wrong_amount_of_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let disk = Real::shared();
    let specs = [spec("t", Dtype::F32, &[2])];
    let mut w = Writer::create(&disk, &path, &specs, &[]).unwrap();
    w.write(&[0; 7]).unwrap();
    assert!(w.finish().unwrap_err().to_string().contains("wrote 7 bytes"));
    assert!(!path.exists());
    let twice = [spec("t", Dtype::F32, &[2]), spec("t", Dtype::F32, &[2])];
    assert!(Writer::create(&disk, &path, &twice, &[]).is_err());
    let huge = [spec("t", Dtype::F32, &[1 << 42, 1 << 42])];
    assert!(Writer::create(&disk, &path, &huge, &[]).is_err());
}

/// Reads must survive what a system may do, and stop at what it must not.
#[test]
fn reads_survive_interruptions_and_name_what_failed() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path());
    let expected: Vec<u8> = (0..=255).collect();
    let open = |rules: Vec<Rule>| {
        let disk: Arc<dyn Disk> = Arc::new(Faulty::new(rules));
        Index::open_on(&disk, dir.path())
    };
    let slow = open(vec![
        Rule::new(Op::Read, Action::EINTR).nth(3),
        Rule::new(Op::Read, Action::Short(1)),
    ])
    .unwrap();
    let t = slow.require("y").unwrap();
    assert_eq!(slow.read(&t).unwrap(), expected);
    // Headers take two reads a shard, so the fifth is the first of weights.
    for (action, kind) in [(Action::EIO, Kind::Disk), (Action::EndAt(200), Kind::ModelFile)] {
        let index = open(vec![Rule::new(Op::Read, action).on("b.safetensors").after(2)]).unwrap();
        assert_eq!(
            index.read(&index.require("x").unwrap()).unwrap(),
            expected,
            "the other shard is whole"
        );
        let error = index.read(&index.require("y").unwrap()).unwrap_err();
        assert_eq!(error.kind(), kind);
        let text = error.to_string();
        assert!(text.contains("tensor y") && text.contains("b.safetensors"), "{text}");
    }
    // A signal storm is not waited out for ever.
    assert!(open(vec![Rule::new(Op::Read, Action::EINTR)]).is_err());
    // Each read of the headers failing once.
    for n in 0..4 {
        let error = open(vec![Rule::new(Op::Read, Action::EIO).nth(n)]).unwrap_err();
        assert!(error.to_string().contains(".safetensors"), "{error}");
    }
    assert!(open(vec![Rule::new(Op::Read, Action::EIO).nth(4)]).is_ok());
}

#[test]
fn buffers_and_ranges_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path());
    let index = Index::open(dir.path()).unwrap();
    let t = index.require("x").unwrap();
    assert!(matches!(index.read_into(&t, &mut [0; 255]), Err(Error::BufferLength { .. })));
    assert!(matches!(index.read_range(&t, 250, &mut [0; 7]), Err(Error::BufferLength { .. })));
    assert!(matches!(index.read_range(&t, u64::MAX, &mut [0; 7]), Err(Error::BufferLength { .. })));
    let mut row = [0; 16];
    index.read_range(&t, 32, &mut row).unwrap();
    assert_eq!(row[0], 32);
    assert!(matches!(index.require("q"), Err(Error::MissingTensor { .. })));
}

/// Any change of a header is a change of the digest.
#[test]
fn the_digest_covers_names_types_and_shapes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let mut seen = std::collections::HashSet::new();
    for s in [
        spec("a", Dtype::U8, &[4]),
        spec("b", Dtype::U8, &[4]),
        spec("a", Dtype::I8, &[4]),
        spec("a", Dtype::U8, &[2, 2]),
    ] {
        write(&Real::shared(), &path, &[(s, &[0; 4])], &[]).unwrap();
        assert!(seen.insert(Index::open(&path).unwrap().digest()));
    }
}
