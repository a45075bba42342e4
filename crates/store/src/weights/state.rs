//! What the threads of a weight store share, and how finished reads change it.

use super::experts::Experts;
use super::open::Source;
use super::store::StoreStats;
use super::units::{Place, Unit};
use crate::direct::{AlignedBuf, Done, Handle, ReadFailure, Request};
use crate::pack::{Run, decode_run};
use crate::{Digest, Error};
use std::collections::HashSet;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a request was for, in the top byte of its id.
pub(super) const UNIT: u64 = 0;
pub(super) const EXPERT: u64 = 1 << 56;
pub(super) const ROWS: u64 = 2 << 56;
const KIND: u64 = 0xff << 56;

/// A layer or piece of the head in memory.
#[derive(Debug)]
pub(super) enum UnitState {
    Absent,
    /// Being read or decoded. The buffer to decode into, if it is compressed.
    Reading(Option<AlignedBuf>),
    Ready(Arc<AlignedBuf>),
    Failed(Error),
}

/// A unit that has been read and needs work before it can be used.
pub(super) struct Job {
    pub unit: usize,
    pub read: AlignedBuf,
    pub dest: Option<AlignedBuf>,
}

pub(super) struct State {
    pub units: Vec<UnitState>,
    /// Units whose digest has been compared.
    pub verified: Vec<bool>,
    /// The first so many units stay.
    pub pinned: usize,
    pub ring: usize,
    /// Free buffers of the ring.
    pub free: Vec<AlignedBuf>,
    /// Free buffers for compressed units.
    pub staging: Vec<AlignedBuf>,
    /// Units in the order in which they will be used; the current one first.
    pub order: Vec<usize>,
    pub experts: Experts,
    pub rows: Option<Result<AlignedBuf, ReadFailure>>,
    pub stats: StoreStats,
}

pub(super) struct Inner {
    pub source: Arc<Source>,
    pub handle: Handle,
    pub state: Mutex<State>,
    pub wake: Condvar,
    /// To the decoding thread; `None` once the store is being dropped.
    pub jobs: Mutex<Option<Sender<Job>>>,
    pub threads: usize,
    pub verify: bool,
}

impl Inner {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts whatever can be read now: experts first, then units in order.
    pub fn pump(&self, st: &mut State) {
        st.experts.pump(&self.source, &self.handle);
        self.pump_units(st);
    }

    fn pump_units(&self, st: &mut State) {
        let ahead: Vec<usize> =
            st.order.iter().copied().filter(|&u| u >= st.pinned).take(st.ring).collect();
        let keep: HashSet<usize> = ahead.iter().copied().collect();
        let mut reading = st.units.iter().filter(|u| matches!(u, UnitState::Reading(_))).count();
        let most = st.ring.max(2);
        for i in 0..st.order.len() {
            let u = st.order[i];
            if u >= st.pinned && !keep.contains(&u) {
                return;
            }
            if !matches!(st.units[u], UnitState::Absent) {
                continue;
            }
            if reading >= most || !self.start(st, u, &keep) {
                return;
            }
            reading += 1;
        }
    }

    /// Starts reading a unit if there is a buffer for it.
    fn start(&self, st: &mut State, u: usize, keep: &HashSet<usize>) -> bool {
        let unit = &self.source.units[u];
        let staging = match &unit.coded {
            None => None,
            Some(_) => match st.staging.pop() {
                None => return false,
                some => some,
            },
        };
        let buffer = if u < st.pinned {
            match AlignedBuf::new(unit.buffer, "a pinned layer") {
                Ok(buffer) => Some(buffer),
                Err(e) => {
                    st.units[u] = UnitState::Failed(e);
                    st.staging.extend(staging);
                    return true;
                }
            }
        } else {
            free_slot(st, keep)
        };
        let Some(buffer) = buffer else {
            st.staging.extend(staging);
            return false;
        };
        let (buf, dest) = match staging {
            Some(staging) => (staging, Some(buffer)),
            None => (buffer, None),
        };
        st.units[u] = UnitState::Reading(dest);
        st.stats.trunk_bytes += unit.stored;
        self.handle.submit(Request {
            id: UNIT | u as u64,
            urgent: false,
            windows: unit.gather.windows.clone(),
            buf,
        });
        true
    }

    /// A request is done (called on a reader's thread).
    pub fn done(&self, done: Done) {
        let number = (done.id & !KIND) as usize;
        let mut st = self.lock();
        match done.id & KIND {
            UNIT => self.unit_done(&mut st, number, done),
            EXPERT => st.experts.done(&self.source, number, done),
            _ => st.rows = Some(done.result.map(|()| done.buf)),
        }
        self.pump(&mut st);
        drop(st);
        self.wake.notify_all();
    }

