//! A bound model: configuration, layout and derived constants, checked against a checkpoint.

use super::config::{Config, ConfigError};
use super::dspark;
use super::engram::{self, LayerHash};
use super::linear::Regime;
use super::reference::rope_freqs;
use super::state::State;
use super::step::{self, Step};
use super::tensors;
use crate::machine::{
    self, Choice, Chunk, Layout, Round, Snapshot, SnapshotError, StepError, Stored, TensorSpec,
};

/// How a model is to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Arithmetic of the quantised linears.
    pub regime: Regime,
    /// Bind the draft stages too, so that tokens can be drafted. Changes no output.
    pub drafts: bool,
}

/// Why a checkpoint cannot be bound.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BindError {
    /// Hash constants that contradict the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Not in the checkpoint.
    #[error(
        "tensor {name} is missing (expected {expected}): the checkpoint is incomplete or \
         config.json is of another model"
    )]
    Missing {
        /// Full name.
        name: String,
        /// Type and shape.
        expected: String,
    },
    /// There, but of another type or shape.
    #[error("tensor {name}: expected {expected}, got {got}")]
    Mismatch {
        /// Full name.
        name: String,
        /// By the configuration.
        expected: String,
        /// As stored.
        got: String,
    },
    /// A token map that does not fit the configuration.
    #[error("the token map has {what}: it must map {vocab} tokens onto all ids below {compressed}")]
    TokenMap {
        /// What is wrong.
        what: String,
        /// vocab_size
        vocab: usize,
        /// engram_compressed_vocab_size
        compressed: usize,
    },
    /// Draft stages asked for and none configured.
    #[error("the configuration has no draft stages (num_nextn_predict_layers is 0)")]
    NoDrafts,
}

/// A DeepSeek-V4.1 whose every tensor has been found and checked.
#[derive(Debug)]
pub struct DeepSeekV41 {
    pub(super) config: Config,
    pub(super) options: Options,
    pub(super) layout: Layout,
    /// `layers.3.`, `mtp.0.`: what the names of a layer's tensors begin with.
    pub(super) prefixes: Vec<String>,
    pub(super) token_map: Vec<u32>,
    pub(super) hashes: Vec<LayerHash>,
    /// Frequencies of the window-only layers and draft stages.
    pub(super) window_freqs: Vec<f32>,
    /// Frequencies of everything in layers that read compressed rows.
    pub(super) compress_freqs: Vec<f32>,
    /// What a state must agree with.
    pub(super) identity: String,
}

impl DeepSeekV41 {
    /// Binds a configuration to a checkpoint: `lookup` says how a tensor is stored.
    ///
    /// `token_map` gives the compressed id of every token (built from the tokenizer; 0 for
    /// padding ids beyond it).
    ///
    /// # Errors
    /// The first tensor that is missing or of another type or shape; a token map or hash
    /// constants that do not fit the configuration.
    pub fn bind(
        config: Config,
        options: Options,
        token_map: Vec<u32>,
        mut lookup: impl FnMut(&str) -> Option<Stored>,
    ) -> Result<DeepSeekV41, BindError> {
        check_token_map(&config, &token_map)?;
        if options.drafts && config.dspark.stages == 0 {
            return Err(BindError::NoDrafts);
        }
        let hashes = engram::derive(&config.engram)?;
        let mut layout = tensors::layout(&config);
        if !options.drafts {
            layout.layers.truncate(config.layers);
        }
        check_tensors(&layout, &mut lookup)?;
        let prefixes = (0..layout.layers.len()).map(|l| match l.checked_sub(config.layers) {
            None => format!("layers.{l}."),
            Some(stage) => format!("mtp.{stage}."),
        });
        let freqs = |base, yarn| rope_freqs(config.rope_dim, base, yarn);
        let identity = format!("{} {config:?}", numerics_id(options.regime));
        Ok(DeepSeekV41 {
            prefixes: prefixes.collect(),
            window_freqs: freqs(config.rope_theta, None),
            compress_freqs: freqs(config.compress_theta, Some(&config.yarn)),
            config,
            options,
            layout,
            token_map,
            hashes,
            identity,
        })
    }

    /// Dimensions and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How the model is run.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Table rows that the tokens of a text look up in engram layer `index` (of
    /// `engram_layer_ids`), for every position, `[position, lookup]`.
    ///
    /// # Panics
    /// If a token is outside the vocabulary.
    pub fn engram_rows(&self, index: usize, tokens: &[u32]) -> Vec<Vec<u64>> {
        let ids: Vec<u32> = tokens.iter().map(|&t| self.token_map[t as usize]).collect();
        let pad = self.pad();
        (0..ids.len())
            .map(|p| engram::hash_rows(&newest_first(&ids[..=p]), pad, &self.hashes[index]))
            .collect()
    }

