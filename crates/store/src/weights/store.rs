//! The store itself: what the host calls.

use super::experts::Experts;
use super::open::Source;
use super::state::{Inner, ROWS, State, UnitState, read_error};
use super::units::{Place, gather};
use crate::cache::{ExpertId, Policy};
use crate::direct::{AlignedBuf, Backend, Event, Reader, ReaderStats, Request};
use crate::plan::Plan;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// How a store works.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How requests reach the system.
    pub backend: Backend,
    /// Threads that decode compressed layers.
    pub threads: usize,
    /// Which experts stay.
    pub policy: Policy,
    /// Compare the digest of every packed layer when it is first read.
    pub verify: bool,
    /// Record requests for experts, see [`WeightStore::trace`].
    pub record: bool,
}

impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (backend, policy) = (Backend::default(), Policy::default());
        Options { backend, threads, policy, verify: false, record: false }
    }
}

/// What the model will want after its current want.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upcoming<'u> {
    /// Layer whose router has chosen, and its experts that have not been used, ascending.
    pub experts: Option<(usize, &'u [u32])>,
    /// Layers not yet begun.
    pub layers: Range<usize>,
    /// Whether the head will be wanted.
    pub head: bool,
}

/// Counts since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreStats {
    /// Bytes of layers and head read.
    pub trunk_bytes: u64,
    /// Bytes of experts read.
    pub expert_bytes: u64,
    /// Bytes of table rows read.
    pub row_bytes: u64,
    /// Experts wanted, counted once for each visit of a layer.
    pub expert_requests: u64,
    /// Those of them that were resident when the router chose them.
    pub expert_hits: u64,
    /// Experts thrown out.
    pub evictions: u64,
    /// Nanoseconds the host waited for layers and head.
    pub trunk_wait_ns: u64,
    /// Nanoseconds the host waited for experts.
    pub expert_wait_ns: u64,
    /// Nanoseconds the host waited for table rows.
    pub row_wait_ns: u64,
    /// Bytes of all disk requests, with what alignment adds.
    pub disk_bytes: u64,
    /// Nanoseconds during which the disk was reading for us.
    pub disk_ns: u64,
}

/// Tensors in memory that stays theirs until this is dropped.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(super) buf: Arc<AlignedBuf>,
    pub(super) places: Arc<[Place]>,
}

impl Layer {
    /// The tensors in the order of the layout.
    pub fn tensors(&self) -> Vec<&[u8]> {
        self.places.iter().map(|&(a, b)| &self.buf[a..b]).collect()
    }
}

/// A routed expert.
#[derive(Clone, Debug)]
pub struct Expert {
    /// Its number.
    pub id: u32,
    pub(super) layer: Layer,
}

impl Expert {
    /// The tensors in the order of the layout.
    pub fn tensors(&self) -> Vec<&[u8]> {
        self.layer.tensors()
    }
}

/// Rows of the head's matrix.
#[derive(Clone, Debug)]
pub struct Head {
    source: Arc<Source>,
    layer: Layer,
    /// Bytes of the piece before the first row asked for.
    skip: usize,
    /// The rows.
    pub rows: Range<u64>,
}

impl Head {
    /// The head's small tensors.
    pub fn tensors(&self) -> Vec<&[u8]> {
        self.source.head.iter().map(Vec::as_slice).collect()
    }

    /// The bytes of [`Head::rows`].
    pub fn bytes(&self) -> &[u8] {
        let (a, b) = self.layer.places[0];
        &self.layer.buf[a + self.skip..b]
    }
}

/// Rows of a table.
#[derive(Debug)]
pub struct Rows {
    buf: AlignedBuf,
    places: Vec<Place>,
}

impl Rows {
    /// For each id in the order asked, one slice for each tensor of the table.
    pub fn slices(&self) -> Vec<&[u8]> {
        self.places.iter().map(|&(a, b)| &self.buf[a..b]).collect()
    }
}

/// Brings a model's weights within a [`Plan`].
pub struct WeightStore {
    // Before the rest, so that no read is under way when buffers go.
    reader: Reader,
    decoder: Option<JoinHandle<()>>,
    inner: Arc<Inner>,
    source: Arc<Source>,
    events: Vec<Event>,
    direct_told: bool,
}

