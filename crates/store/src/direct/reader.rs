//! Threads that fill buffers from files, in the order asked, urgent requests first.

use super::uring::Ring;
use super::{AlignedBuf, DirectFile, Event};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Largest single request. Large enough for the disk's full rate, small enough that an urgent
/// request does not wait long behind it.
pub(super) const CHUNK: usize = 1 << 20;
/// Requests of [`CHUNK`] bytes in flight with io_uring.
pub(super) const DEPTH: usize = 16;
/// Threads of the fallback; each has one request of [`FALLBACK_CHUNK`] bytes in flight.
const FALLBACK_THREADS: usize = 4;
const FALLBACK_CHUNK: usize = 4 << 20;

/// How requests reach the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring if it works here, else plain reads.
    #[default]
    Auto,
    /// Plain reads.
    Plain,
}

/// An aligned part of a file and where it goes.
#[derive(Clone, Debug)]
pub struct Window {
    /// The file.
    pub file: Arc<DirectFile>,
    /// Offset in the file, a multiple of [`crate::io::DIRECT_ALIGN`].
    pub offset: u64,
    /// Length, a multiple as well; the window may reach past the end of the file.
    pub len: usize,
    /// Bytes from its beginning that must exist.
    pub need: usize,
    /// Place in the buffer, a multiple as well.
    pub at: usize,
}

/// Windows to be read into one buffer.
#[derive(Debug)]
pub struct Request {
    /// Given back in [`Done`].
    pub id: u64,
    /// Goes before all requests that are not.
    pub urgent: bool,
    /// Read in this order.
    pub windows: Vec<Window>,
    /// Owned by the reader until the request is done.
    pub buf: AlignedBuf,
}

/// Why a request failed.
#[derive(Debug)]
pub struct ReadFailure {
    /// The window's file.
    pub file: Arc<DirectFile>,
    /// Offset of the failing part in the file.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// Its place in the buffer.
    pub at: usize,
    /// What the system said.
    pub source: io::Error,
}

/// A finished request.
#[derive(Debug)]
pub struct Done {
    /// As in the request.
    pub id: u64,
    /// The buffer, filled if `result` is `Ok`.
    pub buf: AlignedBuf,
    /// Whether every needed byte is there.
    pub result: Result<(), ReadFailure>,
}

/// Counts of a reader since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Bytes of all windows read.
    pub bytes: u64,
    /// Nanoseconds during which at least one request was in flight.
    pub busy_ns: u64,
}

type Sink = Box<dyn Fn(Done) + Send + Sync>;

/// What the threads of a reader share.
pub(super) struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    sink: Sink,
    bytes: AtomicU64,
    busy: Mutex<Busy>,
}

#[derive(Default)]
struct Queue {
    urgent: VecDeque<Request>,
    normal: VecDeque<Request>,
    stop: bool,
}

#[derive(Default)]
struct Busy {
    active: usize,
    since: Option<Instant>,
    ns: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every critical section leaves its data whole, so a panic elsewhere does not matter.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Submits requests to a [`Reader`]; once that is gone, requests are dropped.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

impl Handle {
    /// Queues a request.
    pub fn submit(&self, request: Request) {
        self.0.submit(request);
    }
}

impl Shared {
    fn submit(&self, request: Request) {
        // Also what makes the windows of the io_uring thread safe to fill.
        assert!(request.windows.iter().all(|w| w.at + w.len <= request.buf.len()));
        let mut queue = lock(&self.queue);
        if queue.stop {
            return;
        }
        if request.urgent {
            queue.urgent.push_back(request);
        } else {
            queue.normal.push_back(request);
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// The next request; waits for one if `block`. `None` if there is none (or, blocking, if
    /// the reader is to stop).
    pub fn next(&self, block: bool, urgent_only: bool) -> Option<Request> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.stop {
                return None;
            }
            let found = queue.urgent.pop_front();
            let found = found.or_else(|| if urgent_only { None } else { queue.normal.pop_front() });
            if found.is_some() || !block {
                return found;
            }
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn stopped(&self) -> bool {
        lock(&self.queue).stop
    }

    pub fn finish(&self, done: Done) {
        (self.sink)(done);
    }

    pub fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The number of requests in flight changed.
    pub fn flight(&self, more: bool) {
        let mut busy = lock(&self.busy);
        if more {
            if busy.active == 0 {
                busy.since = Some(Instant::now());
            }
            busy.active += 1;
        } else {
            busy.active -= 1;
            if busy.active == 0
                && let Some(since) = busy.since.take()
            {
                busy.ns += since.elapsed().as_nanos() as u64;
            }
        }
    }
}

/// Reads requests in the background. Dropping it drops requests that have not begun and waits
/// for those that have.
pub struct Reader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    event: Option<Event>,
    name: &'static str,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({})", self.name)
    }
}

impl Reader {
    /// Starts the threads. `sink` is called on one of them for every finished request; it
    /// must not wait for other requests.
    pub fn new(backend: Backend, sink: impl Fn(Done) + Send + Sync + 'static) -> Self {
        Self::with_depth(backend, DEPTH, sink)
    }

