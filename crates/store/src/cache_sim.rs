//! Recorded requests for experts, and what caches of any size would have made of them.
//!
//! A trace is a file of `(layer: u32, expert: u32)` pairs, little-endian, in the order of the
//! requests. The bound beside the policies is Belady's, see [`hits_belady`].

use crate::cache::{ExpertCache, ExpertId, Policy};
use crate::io::{Disk, Mode, read_exact_at};
use crate::{Error, Result, atomic};
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Longest trace accepted, in requests.
pub const MAX_REQUESTS: u64 = 1 << 27;
/// Numbers of layers and experts must be below this.
const MAX_NUMBER: u32 = 1 << 16;

/// Reads a trace.
pub fn read_trace(disk: &dyn Disk, path: &Path) -> Result<Vec<ExpertId>> {
    let file = disk.open(path, Mode::Read).map_err(|e| Error::io("open", path, e))?;
    let size = file.size().map_err(|e| Error::io("measure", path, e))?;
    if size == 0 || !size.is_multiple_of(8) || size / 8 > MAX_REQUESTS {
        let problem =
            format!("{size} bytes are not a trace of 1 to {MAX_REQUESTS} 8-byte requests");
        return Err(Error::format(path, problem));
    }
    let mut bytes = vec![0; size as usize];
    read_exact_at(&*file, &mut bytes, 0).map_err(|e| Error::io("read", path, e))?;
    let number = |b: &[u8; 4]| u32::from_le_bytes(*b);
    let pairs = bytes.as_chunks::<4>().0.as_chunks::<2>().0;
    let trace: Vec<ExpertId> =
        pairs.iter().map(|[l, e]| ExpertId { layer: number(l), expert: number(e) }).collect();
    match trace.iter().position(|id| id.layer >= MAX_NUMBER || id.expert >= MAX_NUMBER) {
        None => Ok(trace),
        Some(i) => Err(Error::format(path, format!("request {i} is of an impossible expert"))),
    }
}

/// Writes a trace, atomically.
pub fn write_trace(disk: &Arc<dyn Disk>, path: &Path, trace: &[ExpertId]) -> Result<()> {
    let bytes: Vec<u8> =
        trace.iter().flat_map(|id| [id.layer, id.expert]).flat_map(u32::to_le_bytes).collect();
    atomic::write(disk, path, &bytes)
}

/// Hits of a policy with `slots` slots. A visit of a layer is a run of requests to it.
pub fn hits(trace: &[ExpertId], policy: Policy, slots: usize) -> u64 {
    if policy == Policy::Lru {
        return hits_lru(trace, slots);
    }
    let layers = trace.iter().map(|id| id.layer + 1).max().unwrap_or(0);
    let experts = trace.iter().map(|id| id.expert + 1).max().unwrap_or(0);
    let mut cache = ExpertCache::new(policy, slots, &vec![experts as usize; layers as usize]);
    let mut current = None;
    let mut hits = 0;
    for &id in trace {
        if current != Some(id.layer) {
            current = Some(id.layer);
            cache.visit(id.layer);
        }
        if cache.find(id).is_some() {
            hits += 1;
        } else if let Some(slot) = cache.reserve(id, |_| false) {
            cache.publish(slot);
        }
        cache.touch(id);
    }
    hits
}

/// LRU in logarithmic time; the cache itself looks at every slot.
fn hits_lru(trace: &[ExpertId], slots: usize) -> u64 {
    furthest(trace, slots, |t| t as u64, |order| order.pop_first())
}

/// Belady's bound: always throw out what is needed again last. The best of all policies that admit
/// every miss. [`Policy::Pinned`] does not admit: its first experts stay and the others pass by, so
/// with very few slots it can have more hits than this.
pub fn hits_belady(trace: &[ExpertId], slots: usize) -> u64 {
    let mut next = vec![u64::MAX; trace.len()];
    let mut seen = HashMap::new();
    for (t, &id) in trace.iter().enumerate().rev() {
        if let Some(later) = seen.insert(id, t as u64) {
            next[t] = later;
        }
    }
    furthest(trace, slots, |t| next[t], |order| order.pop_last())
}

/// Replays a trace on a cache ordered by `key(time of use)`, of which `pop` gives the victim.
fn furthest(
    trace: &[ExpertId],
    slots: usize,
    key: impl Fn(usize) -> u64,
    pop: impl Fn(&mut BTreeSet<(u64, ExpertId)>) -> Option<(u64, ExpertId)>,
) -> u64 {
    let mut order = BTreeSet::new();
    let mut resident: HashMap<ExpertId, u64> = HashMap::new();
    let mut hits = 0;
    for (t, &id) in trace.iter().enumerate() {
        if let Some(old) = resident.remove(&id) {
            hits += 1;
            order.remove(&(old, id));
        } else if resident.len() >= slots {
            match pop(&mut order) {
                Some((_, victim)) => resident.remove(&victim),
                None => continue,
            };
        }
        order.insert((key(t), id));
        resident.insert(id, key(t));
    }
    hits
}

/// One line of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct SimRow {
    /// Slots.
    pub slots: usize,
    /// Requests.
    pub requests: u64,
    /// Hits with [`Policy::History`].
    pub history: u64,
    /// Hits with [`Policy::Lru`].
    pub lru: u64,
    /// Hits with [`Policy::Pinned`].
    pub pinned: u64,
    /// Hits of Belady's bound, see [`hits_belady`].
    pub belady: u64,
}

/// All policies at several sizes.
pub fn simulate(trace: &[ExpertId], slots: &[usize]) -> Vec<SimRow> {
    let row = |&slots: &usize| SimRow {
        slots,
        requests: trace.len() as u64,
        history: hits(trace, Policy::History, slots),
        lru: hits(trace, Policy::Lru, slots),
        pinned: hits(trace, Policy::Pinned, slots),
        belady: hits_belady(trace, slots),
    };
    slots.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fast LRU is the cache's LRU.
    #[test]
    fn both_lru_agree() {
        let mut x = 9u32;
        let trace: Vec<ExpertId> = (0..3000)
            .map(|t| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ExpertId { layer: t / 8 % 5, expert: (x >> 24) % 16 }
            })
            .collect();
        for slots in [1, 2, 7, 40, 80] {
            let mut cache = ExpertCache::new(Policy::Lru, slots, &[16; 5]);
            let mut hits = 0;
            for &id in &trace {
                cache.visit(id.layer);
                if cache.find(id).is_some() {
                    hits += 1;
                } else if let Some(slot) = cache.reserve(id, |_| false) {
                    cache.publish(slot);
                }
                cache.touch(id);
            }
            assert_eq!(hits, hits_lru(&trace, slots));
            assert!(hits_belady(&trace, slots) >= hits);
        }
        assert_eq!(hits_lru(&trace, 0), 0);
    }
}
