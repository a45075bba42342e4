//! What the threads of a weight store share, and how finished reads change it.

use super::experts::Experts;
use super::open::Source;
use super::store::StoreStats;
use super::units::{Place, Unit};
use crate::Error;
use crate::direct::{AlignedBuf, Done, Handle, ReadFailure, Request};
use crate::pack::decode_blocks;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a request was for, in the top byte of its id.
pub(super) const UNIT: u64 = 0;
pub(super) const EXPERT: u64 = 1 << 56;
pub(super) const ROWS: u64 = 2 << 56;
const KIND: u64 = 0xff << 56;
/// A unit's number takes so many bits of an id; its piece's number follows.
const PIECE_BITS: u32 = 28;

/// A layer or piece of the head in memory.
#[derive(Debug)]
pub(super) enum UnitState {
    Absent,
    /// Being read, or waiting to be checked.
    Reading,
    /// Compressed, and on its way.
    Coming(Coming),
    Ready(Arc<AlignedBuf>),
    Failed(Error),
}

/// A compressed unit on its way: its pieces are read into small buffers and decoded from there.
#[derive(Debug, Default)]
pub(super) struct Coming {
    /// How many pieces have been asked for: the first so many.
    asked: usize,
    /// How many of them are being read.
    flying: usize,
    /// Those that have been read.
    read: Vec<(usize, AlignedBuf)>,
    /// Where they are decoded to. None before the first is, so that reading goes on while the
    /// ring is full; and none while one is.
    dest: Option<AlignedBuf>,
    /// The decoding thread is at work on one.
    busy: bool,
    decoded: usize,
    /// Why it ends before it is whole.
    end: Option<End>,
}

#[derive(Debug)]
enum End {
    Failed(Error),
    /// Others are wanted sooner.
    Cancelled,
}

/// What the decoding thread does next.
enum Job {
    /// Compares the digest of a unit that was read as it is.
    Check { unit: usize, read: AlignedBuf },
    Decode {
        unit: usize,
        piece: usize,
        read: AlignedBuf,
        dest: AlignedBuf,
        last: bool,
        check: bool,
    },
}

impl Job {
    fn unit(&self) -> usize {
        match *self {
            Job::Check { unit, .. } | Job::Decode { unit, .. } => unit,
        }
    }
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
    /// Buffers of the ring whose units are over, but not yet let go by the host.
    pub lent: Vec<Arc<AlignedBuf>>,
    /// Free buffers for pieces of compressed units.
    pub staging: Vec<AlignedBuf>,
    /// Units that wait to be checked.
    pub checks: Vec<(usize, AlignedBuf)>,
    /// Units in the order in which they will be used; the current one first.
    pub order: Vec<usize>,
    /// The unit that was asked for last.
    pub current: Option<usize>,
    /// Which units those are, while it is asked.
    pub listed: Vec<bool>,
    pub experts: Experts,
    pub rows: Option<Result<AlignedBuf, ReadFailure>>,
    pub stats: StoreStats,
    /// The store is being dropped.
    pub stop: bool,
}

pub(super) struct Inner {
    pub source: Arc<Source>,
    pub handle: Handle,
    pub state: Mutex<State>,
    /// Something has come that the host may wait for.
    pub wake: Condvar,
    /// There is work for the decoding thread.
    pub work: Condvar,
    pub threads: usize,
    pub verify: bool,
}

impl State {
    /// A unit has been used: unless it is pinned, its place is for others, and it is read again
    /// when it is used again. (So the bytes of a step do not depend on the one before.)
    pub fn pass(&mut self, u: usize) {
        if u >= self.pinned && matches!(self.units[u], UnitState::Ready(_)) {
            let ready = std::mem::replace(&mut self.units[u], UnitState::Absent);
            let UnitState::Ready(buf) = ready else { return };
            self.lent.push(buf);
        }
    }

    /// Whether the host has a unit.
    pub fn held(&self, u: usize) -> bool {
        matches!(&self.units[u], UnitState::Ready(buf) if Arc::strong_count(buf) > 1)
    }

    /// What is no longer in the order makes way for what is.
    pub fn tidy(&mut self) {
        self.listed.fill(false);
        for &u in &self.order {
            self.listed[u] = true;
        }
        for u in 0..self.units.len() {
            if !self.listed[u] {
                self.pass(u);
                self.end(u, End::Cancelled);
            }
        }
    }

    /// Whether nothing is under way that could bring a unit.
    pub fn idle(&self) -> bool {
        let under_way = |state: &UnitState| match state {
            UnitState::Reading => true,
            UnitState::Coming(c) => c.flying > 0 || c.busy,
            _ => false,
        };
        !self.units.iter().any(under_way) && self.next_decodable().is_none()
    }

    /// The first unit in order of use of which a piece can be decoded.
    fn next_decodable(&self) -> Option<usize> {
        let mut places = self.free.len();
        for &u in &self.order {
            let streamed = u >= self.pinned;
            match &self.units[u] {
                UnitState::Coming(c) if c.end.is_none() => {
                    let placed = !streamed || c.dest.is_some();
                    if !c.busy && !c.read.is_empty() && (placed || places > 0) {
                        return Some(u);
                    }
                    // A place is kept for those that are used sooner.
                    places = places.saturating_sub(usize::from(!placed && !c.busy));
                }
                UnitState::Absent if streamed => places = places.saturating_sub(1),
                _ => {}
            }
        }
        None
    }