    pub(super) fn pad(&self) -> u32 {
        self.token_map[self.config.engram.pad_id as usize]
    }
}

fn newest_first(ids: &[u32]) -> Vec<u32> {
    ids.iter().rev().copied().collect()
}

/// Names the arithmetic of a regime.
fn numerics_id(regime: Regime) -> String {
    format!("facit-float-1 deepseek-v41 {}", regime.name())
}

fn check_token_map(c: &Config, map: &[u32]) -> Result<(), BindError> {
    let wrong = |what: String| BindError::TokenMap {
        what,
        vocab: c.vocab,
        compressed: c.engram.compressed_vocab,
    };
    if map.len() != c.vocab {
        return Err(wrong(format!("{} entries", map.len())));
    }
    let mut seen = vec![false; c.engram.compressed_vocab];
    for (token, &id) in map.iter().enumerate() {
        match seen.get_mut(id as usize) {
            Some(seen) => *seen = true,
            None => return Err(wrong(format!("id {id} for token {token}"))),
        }
    }
    match seen.iter().position(|s| !s) {
        Some(id) => Err(wrong(format!("no token for id {id}"))),
        None => Ok(()),
    }
}

fn check_tensors(
    layout: &Layout,
    lookup: &mut impl FnMut(&str) -> Option<Stored>,
) -> Result<(), BindError> {
    let mut check = |name: &str, spec: &TensorSpec| {
        let expected = format!("{} {:?}", spec.dtype, spec.shape);
        match lookup(name) {
            None => Err(BindError::Missing { name: name.to_owned(), expected }),
            Some(s) if s.dtype != spec.dtype.name() || s.shape != spec.shape => {
                let got = format!("{} {:?}", s.dtype, s.shape);
                Err(BindError::Mismatch { name: name.to_owned(), expected, got })
            }
            Some(_) => Ok(()),
        }
    };
    let tables = layout.tables.iter().flat_map(|t| &t.tensors);
    let layers = layout.layers.iter().flat_map(|l| &l.tensors);
    let head = layout.head.tensors.iter().chain([&layout.head.matrix]);
    for spec in tables.chain(layers).chain(head) {
        check(&spec.name, spec)?;
    }
    for layer in &layout.layers {
        for id in 0..layer.experts {
            for (i, spec) in layer.expert.iter().enumerate() {
                check(&layer.expert_name(id, i), spec)?;
            }
        }
    }
    Ok(())
}

impl machine::Model for DeepSeekV41 {
    type State = State;
    type Step<'a> = Step<'a>;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn numerics_id(&self) -> String {
        numerics_id(self.options.regime)
    }

    fn max_context(&self) -> usize {
        self.config.max_positions
    }

    fn new_state(&self, context: usize) -> Result<State, StepError> {
        State::new(&self.config, &self.identity, context, self.options.drafts)
    }

    fn position(&self, state: &State) -> usize {
        state.position()
    }

    fn state_bytes(&self, context: usize) -> usize {
        State::bytes(&self.config, context, self.options.drafts)
    }

    fn step_bytes(&self, positions: usize, context: usize, logits: usize) -> usize {
        // A block of drafts, or the step that verifies one with the token before it.
        let round = if self.options.drafts { self.config.dspark.block + 1 } else { 0 };
        step::bytes(&self.config, positions.max(round), context, logits.max(round))
    }

    fn step<'a>(&'a self, chunks: Vec<Chunk<'a, State>>) -> Result<Step<'a>, StepError> {
        Step::new(self, chunks)
    }

    fn round<E: From<StepError>>(
        &self,
        state: &mut State,
        token: u32,
        most: usize,
        run: impl FnMut(&mut dyn machine::Step) -> Result<(), E>,
        choose: impl FnMut(&[f32]) -> Result<Choice, E>,
    ) -> Result<Round, E> {
        dspark::round(self, state, token, most, run, choose)
    }

    fn save<'s>(&self, state: &'s State, digest: &str) -> Snapshot<'s> {
        super::save::save(self, state, digest)
    }

    fn restore(&self, bytes: &[u8], digest: &str, context: usize) -> Result<State, SnapshotError> {
        super::save::restore(self, bytes, digest, context)
    }
}
