//! Files in ranges: several at once, continued where they stopped, checked before they count.

use super::hub::Failure;
use super::{Hub, Manifest, ManifestFile, PullOptions, PullProgress, RemoteFile};
use crate::atomic::{parent, partial_path};
use crate::digest::for_each_block;
use crate::io::{Disk, File, Mode, read_exact_at, write_all_at};
use crate::{Error, Result, atomic};
use sha2::{Digest as _, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use ureq::http::{HeaderMap, StatusCode};

/// Times a file is begun again because its content was wrong or changed.
const RESTARTS: u32 = 2;
/// Bytes passed from the network to the disk at once.
const BUFFER: usize = 1 << 18;

pub(super) struct Download<'d> {
    pub disk: &'d Arc<dyn Disk>,
    pub hub: &'d Hub,
    pub repo: &'d str,
    pub commit: &'d str,
    pub dir: &'d Path,
    pub options: &'d PullOptions,
    pub progress: &'d (dyn Fn(PullProgress<'_>) -> bool + Sync),
    pub old: Option<Manifest>,
}

/// Counts over all files.
struct Totals {
    files: AtomicUsize,
    bytes: AtomicU64,
    of_files: usize,
    of_bytes: u64,
    stop: AtomicBool,
}

/// What is known of a file that is being fetched, as kept in `NAME.chunks`.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
struct Chunks {
    /// Digest by the hub's listing: another one means another file.
    oid: String,
    size: u64,
    chunk: u64,
    /// As the first answer had it.
    etag: Option<String>,
    /// Ranges that are there.
    done: Vec<u64>,
}