    /// Takes what units other than `u` hold of the ring and of the buffers for pieces. False if
    /// there was nothing to take.
    pub fn make_way(&mut self, u: usize) -> bool {
        let mut changed = false;
        for other in 0..self.units.len() {
            if other == u {
                continue;
            }
            changed |= match &self.units[other] {
                UnitState::Coming(_) => self.end(other, End::Cancelled),
                UnitState::Ready(_) if other >= self.pinned => {
                    self.pass(other);
                    true
                }
                _ => false,
            };
        }
        self.reclaim();
        changed
    }

    /// Buffers that the host has let go are free again.
    fn reclaim(&mut self) {
        let mut i = 0;
        while i < self.lent.len() {
            if Arc::strong_count(&self.lent[i]) > 1 {
                i += 1;
            } else if let Some(buf) = Arc::into_inner(self.lent.swap_remove(i)) {
                self.free.push(buf);
            }
        }
    }

    /// A unit on its way ends early; true if it is over at once.
    fn end(&mut self, u: usize, why: End) -> bool {
        if let UnitState::Coming(coming) = &mut self.units[u] {
            coming.end.get_or_insert(why);
        }
        self.settle(u)
    }

    /// Gives back what a unit holds that has ended early, once nobody writes to it.
    fn settle(&mut self, u: usize) -> bool {
        let UnitState::Coming(coming) = &mut self.units[u] else { return false };
        if coming.end.is_none() {
            return false;
        }
        self.staging.extend(coming.read.drain(..).map(|(_, buf)| buf));
        if coming.flying > 0 || coming.busy {
            return false;
        }
        if let Some(dest) = coming.dest.take()
            && u >= self.pinned
        {
            self.free.push(dest);
        }
        self.units[u] = match coming.end.take() {
            Some(End::Failed(e)) => UnitState::Failed(e),
            _ => UnitState::Absent,
        };
        true
    }
}

impl Inner {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts whatever can be read or decoded now: experts first, then units in order.
    pub fn pump(&self, st: &mut State) {
        st.experts.pump(&self.source, &self.handle);
        st.reclaim();
        self.pump_units(st);
        if !st.checks.is_empty() || st.next_decodable().is_some() {
            self.work.notify_one();
        }
    }

    fn pump_units(&self, st: &mut State) {
        // One more than the ring holds: a compressed unit can be read in part before there is
        // a place to decode it to.
        let window = st.ring + usize::from(self.source.compressed());
        let mut reading = st.units.iter().filter(|u| matches!(u, UnitState::Reading)).count();
        let most = st.ring.max(2);
        let mut streamed = 0;
        for i in 0..st.order.len() {
            let u = st.order[i];
            if u >= st.pinned {
                streamed += 1;
                if streamed > window {
                    return;
                }
            }
            if self.source.units[u].coded() {
                if !self.ask(st, u) {
                    return;
                }
            } else if matches!(st.units[u], UnitState::Absent) {
                if reading >= most || !self.start(st, u) {
                    return;
                }
                reading += 1;
            }
        }
    }

    /// Starts reading a unit that is not compressed, if there is a buffer for it.
    fn start(&self, st: &mut State, u: usize) -> bool {
        let unit = &self.source.units[u];
        let buffer = if u < st.pinned {
            match AlignedBuf::new(unit.buffer, "a pinned layer") {
                Ok(buffer) => Some(buffer),
                Err(e) => {
                    st.units[u] = UnitState::Failed(e);
                    return true;
                }
            }
        } else {
            st.free.pop()
        };
        let Some(buf) = buffer else { return false };
        st.units[u] = UnitState::Reading;
        st.stats.trunk_bytes += unit.stored;
        let windows = unit.gather.windows.clone();
        self.handle.submit(Request { id: UNIT | u as u64, urgent: false, windows, buf });
        true
    }

