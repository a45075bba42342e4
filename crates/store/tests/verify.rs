//! Offline checks find every kind of damage and nothing else; the disk can be measured.

mod common;

use common::model::{layout, write};
use common::spec;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::path::Path;
use std::time::Duration;
use store::doctor::{Scratch, free_space, measure};
use store::io::{Action, Faulty, Op, Real, Rule};
use store::pack::{Codec, TRUNK_FILE, pack};
use store::pull::{Manifest, ManifestFile};
use store::safetensors::Dtype;
use store::verify::{VerifyOptions, VerifyReport, verify_model};

fn manifest(dir: &Path) {
    let files = common::files(dir)
        .into_iter()
        .map(|p| {
            let bytes = fs::read(&p).unwrap();
            let sha256 = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
            let path = p.file_name().unwrap().to_str().unwrap().to_owned();
            ManifestFile { path, size: bytes.len() as u64, sha256 }
        })
        .collect();
    let manifest = Manifest { repo: "o/m".into(), commit: "0".repeat(40), files };
    manifest.write(&Real::shared(), dir).unwrap();
}

fn verify(dir: &Path, deep: bool) -> VerifyReport {
    let options = VerifyOptions { deep, threads: 2 };
    verify_model(&Real::shared(), dir, options, |_, _| {}).unwrap()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn damage_is_found_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let index = write(dir);
    manifest(dir);
    pack(&Real::shared(), &index, &layout(), &dir.join(TRUNK_FILE), Codec::Bf16, 1, |_| true)
        .unwrap();
    let report = verify(dir, false);
    assert_eq!(report.problems().count(), 0, "{report:?}");
    assert!(report.manifest && report.tensors == index.len() && report.findings.is_empty());
    let problem = |says: &[&str]| {
        let report = verify(dir, false);
        let found: Vec<_> = report.problems().collect();
        assert_eq!(found.len(), says.len(), "{found:?}");
        for (check, says) in found.iter().zip(says) {
            let text = format!("{}: {}", check.what, check.problem.as_ref().unwrap());
            assert!(text.contains(says), "{text}");
        }
    };
    let shard = index.shards()[1].path().to_owned();
    flip(&shard, 100_000);
    // The packed layers were right, and are no longer those of the shard.
    problem(&["model-00002-of-00003.safetensors: expected SHA-256", "trunk.facit: layer 3"]);
    flip(&shard, 100_000);
    flip(&dir.join(TRUNK_FILE), 3000);
    problem(&["trunk.facit: layer 0"]);
    flip(&dir.join(TRUNK_FILE), 3000);
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..whole.len() - 1]).unwrap();
    problem(&["expected", "headers of all shards"]);
    fs::remove_file(&shard).unwrap();
    problem(&["cannot open", "headers of all shards"]);
    fs::write(&shard, whole).unwrap();
    problem(&[]);
}

#[test]
fn a_deep_look_finds_values_that_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let tensors = [
        (spec("good", Dtype::Bf16, &[2]), &[0x80, 0x3f, 0x7f, 0x7f][..]),
        (spec("nan", Dtype::Bf16, &[2]), &[0xc0, 0x7f, 0x80, 0xff]),
        (spec("inf", Dtype::F32, &[1]), &[0, 0, 0x80, 0x7f]),
        (spec("half", Dtype::F16, &[1]), &[0, 0x7c]),
        (spec("w_scale", Dtype::U8, &[3]), &[255, 1, 255]),
        (spec("w_packed", Dtype::U8, &[2]), &[255, 255]),
        (spec("fp8", Dtype::F8E4M3, &[3]), &[0x7f, 0x7e, 0xff]),
        (spec("scale", Dtype::F8E8M0, &[2]), &[254, 255]),
    ];
    store::safetensors::write(&Real::shared(), &path, &tensors, &[]).unwrap();
    let report = verify(dir.path(), true);
    let found: Vec<_> =
        report.problems().map(|c| (c.what.as_str(), c.problem.as_deref().unwrap())).collect();
    assert_eq!(
        found,
        [
            ("tensor nan", "values that are not finite: 2"),
            ("tensor inf", "values that are not finite: 1"),
            ("tensor half", "values that are not finite: 1"),
            ("tensor fp8", "values that are not finite: 2"),
            ("tensor scale", "values that are not finite: 1"),
        ]
    );
    assert_eq!(report.findings.len(), 1);
    assert_eq!((report.findings[0].0.as_str(), report.findings[0].2), ("w_scale", 2));
    assert_eq!(report.deep, tensors.len());
    assert!(!report.manifest);
}

#[test]
fn the_disk_is_measured_and_nothing_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::create(&Real::shared(), dir.path(), 20 << 20).unwrap();
    let report = measure(&Real, scratch.path(), Duration::from_millis(30)).unwrap();
    let depths: Vec<usize> = report.large.iter().map(|r| r.depth).collect();
    assert_eq!(depths, [1, 4, 16]);
    assert!(report.large.iter().chain(&report.small).all(|r| r.reads > 0.0 && r.bytes > 0.0));
    assert!(report.best() > 0.0);
    // A file system that refuses: said so, not hidden.
    let disk = Faulty::new([Rule::new(Op::OpenDirect, Action::EINVAL)]);
    assert!(!measure(&disk, scratch.path(), Duration::from_millis(1)).unwrap().direct);
    let disk = Faulty::new([Rule::new(Op::ReadDirect, Action::EIO).nth(3)]);
    let error = measure(&disk, scratch.path(), Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind(), store::Kind::Disk);
    drop(scratch);
    assert!(common::files(dir.path()).is_empty());
    assert!(free_space(dir.path()).unwrap() > 0);
}
