//! The contract between a model and its host: *the model asks, the host feeds*.
//!
//! A model is a resumable machine. [`Step::want`] names the weights it needs next, the
//! host brings them ([`Step::feed`]), and when nothing is wanted any more the step is done:
//!
//! ```text
//! let mut step = model.step(chunks)?;
//! while let Some(want) = step.want() {
//!     let fed = host.bring(want, step.upcoming());   // memory, disk, network, a fault injector
//!     step.feed(&kernels, fed)?;
//! }
//! let logits = step.logits();
//! ```
//!
//! One step carries T positions of one or many sequences ([`Chunk`]); a block is fetched once
//! and used by every position that needs it. The order of wants within a step is fixed:
//!
//! 1. [`Want::Rows`], one for each table that is looked up by id (embedding first);
//! 2. for each layer in order: [`Want::Layer`] with [`Part::Mix`], then [`Part::Rest`], then
//!    (in a layer with routed experts) [`Want::Experts`] until none is missing, then, where the
//!    model has work after its experts, [`Part::Join`];
//! 3. [`Want::Head`], only if some position asked for logits.
//!
//! A model may leave out what nobody needs: after the last attention only positions with logits
//! go on, so a step without any may end there.
//!
//! A layer's tensors are the same for every part, so a host keeps them in one place from `Mix`
//! to the layer's last part. Experts may be fed one at a time and in any order: their outputs
//! are kept per (position, slot) and combined in a fixed order (Kimi K3: the order of selection;
//! DeepSeek-V4.1: by expert number), so the order of arrival cannot change a bit.
//!
//! A sequence's state changes only when the whole step has ended. A step that is dropped, or
//! whose feed failed, leaves every state exactly as it was.
//!
//! This module does no arithmetic and no I/O.

mod layout;
pub(crate) mod phases;
pub(crate) mod plain;
mod round;
mod snapshot;

pub use layout::{DType, HeadSpec, LayerSpec, Layout, Stored, TableSpec, TensorSpec};
pub use round::{Acceptance, Choice, Round};
pub use snapshot::{Piece, Snapshot, SnapshotError};

use numerics::Kernels;

/// A bound model: knows every tensor it will read and makes steps.
pub trait Model {
    /// What one sequence has left behind.
    type State: Send;
    /// A step under way. Holds its sequences' states until it ends.
    type Step<'a>: Step
    where
        Self: 'a;

    /// Every tensor, in feeding order.
    fn layout(&self) -> &Layout;

    /// Size of the vocabulary: logits of one position.
    fn vocab(&self) -> usize;

    /// Names the arithmetic. Two runs with equal weights, tokens and numerics id have equal
    /// bits; where it differs, bits may.
    fn numerics_id(&self) -> String;

    /// Most positions of a sequence.
    fn max_context(&self) -> usize;

    /// The state of an empty sequence that may grow to `context` positions, at most
    /// [`Model::max_context`].
    ///
    /// # Errors
    /// [`StepError::Memory`] if that much cannot be had.
    fn new_state(&self, context: usize) -> Result<Self::State, StepError>;

    /// Positions a state has seen.
    fn position(&self, state: &Self::State) -> usize;

    /// Bytes of a state that has grown to `context` positions, for planning.
    fn state_bytes(&self, context: usize) -> usize;

    /// Upper bound of what a step of `positions` in total allocates while it runs, for planning;
    /// `context` is the longest sequence's length after the step, `logits` the number of
    /// positions that need logits and at least the number of sequences.
    fn step_bytes(&self, positions: usize, context: usize, logits: usize) -> usize;

    /// Begins a step over the chunks' tokens.
    ///
    /// # Errors
    /// Refuses empty chunks, unknown tokens, states that are full or belong to another model.
    fn step<'a>(&'a self, chunks: Vec<Chunk<'a, Self::State>>)
    -> Result<Self::Step<'a>, StepError>;

    /// Decodes the tokens after `token`, which follows what `state` has seen and has not been
    /// processed: one backbone step, and as many tokens as it confirms.
    ///
    /// `run` feeds a step until it wants nothing more. `choose` is called once for each token of
    /// the result, in order, with that position's logits: a sampler that draws one number a call
    /// gives the same tokens whatever is drafted. At most `most` drafts are verified; a model
    /// without drafts ignores it, as this default does.
    ///
    /// # Errors
    /// Whatever `run`, `choose` or a step refuses. After an error of `choose` the state may have
    /// seen `token` or not: ask for its position.
    fn round<E: From<StepError>>(
        &self,
        state: &mut Self::State,
        token: u32,
        most: usize,
        mut run: impl FnMut(&mut dyn Step) -> Result<(), E>,
        mut choose: impl FnMut(&[f32]) -> Result<Choice, E>,
    ) -> Result<Round, E> {
        let _ = most;
        let tokens = [token];
        let mut step = self.step(vec![Chunk { state, tokens: &tokens, logits: Logits::Last }])?;
        run(&mut step)?;
        Ok(Round { tokens: vec![choose(step.logits())?.token], drafted: 0 })
    }

