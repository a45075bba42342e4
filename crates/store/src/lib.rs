//! Weights on disk: everything between files and the bytes a model is fed.
//!
//! * [`safetensors`]: an index over the shards of a checkpoint, from their headers alone.
//! * [`io`]: the operating system behind a trait, so that tests can make it fail; [`atomic`]:
//!   files that are either whole or not there.
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