    fn unit_done(&self, st: &mut State, u: usize, done: Done) {
        let unit = &self.source.units[u];
        let taken = std::mem::replace(&mut st.units[u], UnitState::Absent);
        let UnitState::Reading(dest) = taken else { return };
        if let Err(failure) = done.result {
            let what = failed_tensor(unit, &failure);
            self.give_back(st, u, done.buf, dest);
            st.units[u] = UnitState::Failed(read_error(what, failure));
        } else if dest.is_some() || (self.verify && !st.verified[u]) {
            st.units[u] = UnitState::Reading(None);
            let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(jobs) = &*jobs {
                // The thread only ends after the sender is gone.
                let _ = jobs.send(Job { unit: u, read: done.buf, dest });
            }
        } else {
            st.units[u] = UnitState::Ready(Arc::new(done.buf));
        }
    }

    /// Returns buffers of a unit that failed.
    fn give_back(&self, st: &mut State, u: usize, read: AlignedBuf, dest: Option<AlignedBuf>) {
        let slot = match dest {
            Some(dest) => {
                st.staging.push(read);
                dest
            }
            None => read,
        };
        if u >= st.pinned {
            st.free.push(slot);
        }
    }

    /// Decodes and checks a unit (called on the decoding thread).
    pub fn work(&self, mut job: Job) {
        let unit = &self.source.units[job.unit];
        let trunk = self.source.trunk();
        let problem = |p: String| match trunk {
            Some(t) => Error::format(&t.path, format!("{}: {p}", unit.what)),
            None => Error::Refused(p),
        };
        let range = unit.gather.places.first().copied().unwrap_or((0, 0));
        let result = match (&unit.coded, &mut job.dest) {
            (Some(run), Some(dest)) => {
                let out = &mut dest[..run.raw as usize];
                decode_run(run, &job.read[range.0..range.1], out, self.threads)
                    .map_err(|p| problem(format!("{p} (damaged: run `facit pack` again)")))
            }
            _ => Ok(()),
        };
        let result = result.and_then(|()| {
            let run = trunk.and_then(|t| t.runs.get(job.unit)).filter(|_| self.verify);
            match (run, &job.dest) {
                (Some(run), Some(dest)) => check_digest(run, &dest[..run.raw as usize]),
                (Some(run), None) => check_digest(run, &job.read[range.0..range.1]),
                _ => Ok(()),
            }
        });
        let mut st = self.lock();
        st.verified[job.unit] = result.is_ok();
        match result {
            Err(e) => {
                self.give_back(&mut st, job.unit, job.read, job.dest);
                st.units[job.unit] = UnitState::Failed(e);
            }
            Ok(()) => {
                let ready = match job.dest {
                    Some(dest) => {
                        st.staging.push(job.read);
                        dest
                    }
                    None => job.read,
                };
                st.units[job.unit] = UnitState::Ready(Arc::new(ready));
            }
        }
        self.pump(&mut st);
        drop(st);
        self.wake.notify_all();
    }
}

/// A buffer of the ring: a free one, or that of a unit nobody uses or will use soon.
fn free_slot(st: &mut State, keep: &HashSet<usize>) -> Option<AlignedBuf> {
    if let Some(buffer) = st.free.pop() {
        return Some(buffer);
    }
    let unused = |u: &usize| match &st.units[*u] {
        UnitState::Ready(buf) => !keep.contains(u) && Arc::strong_count(buf) == 1,
        _ => false,
    };
    let victim = (st.pinned..st.units.len()).find(unused)?;
    match std::mem::replace(&mut st.units[victim], UnitState::Absent) {
        UnitState::Ready(buf) => Arc::into_inner(buf),
        _ => None,
    }
}

fn check_digest(run: &Run, bytes: &[u8]) -> Result<(), Error> {
    let got = Digest::of(bytes);
    if got == run.digest {
        return Ok(());
    }
    Err(Error::DigestMismatch {
        what: format!("{} of the packed trunk (run `facit pack` again)", run.what),
        expected: run.digest.to_string(),
        got: got.to_string(),
    })
}

/// The tensor in which a read failed.
fn failed_tensor(unit: &Unit, failure: &ReadFailure) -> String {
    if unit.coded.is_some() {
        return format!("{} of the packed trunk", unit.what);
    }
    match tensor_at(&unit.places, failure.at, failure.len as usize) {
        Some(i) => format!("tensor {} ({})", unit.names[i], unit.what),
        None => unit.what.clone(),
    }
}

/// Which of several tensors a part of a buffer belongs to: the first it touches.
pub(super) fn tensor_at(places: &[Place], at: usize, len: usize) -> Option<usize> {
    let touched = places.iter().enumerate().filter(|(_, p)| p.0 < at + len && at < p.1);
    touched.min_by_key(|(_, p)| p.0).map(|(i, _)| i)
}

pub(super) fn read_error(what: String, failure: ReadFailure) -> Error {
    Error::Read {
        what,
        path: failure.file.path().to_owned(),
        offset: failure.offset,
        len: failure.len,
        source: failure.source,
    }
}
