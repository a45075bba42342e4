//! The expert cache's buffers, and reading experts that are wanted.

use super::open::Source;
use super::state::{EXPERT, read_error, tensor_at};
use super::store::{Expert, Layer, StoreStats};
use super::units::{Place, gather};
use crate::cache::{ExpertCache, ExpertId, Policy, SlotState};
use crate::direct::{AlignedBuf, Done, Handle, Request};
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is in a slot's buffer.
struct Slot {
    /// `None` while it is being read into.
    buf: Option<Arc<AlignedBuf>>,
    places: Arc<[Place]>,
}

pub(super) struct Experts {
    cache: ExpertCache,
    slots: Vec<Slot>,
    slot_bytes: usize,
    layer: u32,
    /// Experts of the current layer still to be used.
    wanted: BTreeSet<u32>,
    /// Those of them that have no slot yet, in disk order.
    waiting: Vec<u32>,
    failed: Vec<(ExpertId, Error)>,
    /// Requests in order, if they are recorded.
    pub trace: Option<Vec<ExpertId>>,
    pub bytes: u64,
}

impl Experts {
    pub fn new(
        source: &Source,
        policy: Policy,
        slots: usize,
        slot_bytes: usize,
        record: bool,
    ) -> Result<Self> {
        let counts: Vec<usize> = source.experts.iter().map(|e| e.len()).collect();
        let cache = ExpertCache::new(policy, slots, &counts);
        let buffers = match cache.slots() {
            0 => Vec::new(),
            n => AlignedBuf::many(n, slot_bytes, "the expert cache")?,
        };
        let slot = |buf| Slot { buf: Some(Arc::new(buf)), places: Arc::default() };
        Ok(Experts {
            slots: buffers.into_iter().map(slot).collect(),
            cache,
            slot_bytes,
            layer: u32::MAX,
            wanted: BTreeSet::new(),
            waiting: Vec::new(),
            failed: Vec::new(),
            trace: record.then(Vec::new),
            bytes: 0,
        })
    }

    pub fn evictions(&self) -> u64 {
        self.cache.evictions()
    }

    /// The router has chosen `ids` of `layer`; called again with fewer while they are used.
    pub fn want(&mut self, source: &Source, layer: u32, ids: &[u32], stats: &mut StoreStats) {
        let again = self.layer == layer && ids.iter().all(|id| self.wanted.contains(id));
        self.wanted = ids.iter().copied().collect();
        if !again {
            self.layer = layer;
            self.failed.clear();
            self.cache.visit(layer);
            for &expert in &self.wanted {
                let id = ExpertId { layer, expert };
                let slot = self.cache.find(id);
                stats.expert_requests += 1;
                let resident =
                    slot.is_some_and(|s| matches!(self.cache.state(s), SlotState::Resident(_)));
                stats.expert_hits += u64::from(resident);
                self.cache.touch(id);
                self.trace.iter_mut().for_each(|t| t.push(id));
            }
        }
        let missing = |&expert: &u32| self.cache.find(ExpertId { layer, expert }).is_none();
        self.waiting = self.wanted.iter().copied().filter(missing).collect();
        let experts = &source.experts[layer as usize];
        self.waiting.sort_by_key(|&e| experts.position(e));
    }

    /// Starts reading wanted experts as far as there are slots.
    pub fn pump(&mut self, source: &Source, handle: &Handle) {
        let layer = self.layer;
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut started = 0;
        for &expert in &waiting {
            let id = ExpertId { layer, expert };
            if self.failed.iter().any(|(f, _)| *f == id) {
                started += 1;
                continue;
            }
            let (cache, slots, wanted) = (&mut self.cache, &self.slots, &self.wanted);
            let states: Vec<usize> = wanted
                .iter()
                .filter_map(|&expert| cache.find(ExpertId { layer, expert }))
                .collect();
            let held = |s: usize| {
                states.contains(&s)
                    || slots[s].buf.as_ref().is_none_or(|b| Arc::strong_count(b) > 1)
            };
            let Some(slot) = cache.reserve(id, held) else { break };
            started += 1;
            if let Err(e) = self.read(source, handle, slot, id) {
                self.cache.fail(slot);
                self.failed.push((id, e));
            }
        }
        waiting.drain(..started);
        self.waiting = waiting;
    }

    fn read(&mut self, source: &Source, handle: &Handle, slot: usize, id: ExpertId) -> Result<()> {
        let experts = &source.experts[id.layer as usize];
        let gather = gather(&source.files, &experts.parts(id.expert))?;
        let old = self.slots[slot].buf.take().and_then(Arc::into_inner);
        // A buffer may have been lost to a failed read.
        let buf = match old.filter(|b| b.len() >= gather.len) {
            Some(buf) => buf,
            None => AlignedBuf::new(self.slot_bytes.max(gather.len), "the expert cache")?,
        };
        self.slots[slot].places = gather.places.into();
        self.bytes += experts.bytes;
        let (windows, urgent) = (gather.windows, true);
        handle.submit(Request { id: EXPERT | slot as u64, urgent, windows, buf });
        Ok(())
    }

    /// A read into a slot is done.
    pub fn done(&mut self, source: &Source, slot: usize, done: Done) {
        let SlotState::InFlight(id) = self.cache.state(slot) else { return };
        self.slots[slot].buf = Some(Arc::new(done.buf));
        match done.result {
            Ok(()) => self.cache.publish(slot),
            Err(failure) => {
                self.cache.fail(slot);
                let layer = &source.layout.layers[id.layer as usize];
                let places = &self.slots[slot].places;
                let tensor = tensor_at(places, failure.at, failure.len as usize).unwrap_or(0);
                let name = layer.expert_name(id.expert as usize, tensor);
                let what = format!("tensor {name}");
                self.failed.push((id, read_error(what, failure)));
            }
        }
    }

    /// The wanted experts that are there. `Err` if one of them cannot be had.
    pub fn ready(&mut self) -> Result<Vec<Expert>> {
        let (layer, wanted) = (self.layer, &self.wanted);
        let failed = |(id, _): &(ExpertId, Error)| id.layer == layer && wanted.contains(&id.expert);
        if let Some(i) = self.failed.iter().position(failed) {
            return Err(self.failed.swap_remove(i).1);
        }
        let mut ready = Vec::new();
        for &expert in &self.wanted {
            let slot = self.cache.find(ExpertId { layer, expert });
            let Some(slot) = slot else { continue };
            if let (SlotState::Resident(_), Slot { buf: Some(buf), places }) =
                (self.cache.state(slot), &self.slots[slot])
            {
                let layer = Layer { buf: Arc::clone(buf), places: Arc::clone(places) };
                ready.push(Expert { id: expert, layer });
            }
        }
        Ok(ready)
    }

    /// Whether any read into a slot is under way.
    pub fn busy(&self) -> bool {
        (0..self.slots.len()).any(|s| matches!(self.cache.state(s), SlotState::InFlight(_)))
    }
}
