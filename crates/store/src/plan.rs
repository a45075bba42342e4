//! How a budget is divided before anything is allocated, and what a token then costs.
//!
//! Order of the division: what cannot be done without (state, KV, buffers, index, the
//! process), two slots of the ring and the experts of one layer; then as many layers as fit
//! are pinned, from the first on; what is left is expert cache. Layers before experts: every
//! pinned byte saves a read on every token, a cached expert only if it is chosen again. A
//! pinned prefix and not a cache: layers are read in a cycle, in which LRU never hits.

use crate::{Error, Result};
use std::fmt;

/// A layer or piece of the head, as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UnitShape {
    /// Bytes read for it.
    pub stored: u64,
    /// Bytes of memory while it is used.
    pub buffer: u64,
    /// Bytes of memory to read a piece of it into first, if it is compressed; else 0.
    pub staging: u64,
}

/// A layer's experts, as the planner sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ExpertShape {
    /// Number of experts.
    pub count: u64,
    /// Bytes read for one.
    pub stored: u64,
    /// Bytes of memory for one.
    pub buffer: u64,
}

/// Sizes of a model's weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Shape {
    /// Layers, then pieces of the head, in the order in which they are read.
    pub units: Vec<UnitShape>,
    /// How many of them are layers.
    pub layers: usize,
    /// Routed experts of each layer that has some.
    pub experts: Vec<ExpertShape>,
    /// Experts chosen for a token in a layer.
    pub top_k: u64,
    /// Bytes read for a token from tables (embedding rows).
    pub rows: u64,
    /// Memory of the index and everything else the store keeps.
    pub index: u64,
}

/// What the engine needs besides weights, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Needs {
    /// Recurrent state of all sequences.
    pub state: u64,
    /// KV of all sequences for the whole context.
    pub kv: u64,
    /// Activations and other buffers of a step.
    pub buffers: u64,
}

/// Wishes of the user; zeros and `None` leave the choice to the planner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Ring slots, at least 1.
    pub ring: Option<usize>,
    /// Pinned units.
    pub pinned: Option<usize>,
    /// Expert slots.
    pub experts: Option<usize>,
}

/// The program itself, its threads' stacks and allocator slack. An upper estimate: the test
/// `a_run_stays_within_its_plan` runs in a control group of the planned size.
pub const PROCESS: u64 = 48 << 20;
/// Ring slots if nothing else is asked for: one is computed with while the other is read.
pub const RING: usize = 2;
/// Pieces of compressed layers in flight, waiting to be decoded, or being decoded.
pub const STAGING: usize = 4;

/// A named budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Total memory in bytes.
    pub memory: u64,
}

/// Named budgets, smallest first.
pub const PRESETS: [Preset; 6] = [
    Preset { name: "ultra", memory: 4 << 30 },
    Preset { name: "laptop", memory: 8 << 30 },
    Preset { name: "desktop", memory: 32 << 30 },
    Preset { name: "workstation", memory: 96 << 30 },
    Preset { name: "server", memory: 128 << 30 },
    Preset { name: "max", memory: 224 << 30 },
];

/// The division of a budget.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Plan {
    /// The budget.
    pub memory: u64,
    /// Units (layers, then pieces of the head) that stay in memory: the first so many.
    pub pinned: usize,
    /// How many units there are.
    pub units: usize,
    /// Memory of the pinned units.
    pub pinned_bytes: u64,
    /// Slots through which the other units stream.
    pub ring: usize,
    /// Memory of one slot.
    pub ring_slot: u64,
    /// Buffers for pieces of compressed units.
    pub staging: usize,
    /// Memory of one of them.
    pub staging_slot: u64,
    /// Slots of the expert cache.
    pub expert_slots: usize,
    /// Memory of one.
    pub expert_slot: u64,
    /// Experts there are.
    pub expert_total: u64,
    /// State, KV and buffers.
    pub needs: Needs,
    /// Index.
    pub index: u64,
    /// The program itself.
    pub process: u64,
    /// Bytes of layers and head read for every token.
    pub trunk_per_token: u64,
    /// Bytes of experts read for a token if none is in the cache.
    pub experts_per_token: u64,
    /// Bytes of table rows read for a token.
    pub rows_per_token: u64,
}

impl Plan {
    /// Memory of everything in it.
    pub fn total(&self) -> u64 {
        self.lines().iter().map(|l| l.1).sum()
    }

    /// Bytes read for a token if no expert is in the cache.
    pub fn per_token(&self) -> u64 {
        self.trunk_per_token + self.experts_per_token + self.rows_per_token
    }

    /// Seconds of reading for a token at `rate` bytes a second.
    pub fn seconds(&self, rate: f64) -> f64 {
        self.per_token() as f64 / rate
    }

