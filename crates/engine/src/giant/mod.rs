//! Giant models: a directory of safetensors, a host that feeds it, sequences, generated tokens.
//!
//! Reading order: [`Checkpoint`] opens a directory; [`prepare`] binds its model and divides the
//! memory; [`Prepared::load`] gives it a [`Host`] ([`Resident`] or [`Streaming`]) and makes an
//! [`Engine`]; [`generate()`] turns a prompt's ids into new ones. The models themselves are in the
//! crate `models`, disk and caches in `store`.

pub mod batch;
mod budget;
pub mod chat;
mod checkpoint;
mod generate;
mod host;
pub mod journal;
mod loaded;
pub mod logits;
mod resident;
mod sampling;
pub mod saved;
mod streaming;

pub use budget::{Demand, MAX_CHUNK, Prepared, check_tensors, layout, parse_memory, prepare};
pub use checkpoint::{Checkpoint, Family, tokenizer_at};
pub use generate::{Event, Finish, FinishReason, Request, Spent, generate};
pub use host::{Block, Counters, Host, describe, drive};
pub use loaded::{Choose, Engine, Loaded, SequenceId, Work};
pub use resident::Resident;
pub use sampling::{Sampler, Sampling, SamplingError};
pub use streaming::Streaming;