    /// Like [`Reader::new`], with at most `depth` parts in flight: for measuring.
    pub fn with_depth(
        backend: Backend,
        depth: usize,
        sink: impl Fn(Done) + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            sink: Box::new(sink),
            bytes: AtomicU64::new(0),
            busy: Mutex::default(),
        });
        let ring = match backend {
            Backend::Plain => None,
            Backend::Auto => Some(Ring::new(depth)),
        };
        let mut event = None;
        let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(f)
        };
        let mut threads = Vec::new();
        let mut name = "plain reads";
        match ring {
            Some(Ok(ring)) => {
                let s = Arc::clone(&shared);
                threads.extend(spawn("store-ring", Box::new(move || ring.run(&s))));
                name = "io_uring";
            }
            Some(Err(e)) => event = Some(Event::NoUring { reason: e.to_string() }),
            None => {}
        }
        if threads.is_empty() {
            for _ in 0..depth.clamp(1, FALLBACK_THREADS) {
                let s = Arc::clone(&shared);
                threads.extend(spawn("store-read", Box::new(move || plain(&s))));
            }
        }
        Reader { shared, threads, event, name }
    }

    /// Whether there is a thread that reads.
    ///
    /// # Errors
    /// If the system gave none: requests would wait for ever.
    pub fn check(&self) -> crate::Result<()> {
        match self.threads.is_empty() {
            false => Ok(()),
            true => {
                Err(crate::Error::DoesNotFit("the system gives no thread to read with".to_owned()))
            }
        }
    }

    /// "io_uring" or "plain reads".
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// That io_uring is not available, told once.
    pub fn event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Queues a request.
    pub fn submit(&self, request: Request) {
        self.shared.submit(request);
    }

    /// For submitting from elsewhere, the sink included.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Counts so far.
    pub fn stats(&self) -> ReaderStats {
        let busy = lock(&self.shared.busy);
        let now = busy.since.map_or(0, |s| s.elapsed().as_nanos() as u64);
        ReaderStats { bytes: self.shared.bytes.load(Ordering::Relaxed), busy_ns: busy.ns + now }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.shared.queue).stop = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there has already been reported by its message.
            let _ = thread.join();
        }
    }
}

/// One thread of the fallback.
fn plain(shared: &Shared) {
    while let Some(request) = shared.next(true, false) {
        serve(shared, request);
    }
}

fn serve(shared: &Shared, mut request: Request) {
    shared.flight(true);
    let mut result = Ok(());
    'windows: for w in &request.windows {
        for start in (0..w.len).step_by(FALLBACK_CHUNK) {
            if !request.urgent
                && let Some(other) = shared.next(false, true)
            {
                serve(shared, other);
            }
            let len = FALLBACK_CHUNK.min(w.len - start);
            let buf = &mut request.buf[w.at + start..][..len];
            if let Err(failure) = read_chunk(w, start, buf, 0) {
                result = Err(failure);
                break 'windows;
            }
            shared.count(len);
            if shared.stopped() {
                break 'windows;
            }
        }
    }
    shared.flight(false);
    if !shared.stopped() {
        shared.finish(Done { id: request.id, buf: request.buf, result });
    }
}

/// Reads the part of a window that begins at its byte `start` into `buf`, of which `done`
/// bytes are already there.
pub(super) fn read_chunk(
    w: &Window,
    start: usize,
    buf: &mut [u8],
    done: usize,
) -> Result<(), ReadFailure> {
    let need = w.need.saturating_sub(start).min(buf.len());
    let offset = w.offset + start as u64;
    w.file.read_window(buf, offset, need, done).map_err(|source| ReadFailure {
        file: Arc::clone(&w.file),
        offset,
        len: need as u64,
        at: w.at + start,
        source,
    })
}
