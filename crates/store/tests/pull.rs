//! Downloads from a local server that misbehaves in every way the real ones do.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::io::{Action, Disk, Faulty, Op, Real, Rule};
use store::pull::{Hub, MANIFEST, Manifest, PullOptions, pull};
use store::{Error, Kind};
use testkit::hub::{COMMIT, Fault, Server};

const A: &str = "model-00001-of-00002.safetensors";
const B: &str = "model-00002-of-00002.safetensors";

fn bytes(n: usize, salt: u32) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ salt as u8).collect()
}

fn repository() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{}".to_vec()),
        ("README.md", bytes(70_000, 1)),
        ("weights.bin", bytes(100, 2)),
        ("empty.txt", Vec::new()),
        (A, bytes(300_001, 3)),
        (B, bytes(150_000, 4)),
    ]
}

fn options() -> PullOptions {
    let pause = Duration::from_millis(1);
    PullOptions { chunk: 40_000, connections: 3, attempts: 4, pause, ..PullOptions::default() }
}

fn hub(server: &Server) -> Hub {
    Hub::new(&server.url, server.state.lock().unwrap().token.clone(), Duration::from_millis(300))
}

fn run(server: &Server, dir: &Path) -> Result<Manifest, Error> {
    pull(&Real::shared(), &hub(server), "o/m", dir, &options(), &|_| true)
}

/// Everything is as on the server, and nothing else is there.
fn check(server: &Server, dir: &Path) {
    let state = server.state.lock().unwrap();
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut expected: Vec<String> =
        state.files.keys().filter(|n| !n.ends_with(".bin")).cloned().collect();
    expected.push(MANIFEST.to_owned());
    expected.sort();
    assert_eq!(names, expected);
    for (name, content) in state.files.iter().filter(|(n, _)| !n.ends_with(".bin")) {
        assert!(fs::read(dir.join(name)).unwrap() == *content, "{name}");
    }
}

#[test]
fn a_repository_is_fetched_in_ranges_and_only_once() {
    let server = Server::start(&repository());
    server.state.lock().unwrap().page = 2;
    let dir = tempfile::tempdir().unwrap();
    let last = AtomicUsize::new(0);
    let manifest = pull(&Real::shared(), &hub(&server), "o/m", dir.path(), &options(), &|p| {
        assert!(p.bytes <= p.of_bytes);
        last.store(p.files, Ordering::Relaxed);
        true
    });
    let manifest = manifest.unwrap();
    check(&server, dir.path());
    assert_eq!((manifest.commit.as_str(), manifest.files.len()), (COMMIT, 5));
    assert_eq!(last.into_inner(), 5);
    assert_eq!(server.requests(A), 8, "one request a range");
    run(&server, dir.path()).unwrap();
    assert_eq!(server.requests(A), 8, "what is here and right is not fetched again");
}

/// Each misbehaviour once, in the first, a middle and the last range.
#[test]
fn every_misbehaviour_is_survived() {
    let faults = [
        Fault::Short,
        Fault::Stall,
        Fault::Busy,
        Fault::Status(500),
        Fault::Status(503),
        Fault::WholeFile,
        Fault::OtherRange,
        Fault::WrongBytes,
        Fault::OtherEtag,
    ];
    for fault in faults {
        for before in [0, 3, 7] {
            // A fault that is no fault fills the places before.
            let server = Server::start(&repository());
            server.fault(A, &vec![Fault::Short; before]);
            server.fault(A, &[fault]);
            let dir = tempfile::tempdir().unwrap();
            run(&server, dir.path()).unwrap_or_else(|e| panic!("{fault:?} {before}: {e}"));
            check(&server, dir.path());
        }
    }
}

/// A server that never behaves: an error that names the file, and the others are fetched.
#[test]
fn a_file_that_cannot_be_had_is_named_and_the_others_come() {
    for (fault, says) in [
        (Fault::Status(500), "500"),
        (Fault::Status(403), "HF_TOKEN"),
        (Fault::Status(404), "no such"),
        (Fault::WrongBytes, "digest"),
        (Fault::OtherRange, "asked for"),
        (Fault::Stall, "timeout"),
    ] {
        let server = Server::start(&repository());
        server.state.lock().unwrap().always.insert(A.to_owned(), fault);
        let dir = tempfile::tempdir().unwrap();
        // A stalling server makes progress by halves, so let it not even do that.
        if fault == Fault::Stall {
            server.state.lock().unwrap().files.insert(A.to_owned(), vec![7]);
        }
        let error = run(&server, dir.path()).unwrap_err();
        let text = error.to_string();
        let wrong = fault == Fault::WrongBytes;
        assert_eq!(error.kind(), if wrong { Kind::ModelFile } else { Kind::Network }, "{text}");
        assert!(text.contains(A) && text.contains(says), "{fault:?}: {text}");
        assert!(!dir.path().join(A).exists(), "nothing unchecked has the file's name");
        assert!(!dir.path().join(MANIFEST).exists());
        assert!(dir.path().join(B).exists(), "other files are fetched all the same");
        // The next run fetches this one file alone.
        server.state.lock().unwrap().always.clear();
        let before = server.requests(B);
        run(&server, dir.path()).unwrap();
        check(&server, dir.path());
        assert_eq!(server.requests(B), before);
    }
}

/// Without ranges the whole file comes over one connection.
#[test]
fn a_server_without_ranges_is_enough() {
    let server = Server::start(&repository());
    for file in [A, B] {
        server.state.lock().unwrap().always.insert(file.to_owned(), Fault::WholeFile);
    }
    let dir = tempfile::tempdir().unwrap();
    run(&server, dir.path()).unwrap();
    check(&server, dir.path());
}

