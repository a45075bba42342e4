//! The two compact tables behind an index: distinct (type, shape) pairs, and names by hash.

use super::dtype::Dtype;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// A type with a shape, and the bytes of a tensor that has them.
#[derive(Debug)]
pub(super) struct Kind {
    pub dtype: Dtype,
    pub shape: Box<[u64]>,
    pub bytes: u64,
}

/// Distinct kinds: the half million tensors of a large checkpoint share a few dozen.
#[derive(Debug, Default)]
pub(super) struct ShapeTable {
    kinds: Vec<Kind>,
    by_kind: HashMap<(Dtype, Box<[u64]>), u32>,
    last: u32,
}

impl ShapeTable {
    /// Number of a kind; `None` if its size in bytes overflows.
    pub fn intern(&mut self, dtype: Dtype, shape: &[u64]) -> Option<u32> {
        // Neighbours in a header are mostly of one of two kinds.
        let near = self.last.saturating_sub(1)..=self.last.saturating_add(1);
        for id in near {
            let kind = self.kinds.get(id as usize);
            if kind.is_some_and(|k| k.dtype == dtype && *k.shape == *shape) {
                self.last = id;
                return Some(id);
            }
        }
        let key = (dtype, Box::from(shape));
        if let Some(&id) = self.by_kind.get(&key) {
            self.last = id;
            return Some(id);
        }
        // Zero-sized dimensions do not excuse an overflow in the others.
        let bytes = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d.max(1)))?;
        let bytes = if shape.contains(&0) { 0 } else { bytes };
        let id = u32::try_from(self.kinds.len()).ok()?;
        self.kinds.push(Kind { dtype, shape: key.1.clone(), bytes });
        self.by_kind.insert(key, id);
        self.last = id;
        Some(id)
    }

    /// Number of a kind of another table.
    pub fn add(&mut self, kind: &Kind) -> u32 {
        // Its size has been computed before, and there are at most as many as tensors.
        self.intern(kind.dtype, &kind.shape).unwrap_or_else(|| unreachable!("a checked kind"))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter()
    }

    pub fn get(&self, id: u32) -> &Kind {
        &self.kinds[id as usize]
    }

    pub fn memory(&self) -> usize {
        let shapes: usize = self.kinds.iter().map(|k| size_of_val(&*k.shape)).sum();
        let entry = size_of::<Kind>() + size_of::<((Dtype, Box<[u64]>), u32)>() + 1;
        2 * shapes + self.kinds.capacity().max(self.by_kind.capacity()) * entry
    }
}

/// Numbers of tensors by name. Open addressing over numbers alone: names are compared in the
/// index's own storage, so the table costs at most 4 bytes * 16/7 a tensor. The hash is keyed
/// at random, as a file could otherwise be written whose names all collide.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    slots: Vec<u32>,
    hasher: RandomState,
}

const EMPTY: u32 = u32::MAX;
/// Bits of a slot that hold the number; the rest hold a part of the hash, so that almost no
/// name is compared in vain (each costs a cache miss).
const ID_BITS: u32 = 26;
/// Numbers must be below this.
pub(super) const MAX_IDS: usize = (1 << ID_BITS) - 1;

impl NameTable {
    /// For `n` names.
    pub fn with_capacity(n: usize) -> Self {
        let slots = (n * 8 / 7 + 1).next_power_of_two();
        NameTable { slots: vec![EMPTY; slots], hasher: RandomState::new() }
    }

    /// The slots where a name may be, and its tag.
    fn probe(&self, name: &str) -> (impl Iterator<Item = usize> + use<>, u32) {
        let mask = self.slots.len() - 1;
        let hash = self.hasher.hash_one(name);
        let tag = (hash >> 32) as u32 >> ID_BITS << ID_BITS;
        ((0..=mask).map(move |i| (hash as usize).wrapping_add(i) & mask), tag)
    }

    /// Number of a name, where `name_of` gives the name of a number.
    pub fn find<'a>(&self, name: &str, name_of: impl Fn(u32) -> &'a str) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let (places, tag) = self.probe(name);
        for at in places {
            match self.slots[at] {
                EMPTY => return None,
                slot if slot >> ID_BITS << ID_BITS == tag && name_of(slot ^ tag) == name => {
                    return Some(slot ^ tag);
                }
                _ => {}
            }
        }
        None
    }

    /// Enters a name. `Err` with the number that already has it.
    pub fn insert<'a>(
        &mut self,
        id: u32,
        name: &str,
        name_of: impl Fn(u32) -> &'a str,
    ) -> Result<(), u32> {
        debug_assert!((id as usize) < MAX_IDS);
        let (places, tag) = self.probe(name);
        for at in places {
            match self.slots[at] {
                EMPTY => {
                    self.slots[at] = tag | id;
                    return Ok(());
                }
                slot if slot >> ID_BITS << ID_BITS == tag && name_of(slot ^ tag) == name => {
                    return Err(slot ^ tag);
                }
                _ => {}
            }
        }
        unreachable!("the table has more slots than names")
    }

    pub fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_dimension_does_not_hide_an_overflow() {
        let mut t = ShapeTable::default();
        assert_eq!(t.intern(Dtype::F32, &[1 << 42, 1 << 42, 0]), None);
        let id = t.intern(Dtype::F32, &[1 << 42, 0]).unwrap();
        assert_eq!(t.get(id).bytes, 0);
        let scalar = t.intern(Dtype::F64, &[]).unwrap();
        assert_eq!(t.get(scalar).bytes, 8);
    }

    #[test]
    fn names_that_share_a_slot_are_told_apart() {
        let names: Vec<String> = (0..100).map(|i| format!("n{i}")).collect();
        let of = |id: u32| names[id as usize].as_str();
        let mut t = NameTable::with_capacity(100);
        for i in 0..100 {
            assert_eq!(t.insert(i, of(i), of), Ok(()));
        }
        for i in 0..100 {
            assert_eq!(t.find(of(i), of), Some(i));
        }
        assert_eq!(t.insert(0, "n7", of), Err(7));
        assert_eq!(t.find("n100", of), None);
    }
}
