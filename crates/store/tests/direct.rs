//! Direct reads give the file's bytes whatever the backend, the file system and the disk do.

mod common;

use common::Random;
use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use store::direct::{AlignedBuf, Backend, DirectFile, Done, Reader, Request, Window};
use store::io::{Action, Disk, Faulty, Op, Real, Rule};

fn content(len: usize) -> Vec<u8> {
    let mut random = Random(3);
    (0..len).map(|_| random.below(256) as u8).collect()
}

fn window(file: &Arc<DirectFile>, size: usize, offset: usize, len: usize, at: usize) -> Window {
    let need = len.min(size - offset);
    Window { file: Arc::clone(file), offset: offset as u64, len, need, at }
}

/// Reads `rounds` random sets of windows and compares every byte.
fn read_and_compare(disk: &dyn Disk, path: &Path, backend: Backend, rounds: usize) -> Reader {
    let expected = fs::read(path).unwrap();
    let file = Arc::new(DirectFile::open(disk, path).unwrap());
    let (send, receive) = mpsc::channel();
    let reader = Reader::new(backend, move |done: Done| send.send(done).unwrap());
    let mut random = Random(11);
    let mut asked = Vec::new();
    for id in 0..rounds {
        let mut windows = Vec::new();
        let mut at = 0;
        for _ in 0..random.below(4) {
            let offset = random.below(expected.len() / 4096 + 1) * 4096;
            let offset = offset.min((expected.len() - 1) / 4096 * 4096);
            let most = (expected.len() - offset).div_ceil(4096);
            let len = (1 + random.below(most)) * 4096;
            windows.push(window(&file, expected.len(), offset, len, at));
            at += len;
        }
        let buf = AlignedBuf::new(at, "a test").unwrap();
        asked.push(windows.clone());
        reader.submit(Request { id: id as u64, urgent: random.below(3) == 0, windows, buf });
    }
    for _ in 0..rounds {
        let done = receive.recv().unwrap();
        done.result.unwrap_or_else(|f| panic!("{f:?}"));
        for w in &asked[done.id as usize] {
            let offset = w.offset as usize;
            assert!(done.buf[w.at..w.at + w.need] == expected[offset..offset + w.need]);
        }
    }
    reader
}

#[test]
fn both_backends_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    // The last window reaches past the end.
    fs::write(&path, content(7_000_003)).unwrap();
    for backend in [Backend::Auto, Backend::Plain] {
        let mut reader = read_and_compare(&Real, &path, backend, 24);
        assert!(reader.stats().bytes > 0 && reader.stats().busy_ns > 0);
        let event = reader.event();
        assert_eq!(event.is_some(), backend == Backend::Auto && reader.name() != "io_uring");
    }
}

/// What disks and file systems may do without being broken.
#[test]
fn short_interrupted_and_refused_reads_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    fs::write(&path, content(200_001)).unwrap();
    let scripts: [(&str, Vec<Rule>); 6] = [
        ("short", vec![Rule::new(Op::ReadDirect, Action::Short(8192))]),
        (
            "odd",
            vec![
                Rule::new(Op::ReadDirect, Action::Short(5000)),
                Rule::new(Op::Read, Action::Short(777)),
            ],
        ),
        (
            "one byte",
            vec![
                Rule::new(Op::ReadDirect, Action::Short(1)),
                Rule::new(Op::Read, Action::Short(1)).after(100),
            ],
        ),
        (
            "interrupted",
            vec![
                Rule::new(Op::ReadDirect, Action::EINTR).nth(1),
                Rule::new(Op::ReadDirect, Action::EINTR).nth(2),
            ],
        ),
        ("refused later", vec![Rule::new(Op::ReadDirect, Action::EINVAL).after(1)]),
        ("refused at once", vec![Rule::new(Op::OpenDirect, Action::EINVAL)]),
    ];
    for backend in [Backend::Auto, Backend::Plain] {
        for (name, rules) in &scripts {
            let disk = Faulty::new(rules.clone());
            read_and_compare(&disk, &path, backend, 6);
            let direct = disk.count(Op::ReadDirect);
            assert_eq!(direct == 0, *name == "refused at once", "{name}: {direct}");
        }
    }
}

/// The warning must come once, and only when there is a reason.
#[test]
fn a_file_system_without_direct_access_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    fs::write(&path, content(10_000)).unwrap();
    let disk = Faulty::new([Rule::new(Op::OpenDirect, Action::EINVAL)]);
    let file = DirectFile::open(&disk, &path).unwrap();
    let text = file.event().unwrap().to_string();
    assert!(text.contains("page cache") && text.contains(&*path.to_string_lossy()), "{text}");
    assert_eq!(file.event(), None);
}

/// A broken disk or a cut file ends in an error that says where, on both backends; requests
/// after it still work.
#[test]
fn a_failing_part_is_named_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let len = 12 << 20;
    fs::write(&path, content(len)).unwrap();
    for backend in [Backend::Auto, Backend::Plain] {
        for action in [Action::EIO, Action::EndAt(1 << 20)] {
            let disk = Faulty::new([Rule::new(Op::ReadDirect, action).nth(2)]);
            let file = Arc::new(DirectFile::open(&disk, &path).unwrap());
            let (send, receive) = mpsc::channel();
            let reader = Reader::new(backend, move |done: Done| send.send(done).unwrap());
            for id in 0..2 {
                let buf = AlignedBuf::new(len, "a test").unwrap();
                let windows = vec![window(&file, len, 0, len, 0)];
                reader.submit(Request { id, urgent: false, windows, buf });
                // One after the other, so that the third read belongs to the first.
                let done = receive.recv().unwrap();
                assert_eq!(done.result.is_err(), id == 0);
                if let Err(f) = done.result {
                    assert!(f.offset > 0 && f.offset as usize == f.at, "{f:?}");
                    assert_eq!(f.file.path(), path);
                }
            }
        }
    }
}

#[test]
fn a_file_cut_after_it_was_opened_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    fs::write(&path, content(3 << 20)).unwrap();
    for backend in [Backend::Auto, Backend::Plain] {
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
        let file = Arc::new(DirectFile::open(&Real, &path).unwrap());
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1_500_000).unwrap();
        let (send, receive) = mpsc::channel();
        let reader = Reader::new(backend, move |done: Done| send.send(done).unwrap());
        let buf = AlignedBuf::new(3 << 20, "a test").unwrap();
        let windows = vec![window(&file, 3 << 20, 0, 3 << 20, 0)];
        reader.submit(Request { id: 0, urgent: true, windows, buf });
        let failure = receive.recv().unwrap().result.unwrap_err();
        assert_eq!(failure.source.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}

/// Dropping a reader with work in flight must neither hang nor write into freed memory.
#[test]
fn a_reader_can_be_dropped_at_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let len = 8 << 20;
    fs::write(&path, content(len)).unwrap();
    for backend in [Backend::Auto, Backend::Plain] {
        for _ in 0..10 {
            let file = Arc::new(DirectFile::open(&Real, &path).unwrap());
            let reader = Reader::new(backend, |_| {});
            for id in 0..4 {
                let buf = AlignedBuf::new(len, "a test").unwrap();
                reader.submit(Request {
                    id,
                    urgent: id == 2,
                    windows: vec![window(&file, len, 0, len, 0)],
                    buf,
                });
            }
        }
    }
}
