//! The weight store: pinned layers, a ring for the rest, an expert cache, and reading ahead.
//!
//! A host drives it along a model's wants:
//!
//! ```text
//! loop over the model's wants:
//!     store.announce(&upcoming);              // starts reading, returns at once
//!     Rows    -> store.rows(table, ids)?
//!     Layer   -> store.layer(layer)?          // as often as the layer has parts
//!     Experts -> store.experts(layer, ids)?   // those that are there, at least one
//!     Head    -> store.head(first_row)?
//! ```
//!
//! What is returned holds its memory until dropped; the slot under it is not reused before.
//! Results never depend on budgets, caches or timing, only on the files. A failed read is an
//! error that names the tensor; nothing is skipped.

mod experts;
mod open;
mod state;
mod store;
mod units;

pub use open::Source;
pub use store::{Expert, Head, Layer, Options, Rows, StoreStats, Upcoming, WeightStore};