enum Stop {
    /// All bytes are here and are not what the hub lists: begin it again.
    Wrong(String),
    /// The file changed on the server, or the server does not send what was asked for.
    Restart(String),
    Error(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Stop::Error(e)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Download<'_> {
    /// Fetches files one after the other, each over several connections.
    pub fn run(&self, files: &[RemoteFile]) -> Result<Vec<ManifestFile>> {
        let totals = Totals {
            files: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            of_files: files.len(),
            of_bytes: files.iter().map(|f| f.size).sum(),
            stop: AtomicBool::new(false),
        };
        let mut fetched = Vec::new();
        let mut first_error = None;
        for file in files {
            let before = totals.bytes.load(Ordering::Relaxed);
            match self.file(file, &totals) {
                Ok(done) => {
                    fetched.push(done);
                    totals.files.fetch_add(1, Ordering::Relaxed);
                    self.tell(file, &totals);
                }
                Err(e) if totals.stop.load(Ordering::Relaxed) => return Err(e),
                // Others may still be had; this one is reported in the end.
                Err(e) => {
                    first_error.get_or_insert(e);
                    totals.bytes.store(before, Ordering::Relaxed);
                }
            }
        }
        match first_error {
            None => Ok(fetched),
            Some(e) => Err(e),
        }
    }

    fn tell(&self, file: &RemoteFile, totals: &Totals) {
        let go_on = (self.progress)(PullProgress {
            file: &file.path,
            files: totals.files.load(Ordering::Relaxed),
            of_files: totals.of_files,
            bytes: totals.bytes.load(Ordering::Relaxed),
            of_bytes: totals.of_bytes,
        });
        if !go_on {
            totals.stop.store(true, Ordering::Relaxed);
        }
    }

    fn file(&self, file: &RemoteFile, totals: &Totals) -> Result<ManifestFile> {
        let path = self.dir.join(&file.path);
        std::fs::create_dir_all(parent(&path)).map_err(|e| Error::io("create", &path, e))?;
        if let Some(done) = self.already(file, &path)? {
            totals.bytes.fetch_add(file.size, Ordering::Relaxed);
            return Ok(done);
        }
        let before = totals.bytes.load(Ordering::Relaxed);
        let mut restarts = 0;
        loop {
            match self.attempt(file, &path, totals) {
                Ok(done) => return Ok(done),
                Err(Stop::Error(e)) => return Err(e),
                Err(stop @ (Stop::Wrong(_) | Stop::Restart(_))) => {
                    totals.bytes.store(before, Ordering::Relaxed);
                    self.forget(&path);
                    restarts += 1;
                    if restarts > RESTARTS {
                        return Err(self.give_up(file, &path, stop));
                    }
                }
            }
        }
    }

    fn give_up(&self, file: &RemoteFile, path: &Path, stop: Stop) -> Error {
        match stop {
            Stop::Error(e) => e,
            Stop::Restart(problem) => Error::Network { url: self.url(file), problem },
            Stop::Wrong(problem) => {
                let times = RESTARTS + 1;
                let text =
                    format!("{problem} in each of {times} downloads from {}", self.url(file));
                Error::format(path, text)
            }
        }
    }

    /// The file if an earlier download has brought and checked it.
    fn already(&self, file: &RemoteFile, path: &Path) -> Result<Option<ManifestFile>> {
        let size = std::fs::metadata(path).map(|m| m.len());
        if size.ok() != Some(file.size) {
            return Ok(None);
        }
        let listed = self.old.as_ref().and_then(|m| m.files.iter().find(|f| f.path == file.path));
        if let (Some(listed), Some(sha)) = (listed, &file.sha256)
            && listed.size == file.size
            && listed.sha256 == *sha
        {
            return Ok(Some(listed.clone()));
        }
        Ok(self.check(file, path)?.ok())
    }

    fn url(&self, file: &RemoteFile) -> String {
        self.hub.file_url(self.repo, self.commit, &file.path)
    }

    /// Deletes what there is of a file.
    fn forget(&self, path: &Path) {
        // Whatever stays is not believed: the chunks' list goes first.
        let _ = self.disk.remove(&chunks_path(path));
        let _ = self.disk.remove(&partial_path(path));
    }

    /// Compares size and digest. `Ok(Err(problem))` if they differ.
    fn check(
        &self,
        file: &RemoteFile,
        path: &Path,
    ) -> Result<std::result::Result<ManifestFile, String>> {
        let mut sha = Sha256::new();
        let mut git = sha1::Sha1::new();
        git.update(format!("blob {}\0", file.size));
        let size = for_each_block(&**self.disk, path, |block| {
            sha.update(block);
            if file.sha256.is_none() {
                git.update(block);
            }
        })?;
        let sha = hex(&sha.finalize());
        let (expected, got) = match &file.sha256 {
            Some(expected) => (expected, sha.clone()),
            None => (&file.oid, hex(&git.finalize())),
        };
        Ok(if size != file.size {
            Err(format!("expected {} bytes, got {size}", file.size))
        } else if *expected != got {
            Err(format!("expected digest {expected}, got {got}"))
        } else {
            Ok(ManifestFile { path: file.path.clone(), size, sha256: sha })
        })
    }

    fn attempt(
        &self,
        file: &RemoteFile,
        path: &Path,
        totals: &Totals,
    ) -> Result<ManifestFile, Stop> {
        let partial = partial_path(path);
        let open = self.disk.open(&partial, Mode::Update);
        let handle = open.map_err(|e| Error::io("create", &partial, e))?;
        let chunks = self.load_chunks(file, path, &*handle)?;
        let here: u64 = chunks.done.iter().map(|&i| chunk_len(&chunks, i)).sum();
        totals.bytes.fetch_add(here, Ordering::Relaxed);
        handle.set_size(file.size).map_err(|e| Error::io("extend", &partial, e))?;
        let missing: Vec<u64> =
            (0..file.size.div_ceil(chunks.chunk)).filter(|i| !chunks.done.contains(i)).collect();
        let work = Work {
            download: self,
            file,
            path,
            url: self.url(file),
            handle,
            chunks: Mutex::new(chunks),
            totals,
            no_ranges: AtomicBool::new(false),
            failed: Mutex::new(None),
        };
        let next = AtomicUsize::new(0);
        let worker = || {
            while !work.over()
                && let Some(&i) = missing.get(next.fetch_add(1, Ordering::Relaxed))
            {
                if let Err(stop) = work.chunk(i) {
                    lock(&work.failed).get_or_insert(stop);
                }
            }
        };
        std::thread::scope(|s| {
            for _ in 1..self.options.connections.min(missing.len()) {
                s.spawn(worker);
            }
            worker();
        });
        if let Some(stop) = lock(&work.failed).take() {
            return Err(stop);
        }
        if totals.stop.load(Ordering::Relaxed) {
            let text = "the download was stopped; run it again to continue";
            return Err(Error::Refused(text.to_owned()).into());
        }
        work.handle.sync().map_err(|e| Error::io("sync", &partial, e))?;
        let done = self.check(file, &partial)?.map_err(Stop::Wrong)?;
        self.disk.rename(&partial, path).map_err(|e| Error::io("rename into place", path, e))?;
        let dir = parent(path);
        self.disk.sync_dir(dir).map_err(|e| Error::io("sync directory", dir, e))?;
        let _ = self.disk.remove(&chunks_path(path));
        Ok(done)
    }

    /// What an interrupted download left, if it is of the same file.
    fn load_chunks(&self, file: &RemoteFile, path: &Path, partial: &dyn File) -> Result<Chunks> {
        let oid = file.sha256.clone().unwrap_or_else(|| file.oid.clone());
        let chunk = self.options.chunk.max(1);
        let fresh = Chunks { oid, size: file.size, chunk, ..Chunks::default() };
        let path = chunks_path(path);
        let Ok(list) = self.disk.open(&path, Mode::Read) else { return Ok(fresh) };
        let size = list.size().map_err(|e| Error::io("measure", &path, e))?;
        let mut text = vec![0; size.min(64 << 20) as usize];
        read_exact_at(&*list, &mut text, 0).map_err(|e| Error::io("read", &path, e))?;
        let here = partial.size().map_err(|e| Error::io("measure", &path, e))?;
        let found: Option<Chunks> = serde_json::from_slice(&text).ok();
        let same = |c: &Chunks| {
            let last = c.done.iter().max().map_or(0, |&i| i.saturating_add(1));
            (&c.oid, c.size) == (&fresh.oid, fresh.size)
                && c.chunk > 0
                && last <= c.size.div_ceil(c.chunk)
                && here == c.size
        };
        Ok(found.filter(same).unwrap_or(fresh))
    }
}

fn chunks_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".chunks");
    name.into()
}

