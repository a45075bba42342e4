//! Which matrix lies where: the division into sections, derived from the configuration alone.
//!
//! Nothing is stored: the planner has only the configuration, and on the Solana VM a walk that
//! moves along with the forward pass costs a few instructions a matrix.

use super::Config;
use crate::bytes::align8;
use crate::planner::phase;

/// The longest section, 10 MiB less 256 bytes, unless a single matrix is longer.
pub const SECTION_LIMIT: u64 = 10 * 1024 * 1024 - 256;

/// Where a matrix lies and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Phase that uses it ([`phase::EMBEDDING`], [`phase::QUERY`], ...).
    pub phase: u32,
    /// Layer, zero for the embedding and the classifier.
    pub layer: u32,
    /// Section that holds it, from 1.
    pub section: u32,
    /// Byte offset of its block in the section.
    pub offset: u64,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
}

impl Matrix {
    /// Bytes of its block: row scales, weights, padding to a multiple of eight.
    pub const fn block_len(&self) -> u64 {
        align8(self.rows as u64 * (4 + self.columns as u64))
    }
}

/// The matrices of a layer in storage order, by the phase that uses them.
const LAYER_PHASES: [u32; 7] = [
    phase::QUERY,
    phase::KEY,
    phase::VALUE,
    phase::ATTENTION_OUTPUT,
    phase::GATE,
    phase::UP,
    phase::DOWN,
];

/// Rows and columns of the matrix that `phase` uses; `None` when it uses none.
#[inline]
pub(crate) fn matrix_shape(config: &Config, phase: u32) -> Option<(usize, usize)> {
    Some(match phase {
        phase::EMBEDDING | phase::CLASSIFIER => (config.vocab(), config.dim()),
        phase::QUERY | phase::ATTENTION_OUTPUT => (config.dim(), config.dim()),
        phase::KEY | phase::VALUE => (config.kv_dim(), config.dim()),
        phase::GATE | phase::UP => (config.hidden(), config.dim()),
        phase::DOWN => (config.dim(), config.hidden()),
        _ => return None,
    })
}

/// Walks all matrices in storage order.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    config: Config,
    next: u32,
    layer: u32,
    slot: u32,
    section: u32,
    section_len: u64,
}

impl Matrices {
    /// A walk from the embedding.
    pub const fn new(config: Config) -> Self {
        Matrices { config, next: 0, layer: 0, slot: 0, section: 0, section_len: 0 }
    }

    /// How many matrices a model of this configuration stores.
    pub const fn count(config: &Config) -> usize {
        1 + config.own_classifier() as usize + 7 * config.layers()
    }

    /// Place in storage order of the matrix that `phase` uses in `layer`.
    #[inline]
    fn index(config: &Config, phase: u32, layer: u32) -> u32 {
        let own = config.own_classifier() as u32;
        let slot = match phase {
            phase::EMBEDDING => return 0,
            phase::CLASSIFIER => return own,
            phase::QUERY | phase::KEY | phase::VALUE => phase - phase::QUERY,
            phase::ATTENTION_OUTPUT => 3,
            phase::GATE | phase::UP => phase - phase::GATE + 4,
            _ => 6,
        };
        1 + own + 7 * layer + slot
    }
}

impl Iterator for Matrices {
    type Item = Matrix;

    #[inline]
    fn next(&mut self) -> Option<Matrix> {
        let (phase, layer) = if self.next == 0 {
            (phase::EMBEDDING, 0)
        } else if self.next == 1 && self.config.own_classifier() {
            (phase::CLASSIFIER, 0)
        } else {
            if self.slot == 7 {
                self.slot = 0;
                self.layer += 1;
            }
            if self.layer as usize == self.config.layers() {
                return None;
            }
            self.slot += 1;
            (LAYER_PHASES[self.slot as usize - 1], self.layer)
        };
        let (rows, columns) = matrix_shape(&self.config, phase)?;
        let mut matrix = Matrix {
            phase,
            layer,
            section: self.section,
            offset: self.section_len,
            rows: rows as u32,
            columns: columns as u32,
        };
        let len = matrix.block_len();
        // The first matrix opens section 1; a block above the limit is alone in its section.
        if self.section == 0 || self.section_len + len > SECTION_LIMIT {
            self.section += 1;
            self.section_len = 0;
            matrix.section = self.section;
            matrix.offset = 0;
        }
        self.section_len += len;
        self.next += 1;
        Some(matrix)
    }
}

/// Sections of an artifact, section zero included.
pub fn section_count(config: &Config) -> usize {
    Matrices::new(*config).last().map_or(0, |m| m.section as usize) + 1
}

/// Bytes of matrix section `index` (from 1); zero for a section that does not exist.
pub fn section_len(config: &Config, index: u32) -> u64 {
    Matrices::new(*config).filter(|m| m.section == index).map(|m| m.block_len()).sum()
}

/// Finds matrices in the order of a forward pass, walking on from the last one found.
#[derive(Clone, Copy, Debug)]
pub struct Locator {
    walk: Matrices,
    found: Matrix,
}

impl Locator {
    /// A locator that stands at the embedding.
    pub fn new(config: Config) -> Self {
        let mut walk = Matrices::new(config);
        let found = walk.next().expect("every configuration has an embedding");
        Locator { walk, found }
    }

    /// The matrix that `phase` uses in `layer`; `None` when the phase uses none.
    #[inline]
    pub fn find(&mut self, phase: u32, layer: u32) -> Option<Matrix> {
        matrix_shape(&self.walk.config, phase)?;
        let index = Matrices::index(&self.walk.config, phase, layer);
        if index + 1 < self.walk.next {
            *self = Locator::new(self.walk.config);
        }
        while self.walk.next <= index {
            self.found = self.walk.next()?;
        }
        Some(self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(words: [u32; 7]) -> Config {
        Config::new(words).unwrap()
    }

    #[test]
    fn the_published_section_lengths() {
        let small = config([64, 172, 5, 8, 4, 512, 512]);
        assert_eq!(section_count(&small), 2);
        assert_eq!(section_len(&small, 1), 273_376);
        let large = config([288, 768, 6, 6, 6, 32000, 256]);
        assert_eq!(section_count(&large), 3);
        assert_eq!(section_len(&large, 1), 10_435_328);
        assert_eq!(section_len(&large, 2), 4_952_064);
    }

    #[test]
    fn a_locator_that_jumps_finds_what_a_walk_finds() {
        for words in [
            [64, 172, 5, 8, 4, 512, 512],
            [36, 52, 2, 6, 3, 4294967033, 48],
            [512, 1376, 8, 8, 8, 32000, 1024],
        ] {
            let config = config(words);
            let all: Vec<Matrix> = Matrices::new(config).collect();
            assert_eq!(all.len(), Matrices::count(&config));
            let mut locator = Locator::new(config);
            for step in [1, 3, 5, 7] {
                for i in 0..all.len() {
                    let want = all[(i * step) % all.len()];
                    assert_eq!(locator.find(want.phase, want.layer), Some(want));
                }
            }
            let classifier = locator.find(phase::CLASSIFIER, 0).unwrap();
            assert_eq!(classifier.phase == phase::CLASSIFIER, config.own_classifier());
            assert_eq!(locator.find(phase::ATTENTION, 0), None);
        }
    }
}