/// Stopped anywhere, a download goes on from the ranges it has.
#[test]
fn an_interrupted_download_continues() {
    let server = Server::start(&repository());
    let dir = tempfile::tempdir().unwrap();
    let one = PullOptions { connections: 1, ..options() };
    for stop_at in [90_000u64, 200_000, 260_000] {
        let result = pull(&Real::shared(), &hub(&server), "o/m", dir.path(), &one, &|p| {
            p.file != A || p.bytes < stop_at + 70_002
        });
        assert!(matches!(result, Err(Error::Refused(_))));
        assert!(!dir.path().join(A).exists());
    }
    run(&server, dir.path()).unwrap();
    check(&server, dir.path());
    assert!(server.requests(A) <= 8 + 3, "{} requests", server.requests(A));
}

/// What a crash or a stranger left is not believed.
#[test]
fn damaged_leftovers_are_not_believed() {
    let server = Server::start(&repository());
    let dir = tempfile::tempdir().unwrap();
    let stop = |server: &Server| {
        let one = PullOptions { connections: 1, ..options() };
        pull(&Real::shared(), &hub(server), "o/m", dir.path(), &one, &|p| {
            p.file != A || p.bytes < 270_000
        })
        .unwrap_err();
    };
    let partial = dir.path().join(format!("{A}.partial"));
    let chunks = dir.path().join(format!("{A}.chunks"));
    let damages: [&dyn Fn(); 4] = [
        // A range that the list claims but that never reached the disk.
        &|| {
            let mut b = fs::read(&partial).unwrap();
            b[50_000..60_000].fill(0);
            fs::write(&partial, b).unwrap();
        },
        &|| fs::write(&partial, b"x").unwrap(),
        &|| fs::write(&chunks, b"{\"oid").unwrap(),
        &|| {
            let text = fs::read_to_string(&chunks).unwrap();
            fs::write(&chunks, text.replace("\"done\":[", "\"done\":[99999999,")).unwrap();
        },
    ];
    for damage in damages {
        stop(&server);
        damage();
        run(&server, dir.path()).unwrap();
        check(&server, dir.path());
        fs::remove_file(dir.path().join(A)).unwrap();
        fs::remove_file(dir.path().join(MANIFEST)).unwrap();
    }
    // A finished file that was damaged later.
    run(&server, dir.path()).unwrap();
    fs::remove_file(dir.path().join(MANIFEST)).unwrap();
    fs::write(dir.path().join(B), bytes(150_000, 9)).unwrap();
    run(&server, dir.path()).unwrap();
    check(&server, dir.path());
}

#[test]
fn a_full_disk_is_an_error_of_the_disk() {
    let server = Server::start(&repository());
    for (op, n) in [(Op::Write, 1), (Op::Write, 6), (Op::Sync, 2), (Op::Rename, 1), (Op::Open, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(Faulty::new([Rule::new(op, Action::ENOSPC).after(n)]));
        let error =
            pull(&disk, &hub(&server), "o/m", dir.path(), &options(), &|_| true).unwrap_err();
        assert_eq!(error.kind(), Kind::Disk, "{error}");
        run(&server, dir.path()).unwrap();
        check(&server, dir.path());
    }
}

/// Catches a download that fills the disk and fails only then.
#[test]
fn what_the_disk_has_no_room_for_is_refused_at_once() {
    let server = Server::start(&repository());
    let huge = u64::MAX / 4;
    let entry =
        format!("{{\"type\":\"file\",\"oid\":\"0\",\"size\":{huge},\"path\":\"x.safetensors\"}}");
    server.state.lock().unwrap().extra = Some(entry);
    let dir = tempfile::tempdir().unwrap();
    let error = run(&server, dir.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::DoesNotFit, "{error}");
    assert_eq!(server.requests(A), 0);
}

#[test]
fn the_token_is_sent_and_its_lack_explained() {
    let server = Server::start(&repository());
    server.state.lock().unwrap().token = Some("secret".to_owned());
    let dir = tempfile::tempdir().unwrap();
    let stranger = Hub::new(&server.url, None, Duration::from_millis(300));
    let error =
        pull(&Real::shared(), &stranger, "o/m", dir.path(), &options(), &|_| true).unwrap_err();
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");
    run(&server, dir.path()).unwrap();
    check(&server, dir.path());
}

#[test]
fn a_listing_that_points_elsewhere_is_refused() {
    let server = Server::start(&repository());
    let entry = "{\"type\":\"file\",\"oid\":\"0\",\"size\":1,\"path\":\"../../x.json\"}";
    server.state.lock().unwrap().extra = Some(entry.to_owned());
    let dir = tempfile::tempdir().unwrap();
    let error = run(&server, dir.path()).unwrap_err();
    assert!(error.to_string().contains("outside the directory"), "{error}");
    assert_eq!(server.requests("../../x.json"), 0);
}

/// `--layers`: the index comes first, then only the shards that are needed.
#[test]
fn a_partial_set_has_the_shards_of_its_layers() {
    let map = format!(
        "{{\"weight_map\":{{\"m.embed\":\"{A}\",\"m.layers.0.w\":\"{A}\",\"m.layers.1.w\":\"{B}\"}}}}"
    );
    let mut files = repository();
    files.push((store::safetensors::INDEX_FILE, map.into_bytes()));
    let server = Server::start(&files);
    for (layers, with_b) in [(1, false), (2, true)] {
        let dir = tempfile::tempdir().unwrap();
        let options = PullOptions { layers: Some(layers), ..options() };
        pull(&Real::shared(), &hub(&server), "o/m", dir.path(), &options, &|_| true).unwrap();
        assert!(dir.path().join(A).exists());
        assert_eq!(dir.path().join(B).exists(), with_b);
    }
}