    /// A state as tensors with metadata. `digest` names the weights; it is stored and compared.
    fn save<'s>(&self, state: &'s Self::State, digest: &str) -> Snapshot<'s>;

    /// The state of a [`Model::save`] that was written to a file, to the same bits, able to grow to `context` positions.
    ///
    /// # Errors
    /// Refuses damaged files and states of another model, digest, numerics id or length.
    fn restore(
        &self,
        bytes: &[u8],
        digest: &str,
        context: usize,
    ) -> Result<Self::State, SnapshotError>;
}

/// A step under way; see the [module](self) for the order of events.
pub trait Step {
    /// What must be fed next; `None` when the step has ended and the states are changed.
    fn want(&self) -> Option<Want<'_>>;

    /// What will be wanted after that, for a host that reads ahead.
    fn upcoming(&self) -> Upcoming<'_>;

    /// Computes with what was wanted.
    ///
    /// # Errors
    /// Refuses anything that was not asked for or has the wrong size, and stops at numbers that
    /// are not finite. After an error the step is over; the states are as before it.
    fn feed(&mut self, kernels: &Kernels, fed: Fed<'_>) -> Result<(), StepError>;

    /// `[positions with logits, vocab]`, chunk after chunk in the order given; empty until the
    /// step has ended.
    fn logits(&self) -> &[f32];
}

/// What part of a layer the machine is about to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Attention (or whatever mixes positions) and the router. When it is done the experts of
    /// the layer are known, see [`Upcoming::experts`].
    Mix,
    /// Everything that needs no routed expert: the shared experts, the projection into the
    /// experts' width, or the whole feed-forward of a dense layer. A host reads experts
    /// while this is computed.
    Rest,
    /// What follows the routed experts (in Kimi K3: norm of their sum and up-projection).
    /// Models without such weights never ask for it.
    Join,
}

/// The weights a step needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want<'s> {
    /// Rows of table `table` (an index into [`Layout::tables`]).
    Rows {
        /// Index into [`Layout::tables`].
        table: usize,
        /// Distinct row numbers, ascending.
        ids: &'s [u64],
    },
    /// All always-active tensors of one layer, in the order of [`LayerSpec::tensors`].
    Layer {
        /// Layer index from 0.
        layer: usize,
        /// What will be computed with them.
        part: Part,
    },
    /// Routed experts of one layer.
    Experts {
        /// Layer index from 0.
        layer: usize,
        /// Experts still missing, distinct, ascending.
        ids: &'s [u32],
    },
    /// The small tensors of the head and the rows of its matrix from `first_row` on.
    Head {
        /// First row of the head matrix that has not been fed yet.
        first_row: usize,
    },
}

/// The weights a host brings. Byte slices hold tensors exactly as stored (little-endian,
/// row-major, no alignment assumed).
#[derive(Clone, Copy, Debug)]
pub enum Fed<'a> {
    /// Answer to [`Want::Rows`]: for each id, in the order asked, one slice per tensor of
    /// the table: `rows[i * tensors + j]` is row `ids[i]` of tensor `j`.
    Rows {
        /// `ids.len() * TableSpec::tensors.len()` slices.
        rows: &'a [&'a [u8]],
    },
    /// Answer to [`Want::Layer`]: all tensors of the layer, in the order of
    /// [`LayerSpec::tensors`], whatever the part.
    Layer {
        /// One slice a tensor.
        tensors: &'a [&'a [u8]],
    },
    /// One of the experts of [`Want::Experts`], tensors in the order of [`LayerSpec::expert`].
    Expert {
        /// Which expert.
        id: u32,
        /// One slice a tensor.
        tensors: &'a [&'a [u8]],
    },
    /// Answer to [`Want::Head`]: the small tensors ([`HeadSpec::tensors`]) and as many whole
    /// rows of the head matrix, from the asked row on, as the host likes to bring at once.
    Head {
        /// One slice a small tensor.
        tensors: &'a [&'a [u8]],
        /// One or more whole rows of [`HeadSpec::matrix`].
        rows: &'a [u8],
    },
}

