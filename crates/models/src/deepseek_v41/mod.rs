//! DeepSeek-V4.1-Flash (text): configuration, tensors, the forward pass as a machine, state, and
//! the attention [`mod@reference`] for authors of kernels.
//!
//! Reading order: `layer.rs` is one layer with everything it calls by name; `attention.rs` is
//! attention in its five roles, with `compressor.rs` and `indexer.rs`; `moe.rs`, `hc.rs` and
//! `engram` are the other parts of a layer; `step.rs` turns layers into a resumable step;
//! `state.rs` is what a sequence leaves behind.
//!
//! # Two regimes
//! [`Regime::W8a8`], the default, rounds the input of every fp8 and fp4 matrix to e4m3 with a
//! power-of-two scale for 32 values, as the released model does. [`Regime::Bf16`] leaves
//! activations in bf16 (the regime of the attention reference). Weights are the same bytes in
//! both, used packed.
//!
//! # What the released code leaves open, and what is chosen here
//! * Sums of products follow the dot contract of `numerics`, in every regime.
//! * Softmax numerators are not rounded to bf16.
//! * Every KV source scores its own index keys on every step (see `indexer.rs`).
//! * Equal index scores: the lowest position first. Equal router scores: the lowest expert.
//! * The bits of a position depend on the tokens up to it only, never on how the sequence was
//!   cut into chunks, which other sequences shared the step, or the order in which experts came.
//!
//! Not here: images, and the approximate prefill that runs the upper half of the layers for the
//! end of a prompt only.

mod attention;
pub mod cache;
pub mod check;
pub mod compressor;
pub mod config;
#[cfg(test)]
mod csa_tests;
mod cx;
pub mod dspark;
pub mod engram;
pub mod hc;
pub mod indexer;
mod layer;
pub mod linear;
mod model;
pub mod moe;
pub mod reference;
mod save;
mod state;
mod step;
pub mod tensors;
mod weights;

pub use config::{Config, ConfigError};
pub use cx::Probe;
pub use linear::Regime;
pub use model::{BindError, DeepSeekV41, Options};
pub use state::State;
pub use step::Step;
