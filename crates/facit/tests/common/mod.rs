//! Runs the real binary and keeps what it said.
#![allow(dead_code)] // each test file uses a part

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a run of the binary left.
pub struct Ran {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    /// Standard output as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("UTF-8 on standard output")
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Ended with `code`, and said all of `says` on standard error.
    #[track_caller]
    pub fn ends(self, code: i32, says: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}", self.err);
        for text in says {
            assert!(self.err.contains(text), "{text:?} is not in {:?}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }

    /// Ended with 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.ends(0, &[])
    }
}

/// The binary, with arguments.
pub fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_facit"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs it.
pub fn facit<S: AsRef<OsStr>>(args: &[S]) -> Ran {
    collect(command(args).output().expect("the binary starts"))
}

/// Runs it with something on standard input.
pub fn facit_with_input<S: AsRef<OsStr>>(args: &[S], input: &[u8]) -> Ran {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A run that refuses early may close its end first.
    let _ = child.stdin.take().expect("piped").write_all(input);
    collect(child.wait_with_output().expect("the binary ends"))
}

pub fn collect(output: std::process::Output) -> Ran {
    Ran {
        code: output.status.code().expect("an exit code, not a signal"),
        out: output.stdout,
        err: String::from_utf8(output.stderr).expect("UTF-8 on standard error"),
    }
}

/// A path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().expect("UTF-8 path")
}

/// Writes the artifact of one of the golden models into `dir`.
pub fn model(dir: &Path, name: &str) -> Option<PathBuf> {
    let path = dir.join(format!("{name}.facit"));
    std::fs::write(&path, testkit::fixed_models::model(name)?.artifact()).expect("a scratch file");
    Some(path)
}

/// A Q16 temperature as the exact decimal the command line takes.
pub fn decimal(q16: u32) -> String {
    // 2^-16 has 16 decimals.
    let fraction = u128::from(q16 & 0xffff) * 10u128.pow(16) / 65536;
    format!("{}.{fraction:016}", q16 >> 16)
}

/// A small synthetic Kimi K3 with two dozen shards and no tokenizer.
pub fn kimi() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a scratch directory");
    testkit::k3::Shape::tiny().checkpoint(1).write(dir.path(), 400_000).expect("a scratch model");
    dir
}

/// The committed small DeepSeek-V4.1, copied to where it may be changed.
pub fn deepseek() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let from = testkit::root().join("vectors/deepseek_v41/tiny_model");
    for entry in std::fs::read_dir(from).expect("committed vectors") {
        let path = entry.expect("a directory entry").path();
        let to = dir.path().join(path.file_name().expect("a file name"));
        std::fs::copy(&path, to).expect("a scratch file");
    }
    dir
}

/// The first shard of a model directory.
pub fn shard(dir: &Path) -> PathBuf {
    let files = std::fs::read_dir(dir).expect("a directory").map(|e| e.expect("an entry").path());
    let shards = files.filter(|p| p.extension().is_some_and(|e| e == "safetensors"));
    shards.min().expect("a shard")
}

/// Changes one bit of a file.
pub fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("a file");
    bytes[at] ^= 4;
    std::fs::write(path, bytes).expect("a scratch file");
}

/// Mounts a file system of 256 kB; `None` where that is not allowed.
pub struct Small(pub PathBuf);

impl Small {
    pub fn mount(at: &Path) -> Option<Self> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "facit-test", arg(at)])
            .output();
        mount.is_ok_and(|output| output.status.success()).then(|| Self(at.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

/// A small synthetic Kimi K3 with the vocabulary and the files of the committed tokenizer.
pub fn kimi_talks() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let text = testkit::root().join("vectors/text/k3");
    let shape = testkit::k3::Shape { vocab: 1215, ..testkit::k3::Shape::tiny() };
    shape.checkpoint(3).write(dir.path(), 400_000).expect("a scratch model");
    for name in ["tiktoken.model", "tokenizer_config.json"] {
        std::fs::copy(text.join(name), dir.path().join(name)).expect("a scratch file");
    }
    dir
}

/// The small DeepSeek-V4.1 with room for a conversation, which its 64 positions are not.
pub fn deepseek_talks() -> tempfile::TempDir {
    let dir = deepseek();
    let path = dir.path().join("config.json");
    let config = std::fs::read_to_string(&path).expect("a config");
    let longer = config.replace("_embeddings\": 64", "_embeddings\": 2048");
    assert_ne!(config, longer);
    std::fs::write(path, longer).expect("a scratch file");
    dir
}

/// Where the bytes of tensor `name` begin in the directory's only shard that has it.
pub fn find(dir: &Path, name: &str) -> (PathBuf, usize) {
    for entry in std::fs::read_dir(dir).expect("a sound model") {
        let path = entry.expect("a sound model").path();
        let bytes = std::fs::read(&path).expect("a sound model");
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let len = u64::from_le_bytes(bytes[..8].try_into().expect("a sound model")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + len]).expect("a sound model");
        if let Some(tensor) = header.get(name) {
            return (
                path,
                8 + len + tensor["data_offsets"][0].as_u64().expect("a sound model") as usize,
            );
        }
    }
    panic!("{name} is in no shard");
}

/// The same, never choosing a control token: its replies do not end by themselves.
pub fn kimi_talks_on() -> tempfile::TempDir {
    let dir = kimi_talks();
    let (shard, at) = find(dir.path(), "language_model.lm_head.weight");
    let mut bytes = std::fs::read(&shard).expect("a shard");
    let row = 2 * testkit::k3::Shape::tiny().hidden;
    // Their logits are 0, and among a thousand others some are larger.
    bytes[at + 1204 * row..at + 1215 * row].fill(0);
    std::fs::write(shard, bytes).expect("a scratch file");
    dir
}