    /// Asks for the next pieces of a compressed unit; false if there are no buffers for all.
    fn ask(&self, st: &mut State, u: usize) -> bool {
        let pieces = &self.source.units[u].pieces;
        if matches!(st.units[u], UnitState::Absent) {
            st.units[u] = UnitState::Coming(Coming::default());
        }
        let UnitState::Coming(coming) = &mut st.units[u] else { return true };
        while coming.end.is_none() && coming.asked < pieces.len() {
            let Some(buf) = st.staging.pop() else { return false };
            let piece = &pieces[coming.asked];
            let id = UNIT | (coming.asked as u64) << PIECE_BITS | u as u64;
            coming.asked += 1;
            coming.flying += 1;
            st.stats.trunk_bytes += piece.stored();
            let windows = vec![piece.window.clone()];
            self.handle.submit(Request { id, urgent: false, windows, buf });
        }
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

    fn unit_done(&self, st: &mut State, number: usize, done: Done) {
        let (u, piece) = (number & ((1 << PIECE_BITS) - 1), number >> PIECE_BITS);
        let unit = &self.source.units[u];
        let failed = done.result.err().map(|f| read_error(failed_tensor(unit, &f), f));
        // The kernel may have kept the buffer of a failed read; this one is in its place.
        let lost =
            done.buf.len() < unit.pieces.get(piece).map_or(unit.gather.len, |p| p.window.len);
        match (&mut st.units[u], failed) {
            (UnitState::Coming(coming), failed) => {
                coming.flying -= 1;
                if !lost {
                    coming.read.push((piece, done.buf));
                }
                match failed {
                    Some(e) => st.end(u, End::Failed(e)),
                    None => st.settle(u),
                };
            }
            (_, Some(e)) => {
                st.units[u] = UnitState::Failed(e);
                if u >= st.pinned && !lost {
                    st.free.push(done.buf);
                }
            }
            (_, None) if self.verify && !st.verified[u] => st.checks.push((u, done.buf)),
            (_, None) => st.units[u] = UnitState::Ready(Arc::new(done.buf)),
        }
    }

    /// The decoding thread.
    pub fn decode(&self) {
        let mut st = self.lock();
        while !st.stop {
            let Some(mut job) = self.next_job(&mut st) else {
                st = self.work.wait(st).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(st);
            // Nobody would be left to wake the host.
            let work = std::panic::AssertUnwindSafe(|| self.work_on(&mut job));
            let result = std::panic::catch_unwind(work).unwrap_or_else(|_| {
                Err(Error::Refused("decoding a layer failed, as said above".to_owned()))
            });
            st = self.lock();
            finish(&mut st, job, result);
            self.pump(&mut st);
            self.wake.notify_all();
        }
    }

    /// The first piece in order of use that can be decoded.
    fn next_job(&self, st: &mut State) -> Option<Job> {
        if let Some((unit, read)) = st.checks.pop() {
            return Some(Job::Check { unit, read });
        }
        while let Some(unit) = st.next_decodable() {
            let UnitState::Coming(coming) = &mut st.units[unit] else { return None };
            let dest = match coming.dest.take() {
                None if unit < st.pinned => {
                    AlignedBuf::new(self.source.units[unit].buffer, "a pinned layer").map(Some)
                }
                None => Ok(st.free.pop()),
                some => Ok(some),
            };
            match dest {
                Ok(None) => return None,
                Err(e) => {
                    st.end(unit, End::Failed(e));
                    self.wake.notify_all();
                }
                Ok(Some(dest)) => {
                    let (piece, read) = coming.read.swap_remove(0);
                    coming.busy = true;
                    let last = coming.decoded + 1 == self.source.units[unit].pieces.len();
                    let check = last && self.verify && !st.verified[unit];
                    return Some(Job::Decode { unit, piece, read, dest, last, check });
                }
            }
        }
        None
    }

    fn work_on(&self, job: &mut Job) -> Result<(), Error> {
        let unit = &self.source.units[job.unit()];
        // Only what was packed is checked or decoded.
        let Some((trunk, run)) = self.source.trunk().zip(unit.run) else { return Ok(()) };
        let run = &trunk.runs[run];
        match job {
            Job::Check { read, .. } => {
                let (a, b) = unit.gather.places.first().copied().unwrap_or((0, 0));
                trunk.check_bytes(run, &read[a..b])
            }
            Job::Decode { piece, read, dest, check, .. } => {
                let piece = &unit.pieces[*piece];
                let out = &mut dest[piece.room()];
                decode_blocks(&piece.blocks, &read[piece.skip..], out, self.threads)
                    .map_err(|problem| trunk.damaged(&run.what, &problem))?;
                match check {
                    true => trunk.check_bytes(run, &dest[..unit.buffer]),
                    false => Ok(()),
                }
            }
        }
    }
}

/// The decoding thread has done a job.
fn finish(st: &mut State, job: Job, result: Result<(), Error>) {
    match job {
        Job::Check { unit, read } => match result {
            Ok(()) => {
                st.verified[unit] = true;
                st.units[unit] = UnitState::Ready(Arc::new(read));
            }
            Err(e) => {
                st.units[unit] = UnitState::Failed(e);
                if unit >= st.pinned {
                    st.free.push(read);
                }
            }
        },
        Job::Decode { unit, read, dest, last, check, .. } => {
            st.staging.push(read);
            st.verified[unit] |= check && result.is_ok();
            let UnitState::Coming(coming) = &mut st.units[unit] else { return };
            coming.busy = false;
            coming.decoded += 1;
            if result.is_ok() && last && coming.end.is_none() {
                st.units[unit] = UnitState::Ready(Arc::new(dest));
                return;
            }
            coming.dest = Some(dest);
            match result {
                Err(e) => st.end(unit, End::Failed(e)),
                Ok(()) => st.settle(unit),
            };
        }
    }
}

/// The tensor in which a read failed.
fn failed_tensor(unit: &Unit, failure: &ReadFailure) -> String {
    if unit.coded() {
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
