//! The weight format: configuration, where every matrix lies, section zero and its tables.
//!
//! An *artifact* is a run of *sections* without gaps. Section zero holds the header, the lookup
//! tables, the normalisation weights and the tokenizer; the others hold int8 matrices. All words
//! are little-endian.
//!
//! | offset in section zero | type | content |
//! |---|---|---|
//! | 0 | 8 bytes | [`TAG`] |
//! | 8 | 7 u32 | configuration ([`Config`]) |
//! | 36 | u32 | section count, section zero included |
//! | 40 | u32 | matrix count |
//! | 44 | u32 | one over the square root of the head size, 24 fractional bits |
//! | 48 | u32 | zero |
//! | 52 | 9 u32 | offsets of the nine tables below |
//! | 88 | u32 | length of the token text |
//! | 92 | 36 bytes | zero |
//! | 128 ([`SECTION_TABLE`]) | (u64, u64) a section | offset in the artifact, length |
//!
//! The tables follow in order, each at the next multiple of eight bytes: matrix descriptors (four
//! u32 each: section, offset, rows, columns), exponential (4,097 u32), SiLU (4,097 i32), rotary
//! (cosine and sine i32 for `[position, pair]`), normalisation weights (i32, `[2 layers + 1, dim]`),
//! token starts (vocabulary + 1 u32), score keys (u32), ids sorted by text (u32), token text.
//!
//! A matrix block is `rows` u32 row scales, `rows * columns` bytes (weight + 128) row after row,
//! and zero bytes up to a multiple of eight. This module reads; only `convert` writes.

mod config;
mod matrices;
mod metadata;

pub use config::Config;
pub(crate) use matrices::matrix_shape;
pub use matrices::{Locator, Matrices, Matrix, SECTION_LIMIT, section_count, section_len};
pub use metadata::{Artifact, Metadata};

/// The first eight bytes of every artifact.
pub const TAG: &[u8; 8] = b"CURTAW01";
/// Offset of the section table in section zero.
pub const SECTION_TABLE: usize = 128;
/// Offset of the section count (u32), section zero included.
pub const SECTION_COUNT: usize = 36;
/// Entries of the exponential and the SiLU table.
pub const TABLE_ENTRIES: usize = 4097;
/// The most bytes of text a token may have.
pub const TOKEN_BYTES: usize = 128;
/// How many tables section zero holds after the section table.
pub const TABLES: usize = 9;

/// Byte offsets of the nine tables and the end of section zero, all derived from the
/// configuration, the section count and the length of the token text. `u64`: the largest
/// configuration's tables exceed 32 bits before they are refused.
pub(crate) fn table_offsets(config: &Config, sections: u64, text_len: u64) -> [u64; TABLES + 1] {
    let [dim, vocab] = [config.dim(), config.vocab()].map(|v| v as u64);
    let lens = [
        16 * Matrices::count(config) as u64,
        4 * TABLE_ENTRIES as u64,
        4 * TABLE_ENTRIES as u64,
        config.seq() as u64 * (config.head_size() / 2) as u64 * 8,
        (2 * config.layers() as u64 + 1) * dim * 4,
        4 * (vocab + 1),
        4 * vocab,
        4 * vocab,
        text_len,
    ];
    let mut offsets = [0; TABLES + 1];
    offsets[0] = crate::bytes::align8(SECTION_TABLE as u64 + 16 * sections);
    for (i, len) in lens.into_iter().enumerate() {
        offsets[i + 1] = crate::bytes::align8(offsets[i] + len);
    }
    offsets
}