    fn lines(&self) -> Vec<(String, u64)> {
        let streamed = self.units - self.pinned;
        vec![
            (
                format!("pinned: {} of {} layers and head pieces", self.pinned, self.units),
                self.pinned_bytes,
            ),
            (
                format!("ring: {} x {} for the other {streamed}", self.ring, size(self.ring_slot)),
                self.ring as u64 * self.ring_slot,
            ),
            (
                format!("compressed: {} x {}", self.staging, size(self.staging_slot)),
                self.staging as u64 * self.staging_slot,
            ),
            (
                format!(
                    "expert cache: {} of {} experts x {}",
                    self.expert_slots,
                    self.expert_total,
                    size(self.expert_slot)
                ),
                self.expert_slots as u64 * self.expert_slot,
            ),
            ("recurrent state".to_owned(), self.needs.state),
            ("KV cache".to_owned(), self.needs.kv),
            ("buffers".to_owned(), self.needs.buffers),
            ("index".to_owned(), self.index),
            ("program".to_owned(), self.process),
        ]
    }
}

/// `1.23 MB`, powers of ten; whole bytes below 1,000.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    // What would print as 1000.00 is one of the next unit.
    while value >= 999.995 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, bytes) in self.lines().into_iter().filter(|l| l.1 > 0) {
            writeln!(f, "  {what:<52} {:>10}", size(bytes))?;
        }
        writeln!(f, "  {:<52} {:>10}", "total", size(self.total()))?;
        writeln!(f, "  {:<52} {:>10}", "budget", size(self.memory))?;
        let parts = [
            ("layers and head", self.trunk_per_token),
            ("experts, none cached", self.experts_per_token),
            ("table rows", self.rows_per_token),
        ];
        writeln!(f, "  read for a token:")?;
        for (what, bytes) in parts {
            writeln!(f, "    {what:<50} {:>10}", size(bytes))?;
        }
        Ok(())
    }
}

/// Sizes of the slots if the first `pinned` units are pinned.
struct Slots {
    pinned_bytes: u64,
    ring_slot: u64,
    staging_slot: u64,
    /// Units that stream.
    streamed: usize,
}

fn slots(shape: &Shape, pinned: usize) -> Slots {
    let (kept, streamed) = shape.units.split_at(pinned);
    Slots {
        pinned_bytes: kept.iter().map(|u| u.buffer).sum(),
        ring_slot: streamed.iter().map(|u| u.buffer).max().unwrap_or(0),
        // Pinned units come in through the same buffers.
        staging_slot: shape.units.iter().map(|u| u.staging).max().unwrap_or(0),
        streamed: streamed.len(),
    }
}

/// Divides `memory` bytes.
///
/// # Errors
/// [`Error::DoesNotFit`] with the arithmetic and what to do, or [`Error::Refused`] for wishes
/// that make no sense.
pub fn plan(memory: u64, shape: &Shape, needs: Needs, wishes: Wishes) -> Result<Plan> {
    let expert_slot = shape.experts.iter().map(|e| e.buffer).max().unwrap_or(0);
    let expert_total: u64 = shape.experts.iter().map(|e| e.count).sum();
    let most = usize::try_from(expert_total).unwrap_or(usize::MAX);
    let least =
        most.min(usize::try_from(shape.top_k).unwrap_or(usize::MAX)).max(usize::from(most > 0));
    if wishes.ring == Some(0) || wishes.pinned.is_some_and(|p| p > shape.units.len()) {
        let units = shape.units.len();
        return Err(Error::Refused(format!(
            "the ring needs a slot, and at most {units} units can be pinned"
        )));
    }
    if let Some(n) = wishes.experts.filter(|&n| n < least) {
        return Err(Error::Refused(format!(
            "{n} expert slots: at least {least} are needed, one for each expert of a token"
        )));
    }
    let build = |pinned: usize, experts: usize| {
        let s = slots(shape, pinned);
        Plan {
            memory,
            pinned,
            units: shape.units.len(),
            pinned_bytes: s.pinned_bytes,
            ring: wishes.ring.unwrap_or(RING).min(s.streamed),
            ring_slot: s.ring_slot,
            staging: if s.staging_slot > 0 { STAGING } else { 0 },
            staging_slot: s.staging_slot,
            expert_slots: experts,
            expert_slot,
            expert_total,
            needs,
            index: shape.index,
            process: PROCESS,
            trunk_per_token: shape.units[pinned..].iter().map(|u| u.stored).sum(),
            experts_per_token: shape
                .experts
                .iter()
                .map(|e| shape.top_k.min(e.count) * e.stored)
                .sum(),
            rows_per_token: shape.rows,
        }
    };
    let experts = wishes.experts.unwrap_or(least).min(most);
    let fits = |p: &Plan| p.total() <= memory;
    let pinned = match wishes.pinned {
        Some(pinned) => Some(pinned).filter(|&p| fits(&build(p, experts))),
        // Pinning a large layer can make the slots smaller, so the largest number that fits
        // is looked for, not the first that does not.
        None => (0..=shape.units.len()).rev().find(|&p| fits(&build(p, experts))),
    };
    let Some(pinned) = pinned else {
        return Err(does_not_fit(
            &build(wishes.pinned.unwrap_or(0), experts),
            shape,
            experts,
            &build,
        ));
    };
    let mut plan = build(pinned, experts);
    if wishes.experts.is_none() && expert_slot > 0 {
        let left = usize::try_from((memory - plan.total()) / expert_slot).unwrap_or(usize::MAX);
        plan.expert_slots = experts.saturating_add(left).min(most);
    }
    Ok(plan)
}

