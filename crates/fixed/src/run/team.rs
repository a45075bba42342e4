//! A team of threads that share out one job at a time: matrix rows or attention heads.
//!
//! Every output is computed whole by one member into memory of its own and collected by the caller
//! in order, so the number of threads never shows in the bits. Members spin for the next job, as
//! jobs follow each other within microseconds, and sleep when none comes.

use super::attention::Heads;
use crate::arith::words::{I32, I64};
use crate::arith::{Backend, Input, Rows};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::Thread;
use std::vec::Vec;

/// Polls for a job before a member sleeps, and before the caller lets others run: some tens of
/// microseconds, more than there usually is between two jobs.
const SPINS: u32 = 4096;
/// The same when there are more threads than processors to run them.
const SPINS_IF_CROWDED: u32 = 16;

/// Matrices that one job multiplies by the same input.
pub(super) type Matrices<'s> = [Option<Rows<'s>>; 3];

/// What a job is about. The caller writes it between jobs, all members read it during one.
pub(super) struct Work<'s> {
    pub input: Input,
    pub task: Task<'s>,
    /// The query of all heads `[dim]`, for [`Task::Heads`].
    pub q: Vec<I64>,
    pub keys: &'s mut [I32],
    pub values: &'s mut [I32],
}

#[derive(Clone, Copy)]
pub(super) enum Task<'s> {
    /// All rows of these matrices times the input.
    Rows(Matrices<'s>),
    /// Attention of all heads.
    Heads(Heads<'s>),
}

/// What one member computed, matrix after matrix or head after head.
#[derive(Default)]
pub(super) struct Part {
    pub out: Vec<I64>,
    scores: Vec<I64>,
}

/// One share of a job: the rows or heads of number `index` of `count`. The caller has the last.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub index: usize,
    pub count: usize,
}

impl Share {
    /// This share's part of `all` things, its bounds multiples of `step`.
    pub fn of(self, all: usize, step: usize) -> std::ops::Range<usize> {
        let bound = |index: usize| {
            if index == self.count { all } else { all * index / self.count / step * step }
        };
        bound(self.index)..bound(self.index + 1)
    }

    /// The rows of a matrix; kernels take them in fours.
    pub fn rows(self, rows: Rows<'_>) -> std::ops::Range<usize> {
        self.of(rows.scales.len(), 4)
    }
}

/// The caller's side of the team.
pub(super) struct Team<'s> {
    work: RwLock<Work<'s>>,
    members: Vec<Member>,
    /// Members whose threads run.
    active: AtomicUsize,
    /// Number of the job at hand; members start when it changes.
    job: AtomicU32,
    /// Members that have finished it.
    finished: AtomicU32,
    dismissed: AtomicBool,
    spins: u32,
    backend: Backend,
}

#[derive(Default)]
struct Member {
    part: Mutex<Part>,
    thread: OnceLock<Thread>,
    asleep: AtomicBool,
}

impl<'s> Team<'s> {
    /// A team of `threads`, the caller included.
    pub fn new(work: Work<'s>, threads: usize, backend: Backend) -> Team<'s> {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        Team {
            spins: if threads <= processors { SPINS } else { SPINS_IF_CROWDED },
            work: RwLock::new(work),
            members: (1..threads).map(|_| Member::default()).collect(),
            active: AtomicUsize::new(0),
            job: AtomicU32::new(0),
            finished: AtomicU32::new(0),
            dismissed: AtomicBool::new(false),
            backend,
        }
    }

    /// Starts the members' threads. Those that cannot be had are done without.
    pub fn recruit<'t>(&'t self, scope: &'t std::thread::Scope<'t, '_>) {
        for index in 0..self.members.len() {
            let thread = std::thread::Builder::new().name("fixed".into());
            if thread.spawn_scoped(scope, move || self.serve(index)).is_err() {
                return;
            }
            self.active.store(index + 1, Ordering::Release);
        }
    }

    /// The work, to change between jobs.
    pub fn work(&self) -> RwLockWriteGuard<'_, Work<'s>> {
        self.work.write().expect("a thread of the team panicked")
    }

