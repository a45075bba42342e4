//! Converts a llama2.c checkpoint (version 0) and its tokenizer to an artifact.
//!
//! The only code of the core whose results come from floats. A stored byte or scale takes one exact
//! multiplication by a power of two, one division and one rounding to nearest, which IEEE 754 fixes,
//! so every machine writes the same bytes. (The errors reported beside them are ordinary sums.)

mod checkpoint;
mod tables;
mod vocabulary;

use std::fmt;

use crate::Error;
use crate::bytes::{write_u32, write_u64};
use crate::format::{
    Config, Matrices, Matrix, SECTION_COUNT, SECTION_TABLE, TABLE_ENTRIES, TABLES, TAG,
    section_count, table_offsets,
};
use checkpoint::Checkpoint;
use vocabulary::Vocabulary;

/// 2^24: row scales and normalisation weights have 24 fractional bits.
const Q24: f64 = 16_777_216.0;
/// Weights are signed bytes in -127..=127, stored plus 128.
const WEIGHT_MAX: f64 = 127.0;

/// Why a checkpoint or tokenizer was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The published error.
    pub error: Error,
    /// What is wrong and where, lower case.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error.name(), self.why)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        refused.error
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { error: Error::InvalidFormat, why: why.into() })
}

/// A matrix just written, and what rounding its weights to eight bits lost.
#[derive(Clone, Copy, Debug)]
pub struct Converted {
    /// The matrix.
    pub matrix: Matrix,
    /// Weights written so far, this matrix included.
    pub weights_done: u64,
    /// Weights in all matrices.
    pub weights: u64,
    /// Sum of the squared weights.
    pub squares: f64,
    /// Sum of the squared differences between weights and stored weights.
    pub error_squares: f64,
    /// The largest difference.
    pub largest_error: f64,
}

/// Converts a checkpoint and its tokenizer to an artifact.
///
/// # Errors
/// [`Error::InvalidConfig`] for a header out of range, otherwise [`Error::InvalidFormat`].
pub fn convert(checkpoint: &[u8], tokenizer: &[u8]) -> Result<Vec<u8>, Refused> {
    convert_with(checkpoint, tokenizer, |_| {})
}

/// [`convert`], telling `report` about every matrix as it is written.
///
/// # Errors
/// As [`convert`].
pub fn convert_with(
    checkpoint: &[u8],
    tokenizer: &[u8],
    mut report: impl FnMut(&Converted),
) -> Result<Vec<u8>, Refused> {
    let checkpoint = Checkpoint::new(checkpoint)?;
    let config = checkpoint.config;
    let vocabulary = Vocabulary::new(tokenizer, config.vocab())?;
    let mut out = section_zero(&checkpoint, &vocabulary)?;
    let weights: u64 = Matrices::new(config).map(|m| m.rows as u64 * m.columns as u64).sum();
    let mut weights_done = 0;
    out.reserve_exact(Matrices::new(config).map(|m| m.block_len() as usize).sum());
    for matrix in Matrices::new(config) {
        weights_done += matrix.rows as u64 * matrix.columns as u64;
        let mut converted = Converted {
            matrix,
            weights_done,
            weights,
            squares: 0.0,
            error_squares: 0.0,
            largest_error: 0.0,
        };
        put_matrix(&mut out, &checkpoint, &mut converted)?;
        report(&converted);
    }
    Ok(out)
}

/// Appends a matrix block. Sections follow each other, so blocks do too.
fn put_matrix(
    out: &mut Vec<u8>,
    checkpoint: &Checkpoint<'_>,
    converted: &mut Converted,
) -> Result<(), Refused> {
    let m = converted.matrix;
    let (rows, columns) = (m.rows as usize, m.columns as usize);
    let block = out.len();
    out.resize(block + m.block_len() as usize, 0);
    let (scales, bytes) = out[block..].split_at_mut(4 * rows);
    let mut row = vec![0.0; columns];
    for r in 0..rows {
        checkpoint.read_row(&m, r, &mut row);
        let bytes = &mut bytes[r * columns..][..columns];
        let Some(scale) = quantise(&row, bytes) else {
            return refuse(format!(
                "row {r} of the {} matrix of layer {} is not finite or too large",
                checkpoint::matrix_name(m.phase),
                m.layer
            ));
        };
        write_u32(scales, 4 * r, scale);
        for (w, byte) in row.iter().zip(bytes) {
            let difference = (w - (f64::from(*byte) - 128.0) * f64::from(scale) / Q24).abs();
            converted.squares += w * w;
            converted.error_squares += difference * difference;
            converted.largest_error = converted.largest_error.max(difference);
        }
    }
    Ok(())
}

