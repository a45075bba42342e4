//! Attention of several heads at one position.

use super::team::Work;
use crate::arith::words::I64;
use crate::arith::{Backend, plain};
use std::ops::Range;

/// What the heads of one layer and position share.
#[derive(Clone, Copy)]
pub(super) struct Heads<'s> {
    /// Heads in all.
    pub count: usize,
    /// Heads that read the same keys and values.
    pub group: usize,
    /// Elements of a head.
    pub size: usize,
    /// Elements of a position in the cache.
    pub stride: usize,
    /// Where the layer starts in the cache.
    pub cache: usize,
    /// Positions so far, this one included.
    pub positions: usize,
    /// One over the square root of the head size, Q24.
    pub inv_sqrt: u32,
    /// The exponential table.
    pub table: &'s [[u8; 4]],
}

impl Heads<'_> {
    /// The outputs of heads `range`. `scores` (at least one a position) is left with the
    /// probabilities of the last head; its largest score and total are returned.
    pub fn attend(
        &self,
        backend: Backend,
        work: &Work<'_>,
        range: Range<usize>,
        scores: &mut [I64],
        out: &mut [I64],
    ) -> (i64, u64) {
        let (size, all) = (self.size, 0..self.positions);
        let mut last = (0, 0);
        for (head, out) in range.zip(out.chunks_exact_mut(size)) {
            let from = self.cache + head / self.group * size;
            let q = &work.q[head * size..][..size];
            let (keys, values) = (&work.keys[from..], &work.values[from..]);
            let largest =
                backend.scores(q, keys, self.stride, self.inv_sqrt, all.clone(), scores, 0);
            let total = plain::exponentials(self.table, largest, all.clone(), scores, 0);
            backend.probabilities(total, all.clone(), scores);
            let probabilities = &scores[..self.positions];
            backend.weighted_values(probabilities, values, self.stride, 0..size, out);
            last = (largest, total);
        }
        last
    }
}
