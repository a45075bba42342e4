//! Which experts stay in memory: fixed slots, three states, deterministic eviction. Pure
//! bookkeeping without buffers or time, so that the simulator and the store run the same code.

/// How a slot is chosen when none is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The default: of the experts outside the current layer, the one used least in its
    /// layer's last eight visits (newest visit first); among equals the one whose layer comes
    /// again last. Layers are walked in a cycle, so what was used longest ago, LRU's victim,
    /// is what is needed next.
    #[default]
    History,
    /// Least recently used.
    Lru,
    /// What came first stays for ever.
    Pinned,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 3] = [Policy::History, Policy::Lru, Policy::Pinned];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::History => "history",
            Policy::Lru => "lru",
            Policy::Pinned => "pinned",
        }
    }
}

/// A routed expert: layer and number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertId {
    /// Layer from 0.
    pub layer: u32,
    /// Expert from 0.
    pub expert: u32,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing.
    Empty,
    /// An expert that is being read.
    InFlight(ExpertId),
    /// An expert that can be used.
    Resident(ExpertId),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: SlotState,
    last_use: u64,
}

/// What is known about an expert, resident or not.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Slot number + 1; 0 if it has none.
    slot: u32,
    /// Visit of its layer in which it was last used.
    visit: u32,
    /// One bit for each of the last eight visits up to that one, newest in the top bit.
    history: u8,
}

/// Slots and what is in them.
#[derive(Clone, Debug)]
pub struct ExpertCache {
    policy: Policy,
    slots: Vec<Slot>,
    seen: Vec<Seen>,
    /// First entry of each layer in `seen`.
    first: Vec<usize>,
    visits: Vec<u32>,
    current: u32,
    clock: u64,
    empty: Vec<u32>,
    evictions: u64,
}