fn does_not_fit(
    plan: &Plan,
    shape: &Shape,
    experts: usize,
    build: &dyn Fn(usize, usize) -> Plan,
) -> Error {
    let sum: Vec<String> = plan
        .lines()
        .into_iter()
        .filter(|l| l.1 > 0)
        .map(|(what, bytes)| format!("{} ({what})", size(bytes)))
        .collect();
    let smallest =
        (0..=shape.units.len()).map(|p| build(p, experts).total()).min().unwrap_or(plan.total());
    let mut ways = vec![format!("allow at least {} of memory", size(smallest))];
    if plan.needs.kv > plan.needs.buffers.max(1 << 20) {
        ways.push("ask for a shorter context".to_owned());
    }
    if plan.needs.buffers > 1 << 28 {
        ways.push("use shorter prefill chunks or fewer sequences".to_owned());
    }
    Error::DoesNotFit(format!(
        "{} = {}, but the budget is {}: {}",
        sum.join(" + "),
        size(plan.total()),
        size(plan.memory),
        ways.join(", or ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn shape() -> Shape {
        let unit = |mb| UnitShape { stored: mb * MB, buffer: mb * MB, staging: 0 };
        let mut units = vec![unit(200)];
        units.extend([unit(100); 9]);
        units.extend([unit(90); 2]);
        let expert = ExpertShape { count: 64, stored: 2 * MB, buffer: 2 * MB + 4096 };
        Shape { units, layers: 10, experts: vec![expert; 9], top_k: 4, rows: 4096, index: MB }
    }

    /// Every budget from nothing to everything: never more than the budget, never fewer bytes
    /// pinned for more memory, everything resident at the end.
    #[test]
    fn budgets_are_kept_and_used() {
        let (shape, needs) = (shape(), Needs { state: MB, kv: 2 * MB, buffers: MB });
        let mut last = None;
        let mut refused = 0;
        for mb in 1..3000 {
            match plan(mb * MB, &shape, needs, Wishes::default()) {
                Err(Error::DoesNotFit(text)) => {
                    assert!(last.is_none(), "{mb} MB does not fit, less did");
                    assert!(text.contains("allow at least"), "{text}");
                    refused = mb;
                }
                Err(e) => panic!("{e}"),
                Ok(p) => {
                    assert!(p.total() <= mb * MB);
                    let reads = (p.trunk_per_token, usize::MAX - p.expert_slots);
                    assert!(last.is_none_or(|l: (u64, usize)| reads.0 <= l.0), "{mb} MB read more");
                    last = Some(reads);
                }
            }
        }
        // Pinning the large first layer makes both slots small: 200 + 2 * 100 instead of 2 * 200.
        assert!((420..480).contains(&refused), "{refused}");
        let p = plan(3000 * MB, &shape, needs, Wishes::default()).unwrap();
        assert_eq!((p.pinned, p.ring, p.expert_slots, p.trunk_per_token), (12, 0, 576, 0));
    }

    #[test]
    fn bytes_for_a_token_are_exact() {
        let p = plan(900 * MB, &shape(), Needs::default(), Wishes::default()).unwrap();
        let streamed: u64 = shape().units[p.pinned..].iter().map(|u| u.stored).sum();
        assert_eq!(p.per_token(), streamed + 9 * 4 * 2 * MB + 4096);
        assert!(p.to_string().contains("expert cache"));
    }

    #[test]
    fn wishes_are_followed_or_refused() {
        let wish = |ring, pinned, experts| {
            plan(900 * MB, &shape(), Needs::default(), Wishes { ring, pinned, experts })
        };
        let p = wish(Some(3), Some(1), Some(10)).unwrap();
        assert_eq!((p.ring, p.pinned, p.expert_slots), (3, 1, 10));
        assert!(matches!(wish(Some(0), None, None), Err(Error::Refused(_))));
        assert!(matches!(wish(None, Some(99), None), Err(Error::Refused(_))));
        assert!(matches!(wish(None, None, Some(3)), Err(Error::Refused(_))));
        assert!(matches!(wish(None, Some(12), None), Err(Error::DoesNotFit(_))));
    }

    #[test]
    fn sizes_read_well() {
        let texts = [0, 999, 1000, 999_994, 999_996, 17_547_264, 108_810_000_000, u64::MAX];
        assert_eq!(
            texts.map(size),
            [
                "0 B",
                "999 B",
                "1.00 kB",
                "999.99 kB",
                "1.00 MB",
                "17.55 MB",
                "108.81 GB",
                "18.45 EB"
            ]
        );
    }
}