    /// The work, back from the team.
    pub fn into_work(self) -> Work<'s> {
        self.work.into_inner().expect("a thread of the team panicked")
    }

    /// The work, to compute from during a job.
    pub fn read(&self) -> RwLockReadGuard<'_, Work<'s>> {
        self.work.read().expect("a thread of the team panicked")
    }

    /// Starts the job that was written into [`Team::work`], shared out if it is worth it. The
    /// caller has to compute the share it gets and then to call [`Team::finish`].
    pub fn start(&self, worth: bool) -> Share {
        let count = if worth { self.active.load(Ordering::Acquire) + 1 } else { 1 };
        if count > 1 {
            self.finished.store(0, Ordering::Relaxed);
            self.call();
        }
        Share { index: count - 1, count }
    }

    /// Waits for the members and gives what each computed to `collect`.
    pub fn finish(&self, own: Share, mut collect: impl FnMut(Share, &Part)) {
        if own.count > 1 {
            let mut spins = 0;
            while self.finished.load(Ordering::Acquire) as usize != own.index {
                if spins < self.spins {
                    spins += 1;
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
            for (index, member) in self.members[..own.index].iter().enumerate() {
                collect(Share { index, ..own }, &lock(&member.part));
            }
        }
    }

    /// Wakes the members for a new job.
    fn call(&self) {
        self.job.fetch_add(1, Ordering::SeqCst);
        for member in &self.members {
            if member.asleep.load(Ordering::SeqCst)
                && let Some(thread) = member.thread.get()
            {
                thread.unpark();
            }
        }
    }

    /// A member's life: job after job until the team is dismissed.
    fn serve(&self, index: usize) {
        let member = &self.members[index];
        member.thread.get_or_init(std::thread::current);
        let mut seen = 0;
        loop {
            self.await_job(member, seen);
            seen = self.job.load(Ordering::Acquire);
            if self.dismissed.load(Ordering::Acquire) {
                return;
            }
            let share = Share { index, count: self.active.load(Ordering::Acquire) + 1 };
            // Counts as finished even if it panics; the poisoned part then tells the caller.
            let _finished = Finished(&self.finished);
            let mut part = lock(&member.part);
            let work = self.work.read().expect("a thread of the team panicked");
            part.compute(&work, share, self.backend);
        }
    }

    /// Returns when the job is another than `seen`.
    fn await_job(&self, member: &Member, seen: u32) {
        for _ in 0..self.spins {
            if self.job.load(Ordering::Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
        // The caller looks at `asleep` after it changed `job`, so one of the two is seen.
        member.asleep.store(true, Ordering::SeqCst);
        while self.job.load(Ordering::SeqCst) == seen {
            std::thread::park();
        }
        member.asleep.store(false, Ordering::SeqCst);
    }
}

/// Dismisses the team when dropped, so that no member waits for a caller that has left.
pub(super) struct Dismiss<'t, 's>(pub &'t Team<'s>);

impl Drop for Dismiss<'_, '_> {
    fn drop(&mut self) {
        self.0.dismissed.store(true, Ordering::Release);
        self.0.call();
    }
}

struct Finished<'t>(&'t AtomicU32);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl Part {
    fn compute(&mut self, work: &Work<'_>, share: Share, backend: Backend) {
        match &work.task {
            Task::Rows(matrices) => {
                let mut at = 0;
                for rows in matrices.iter().flatten() {
                    let range = share.rows(*rows);
                    let end = at + range.len();
                    if self.out.len() < end {
                        self.out.resize(end, I64::default());
                    }
                    work.input.rows(rows.range(range), &mut self.out[at..end]);
                    at = end;
                }
            }
            Task::Heads(heads) => {
                let range = share.of(heads.count, 1);
                self.out.resize(self.out.len().max(range.len() * heads.size), I64::default());
                self.scores.resize(self.scores.len().max(heads.positions), I64::default());
                let out = &mut self.out[..range.len() * heads.size];
                heads.attend(backend, work, range, &mut self.scores, out);
            }
        }
    }
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().expect("a thread of the team panicked")
}