fn chunk_len(chunks: &Chunks, i: u64) -> u64 {
    chunks.chunk.min(chunks.size - i * chunks.chunk)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// One file, shared by its connections.
struct Work<'w> {
    download: &'w Download<'w>,
    file: &'w RemoteFile,
    path: &'w Path,
    url: String,
    handle: Arc<dyn File>,
    chunks: Mutex<Chunks>,
    totals: &'w Totals,
    /// The server sends whole files only; one connection then does it all.
    no_ranges: AtomicBool,
    failed: Mutex<Option<Stop>>,
}

impl Work<'_> {
    fn over(&self) -> bool {
        self.no_ranges.load(Ordering::Relaxed)
            || self.totals.stop.load(Ordering::Relaxed)
            || lock(&self.failed).is_some()
    }

    /// Fetches one range, from where the last attempt broke off.
    fn chunk(&self, i: u64) -> Result<(), Stop> {
        let (start, end) = {
            let chunks = lock(&self.chunks);
            (i * chunks.chunk, i * chunks.chunk + chunk_len(&chunks, i))
        };
        let mut at = start;
        // A whole new set of attempts after every progress: a slow line is no failure.
        while at < end && !self.over() {
            let before = at;
            let mut stop = None;
            let result = self.download.hub.insist(&self.url, self.download.options, || {
                let result = self.range(&mut at, end);
                match result {
                    Ok(()) => Ok(()),
                    Err(Attempt::Stop(s)) => {
                        stop = Some(s);
                        Ok(())
                    }
                    Err(Attempt::Failure(_)) if at > before => Ok(()),
                    Err(Attempt::Failure(f)) => Err(f),
                }
            });
            if let Some(stop) = stop {
                return Err(stop);
            }
            result?;
        }
        if at < end {
            return Ok(());
        }
        let mut chunks = lock(&self.chunks);
        chunks.done.push(i);
        if self.file.size > self.download.options.chunk {
            // The data must be there before the list says so.
            self.handle.sync().map_err(|e| Error::io("sync", self.path, e))?;
            let text =
                serde_json::to_vec(&*chunks).unwrap_or_else(|e| unreachable!("plain data: {e}"));
            atomic::write(self.download.disk, &chunks_path(self.path), &text)?;
        }
        Ok(())
    }

    /// One request for `at..end`; moves `at` as bytes arrive.
    fn range(&self, at: &mut u64, end: u64) -> Result<(), Attempt> {
        let range = format!("bytes={}-{}", *at, end - 1);
        let mut response = self.download.hub.get(&self.url, &[("range", &range)])?;
        self.same_file(response.headers())?;
        let whole = response.status() != StatusCode::PARTIAL_CONTENT;
        let (mut position, until) = if whole {
            if self.no_ranges.swap(true, Ordering::Relaxed) {
                // Another connection is fetching the whole file already.
                return Ok(());
            }
            (0, self.file.size)
        } else {
            self.check_range(response.headers(), *at, end)?;
            (*at, end)
        };
        let again = |problem: String| Attempt::Failure(Failure::Again { problem, pause: None });
        let mut body = response.body_mut().as_reader();
        let mut buffer = vec![0; BUFFER];
        let counted = self.totals.bytes.load(Ordering::Relaxed);
        let result = loop {
            if position == until {
                break Ok(());
            }
            if self.totals.stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            let want = BUFFER.min(usize::try_from(until - position).unwrap_or(BUFFER));
            match body.read(&mut buffer[..want]) {
                Ok(0) => {
                    break Err(again(format!("the answer ends at byte {position} of {until}")));
                }
                Err(e) => break Err(again(e.to_string())),
                Ok(n) => {
                    let partial = partial_path(self.path);
                    write_all_at(&*self.handle, &buffer[..n], position)
                        .map_err(|e| Attempt::Stop(Error::io("write", &partial, e).into()))?;
                    position += n as u64;
                    if !whole {
                        *at = position;
                    }
                    self.totals.bytes.fetch_add(n as u64, Ordering::Relaxed);
                    self.download.tell(self.file, self.totals);
                }
            }
        };
        if whole {
            if result.is_ok() && position == until {
                *at = end;
                return Ok(());
            }
            // Without ranges there is nothing to continue from.
            self.no_ranges.store(false, Ordering::Relaxed);
            self.totals.bytes.store(counted, Ordering::Relaxed);
        }
        result
    }

    /// The answer must be of the file that the first answer was of.
    fn same_file(&self, headers: &HeaderMap) -> Result<(), Attempt> {
        let etag = headers.get("etag").and_then(|e| e.to_str().ok());
        let Some(etag) = etag else { return Ok(()) };
        let mut chunks = lock(&self.chunks);
        match &chunks.etag {
            None => chunks.etag = Some(etag.to_owned()),
            Some(first) if first == etag => {}
            Some(first) => {
                let problem = format!("the file changed on the server (ETag {first}, now {etag})");
                return Err(Attempt::Stop(Stop::Restart(problem)));
            }
        }
        Ok(())
    }

    /// A partial answer must be the part that was asked for.
    fn check_range(&self, headers: &HeaderMap, at: u64, end: u64) -> Result<(), Attempt> {
        let got = headers.get("content-range").and_then(|r| r.to_str().ok()).unwrap_or("");
        let expected = format!("bytes {at}-{}/{}", end - 1, self.file.size);
        if got == expected {
            return Ok(());
        }
        let problem = format!("asked for {expected:?}, the answer has {got:?}");
        Err(Attempt::Stop(Stop::Restart(problem)))
    }
}

/// How a single request ends if not well.
enum Attempt {
    Failure(Failure),
    Stop(Stop),
}

impl From<Failure> for Attempt {
    fn from(f: Failure) -> Self {
        Attempt::Failure(f)
    }
}