impl ExpertCache {
    /// `slots` slots for the experts of layers with `experts[layer]` experts each.
    pub fn new(policy: Policy, slots: usize, experts: &[usize]) -> Self {
        let mut first = Vec::with_capacity(experts.len());
        let mut total = 0;
        for n in experts {
            first.push(total);
            total += n;
        }
        let slots = slots.min(total).min(u32::MAX as usize - 1);
        ExpertCache {
            policy,
            slots: vec![Slot { state: SlotState::Empty, last_use: 0 }; slots],
            seen: vec![Seen::default(); total],
            first,
            visits: vec![0; experts.len()],
            current: u32::MAX,
            clock: 0,
            empty: (0..slots as u32).rev().collect(),
            evictions: 0,
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Experts thrown out so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// A slot's state.
    pub fn state(&self, slot: usize) -> SlotState {
        self.slots[slot].state
    }

    fn seen(&mut self, id: ExpertId) -> &mut Seen {
        &mut self.seen[self.first[id.layer as usize] + id.expert as usize]
    }

    /// The slot of an expert that is resident or in flight.
    pub fn find(&self, id: ExpertId) -> Option<usize> {
        let seen = &self.seen[self.first[id.layer as usize] + id.expert as usize];
        (seen.slot as usize).checked_sub(1)
    }

    /// The model has come to the experts of a layer.
    pub fn visit(&mut self, layer: u32) {
        self.visits[layer as usize] += 1;
        self.current = layer;
    }

    /// An expert of the current layer is used: call once for every request.
    pub fn touch(&mut self, id: ExpertId) {
        self.clock += 1;
        let (clock, visit) = (self.clock, self.visits[id.layer as usize]);
        let seen = self.seen(id);
        seen.history = aged(seen.history, visit - seen.visit) | 0x80;
        seen.visit = visit;
        if let Some(slot) = self.find(id) {
            self.slots[slot].last_use = clock;
        }
    }

    /// Takes a slot for an expert that has none, and marks it as in flight. `held` says which
    /// resident slots must stay. `None` if no slot can be had now.
    pub fn reserve(&mut self, id: ExpertId, held: impl Fn(usize) -> bool) -> Option<usize> {
        debug_assert_eq!(self.find(id), None);
        let slot = match self.empty.pop() {
            Some(slot) => slot as usize,
            None => self.victim(held)?,
        };
        if let SlotState::Resident(old) = self.slots[slot].state {
            self.seen(old).slot = 0;
            self.evictions += 1;
        }
        self.slots[slot] = Slot { state: SlotState::InFlight(id), last_use: self.clock };
        self.seen(id).slot = slot as u32 + 1;
        Some(slot)
    }

    fn victim(&self, held: impl Fn(usize) -> bool) -> Option<usize> {
        let resident = self.slots.iter().enumerate().filter_map(|(i, slot)| match slot.state {
            SlotState::Resident(id) if !held(i) => Some((i, id, slot.last_use)),
            _ => None,
        });
        match self.policy {
            Policy::Pinned => None,
            Policy::Lru => resident.min_by_key(|&(_, _, used)| used).map(|(i, ..)| i),
            Policy::History => {
                resident.min_by_key(|&(_, id, used)| self.worth(id, used)).map(|(i, ..)| i)
            }
        }
    }

    /// Orders experts by how much they are worth keeping, see [`Policy::History`].
    fn worth(&self, id: ExpertId, used: u64) -> (bool, u8, u32, u64) {
        let layers = self.visits.len() as u32;
        let seen = &self.seen[self.first[id.layer as usize] + id.expert as usize];
        let value = aged(seen.history, self.visits[id.layer as usize] - seen.visit);
        let until = (id.layer + layers - self.current) % layers;
        (id.layer == self.current, value, layers - until, used)
    }

    /// A slot's expert has been read.
    pub fn publish(&mut self, slot: usize) {
        if let SlotState::InFlight(id) = self.slots[slot].state {
            self.slots[slot].state = SlotState::Resident(id);
        }
    }

    /// A slot's expert could not be read.
    pub fn fail(&mut self, slot: usize) {
        if let SlotState::InFlight(id) = self.slots[slot].state {
            self.slots[slot].state = SlotState::Empty;
            self.seen(id).slot = 0;
            self.empty.push(slot as u32);
        }
    }
}

/// A history some visits later.
fn aged(history: u8, visits: u32) -> u8 {
    history.checked_shr(visits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(layer: u32, expert: u32) -> ExpertId {
        ExpertId { layer, expert }
    }

    /// Catches a slot that is given away while it is being read into or used.
    #[test]
    fn slots_in_flight_or_held_are_never_taken() {
        for policy in Policy::ALL {
            let mut c = ExpertCache::new(policy, 2, &[8]);
            c.visit(0);
            let a = c.reserve(id(0, 0), |_| false).unwrap();
            let b = c.reserve(id(0, 1), |_| false).unwrap();
            assert_ne!(a, b);
            assert_eq!(c.reserve(id(0, 2), |_| false), None, "both are in flight");
            c.publish(a);
            assert_eq!(c.reserve(id(0, 2), |s| s == a), None, "one is held");
            c.fail(b);
            assert_eq!(c.find(id(0, 1)), None);
            assert_eq!(c.reserve(id(0, 2), |_| false), Some(b), "an empty slot goes first");
            assert_eq!(c.find(id(0, 0)), Some(a));
        }
    }

    /// The reason for the default: a cycle one longer than the cache.
    #[test]
    fn a_cycle_defeats_lru_but_not_history() {
        let hits = |policy| {
            let mut c = ExpertCache::new(policy, 9, &[1; 10]);
            let mut hits = 0;
            for layer in (0..10).cycle().take(1000) {
                c.visit(layer);
                let hit = c.find(id(layer, 0));
                hits += usize::from(hit.is_some());
                if hit.is_none()
                    && let Some(slot) = c.reserve(id(layer, 0), |_| false)
                {
                    c.publish(slot);
                }
                c.touch(id(layer, 0));
            }
            hits
        };
        assert_eq!(hits(Policy::Lru), 0);
        assert!(hits(Policy::History) > 850, "{}", hits(Policy::History));
        assert_eq!(hits(Policy::Pinned), 99 * 9);
    }
}
