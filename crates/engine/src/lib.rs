//! Facit's engine: from a model and a request to text, saved states and receipts.
//!
//! Everything here returns values; nothing prints, reads arguments or knows of terminals. Files
//! are read and written only by the functions that take a path.
//!
//! The exact integer core (`fixed`) is driven by [`Session`]; [`saved`] and [`receipt`] define
//! the two file formats a run can leave behind, and [`verify`](mod@verify) replays a receipt.

pub mod artifact;
pub mod bench;
pub mod convert;
pub mod digest;
mod error;
pub mod files;
pub mod giant;
pub mod inspect;
pub mod params;
pub mod quote;
pub mod receipt;
pub mod saved;
pub mod session;
pub mod verify;

pub use artifact::{Artifact, Model};
pub use digest::Digest;
pub use error::Error;
pub use fixed::StateInfo;
pub use fixed::arith::Backend;
pub use fixed::run::MAX_THREADS;
pub use params::{Params, Temperature};
pub use session::Session;

/// Names the arithmetic of the integer core. A saved state or receipt of another arithmetic is
/// refused: its bytes would mean something else.
pub const NUMERICS: &str = "facit-fixed-1";
