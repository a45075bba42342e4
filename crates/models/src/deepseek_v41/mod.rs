//! DeepSeek-V4.1-Flash (text): configuration, tensors, arithmetic and state, and the attention
//! [`reference`] for authors of kernels.

pub mod cache;
pub mod check;
pub mod config;
pub mod engram;
pub mod hc;
pub mod linear;
pub mod moe;
pub mod reference;
pub mod tensors;
