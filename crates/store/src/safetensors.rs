//! The safetensors format: an index over many shards from their headers, positional reads,
//! and an atomic writer.
//!
//! A file is an 8-byte little-endian length, that many bytes of JSON, then the tensors' bytes.
//! Everything about a header is checked once, in [`header`]; what an [`Index`] returns can be
//! relied on. Weights are never mapped into memory: reads are explicit, so that a disk error
//! is an error and not a signal.

mod dtype;
pub mod header;
mod index;
mod json;
mod shards;
mod table;
mod write;

pub use dtype::Dtype;
pub use index::{Index, Shard, TensorRef};
pub use shards::INDEX_FILE;
pub(crate) use shards::WeightMap;
pub use write::{TensorSpec, Writer, write};
