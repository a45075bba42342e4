//! Kimi K3 (text): configuration, tensor names, the forward pass as a machine, state.
//!
//! Reading order: `layer.rs` is one layer with everything it calls by name; `kda.rs` and
//! `mla.rs` are the two kinds of attention, `moe.rs` the routed experts, `ops.rs` the small
//! functions they share; `step.rs` turns layers into a resumable step; `state.rs` is what a
//! sequence leaves behind. Formulas follow the released model. The order of every rounding is
//! written down in the code, so the same inputs give the same bits on every machine.

pub mod config;
#[cfg(test)]
mod fixtures;
mod kda;
mod layer;
mod mla;
mod moe;
pub mod names;
mod ops;
mod state;
mod step;
mod weights;

pub use config::{Config, ConfigError};
pub use names::{BindError, Naming};
pub use state::{MAX_CONTEXT, State};
pub use step::Step;

use std::hash::{Hash, Hasher};

use crate::machine::{self, Chunk, Layout, Snapshot, SnapshotError, StepError, Stored};

/// A Kimi K3 whose every tensor has been found and checked.
#[derive(Debug)]
pub struct KimiK3 {
    config: Config,
    layout: Layout,
    /// For each layer, the key of each tensor of the layout.
    keys: Vec<Vec<&'static str>>,
    /// What a state must agree with.
    identity: String,
}

impl KimiK3 {
    /// Binds a config to a checkpoint in released naming: `lookup` says how a tensor is stored.
    ///
    /// # Errors
    /// The first tensor that is missing or of another type or shape.
    pub fn bind(
        config: Config,
        lookup: impl FnMut(&str) -> Option<Stored>,
    ) -> Result<KimiK3, BindError> {
        Self::bind_as(Naming::Released, config, lookup)
    }

    /// Binds a checkpoint of either naming.
    ///
    /// # Errors
    /// As [`KimiK3::bind`].
    pub fn bind_as(
        naming: Naming,
        config: Config,
        lookup: impl FnMut(&str) -> Option<Stored>,
    ) -> Result<KimiK3, BindError> {
        let names::Bound { layout, keys } = names::bind(&config, naming, lookup)?;
        // Of this process only, so any hash will do.
        let mut hasher = std::hash::DefaultHasher::new();
        format!("{config:?}").hash(&mut hasher);
        let identity = format!("{} #{:016x}", config.numerics_id(), hasher.finish());
        Ok(KimiK3 { config, layout, keys, identity })
    }

    /// Dimensions and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

impl machine::Model for KimiK3 {
    type State = State;
    type Step<'a> = Step<'a>;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn numerics_id(&self) -> String {
        self.config.numerics_id()
    }

    fn max_context(&self) -> usize {
        MAX_CONTEXT
    }

    fn new_state(&self, context: usize) -> Result<State, StepError> {
        State::new(&self.config, &self.identity, context)
    }

    fn position(&self, state: &State) -> usize {
        state.position()
    }

    fn state_bytes(&self, context: usize) -> usize {
        State::bytes(&self.config, context)
    }

    fn step_bytes(&self, positions: usize, context: usize, logits: usize) -> usize {
        step::bytes(&self.config, positions, context, logits)
    }

    fn step<'a>(&'a self, chunks: Vec<Chunk<'a, State>>) -> Result<Step<'a>, StepError> {
        Step::new(self, chunks)
    }

    fn save<'s>(&self, state: &'s State, digest: &str) -> Snapshot<'s> {
        state.save(&self.config, digest)
    }

    fn restore(&self, bytes: &[u8], digest: &str, context: usize) -> Result<State, SnapshotError> {
        State::restore(&self.config, &self.identity, bytes, digest, context)
    }
}
