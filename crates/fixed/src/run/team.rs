//! A team of threads that share out one job at a time: matrix rows or attention heads.
//!
//! A job is cut into shares that whoever is free takes, so the caller never waits for a member that
//! the system does not let run. Every output is computed whole by one thread, into memory of its
//! own, and put in its place by the caller: neither the number of threads nor who did what shows in
//! the bits. Members spin for the next job, as jobs follow each other within microseconds, and sleep
//! when none comes.

use super::attention::Heads;
use crate::arith::words::{I32, I64};
use crate::arith::{Backend, Input, Rows};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::Thread;
use std::vec::Vec;

/// Shares a thread on average: more even out what threads get done, fewer cost less.
const SHARES: usize = 4;
/// Most shares of a job.
const MAX_SHARES: usize = 64;
/// Polls for a job before a member sleeps, and before the caller lets others run: some tens of
/// microseconds, more than there usually is between two jobs.
const SPINS: u32 = 4096;
/// The same when there are more threads than processors to run them.
const SPINS_IF_CROWDED: u32 = 16;
const PANICKED: &str = "a thread of the team panicked";

/// What a job is about. The caller writes it between jobs, all threads read it during one.
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
    Rows([Option<Rows<'s>>; 3]),
    /// Attention of all heads.
    Heads(Heads<'s>),
}

/// One share of a job: the rows or heads of number `index` of `count`.
#[derive(Clone, Copy)]
pub(super) struct Share {
    index: usize,
    count: usize,
}

impl Share {
    fn of(self, all: usize, step: usize) -> Range<usize> {
        let bound = |index: usize| {
            if index == self.count { all } else { all * index / self.count / step * step }
        };
        bound(self.index)..bound(self.index + 1)
    }

    /// The share's rows of a matrix; kernels take them in fours.
    pub fn rows(self, rows: Rows<'_>) -> Range<usize> {
        self.of(rows.scales.len(), 4)
    }

    /// The share's heads.
    pub fn heads(self, heads: usize) -> Range<usize> {
        self.of(heads, 1)
    }
}

/// A job and how far its shares are taken, in one word, so that a share is taken of the job it
/// belongs to or not at all.
#[derive(Clone, Copy, PartialEq)]
struct Ticket {
    job: u32,
    shares: u16,
    taken: u16,
}

impl Ticket {
    fn pack(self) -> u64 {
        (self.job as u64) << 32 | (self.shares as u64) << 16 | self.taken as u64
    }

    fn unpack(word: u64) -> Ticket {
        Ticket { job: (word >> 32) as u32, shares: (word >> 16) as u16, taken: word as u16 }
    }
}

/// The threads and what they share.
pub(super) struct Team<'s> {
    work: RwLock<Work<'s>>,
    ticket: AtomicU64,
    /// Shares that members have finished.
    finished: AtomicU32,
    /// What members computed, by share: matrix after matrix, or head after head.
    results: Vec<Mutex<Vec<I64>>>,
    members: Vec<Member>,
    /// Members whose threads run.
    active: AtomicUsize,
    dismissed: AtomicBool,
    spins: u32,
    backend: Backend,
}

struct Member {
    thread: OnceLock<Thread>,
    asleep: AtomicBool,
    /// Room for the scores of a head.
    scores: Mutex<Vec<I64>>,
}

impl Member {
    fn new(positions: usize) -> Member {
        Member {
            thread: OnceLock::new(),
            asleep: AtomicBool::new(false),
            scores: Mutex::new(words(positions)),
        }
    }
}

/// A job at work, as its caller sees it.
pub(super) struct Job<'t, 's> {
    team: &'t Team<'s>,
    ticket: Ticket,
    /// The shares the caller took, one bit each.
    own: u64,
}

impl<'s> Team<'s> {
    /// A team of `threads`, the caller included, for jobs of up to `outputs` outputs in all and
    /// attention over up to `positions`: nothing is allocated after this.
    pub fn new(
        work: Work<'s>,
        threads: usize,
        backend: Backend,
        outputs: usize,
        positions: usize,
    ) -> Team<'s> {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shares = if threads > 1 { MAX_SHARES.min(threads * SHARES) } else { 1 };
        Team {
            work: RwLock::new(work),
            ticket: AtomicU64::new(0),
            finished: AtomicU32::new(0),
            results: (0..shares).map(|_| Mutex::new(words(outputs.div_ceil(shares)))).collect(),
            members: (1..threads).map(|_| Member::new(positions)).collect(),
            active: AtomicUsize::new(0),
            dismissed: AtomicBool::new(false),
            spins: if threads <= processors { SPINS } else { SPINS_IF_CROWDED },
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
        self.work.write().expect(PANICKED)
    }

    /// The work, to compute from during a job.
    pub fn read(&self) -> RwLockReadGuard<'_, Work<'s>> {
        self.work.read().expect(PANICKED)
    }

    /// The work, back from the team.
    pub fn into_work(self) -> Work<'s> {
        self.work.into_inner().expect(PANICKED)
    }

    /// Starts the job that was written into [`Team::work`], shared out if it is worth it.
    pub fn start(&self, worth: bool) -> Job<'_, 's> {
        let shared = worth && self.active.load(Ordering::Acquire) > 0;
        let shares = if shared { self.results.len() as u16 } else { 1 };
        let last = Ticket::unpack(self.ticket.load(Ordering::Relaxed));
        let ticket = Ticket { job: last.job.wrapping_add(1), shares, taken: 0 };
        if shared {
            self.finished.store(0, Ordering::Relaxed);
            self.call(ticket);
        }
        Job { team: self, ticket, own: 0 }
    }

    /// Tells the members of a new job.
    fn call(&self, ticket: Ticket) {
        self.ticket.store(ticket.pack(), Ordering::SeqCst);
        for member in &self.members {
            if member.asleep.load(Ordering::SeqCst)
                && let Some(thread) = member.thread.get()
            {
                thread.unpark();
            }
        }
    }

    /// Takes a share of `job` if one is left; the last one is always the caller's.
    fn take(&self, job: u32) -> Option<Share> {
        let taken = self.ticket.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let ticket = Ticket::unpack(word);
            let left = ticket.job == job && ticket.taken + 1 < ticket.shares;
            left.then(|| Ticket { taken: ticket.taken + 1, ..ticket }.pack())
        });
        let ticket = Ticket::unpack(taken.ok()?);
        Some(Share { index: ticket.taken.into(), count: ticket.shares.into() })
    }

    /// A member's life: share after share until the team is dismissed.
    fn serve(&self, index: usize) {
        let member = &self.members[index];
        member.thread.get_or_init(std::thread::current);
        let mut scores = lock(&member.scores);
        let mut seen = 0;
        loop {
            seen = self.await_job(member, seen);
            if self.dismissed.load(Ordering::Acquire) {
                return;
            }
            while let Some(share) = self.take(seen) {
                // Counts as finished even if it panics; the poisoned result then tells the caller.
                let _finished = Finished(&self.finished);
                let mut result = lock(&self.results[share.index]);
                self.read().compute(share, self.backend, &mut scores, &mut result);
            }
        }
    }

    /// Returns the job's number when it is another than `seen`.
    fn await_job(&self, member: &Member, seen: u32) -> u32 {
        let job = || Ticket::unpack(self.ticket.load(Ordering::SeqCst)).job;
        for _ in 0..self.spins {
            if job() != seen {
                return job();
            }
            std::hint::spin_loop();
        }
        // The caller looks at `asleep` after it changed the ticket, so one of the two is seen.
        member.asleep.store(true, Ordering::SeqCst);
        while job() == seen {
            std::thread::park();
        }
        member.asleep.store(false, Ordering::SeqCst);
        job()
    }
}

