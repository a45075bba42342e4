//! `facit pull` against a hub on this machine: complete or continued, and nothing unchecked ever
//! has a file's name, even if the program is killed without warning.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ran, arg, collect, command, facit, kimi};
use testkit::hub::{Fault, Server};

/// A range small enough that a shard of the test model has many.
const CHUNK: &str = "16KiB";

/// A hub that has the files of a model directory.
fn hub(model: &Path) -> Server {
    let files: Vec<(String, Vec<u8>)> = std::fs::read_dir(model)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect();
    let files: Vec<_> = files.iter().map(|(n, b)| (n.as_str(), b.clone())).collect();
    Server::start(&files)
}

/// `facit pull` with nothing of this machine's own settings.
fn pull(url: &str, dir: &Path, more: &[&str]) -> Command {
    let args = [&["pull", "o/m", arg(dir), "--chunk", CHUNK, "--attempts", "2"], more].concat();
    let mut command = command(&args);
    command.env("HF_ENDPOINT", url).env("HF_HOME", dir.join("no-home")).env_remove("HF_TOKEN");
    command
}

fn run(url: &str, dir: &Path, more: &[&str]) -> Ran {
    collect(pull(url, dir, more).output().unwrap())
}

/// Every file that has its final name is whole; the number of those.
fn whole_files(server: &Server, dir: &Path) -> usize {
    let state = server.state.lock().unwrap();
    let here = state.files.iter().filter(|(name, _)| dir.join(name).exists());
    here.inspect(|(name, bytes)| {
        assert!(std::fs::read(dir.join(name)).unwrap() == **bytes, "{name} is not whole");
    })
    .count()
}

#[test]
fn a_model_is_fetched_checked_and_runs() {
    let model = kimi();
    let server = hub(model.path());
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("m");
    // The token comes from the environment or from HF_HOME.
    server.state.lock().unwrap().token = Some("secret".to_owned());
    run(&server.url, &to, &[]).ends(8, &["HF_TOKEN"]);
    let report = pull(&server.url, &to, &["--json"]).env("HF_TOKEN", "secret").output().unwrap();
    let json = collect(report).ok().json();
    let count = server.state.lock().unwrap().files.len();
    assert_eq!(json["files"].as_u64().unwrap() as usize, count);
    assert_eq!((whole_files(&server, &to), json["repo"].as_str()), (count, Some("o/m")));
    let verified = facit(&["verify-model", arg(&to), "--json"]).ok().json();
    assert!(verified["manifest"] == true && verified["sound"] == true);
    let ids = |dir: &Path| facit(&["run", arg(dir), "--ids", "1,2,3", "-n", "3"]).ok().out;
    assert_eq!(ids(&to), ids(model.path()));
    // Without a directory it goes to one of the repository's name.
    let home = dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("token"), "secret\n").unwrap();
    let mut named = command(&["pull", "o/m", "-q"]);
    let named = named.env("HF_ENDPOINT", &server.url).env("HF_HOME", &home).env_remove("HF_TOKEN");
    let requests = |server: &Server| server.state.lock().unwrap().log.len();
    let before = requests(&server);
    collect(named.current_dir(dir.path()).output().unwrap()).ok();
    assert_eq!(requests(&server), before, "what is here and right is not fetched again");
}

