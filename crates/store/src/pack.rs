//! `pack`: the weights that every token needs, laid out as they are read.
//!
//! A packed trunk is one file: each layer (and each piece of the head) is one aligned *run*,
//! so that it is a single large sequential read, optionally compressed by [`codec`]. An index
//! and a trailer close the file:
//!
//! ```text
//! run 0 | padding to 4096 | run 1 | ... | index (JSON) | digest of the index | its length | magic
//! ```
//!
//! A run without codec is the layer's tensors in feeding order, each at a multiple of 64
//! bytes, zeros between. With [`Codec::Bf16`] every tensor is cut into blocks of [`BLOCK`]
//! bytes; the run begins with one `u32` a block (stored length; the top bit means the block is
//! stored as it is), and the blocks follow without padding.

pub mod codec;
mod format;
mod write;

pub use format::{
    Codec, CodedBlock, Run, RunTensor, TRUNK_FILE, Trunk, coded_blocks, decode_blocks, decode_run,
};
pub(crate) use format::{sample, source_digest};
pub use write::{PackProgress, Packed, pack};
pub(crate) use write::{Planned, head_pieces, plan};

/// Bytes of weights compressed as one piece.
pub const BLOCK: usize = 512 << 10;

/// Alignment of tensors within a run.
const TENSOR_ALIGN: u64 = 64;
