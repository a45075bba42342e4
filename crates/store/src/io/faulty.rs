//! A file system that fails on purpose, by rules: "the third read of any file whose path
//! contains `00002` is short", "every write after the tenth says the disk is full".

use super::{Disk, File, Mode, Real};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The kind of operation a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Opening in any mode but [`Mode::Direct`].
    Open,
    /// Opening in [`Mode::Direct`].
    OpenDirect,
    /// A read on a file opened in any mode but [`Mode::Direct`].
    Read,
    /// A read on a file opened in [`Mode::Direct`].
    ReadDirect,
    /// A write.
    Write,
    /// Making content or a directory durable.
    Sync,
    /// A rename.
    Rename,
}

/// What happens instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The system call fails with this errno.
    Errno(i32),
    /// At most this many bytes are read or written.
    Short(usize),
    /// The file seems to end at this byte (reads).
    EndAt(u64),
    /// One bit of the byte in the middle of what was read is flipped.
    Flip,
}

impl Action {
    /// Interrupted by a signal.
    pub const EINTR: Action = Action::Errno(rustix::io::Errno::INTR.raw_os_error());
    /// Input/output error.
    pub const EIO: Action = Action::Errno(rustix::io::Errno::IO.raw_os_error());
    /// Invalid argument: how file systems refuse direct access.
    pub const EINVAL: Action = Action::Errno(rustix::io::Errno::INVAL.raw_os_error());
    /// No space left.
    pub const ENOSPC: Action = Action::Errno(rustix::io::Errno::NOSPC.raw_os_error());
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    op: Op,
    path: String,
    from: u64,
    until: u64,
    action: Action,
    seen: u64,
}

impl Rule {
    /// Applies to every operation of this kind.
    pub fn new(op: Op, action: Action) -> Self {
        Rule { op, path: String::new(), from: 0, until: u64::MAX, action, seen: 0 }
    }

    /// Only to files whose path contains `part`.
    pub fn on(mut self, part: &str) -> Self {
        self.path = part.to_owned();
        self
    }

    /// Only to the `n`-th such operation, counted from 0.
    pub fn nth(mut self, n: u64) -> Self {
        self.from = n;
        self.until = n + 1;
        self
    }

    /// Only from the `n`-th such operation on, counted from 0.
    pub fn after(mut self, n: u64) -> Self {
        self.from = n;
        self
    }
}

#[derive(Debug, Default)]
struct Script {
    rules: Mutex<Vec<Rule>>,
    counts: Mutex<[u64; 7]>,
}

impl Script {
    /// Counts an operation and returns what happens to it.
    fn next(&self, op: Op, path: &Path) -> Option<Action> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)[op as usize] += 1;
        let mut found = None;
        for rule in self.rules.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if rule.op == op && path.to_string_lossy().contains(&rule.path) {
                if (rule.from..rule.until).contains(&rule.seen) {
                    found = found.or(Some(rule.action));
                }
                rule.seen += 1;
            }
        }
        found
    }

    fn fail(&self, op: Op, path: &Path) -> io::Result<()> {
        match self.next(op, path) {
            Some(Action::Errno(e)) => Err(io::Error::from_raw_os_error(e)),
            _ => Ok(()),
        }
    }
}

/// The real file system with rules in front. Its files have no descriptor, so every read
/// passes the rules.
#[derive(Clone, Debug, Default)]
pub struct Faulty {
    script: Arc<Script>,
}

impl Faulty {
    /// With these rules; the first rule that matches an operation decides.
    pub fn new(rules: impl Into<Vec<Rule>>) -> Self {
        let script = Script { rules: Mutex::new(rules.into()), ..Script::default() };
        Faulty { script: Arc::new(script) }
    }

    /// Replaces the rules, for faults that begin in the middle of a run.
    pub fn set(&self, rules: impl Into<Vec<Rule>>) {
        *self.script.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules.into();
    }

    /// Operations of this kind so far.
    pub fn count(&self, op: Op) -> u64 {
        self.script.counts.lock().unwrap_or_else(PoisonError::into_inner)[op as usize]
    }
}

impl Disk for Faulty {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let direct = mode == Mode::Direct;
        self.script.fail(if direct { Op::OpenDirect } else { Op::Open }, path)?;
        let inner = Real.open(path, mode)?;
        let script = Arc::clone(&self.script);
        Ok(Arc::new(FaultyFile { inner, script, path: path.to_owned(), direct }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.script.fail(Op::Rename, to)?;
        Real.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Real.remove(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.script.fail(Op::Sync, path)?;
        Real.sync_dir(path)
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Arc<dyn File>,
    script: Arc<Script>,
    path: PathBuf,
    direct: bool,
}

impl File for FaultyFile {
    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let op = if self.direct { Op::ReadDirect } else { Op::Read };
        match self.script.next(op, &self.path) {
            None => self.inner.read_at(buf, offset),
            Some(Action::Errno(e)) => Err(io::Error::from_raw_os_error(e)),
            Some(Action::Short(n)) => {
                let n = n.min(buf.len());
                if !self.direct {
                    return self.inner.read_at(&mut buf[..n], offset);
                }
                // The kernel would refuse an unaligned request: read all, own up to less.
                Ok(self.inner.read_at(buf, offset)?.min(n))
            }
            Some(Action::EndAt(end)) => {
                let left = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
                Ok(self.inner.read_at(buf, offset)?.min(left))
            }
            Some(Action::Flip) => {
                let n = self.inner.read_at(buf, offset)?;
                if n > 0 {
                    buf[n / 2] ^= 0x10;
                }
                Ok(n)
            }
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        match self.script.next(Op::Write, &self.path) {
            Some(Action::Errno(e)) => Err(io::Error::from_raw_os_error(e)),
            Some(Action::Short(n)) => self.inner.write_at(&buf[..n.min(buf.len())], offset),
            _ => self.inner.write_at(buf, offset),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.script.fail(Op::Sync, &self.path)?;
        self.inner.sync()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.inner.set_size(size)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
