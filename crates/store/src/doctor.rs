//! `doctor`: the disk measured the way the engine reads.

use crate::direct::{AlignedBuf, Backend, DirectFile, Done, Reader, Request, Window};
use crate::io::{DIRECT_ALIGN, Disk, Mode, write_all_at};
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Requests in flight at which large reads are measured.
pub const DEPTHS: [usize; 3] = [1, 4, 16];
/// Bytes of a large read.
const LARGE: u64 = 1 << 20;
/// Bytes of a request made of large reads, and how many wait at a time.
const REQUEST: u64 = 16 << 20;
const QUEUED: u64 = 3;
/// Shortest file that a disk is measured with.
pub const SHORTEST: u64 = 16 * LARGE;
/// Bytes of the smallest rows that models look up.
pub const SMALL: u64 = 264;

/// A rate at a number of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Rate {
    /// Requests in flight.
    pub depth: usize,
    /// Requests a second.
    pub reads: f64,
    /// Bytes a second that were of use.
    pub bytes: f64,
}

/// What a disk does.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DiskReport {
    /// The file that was read.
    pub file: PathBuf,
    /// Its length.
    pub size: u64,
    /// Whether reads went past the page cache; if not, the numbers are of memory.
    pub direct: bool,
    /// How large reads were passed to the system, see [`Reader::name`].
    pub reader: &'static str,
    /// Reads of 1 MiB in disk order, at [`DEPTHS`].
    pub large: Vec<Rate>,
    /// Reads of [`SMALL`] bytes at random places, at 1 and 16.
    pub small: Vec<Rate>,
}

impl DiskReport {
    /// The best rate of large reads, in bytes a second.
    pub fn best(&self) -> f64 {
        self.large.iter().map(|r| r.bytes).fold(0.0, f64::max)
    }
}

/// Measures reads of an existing file of at least [`SHORTEST`] bytes, `time` for each number.
pub fn measure(disk: &dyn Disk, path: &Path, time: Duration) -> Result<DiskReport> {
    let (file, size) = open(disk, path)?;
    let mut reader = "";
    let mut measured = Vec::new();
    for depth in DEPTHS {
        let (rate, name) = large(&file, size, depth, time)?;
        measured.push(rate);
        reader = name;
    }
    let small = [1, 16].iter().map(|&d| small(&file, size, d, time)).collect::<Result<Vec<_>>>()?;
    let direct = file.event().is_none();
    Ok(DiskReport { file: path.to_owned(), size, direct, reader, large: measured, small })
}

/// The best rate of large reads alone, in bytes a second: a quicker [`measure`].
pub fn rate(disk: &dyn Disk, path: &Path, time: Duration) -> Result<f64> {
    let (file, size) = open(disk, path)?;
    let deepest = DEPTHS[DEPTHS.len() - 1];
    Ok(large(&file, size, deepest, time)?.0.bytes)
}

fn open(disk: &dyn Disk, path: &Path) -> Result<(Arc<DirectFile>, u64)> {
    let file = DirectFile::open(disk, path)?;
    let size = file.size()?;
    if size < SHORTEST {
        let problem = format!("only {size} bytes: too short to measure a disk with");
        return Err(Error::format(path, problem));
    }
    Ok((Arc::new(file), size))
}

/// Large reads through the engine's own reader, which is kept supplied; also its name.
fn large(
    file: &Arc<DirectFile>,
    size: u64,
    depth: usize,
    time: Duration,
) -> Result<(Rate, &'static str)> {
    let (send, receive) = mpsc::channel();
    let reader = Reader::with_depth(Backend::Auto, depth, move |done: Done| {
        // After the last answer nobody listens.
        let _ = send.send(done);
    });
    reader.check()?;
    let places = size / REQUEST.min(size);
    let len = REQUEST.min(size) as usize / LARGE as usize * LARGE as usize;
    let submit = |i: u64, buf| {
        let offset = i % places * REQUEST;
        let window = Window { file: Arc::clone(file), offset, len, need: len, at: 0 };
        reader.submit(Request { id: i, urgent: false, windows: vec![window], buf });
    };
    for i in 0..QUEUED {
        submit(i, AlignedBuf::new(len, "measuring")?);
    }
    // What the first buffers cost when they are first touched is not the disk's.
    let (mut next, mut start, mut bytes) = (QUEUED, Instant::now(), 0);
    while start.elapsed() < time || next <= 2 * QUEUED {
        let Ok(done) = receive.recv() else { break };
        done.result.map_err(|f| Error::io("read", file.path(), f.source))?;
        if next == 2 * QUEUED {
            (start, bytes) = (Instant::now(), 0);
        } else {
            bytes += len as u64;
        }
        submit(next, done.buf);
        next += 1;
    }
    let rate = bytes as f64 / start.elapsed().as_secs_f64();
    Ok((Rate { depth, reads: rate / LARGE as f64, bytes: rate }, reader.name()))
}

/// Small reads at random places on `depth` threads.
fn small(file: &DirectFile, size: u64, depth: usize, time: Duration) -> Result<Rate> {
    let pages = size / DIRECT_ALIGN;
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let work = || -> Result<u64> {
        let mut buf = AlignedBuf::new(DIRECT_ALIGN as usize, "measuring")?;
        let mut reads = 0;
        while !stop.load(Ordering::Relaxed) && (start.elapsed() < time || reads == 0) {
            // A multiplicative hash jumps about.
            let i = next.fetch_add(1, Ordering::Relaxed);
            let offset = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % pages * DIRECT_ALIGN;
            file.read_window(&mut buf, offset, SMALL as usize, 0)
                .inspect_err(|_| stop.store(true, Ordering::Relaxed))
                .map_err(|e| Error::io("read", file.path(), e))?;
            reads += 1;
        }
        Ok(reads)
    };
    let reads = std::thread::scope(|s| {
        let threads: Vec<_> = (0..depth).map(|_| s.spawn(work)).collect();
        threads.into_iter().try_fold(0, |sum, t| {
            let reads = t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<u64, Error>(sum + reads)
        })
    })?;
    let reads = reads as f64 / start.elapsed().as_secs_f64();
    Ok(Rate { depth, reads, bytes: reads * SMALL as f64 })
}

/// A file to measure with, deleted when dropped.
#[derive(Debug)]
pub struct Scratch {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl Scratch {
    /// Writes `size` bytes that do not compress into a new file in `dir`.
    pub fn create(disk: &Arc<dyn Disk>, dir: &Path, size: u64) -> Result<Self> {
        let path = dir.join(format!(".facit-doctor-{}", std::process::id()));
        let file = disk.open(&path, Mode::Create).map_err(|e| Error::io("create", &path, e))?;
        let scratch = Scratch { disk: Arc::clone(disk), path };
        let mut x = 0x2545_f491_4f6c_dd1du64;
        let mut block = vec![0; LARGE as usize];
        for at in (0..size).step_by(block.len()) {
            for bytes in block.as_chunks_mut::<8>().0 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                *bytes = x.to_le_bytes();
            }
            let n = block.len().min((size - at) as usize);
            write_all_at(&*file, &block[..n], at)
                .map_err(|e| Error::io("write", &scratch.path, e))?;
        }
        file.sync().map_err(|e| Error::io("sync", &scratch.path, e))?;
        Ok(scratch)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = self.disk.remove(&self.path);
    }
}

/// Bytes that may still be written to the file system of a directory.
pub fn free_space(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir).map_err(|e| Error::io("measure", dir, e.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
