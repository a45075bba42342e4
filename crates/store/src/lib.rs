//! Weights on disk: everything between files and the bytes a model is fed.
//!
//! - [`safetensors`]: an index over the shards of a checkpoint, from their headers alone
//! - [`layout`]: what a model reads, as plain data, held against a checkpoint
//! - [`weights`]: the weight store: pinned layers, ring, expert cache, reading ahead
//! - [`plan`]: how a memory budget is divided, and what a token then reads
//! - [`cache`]: which experts stay in memory
//! - [`cache_sim`]: recorded requests for experts, replayed on caches of any size
//! - [`pack`]: the always-active weights in one aligned, compressed file
//! - [`direct`]: large reads past the page cache
//! - [`io`]: the operating system behind a trait, so that tests can make it fail
//! - [`atomic`]: files that are either whole or not there
//! - [`digest`]: BLAKE3 digests of files and buffers
//! - [`memory`]: how much memory this process may use
//! - [`pull`]: downloads from a hub in checked ranges
//! - [`verify`]: a model's directory checked again without the network
//! - [`doctor`]: the disk measured the way the engine reads
//!
//! The store knows tensors by name, type, shape and bytes; it does no arithmetic on weights
//! and does not know which model it serves. It never prints: what a person should hear is
//! returned as an error or an event.

pub mod atomic;
pub mod cache;
pub mod cache_sim;
pub mod digest;
pub mod direct;
pub mod doctor;
mod error;
pub mod io;
pub mod layout;
pub mod memory;
pub mod pack;
pub mod plan;
pub mod pull;
pub mod safetensors;
pub mod verify;
pub mod weights;

pub use digest::Digest;
pub use direct::Event;
pub use error::{Error, Kind, Result};
