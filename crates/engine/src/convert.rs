//! From a llama2.c checkpoint and tokenizer to an artifact, with an account of what rounding the
//! weights to eight bits costs. The format and the rounding itself are `fixed::convert`'s.

use std::path::Path;

use fixed::convert::{Converted, convert_with};
use fixed::format::{Config, Matrices};
use serde::Serialize;

use crate::artifact::Artifact;
use crate::inspect::{self, ArtifactReport};
use crate::{Error, files};

/// The largest checkpoint read.
pub const MAX_CHECKPOINT_BYTES: u64 = 256 << 30;
/// The largest tokenizer file read: above what 1,048,576 tokens of 128 bytes take.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// What a conversion made.
#[derive(Debug, Serialize)]
pub struct Conversion {
    /// The artifact.
    pub artifact: ArtifactReport,
    /// By kind of matrix, in storage order.
    pub quantisation: Vec<QuantisationError>,
}

/// How far the stored weights of one kind of matrix are from the checkpoint's.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct QuantisationError {
    /// `wq`, `w1 (gate)`, ...
    pub name: &'static str,
    /// Weights.
    pub weights: u64,
    /// Root mean square of the error over that of the weights.
    pub relative_rms: f64,
    /// Largest absolute error.
    pub largest: f64,
}

/// A step of a conversion, for a progress bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reading the two files.
    Read,
    /// Quantising.
    Convert {
        /// Weights done.
        done: u64,
        /// Weights in all.
        of: u64,
    },
    /// Writing the artifact.
    Write,
}

/// Converts `checkpoint` and `tokenizer` and writes the artifact to `output`, atomically.
///
/// # Errors
/// [`Error::Read`], [`Error::Corrupt`] saying what is wrong, [`Error::Write`].
pub fn convert(
    checkpoint: &Path,
    tokenizer: &Path,
    output: &Path,
    progress: &mut dyn FnMut(Step),
) -> Result<Conversion, Error> {
    files::check_writable(output)?;
    progress(Step::Read);
    let checkpoint_bytes = files::read(checkpoint, MAX_CHECKPOINT_BYTES)?;
    let tokenizer_bytes = files::read(tokenizer, MAX_TOKENIZER_BYTES)?;
    let mut kinds = Vec::new();
    let bytes = convert_with(&checkpoint_bytes, &tokenizer_bytes, |converted| {
        add(&mut kinds, converted);
        progress(Step::Convert { done: converted.weights_done, of: converted.weights });
    })
    .map_err(|refused| {
        let what = format!("{} with {}", checkpoint.display(), tokenizer.display());
        Error::corrupt(what, format!("cannot be converted: {}", refused.why))
    })?;
    let artifact = Artifact::from_bytes(output.display().to_string(), bytes)?;
    let model = artifact.model();
    progress(Step::Write);
    files::write_atomically(output, &[model.bytes()])?;
    let quantisation = kinds.iter().map(Sums::error).collect();
    Ok(Conversion { artifact: ArtifactReport::of(&model), quantisation })
}

/// What the matrices of one kind add up to.
struct Sums {
    phase: u32,
    weights: u64,
    squares: f64,
    error_squares: f64,
    largest: f64,
}

fn add(kinds: &mut Vec<Sums>, converted: &Converted) {
    let m = converted.matrix;
    let at = kinds.iter().position(|kind| kind.phase == m.phase).unwrap_or_else(|| {
        let phase = m.phase;
        kinds.push(Sums { phase, weights: 0, squares: 0.0, error_squares: 0.0, largest: 0.0 });
        kinds.len() - 1
    });
    let kind = &mut kinds[at];
    kind.weights += u64::from(m.rows) * u64::from(m.columns);
    kind.squares += converted.squares;
    kind.error_squares += converted.error_squares;
    kind.largest = kind.largest.max(converted.largest_error);
}

impl Sums {
    fn error(&self) -> QuantisationError {
        let relative =
            if self.squares > 0.0 { (self.error_squares / self.squares).sqrt() } else { 0.0 };
        QuantisationError {
            name: inspect::matrix_name(self.phase),
            weights: self.weights,
            relative_rms: relative,
            largest: self.largest,
        }
    }
}

/// Whether a file of `len` bytes that starts with `head` has the header and exactly the length of a
/// version 0 checkpoint.
pub fn is_checkpoint(head: &[u8], len: u64) -> bool {
    let Ok(c) = Config::from_bytes(head) else {
        return false;
    };
    let matrices: u64 = Matrices::new(c).map(|m| u64::from(m.rows) * u64::from(m.columns)).sum();
    let norms = (2 * c.layers() as u64 + 1) * c.dim() as u64;
    // Cosines and sines that the format carries and nobody reads.
    let rotary = c.seq() as u64 * c.head_size() as u64;
    len == Config::BYTES as u64 + 4 * (matrices + norms + rotary)
}
