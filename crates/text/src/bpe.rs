//! Byte-pair merging of one piece: bytes to ids. Not the cutting of text into pieces.
//!
//! Both tokenizer formats come down to the same table: an ordered pair of ids merges into an id, at a rank.
//! The pair of lowest rank merges first, of equal ones the leftmost.

use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Pieces up to this many bytes scan for the lowest rank; longer ones keep a heap. The result is the same.
const SCAN_MAX: usize = 48;

/// What a pair becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    pub rank: u32,
    pub id: u32,
}

/// A merge table.
#[derive(Debug, Default)]
pub(crate) struct Bpe {
    /// The id of each single byte.
    pub bytes: Vec<u32>,
    /// Merges by the pair's ids, see [`key`].
    pub merges: FxHashMap<u64, Merge>,
    /// Pieces that are one token without merging: an exception to the merges in one format, in the
    /// other a shortcut to what they give.
    pub whole: FxHashMap<Box<[u8]>, u32>,
}

/// A pair of ids as a key of [`Bpe::merges`].
pub(crate) fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Buffers reused from piece to piece.
#[derive(Default)]
pub(crate) struct Scratch {
    short: Vec<(u32, Option<Merge>)>,
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<(u32, usize)>>,
}

/// A token of a long piece, linked to its neighbours; `merge` is what it and the next one become.
#[derive(Clone, Copy)]
struct Node {
    id: u32,
    alive: bool,
    previous: usize,
    next: usize,
    merge: Option<Merge>,
}

const NONE: usize = usize::MAX;

impl Bpe {
    /// Appends the ids of one piece.
    pub fn encode(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if let Some(&id) = self.whole.get(piece) {
            out.push(id);
        } else if piece.len() <= SCAN_MAX {
            self.merge_by_scan(piece, &mut scratch.short, out);
        } else {
            self.merge_by_heap(piece, scratch, out);
        }
    }

    fn pair(&self, left: u32, right: u32) -> Option<Merge> {
        self.merges.get(&key(left, right)).copied()
    }

    /// The definition: look for the lowest rank, merge, until no pair merges. Quadratic.
    fn merge_by_scan(
        &self,
        piece: &[u8],
        parts: &mut Vec<(u32, Option<Merge>)>,
        out: &mut Vec<u32>,
    ) {
        parts.clear();
        parts.extend(piece.iter().map(|&b| (self.bytes[b as usize], None)));
        for i in 1..parts.len() {
            parts[i - 1].1 = self.pair(parts[i - 1].0, parts[i].0);
        }
        while let Some((i, merge)) = lowest(parts) {
            parts.remove(i + 1);
            parts[i] = (merge.id, parts.get(i + 1).and_then(|next| self.pair(merge.id, next.0)));
            if i > 0 {
                parts[i - 1].1 = self.pair(parts[i - 1].0, merge.id);
            }
        }
        out.extend(parts.iter().map(|part| part.0));
    }

    /// The same with a linked list and a heap of (rank, position): n log n. Entries whose pair has changed
    /// since are skipped; equal ranks mean equal results, so a stale entry of the right rank does no harm.
    fn merge_by_heap(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { nodes, heap, .. } = scratch;
        let n = piece.len();
        nodes.clear();
        nodes.extend(piece.iter().enumerate().map(|(i, &b)| Node {
            id: self.bytes[b as usize],
            alive: true,
            previous: i.wrapping_sub(1),
            next: if i + 1 < n { i + 1 } else { NONE },
            merge: None,
        }));
        let mut entries = std::mem::take(heap).into_vec();
        for i in 1..n {
            nodes[i - 1].merge = self.pair(nodes[i - 1].id, nodes[i].id);
            entries.extend(nodes[i - 1].merge.map(|m| Reverse((m.rank, i - 1))));
        }
        *heap = BinaryHeap::from(entries);
        while let Some(Reverse((rank, at))) = heap.pop() {
            let Some(merge) = nodes[at].merge.filter(|m| nodes[at].alive && m.rank == rank) else {
                continue;
            };
            let gone = nodes[at].next;
            nodes[gone].alive = false;
            let after = nodes[gone].next;
            nodes[at].id = merge.id;
            nodes[at].next = after;
            if after != NONE {
                nodes[after].previous = at;
            }
            for left in [nodes[at].previous, at] {
                if left == NONE {
                    continue;
                }
                let right = nodes[left].next;
                nodes[left].merge =
                    if right == NONE { None } else { self.pair(nodes[left].id, nodes[right].id) };
                heap.extend(nodes[left].merge.map(|m| Reverse((m.rank, left))));
            }
        }
        let mut at = 0;
        while at != NONE {
            out.push(nodes[at].id);
            at = nodes[at].next;
        }
    }

    /// Whether merging gives exactly this token for its own bytes.
    pub fn reaches(&self, bytes: &[u8], id: u32, scratch: &mut Scratch) -> bool {
        let mut ids = Vec::new();
        if bytes.len() <= SCAN_MAX {
            self.merge_by_scan(bytes, &mut scratch.short, &mut ids);
        } else {
            self.merge_by_heap(bytes, scratch, &mut ids);
        }
        ids == [id]
    }
}

fn lowest(parts: &[(u32, Option<Merge>)]) -> Option<(usize, Merge)> {
    let mut best: Option<(usize, Merge)> = None;
    for (i, part) in parts.iter().enumerate() {
        if let Some(merge) = part.1
            && best.is_none_or(|(_, b)| merge.rank < b.rank)
        {
            best = Some((i, merge));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table over the bytes a, b, c with overlapping merges, as chains of `aaa` need.
    fn table() -> Bpe {
        let mut bpe = Bpe { bytes: (0..256).collect(), ..Bpe::default() };
        let mut names: Vec<(Vec<u8>, u32)> =
            b"abc".iter().map(|&b| (vec![b], u32::from(b))).collect();
        let merged = ["ab", "aa", "ca", "aab", "aaaa", "abc", "bc", "cab", "aaaab", "bb", "abca"];
        for (rank, merged) in (0..).zip(merged.map(str::as_bytes)) {
            let id = 256 + rank;
            for cut in 1..merged.len() {
                let find = |part: &[u8]| names.iter().find(|(n, _)| n == part).map(|n| n.1);
                if let (Some(l), Some(r)) = (find(&merged[..cut]), find(&merged[cut..])) {
                    bpe.merges.insert(key(l, r), Merge { rank, id });
                }
            }
            names.push((merged.to_vec(), id));
        }
        bpe
    }

    proptest! {
        /// The heap must pick the same pair as the scan, ties leftmost, whatever merged before.
        #[test]
        fn the_heap_merges_as_the_scan_does(piece in "[abc]{1,200}") {
            let (bpe, mut scratch) = (table(), Scratch::default());
            let (mut slow, mut fast) = (Vec::new(), Vec::new());
            bpe.merge_by_scan(piece.as_bytes(), &mut scratch.short, &mut slow);
            bpe.merge_by_heap(piece.as_bytes(), &mut scratch, &mut fast);
            prop_assert_eq!(slow, fast);
        }
    }

    #[test]
    fn equal_ranks_merge_leftmost_first() {
        let (bpe, mut scratch) = (table(), Scratch::default());
        let mut out = Vec::new();
        bpe.encode(b"aaa", &mut scratch, &mut out);
        assert_eq!(out, [257, u32::from(b'a')]);
    }
}
