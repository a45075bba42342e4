//! The llama2.c checkpoint file, version 0: seven i32, then f32 arrays one after another.

use super::{Refused, refuse};
use crate::format::{Config, Matrix};
use crate::planner::phase;

/// The arrays in file order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Array {
    Embedding,
    AttentionNorms,
    Query,
    Key,
    Value,
    AttentionOutput,
    FeedForwardNorms,
    Gate,
    Down,
    Up,
    FinalNorm,
    /// Two tables of rotary values that the converter computes itself.
    Skipped,
    Classifier,
}

const ORDER: [Array; 13] = [
    Array::Embedding,
    Array::AttentionNorms,
    Array::Query,
    Array::Key,
    Array::Value,
    Array::AttentionOutput,
    Array::FeedForwardNorms,
    Array::Gate,
    Array::Down,
    Array::Up,
    Array::FinalNorm,
    Array::Skipped,
    Array::Classifier,
];

/// A checkpoint whose header is valid and whose length fits it.
pub(super) struct Checkpoint<'a> {
    pub config: Config,
    floats: &'a [[u8; 4]],
}

impl<'a> Checkpoint<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Self, Refused> {
        if bytes.len() < Config::BYTES {
            return refuse(format!("a checkpoint of {} bytes has no header", bytes.len()));
        }
        let (header, rest) = bytes.split_at(Config::BYTES);
        let config = Config::from_bytes(header).map_err(|error| Refused {
            error,
            why: format!(
                "the checkpoint's header is out of range: {:?} (dim, hidden, layers, heads, kv heads, \
                 vocabulary, context); only llama2.c version 0 files can be converted",
                header.as_chunks::<4>().0.iter().map(|w| i32::from_le_bytes(*w)).collect::<Vec<_>>()
            ),
        })?;
        let expected: u64 = ORDER.into_iter().map(|a| Self::len(&config, a)).sum();
        if rest.len() as u64 != 4 * expected {
            let want = Config::BYTES as u64 + 4 * expected;
            return refuse(format!(
                "the checkpoint has {} bytes, its header asks for {want}",
                bytes.len()
            ));
        }
        Ok(Checkpoint { config, floats: rest.as_chunks().0 })
    }

    /// Floats of an array.
    fn len(c: &Config, array: Array) -> u64 {
        let [dim, hidden, kv, layers] =
            [c.dim(), c.hidden(), c.kv_dim(), c.layers()].map(|v| v as u64);
        match array {
            Array::Embedding => c.vocab() as u64 * dim,
            Array::Classifier => c.own_classifier() as u64 * c.vocab() as u64 * dim,
            Array::AttentionNorms | Array::FeedForwardNorms => layers * dim,
            Array::Query | Array::AttentionOutput => layers * dim * dim,
            Array::Key | Array::Value => layers * kv * dim,
            Array::Gate | Array::Up | Array::Down => layers * hidden * dim,
            Array::FinalNorm => dim,
            Array::Skipped => (c.seq() * c.head_size()) as u64,
        }
    }

    /// Row `row` of an array of rows of `out.len()` floats, widened (exactly).
    fn read(&self, array: Array, row: usize, out: &mut [f64]) {
        let start: u64 =
            ORDER.into_iter().take_while(|a| *a != array).map(|a| Self::len(&self.config, a)).sum();
        // Inside the file's length, which fits usize.
        let floats = &self.floats[start as usize + row * out.len()..][..out.len()];
        for (out, float) in out.iter_mut().zip(floats) {
            *out = f64::from(f32::from_le_bytes(*float));
        }
    }

    /// Row `row` of a matrix, `[columns]`.
    pub fn read_row(&self, m: &Matrix, row: usize, out: &mut [f64]) {
        let array = match m.phase {
            phase::EMBEDDING => Array::Embedding,
            phase::CLASSIFIER => Array::Classifier,
            phase::QUERY => Array::Query,
            phase::KEY => Array::Key,
            phase::VALUE => Array::Value,
            phase::ATTENTION_OUTPUT => Array::AttentionOutput,
            phase::GATE => Array::Gate,
            phase::UP => Array::Up,
            _ => Array::Down,
        };
        self.read(array, m.layer as usize * m.rows as usize + row, out);
    }

    /// Normalisation vector `index` in the artifact's order: attention and feed-forward of each
    /// layer, then the final one.
    pub fn read_norm(&self, index: usize, out: &mut [f64]) {
        if index == 2 * self.config.layers() {
            return self.read(Array::FinalNorm, 0, out);
        }
        let array =
            if index.is_multiple_of(2) { Array::AttentionNorms } else { Array::FeedForwardNorms };
        self.read(array, index / 2, out);
    }
}

/// What the matrix of a phase is called in messages.
pub(super) fn matrix_name(phase: u32) -> &'static str {
    match phase {
        phase::EMBEDDING => "embedding",
        phase::CLASSIFIER => "classifier",
        phase::QUERY => "query",
        phase::KEY => "key",
        phase::VALUE => "value",
        phase::ATTENTION_OUTPUT => "attention output",
        phase::GATE => "gate",
        phase::UP => "up",
        _ => "down",
    }
}