/// Rounds a row to bytes and returns its scale; `None` if a weight is not finite or too large.
fn quantise(row: &[f64], bytes: &mut [u8]) -> Option<u32> {
    if !row.iter().all(|w| w.is_finite()) {
        return None;
    }
    let largest = row.iter().fold(0.0f64, |m, w| m.max(w.abs()));
    // Multiplying by a power of two is exact: one rounding, of the division.
    let scale = (largest * Q24 / WEIGHT_MAX).round().max(1.0);
    if scale > f64::from(u32::MAX) {
        return None;
    }
    for (w, byte) in row.iter().zip(bytes) {
        let level = (w * Q24 / scale).round().clamp(-WEIGHT_MAX, WEIGHT_MAX);
        *byte = (level + 128.0) as u8;
    }
    Some(scale as u32)
}

/// Header, section table and tables.
fn section_zero(
    checkpoint: &Checkpoint<'_>,
    vocabulary: &Vocabulary<'_>,
) -> Result<Vec<u8>, Refused> {
    let config = checkpoint.config;
    let sections = section_count(&config);
    let offsets = table_offsets(&config, sections as u64, vocabulary.text_len() as u64);
    let len = offsets[TABLES];
    // The checkpoint holds as many rotary floats and the tokenizer all texts, so this is bounded by
    // their lengths; but the header's offsets are 32 bits.
    if len > u64::from(u32::MAX) {
        return refuse("section zero would exceed 4 GiB");
    }
    let mut zero = vec![0; len as usize];
    zero[..8].copy_from_slice(TAG);
    zero[8..36].copy_from_slice(&config.to_bytes());
    write_u32(&mut zero, SECTION_COUNT, sections as u32);
    write_u32(&mut zero, 40, Matrices::count(&config) as u32);
    write_u32(&mut zero, 44, tables::inv_sqrt(config.head_size()));
    for i in 0..TABLES {
        write_u32(&mut zero, 52 + 4 * i, offsets[i] as u32);
    }
    write_u32(&mut zero, 88, vocabulary.text_len() as u32);
    put_section_table(&mut zero, &config, sections);

    let mut table = |i: usize, words: &mut dyn Iterator<Item = u32>| {
        let from = offsets[i] as usize;
        for (at, word) in words.enumerate() {
            write_u32(&mut zero, from + 4 * at, word);
        }
    };
    table(
        0,
        &mut Matrices::new(config).flat_map(|m| [m.section, m.offset as u32, m.rows, m.columns]),
    );
    table(1, &mut (0..TABLE_ENTRIES).map(tables::exponential));
    table(2, &mut (0..TABLE_ENTRIES).map(|i| tables::silu(i) as u32));
    table(3, &mut rotary(&config));
    for (i, word) in norms(checkpoint)?.into_iter().enumerate() {
        write_u32(&mut zero, offsets[4] as usize + 4 * i, word as u32);
    }
    vocabulary.put(&mut zero, &offsets);
    Ok(zero)
}

fn put_section_table(zero: &mut [u8], config: &Config, sections: usize) {
    let mut lens = vec![0u64; sections];
    lens[0] = zero.len() as u64;
    for m in Matrices::new(*config) {
        lens[m.section as usize] += m.block_len();
    }
    let mut offset = 0;
    for (i, len) in lens.into_iter().enumerate() {
        write_u64(zero, SECTION_TABLE + 16 * i, offset);
        write_u64(zero, SECTION_TABLE + 16 * i + 8, len);
        offset += len;
    }
}

fn rotary(config: &Config) -> impl Iterator<Item = u32> {
    let size = config.head_size();
    let frequencies: Vec<i128> = (0..size / 2).map(|pair| tables::frequency(pair, size)).collect();
    (0..config.seq()).flat_map(move |position| {
        let turn = |f: &i128| {
            let (cos, sin) = tables::rotary(position, *f);
            [cos as u32, sin as u32]
        };
        frequencies.iter().flat_map(turn).collect::<Vec<u32>>()
    })
}

fn norms(checkpoint: &Checkpoint<'_>) -> Result<Vec<i32>, Refused> {
    let layers = checkpoint.config.layers();
    let mut norms = Vec::with_capacity((2 * layers + 1) * checkpoint.config.dim());
    let mut row = vec![0.0; checkpoint.config.dim()];
    for vector in 0..=2 * layers {
        checkpoint.read_norm(vector, &mut row);
        for w in &row {
            let v = (w * Q24).round();
            if !v.is_finite() || v.abs() > f64::from(i32::MAX) {
                return refuse(format!(
                    "normalisation vector {vector} holds {w}, outside -128..128"
                ));
            }
            norms.push(v as i32);
        }
    }
    Ok(norms)
}