impl Fed<'_> {
    /// What kind of block this is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Fed::Rows { .. } => "rows",
            Fed::Layer { .. } => "a layer",
            Fed::Expert { .. } => "an expert",
            Fed::Head { .. } => "the head",
        }
    }
}

impl Want<'_> {
    /// What kind of block this is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Want::Rows { .. } => "rows",
            Want::Layer { .. } => "a layer",
            Want::Experts { .. } => "an expert",
            Want::Head { .. } => "the head",
        }
    }
}

/// What a step will want after its current want, as far as that is known: a host reads ahead
/// in this order (experts first, then layers, then the head).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcoming<'s> {
    /// Layer and its experts that the router chose and that have not been fed, ascending.
    /// Known as soon as [`Part::Mix`] of that layer is done.
    pub experts: Option<(usize, &'s [u32])>,
    /// Layers not yet begun, in order. The layer of the current want is not among them.
    pub layers: std::ops::Range<usize>,
    /// Whether the head will be wanted.
    pub head: bool,
}

/// Which positions of a [`Chunk`] need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None: all but the last chunk of a prefill.
    None,
    /// The last position of the chunk.
    Last,
    /// Every position of the chunk.
    All,
}

impl Logits {
    /// Number of positions with logits in a chunk of `len` tokens.
    pub fn count(self, len: usize) -> usize {
        match self {
            Logits::None => 0,
            Logits::Last => 1,
            Logits::All => len,
        }
    }
}

/// One sequence's share of a step: the tokens that follow what its state has seen.
#[derive(Debug)]
pub struct Chunk<'a, S> {
    /// The sequence's state; changed only when the step ends.
    pub state: &'a mut S,
    /// At least one token id.
    pub tokens: &'a [u32],
    /// Which positions need logits.
    pub logits: Logits,
}

/// Why a step could not go on. After an error the step cannot be continued (drop it); the
/// states of its sequences are as they were before it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// A step without any token.
    #[error("a step needs at least one token in each of its sequences")]
    Empty,
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab} tokens")]
    Token {
        /// The offending id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// More positions than the state was made for.
    #[error(
        "the sequence would be {needed} positions long, its state holds {context}: \
         start it with a larger context"
    )]
    Context {
        /// Positions needed after this step.
        needed: usize,
        /// Positions the state can hold.
        context: usize,
    },
    /// A state that belongs to another model or another numerics id.
    #[error("the state belongs to another model (expected {expected}, got {got})")]
    State {
        /// The model's own identity.
        expected: String,
        /// The state's identity.
        got: String,
    },
    /// Something was fed that is not wanted now.
    #[error("the model wants {wanted} now and was fed {fed}")]
    Unexpected {
        /// What is wanted.
        wanted: String,
        /// What came.
        fed: String,
    },
    /// The number of tensors or rows fed does not match the layout.
    #[error("{what}: expected {expected} pieces, got {got}")]
    Count {
        /// Which block.
        what: String,
        /// By the layout.
        expected: usize,
        /// As fed.
        got: usize,
    },
    /// A tensor with the wrong number of bytes.
    #[error("tensor {name}: expected {expected} bytes, got {got}")]
    Bytes {
        /// Tensor name.
        name: String,
        /// By the layout.
        expected: usize,
        /// As fed.
        got: usize,
    },
    /// A scale byte that is not a number.
    #[error("tensor {name}: scale {index} is NaN (damaged; check the files with verify-model)")]
    NanScale {
        /// Tensor name.
        name: String,
        /// Index of the byte in the tensor (or in the row fed of it).
        index: usize,
    },
    /// Arithmetic that left the finite numbers, found where it first shows.
    #[error(
        "layer {layer}: {what} is not finite at position {position} \
         (a damaged weight? check the files with verify-model)"
    )]
    NonFinite {
        /// Layer index from 0; the number of layers means the final aggregation.
        layer: usize,
        /// Which value.
        what: &'static str,
        /// Position in its sequence.
        position: usize,
    },
    /// A logit that is not finite.
    #[error("the logit of token {token} at position {position} is not finite")]
    Logit {
        /// Token id.
        token: usize,
        /// Position in its sequence.
        position: usize,
    },
    /// The step was fed after an error.
    #[error("the step already failed and cannot go on")]
    Failed,
    /// Memory for the step could not be had.
    #[error("no memory for {what} ({bytes} bytes): use shorter chunks or fewer sequences")]
    Memory {
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
}
