//! What a long job has finished, on disk: lines are appended as they are done, and a job that was
//! killed finds them again. Torn ends are cut off; lines of another job are never believed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead as _, BufReader, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use store::Digest;

use crate::Error;

/// Longest line that is believed.
pub const MAX_LINE: u64 = 256 << 20;

/// An open journal. While it is open no other process can open it.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Opens or begins the journal of a job, and returns the lines finished so far by number.
    /// `job` names the job: everything that its lines depend on.
    ///
    /// # Errors
    /// The disk's; [`Error::Refused`] for the journal of another job, or one in use.
    pub fn open(path: &Path, job: &str) -> Result<(Journal, BTreeMap<usize, String>), Error> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        let refused = |why: String| Error::Refused(format!("{}: {why}", path.display()));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|source| Error::Write { path: path.to_owned(), source })?;
        match file.try_lock() {
            Ok(()) => (),
            Err(TryLockError::WouldBlock) => {
                return Err(refused("another process is working on this job".into()));
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(_)) => (),
        }
        let mut journal = Journal { file, path: path.to_owned() };
        let mut lines = BTreeMap::new();
        let mut reader = BufReader::new(&journal.file);
        let (mut whole, mut another) = (0, false);
        let mut line = Vec::new();
        loop {
            line.clear();
            let n = io::Read::take(&mut reader, MAX_LINE).read_until(b'\n', &mut line);
            let n = n.map_err(read)? as u64;
            let Some((number, text)) = entry(&line) else { break };
            match number {
                None if whole == 0 => another = text != job,
                Some(_) if another => {
                    return Err(refused(
                        "it holds finished lines of another job (another input, model or \
                         options): finish that one, or delete the file to begin anew"
                            .into(),
                    ));
                }
                Some(number) if whole > 0 => drop(lines.insert(number, text.to_owned())),
                _ => break,
            }
            whole += n;
        }
        // Another job that finished nothing leaves nothing to keep.
        if another {
            whole = 0;
        }
        let cut = journal.file.set_len(whole).and_then(|()| {
            (&journal.file).seek(io::SeekFrom::Start(whole))?;
            Ok(())
        });
        cut.map_err(|e| journal.failed(e))?;
        if whole == 0 {
            journal.write(&format!("job {job}"))?;
        }
        Ok((journal, lines))
    }

    /// Adds a finished line, which must hold no line end. It is on the disk when this returns.
    ///
    /// # Errors
    /// The disk's; the lines before stay.
    pub fn append(&mut self, number: usize, line: &str) -> Result<(), Error> {
        debug_assert!(!line.contains('\n'));
        self.write(&format!("{number} {line}"))
    }

    /// The job is done and its lines are elsewhere.
    ///
    /// # Errors
    /// The disk's.
    pub fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(|e| self.failed(e))
    }

    fn write(&mut self, rest: &str) -> Result<(), Error> {
        let line = format!("{} {rest}\n", check(rest.as_bytes()));
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|e| self.failed(e))
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Write { path: self.path.clone(), source }
    }
}

/// The first 16 hexadecimal digits of a line's BLAKE3.
fn check(rest: &[u8]) -> String {
    Digest(*blake3::hash(rest).as_bytes()).to_string()[..16].to_owned()
}

/// A whole, undamaged line: its number (`None` for the job's name) and text.
fn entry(line: &[u8]) -> Option<(Option<usize>, &str)> {
    let line = line.strip_suffix(b"\n")?;
    let (digest, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    if digest != check(rest.as_bytes()) {
        return None;
    }
    let (number, text) = rest.split_once(' ')?;
    match number {
        "job" => Some((None, text)),
        number => Some((Some(number.parse().ok()?), text)),
    }
}

#[cfg(test)]
mod tests {
    use super::Journal;
    use crate::Error;

    /// Catches a torn or altered line that is believed, and finished lines that are lost: the
    /// file is cut at every byte and damaged at every byte.
    #[test]
    fn what_was_finished_is_found_again_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let lines = [(3, "three"), (0, "{\"a\": 1}"), (11, "")];
        let (mut journal, found) = Journal::open(&path, "job A").unwrap();
        assert!(found.is_empty());
        for (n, line) in lines {
            journal.append(n, line).unwrap();
        }
        assert!(
            matches!(Journal::open(&path, "job A"), Err(Error::Refused(why)) if why.contains("another process"))
        );
        drop(journal);
        let good = std::fs::read(&path).unwrap();
        let ends: Vec<usize> =
            good.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1).collect();
        for cut in 0..=good.len() {
            std::fs::write(&path, &good[..cut]).unwrap();
            let whole = ends.iter().filter(|&&e| e <= cut).count();
            let (mut journal, found) = Journal::open(&path, "job A").unwrap();
            let expect = lines.iter().take(whole.saturating_sub(1));
            assert!(expect.map(|(n, l)| (*n, *l)).all(|(n, l)| found[&n] == l), "cut at {cut}");
            assert_eq!(found.len(), whole.saturating_sub(1), "cut at {cut}");
            journal.append(7, "later").unwrap();
            drop(journal);
            assert_eq!(Journal::open(&path, "job A").unwrap().1[&7], "later", "cut at {cut}");
        }
        for at in ends[0]..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            let (_, found) = Journal::open(&path, "job A").unwrap();
            let before = ends.iter().filter(|&&e| e <= at).count() - 1;
            assert_eq!(found.len(), before, "damage at {at}");
        }
        std::fs::write(&path, &good).unwrap();
        let other = Journal::open(&path, "job B").unwrap_err();
        assert!(other.to_string().contains("another job"), "{other}");
        std::fs::write(&path, &good[..ends[0]]).unwrap();
        let (journal, found) = Journal::open(&path, "job B").unwrap();
        assert!(found.is_empty(), "another job that finished nothing");
        journal.remove().unwrap();
        assert!(!path.exists());
    }
}