/// Kills the download again and again while bytes arrive; the next run goes on.
#[test]
fn a_killed_download_goes_on_and_nothing_corrupt_is_accepted() {
    let model = kimi();
    let server = hub(model.path());
    server.state.lock().unwrap().pause = Some(Duration::from_millis(4));
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path();
    let mut last = 0;
    for kill in 1..=4 {
        let log = || server.state.lock().unwrap().log.len();
        let before = log();
        let args = ["--connections", "2", "-q"];
        let mut child = pull(&server.url, to, &args).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        // Somewhere among the ranges, never at the same place.
        while log() < before + 9 + 2 * kill && began.elapsed() < Duration::from_secs(300) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "it was killed before it was done");
        last = whole_files(&server, to);
        facit(&["verify-model", arg(to)]).ends(6, &[]);
        facit(&["run", arg(to), "--ids", "1,2,3", "-n", "1"]).ends(6, &[]);
    }
    server.state.lock().unwrap().pause = None;
    run(&server.url, to, &[]).ok();
    let count = server.state.lock().unwrap().files.len();
    assert!(last < count, "the kills came while files were missing");
    assert_eq!(whole_files(&server, to), count);
    // With the manifest nothing else is left: no partial file, no list of ranges.
    assert_eq!(std::fs::read_dir(to).unwrap().count(), count + 1);
    facit(&["verify-model", arg(to)]).ok();
    // At most the ranges in flight are fetched twice: two a kill.
    let state = server.state.lock().unwrap();
    let mut ranges = std::collections::BTreeMap::new();
    for (file, range) in state.log.iter().filter(|(f, _)| f.ends_with(".safetensors")) {
        let range = range.as_deref().unwrap_or("").trim_start_matches("bytes=");
        let end = range.split('-').nth(1).unwrap_or("").to_owned();
        *ranges.entry((file.clone(), end)).or_insert(0) += 1;
    }
    let again: i32 = ranges.values().map(|n| n - 1).sum();
    assert!(again <= 8, "{again} ranges were fetched again after 4 kills");
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_cleanly() {
    let model = kimi();
    let server = hub(model.path());
    server.state.lock().unwrap().pause = Some(Duration::from_millis(4));
    let dir = tempfile::tempdir().unwrap();
    let child = pull(&server.url, dir.path(), &[]).stderr(Stdio::piped()).spawn().unwrap();
    while server.state.lock().unwrap().log.len() < 12 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let kill = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    collect(child.wait_with_output().unwrap()).ends(130, &["goes on from here"]);
}

/// Each kind of failure has its code and names what failed.
#[test]
fn failures_have_their_codes() {
    let model = kimi();
    let server = hub(model.path());
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("m");
    let names: Vec<String> = server.state.lock().unwrap().files.keys().cloned().collect();
    let shard = names.iter().find(|n| n.contains("-00002-")).unwrap().as_str();
    let always = |fault: Option<Fault>| {
        let faults = fault.map(|f| (shard.to_owned(), f));
        server.state.lock().unwrap().always = faults.into_iter().collect();
    };
    always(Some(Fault::Status(503)));
    run(&server.url, &to, &[]).ends(8, &[shard, "503"]);
    always(Some(Fault::WrongBytes));
    run(&server.url, &to, &[]).ends(6, &[shard, "digest"]);
    assert!(!to.join(shard).exists(), "nothing unchecked has the file's name");
    always(None);
    run("http://127.0.0.1:9", &to, &[]).ends(8, &["127.0.0.1:9"]);
    let blocked = dir.path().join("file");
    std::fs::write(&blocked, "").unwrap();
    run(&server.url, &blocked.join("m"), &[]).ends(7, &["file/m"]);
    facit(&["pull", "not-a-repository", arg(&to)]).ends(2, &["OWNER/NAME"]);
    run(&server.url, &to, &["--revision", "main"]).ok();
}

/// `--layers`: what is not needed is not fetched, and what is here is known to be a part.
#[test]
fn a_partial_set_is_known_as_one() {
    let model = kimi();
    let server = hub(model.path());
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path();
    run(&server.url, to, &["--layers", "2"]).ok();
    let here = whole_files(&server, to);
    assert!(here < server.state.lock().unwrap().files.len());
    let verified = facit(&["verify-model", arg(to), "--json"]).ok().json();
    assert!(!verified["absent"].as_array().unwrap().is_empty());
    facit(&["run", arg(to), "--ids", "1,2,3", "-n", "1"]).ends(6, &[]);
    // The doctor knows how to complete it.
    let doctor = facit(&["doctor", arg(to), "--seconds", "0.02", "--json"]).ends(6, &[]).json();
    let next = &doctor["next"][0];
    assert_eq!((next[1].as_str(), next[2].as_str()), (Some("pull"), Some("o/m")));
    run(&server.url, to, &[]).ok();
    assert!(
        facit(&["verify-model", arg(to), "--json"]).ok().json()["absent"] == serde_json::json!([])
    );
}
