//! Byte-pair merging of one piece: bytes to ids. Not the cutting of text into pieces.
//!
//! Both tokenizer formats come down to the same table: an ordered pair of ids merges into an id, at a rank.
//! The pair of lowest rank merges first, of equal ones the leftmost.

use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Pieces up to this many bytes scan for the lowest rank; longer ones keep a heap. The result is the same.
const SCAN_MAX: usize = 48;

/// Longest run that is merged as one; a longer piece is cut here first, so that positions fit 32 bits.
const MAX_PIECE: usize = 1 << 30;

/// What a pair becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Below [`NO_MERGE`]'s.
    pub rank: u32,
    pub id: u32,
}

/// What a pair that does not merge becomes; sorts last.
const NO_MERGE: Merge = Merge { rank: u32::MAX, id: u32::MAX };

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
    short: Vec<Part>,
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

/// A token of a piece; `merge` is what it and the next one become.
#[derive(Clone, Copy)]
struct Part {
    id: u32,
    merge: Merge,
}

/// A part of a long piece, linked to its neighbours. One that was merged away has no merge.
#[derive(Clone, Copy)]
struct Node {
    part: Part,
    previous: u32,
    next: u32,
}

/// No neighbour.
const END: u32 = u32::MAX;

impl Bpe {
    /// Appends the ids of one piece.
    pub fn encode(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        match self.whole.get(piece) {
            Some(&id) => out.push(id),
            None => self.merge(piece, scratch, out),
        }
    }

    fn merge(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if piece.len() <= SCAN_MAX {
            return self.merge_by_scan(piece, &mut scratch.short, out);
        }
        piece.chunks(MAX_PIECE).for_each(|run| self.merge_by_heap(run, scratch, out));
    }

    fn pair(&self, left: u32, right: u32) -> Merge {
        self.merges.get(&key(left, right)).copied().unwrap_or(NO_MERGE)
    }

    fn part(&self, byte: u8, next: Option<&u8>) -> Part {
        let id = self.bytes[byte as usize];
        let merge = next.map_or(NO_MERGE, |&next| self.pair(id, self.bytes[next as usize]));
        Part { id, merge }
    }

    /// The definition: look for the lowest rank, merge, until no pair merges. Quadratic.
    fn merge_by_scan(&self, piece: &[u8], parts: &mut Vec<Part>, out: &mut Vec<u32>) {
        parts.clear();
        parts.extend(piece.iter().enumerate().map(|(i, &b)| self.part(b, piece.get(i + 1))));
        // Of equal ranks `min_by_key` gives the first.
        while let Some((i, &Part { merge, .. })) =
            parts.iter().enumerate().min_by_key(|(_, part)| part.merge.rank)
            && merge != NO_MERGE
        {
            parts.remove(i + 1);
            let next = parts.get(i + 1).map_or(NO_MERGE, |next| self.pair(merge.id, next.id));
            parts[i] = Part { id: merge.id, merge: next };
            if i > 0 {
                parts[i - 1].merge = self.pair(parts[i - 1].id, merge.id);
            }
        }
        out.extend(parts.iter().map(|part| part.id));
    }

    /// The same with a linked list and a heap of (rank, position): n log n. Entries whose pair has changed
    /// since are skipped; equal ranks mean equal results, so a stale entry of the right rank does no harm.
    fn merge_by_heap(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { nodes, heap, .. } = scratch;
        let n = piece.len() as u32;
        nodes.clear();
        nodes.extend((0..n).zip(piece).map(|(i, &b)| Node {
            part: self.part(b, piece.get(i as usize + 1)),
            previous: i.wrapping_sub(1),
            next: if i + 1 < n { i + 1 } else { END },
        }));
        let mut entries = std::mem::take(heap).into_vec();
        let ranks = (0..n).zip(nodes.iter()).filter(|(_, node)| node.part.merge != NO_MERGE);
        entries.extend(ranks.map(|(i, node)| Reverse((node.part.merge.rank, i))));
        *heap = BinaryHeap::from(entries);
        while let Some(Reverse((rank, at))) = heap.pop() {
            let Node { part: Part { merge, .. }, previous, next: gone } = nodes[at as usize];
            if merge.rank != rank {
                continue;
            }
            let next = nodes[gone as usize].next;
            nodes[gone as usize].part.merge = NO_MERGE;
            if next != END {
                nodes[next as usize].previous = at;
            }
            nodes[at as usize].next = next;
            nodes[at as usize].part.id = merge.id;
            for (left, right) in [(previous, at), (at, next)] {
                if left == END {
                    continue;
                }
                let right = nodes.get(right as usize).map(|node| node.part.id);
                let left_id = nodes[left as usize].part.id;
                let merge = right.map_or(NO_MERGE, |right| self.pair(left_id, right));
                nodes[left as usize].part.merge = merge;
                if merge != NO_MERGE {
                    heap.push(Reverse((merge.rank, left)));
                }
            }
        }
        let mut at = 0;
        while let Some(node) = nodes.get(at as usize) {
            out.push(node.part.id);
            at = node.next;
        }
    }

    /// Whether merging gives exactly this token for its own bytes.
    pub fn reaches(&self, bytes: &[u8], id: u32, scratch: &mut Scratch) -> bool {
        let mut ids = Vec::new();
        self.merge(bytes, scratch, &mut ids);
        ids == [id]
    }
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