impl std::fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightStore").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl WeightStore {
    /// Allocates what the plan says (memory is taken as it is used). Reading begins with the
    /// first [`WeightStore::announce`] or want, so that every byte belongs to a step.
    pub fn new(mut source: Source, plan: &Plan, options: Options) -> Result<Self> {
        if plan.units != source.units.len() {
            return Err(Error::Refused("the plan was made for another model".to_owned()));
        }
        let mut events = source.take_events();
        let source = Arc::new(source);
        let usize = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let buffers = |n: usize, bytes: u64, what| match n {
            0 => Ok(Vec::new()),
            n => AlignedBuf::many(n, usize(bytes), what),
        };
        let slot = usize(plan.expert_slot);
        let experts =
            Experts::new(&source, options.policy, plan.expert_slots, slot, options.record)?;
        let state = State {
            units: (0..plan.units).map(|_| UnitState::Absent).collect(),
            verified: vec![false; plan.units],
            pinned: plan.pinned,
            ring: plan.ring,
            free: buffers(plan.ring, plan.ring_slot, "the ring of layers")?,
            lent: Vec::new(),
            staging: buffers(plan.staging, plan.staging_slot, "compressed layers")?,
            checks: Vec::new(),
            order: (0..plan.units).collect(),
            current: None,
            listed: vec![false; plan.units],
            experts,
            rows: None,
            stats: StoreStats::default(),
            stop: false,
        };
        let mut reader = None;
        let inner = Arc::new_cyclic(|weak: &std::sync::Weak<Inner>| {
            let weak = weak.clone();
            let made = Reader::new(options.backend, move |done| {
                if let Some(inner) = weak.upgrade() {
                    inner.done(done);
                }
            });
            let handle = made.handle();
            reader = Some(made);
            Inner {
                source: Arc::clone(&source),
                handle,
                state: Mutex::new(state),
                wake: Condvar::new(),
                work: Condvar::new(),
                threads: options.threads.max(1),
                verify: options.verify,
            }
        });
        let mut reader = reader.unwrap_or_else(|| unreachable!("made above"));
        reader.check()?;
        events.extend(reader.event());
        let worker = Arc::clone(&inner);
        let decoder = std::thread::Builder::new()
            .name("store-decode".to_owned())
            .spawn(move || worker.decode())
            .map_err(|e| {
                Error::DoesNotFit(format!("the system gives no thread to decode with: {e}"))
            })?;
        Ok(WeightStore {
            reader,
            decoder: Some(decoder),
            inner,
            source,
            direct_told: !events.is_empty(),
            events,
        })
    }

    /// Tells what comes next, so that it is read meanwhile. Returns at once.
    pub fn announce(&mut self, upcoming: &Upcoming<'_>) {
        let layers = self.source.layout.layers.len();
        let pieces = layers..self.source.units.len();
        let mut guard = self.inner.lock();
        let st = &mut *guard;
        // A unit that the host has let go is over: another step begins.
        if let Some(current) = st.current
            && !st.held(current)
        {
            st.current = None;
            st.pass(current);
        }
        st.order.clear();
        st.order.extend(st.current);
        let next = upcoming.layers.clone().filter(|&l| l < layers && Some(l) != st.current);
        match st.current {
            // In the middle of the head its other pieces follow in any case.
            Some(c) if c >= layers => {
                st.order.extend(c + 1..pieces.end);
                st.order.extend(next);
            }
            _ => {
                st.order.extend(next);
                st.order.extend(pieces.filter(|_| upcoming.head));
            }
        }
        st.tidy();
        if let Some((layer, ids)) = upcoming.experts {
            st.experts.want(&self.source, layer as u32, ids, &mut st.stats);
        }
        self.inner.pump(st);
    }

    /// Waits for a unit.
    fn unit(&mut self, u: usize) -> Result<Layer> {
        let start = Instant::now();
        let mut st = self.inner.lock();
        let at = st.order.iter().position(|&o| o == u);
        for i in 0..at.unwrap_or(st.order.len()) {
            let passed = st.order[i];
            st.pass(passed);
        }
        match at {
            Some(at) => drop(st.order.drain(..at)),
            // Nothing was announced: in the order of the model, round and round.
            None => {
                let units = st.units.len();
                st.order = (u..units).chain(0..u).collect();
            }
        }
        st.current = Some(u);
        st.tidy();
        // Reading ahead failed: now that it is wanted it gets another chance. (Damage does not.)
        if matches!(st.units[u], UnitState::Failed(Error::Read { .. })) {
            st.units[u] = UnitState::Absent;
        }
        let result = loop {
            self.inner.pump(&mut st);
            match &st.units[u] {
                UnitState::Ready(buf) => {
                    let places = Arc::clone(&self.source.units[u].places);
                    break Ok(Layer { buf: Arc::clone(buf), places });
                }
                UnitState::Failed(_) => {
                    let failed = std::mem::replace(&mut st.units[u], UnitState::Absent);
                    let UnitState::Failed(error) = failed else { continue };
                    break Err(error);
                }
                _ => {}
            }
            if !st.idle() {
                st = self.wait(st);
            } else if !st.make_way(u) {
                break Err(Error::Refused(format!(
                    "{} cannot be read: all slots of the ring are still in use",
                    self.source.units[u].what
                )));
            }
        };
        st.stats.trunk_wait_ns += start.elapsed().as_nanos() as u64;
        result
    }

    fn wait<'s>(&self, st: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.inner.wake.wait(st).unwrap_or_else(PoisonError::into_inner)
    }

    /// All always-active tensors of a layer.
    pub fn layer(&mut self, layer: usize) -> Result<Layer> {
        if layer >= self.source.layout.layers.len() {
            return Err(Error::Refused(format!("there is no layer {layer}")));
        }
        self.unit(layer)
    }

    /// The head's small tensors and some rows of its matrix from `first_row` on.
    pub fn head(&mut self, first_row: u64) -> Result<Head> {
        let piece = self.source.pieces.iter().position(|p| p.contains(&first_row));
        let piece =
            piece.ok_or_else(|| Error::Refused(format!("the head has no row {first_row}")))?;
        let rows = self.source.pieces[piece].clone();
        let layer = self.unit(self.source.layout.layers.len() + piece)?;
        let (a, b) = layer.places[0];
        let row = (b - a) as u64 / (rows.end - rows.start);
        let skip = ((first_row - rows.start) * row) as usize;
        let source = Arc::clone(&self.source);
        Ok(Head { source, layer, skip, rows: first_row..rows.end })
    }

    /// Those experts of `ids` (all that the layer still needs) that are in memory; waits for
    /// at least one.
    pub fn experts(&mut self, layer: usize, ids: &[u32]) -> Result<Vec<Expert>> {
        let known = self.source.experts.get(layer).map_or(0, |e| e.len());
        if let Some(id) = ids.iter().find(|&&id| id as usize >= known) {
            return Err(Error::Refused(format!("layer {layer} has no expert {id}")));
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let start = Instant::now();
        let mut st = self.inner.lock();
        {
            let st = &mut *st;
            st.experts.want(&self.source, layer as u32, ids, &mut st.stats);
        }
        let result = loop {
            self.inner.pump(&mut st);
            match st.experts.ready() {
                Err(e) => break Err(e),
                Ok(ready) if !ready.is_empty() => break Ok(ready),
                Ok(_) if !st.experts.busy() => {
                    break Err(Error::Refused(format!(
                        "experts of layer {layer} cannot be read: all slots are still in use"
                    )));
                }
                Ok(_) => st = self.wait(st),
            }
        };
        st.stats.expert_wait_ns += start.elapsed().as_nanos() as u64;
        result
    }

    /// Rows of a table.
    pub fn rows(&mut self, table: usize, ids: &[u64]) -> Result<Rows> {
        let tensors = self.source.tables.get(table);
        let tensors =
            tensors.ok_or_else(|| Error::Refused(format!("there is no table {table}")))?;
        let mut parts = Vec::with_capacity(ids.len() * tensors.len());
        for &id in ids {
            for t in tensors {
                if id >= t.rows {
                    let problem = format!("table {} has no row {id}", t.name);
                    return Err(Error::Refused(problem));
                }
                parts.push((t.shard, t.offset + id * t.row, t.row));
            }
        }
        let start = Instant::now();
        let gather = gather(&self.source.files, &parts)?;
        let buf = AlignedBuf::new(gather.len, "table rows")?;
        let mut st = self.inner.lock();
        st.rows = None;
        st.stats.row_bytes += parts.iter().map(|p| p.2).sum::<u64>();
        let windows = gather.windows;
        self.inner.handle.submit(Request { id: ROWS, urgent: true, windows, buf });
        let result = loop {
            match st.rows.take() {
                Some(result) => break result,
                None => st = self.wait(st),
            }
        };
        st.stats.row_wait_ns += start.elapsed().as_nanos() as u64;
        let names = || tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join(", ");
        let buf = result.map_err(|f| read_error(format!("rows of tensor {}", names()), f))?;
        Ok(Rows { buf, places: gather.places })
    }

    /// Counts so far.
    pub fn stats(&self) -> StoreStats {
        let st = self.inner.lock();
        let ReaderStats { bytes, busy_ns } = self.reader.stats();
        StoreStats {
            expert_bytes: st.experts.bytes,
            evictions: st.experts.evictions(),
            disk_bytes: bytes,
            disk_ns: busy_ns,
            ..st.stats
        }
    }

    /// Requests for experts since the last call, if [`Options::record`] was set.
    pub fn trace(&mut self) -> Vec<ExpertId> {
        self.inner.lock().experts.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What the user should hear, each once: io_uring or direct reads are not to be had.
    pub fn take_events(&mut self) -> Vec<Event> {
        if !self.direct_told
            && let Some(event) = self.source.files.iter().find_map(|f| f.event())
        {
            self.direct_told = true;
            self.events.push(event);
        }
        std::mem::take(&mut self.events)
    }

    /// "io_uring" or "plain reads".
    pub fn backend(&self) -> &'static str {
        self.reader.name()
    }
}

impl Drop for WeightStore {
    fn drop(&mut self) {
        self.inner.lock().stop = true;
        self.inner.work.notify_all();
        if let Some(decoder) = self.decoder.take() {
            // A panic there has already been reported by its message.
            let _ = decoder.join();
        }
    }
}