impl Job<'_, '_> {
    /// The next share for the caller to compute, the last one first.
    pub fn next(&mut self) -> Option<Share> {
        let shares = usize::from(self.ticket.shares);
        let share = if self.own == 0 {
            Share { index: shares - 1, count: shares }
        } else if shares > 1 {
            self.team.take(self.ticket.job)?
        } else {
            return None;
        };
        self.own |= 1 << share.index;
        Some(share)
    }

    /// Waits for the members and gives what they computed to `collect`.
    pub fn finish(self, mut collect: impl FnMut(Share, &[I64])) {
        let count = usize::from(self.ticket.shares);
        let others = count as u32 - self.own.count_ones();
        let mut spins = 0;
        while count > 1 && self.team.finished.load(Ordering::Acquire) != others {
            if spins < self.team.spins {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        for index in (0..count).filter(|index| self.own >> index & 1 == 0) {
            collect(Share { index, count }, &lock(&self.team.results[index]));
        }
    }
}

/// Dismisses the team when dropped, so that no member waits for a caller that has left.
pub(super) struct Dismiss<'t, 's>(pub &'t Team<'s>);

impl Drop for Dismiss<'_, '_> {
    fn drop(&mut self) {
        self.0.dismissed.store(true, Ordering::Release);
        let last = Ticket::unpack(self.0.ticket.load(Ordering::Relaxed));
        self.0.call(Ticket { job: last.job.wrapping_add(1), shares: 0, taken: 0 });
    }
}

struct Finished<'t>(&'t AtomicU32);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl Work<'_> {
    /// A member's share of the task; `scores` is room it keeps.
    fn compute(&self, share: Share, backend: Backend, scores: &mut Vec<I64>, out: &mut Vec<I64>) {
        match &self.task {
            Task::Rows(matrices) => {
                let mut from = 0;
                for rows in matrices.iter().flatten() {
                    let range = share.rows(*rows);
                    let to = from + range.len();
                    grow(out, to);
                    self.input.rows(rows.range(range), &mut out[from..to]);
                    from = to;
                }
            }
            Task::Heads(heads) => {
                let range = share.heads(heads.count);
                let elements = range.len() * heads.size;
                grow(out, elements);
                grow(scores, heads.positions);
                heads.attend(backend, self, range, scores, &mut out[..elements]);
            }
        }
    }
}

fn grow(words: &mut Vec<I64>, len: usize) {
    if words.len() < len {
        words.resize(len, I64::default());
    }
}

fn words(len: usize) -> Vec<I64> {
    std::vec![I64::default(); len]
}

fn lock(result: &Mutex<Vec<I64>>) -> MutexGuard<'_, Vec<I64>> {
    result.lock().expect(PANICKED)
}
