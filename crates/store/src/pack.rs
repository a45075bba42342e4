//! `pack`: the weights that every token needs, laid out as they are read.
//!
//! [`codec`] compresses bf16 weights without loss.

pub mod codec;
