//! Giant models: a directory of safetensors, a host that feeds it, sequences, generated tokens.
//!
//! Reading order: [`Checkpoint`] opens a directory; [`open`] binds its model to a [`Host`]
//! and gives an [`Engine`]; [`generate`] turns a prompt's ids into new ones. The models
//! themselves are in the crate `models`, disk and caches in `store`.

mod checkpoint;
mod generate;
mod host;
mod loaded;
pub mod logits;
mod resident;
mod sampling;
pub mod saved;

pub use checkpoint::{Checkpoint, Family, tokenizer_at};
pub use generate::{DEFAULT_CHUNK, Event, FinishReason, Request, Spent, generate};
pub use host::{Block, Counters, Host, describe, drive};
pub use loaded::{Engine, Loaded, SequenceId, Work};
pub use resident::Resident;
pub use sampling::{Sampler, Sampling, SamplingError};

use models::deepseek_v41;
use models::machine::Model;
use numerics::Kernels;

use crate::Error;

/// Opens the checkpoint's model with all weights in memory; `progress` hears the bytes read.
///
/// # Errors
/// What [`Checkpoint::kimi_k3`] and its like refuse; a tensor that cannot be read.
pub fn open(
    checkpoint: &Checkpoint,
    options: deepseek_v41::Options,
    kernels: Kernels,
    progress: &mut dyn FnMut(u64),
) -> Result<Box<dyn Engine>, Error> {
    let digest = checkpoint.digest().to_string();
    match checkpoint.family() {
        Family::KimiK3 => {
            let model = checkpoint.kimi_k3()?;
            let host = Resident::read(checkpoint.index(), model.layout(), progress)?;
            Ok(Box::new(Loaded::new(model, Box::new(host), kernels, digest)))
        }
        Family::DeepseekV41 => {
            let model = checkpoint.deepseek_v41(options)?;
            let host = Resident::read(checkpoint.index(), model.layout(), progress)?;
            Ok(Box::new(Loaded::new(model, Box::new(host), kernels, digest)))
        }
    }
}
