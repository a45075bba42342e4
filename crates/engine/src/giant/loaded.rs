//! A model with a host to feed it and the sequences it works on, whatever the family.

use std::cell::Cell;

use models::machine::{Choice, Chunk, Layout, Logits, Model, Round, Snapshot, Step};
use numerics::Kernels;
use store::cache::ExpertId;

use super::host::{Counters, Host, drive};
use crate::Error;

/// One sequence of an [`Engine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(usize);

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Which sequence; at most once a step.
    pub sequence: SequenceId,
    /// The tokens that follow what it has seen.
    pub tokens: &'a [u32],
    /// Which of their positions need logits.
    pub logits: Logits,
}

/// Chooses a token from its logits, see [`Engine::round`].
pub type Choose<'c> = dyn FnMut(&[f32], Counters) -> Result<Choice, Error> + 'c;

/// Runs a model of some family over sequences. Every result depends on the model, the tokens and
/// the numerics id alone: not on the host, the chunks, the threads or who else is in the step.
pub trait Engine: Send {
    /// Every tensor, in feeding order.
    fn layout(&self) -> &Layout;

    /// Number of logits a position.
    fn vocab(&self) -> usize;

    /// Names the arithmetic.
    fn numerics_id(&self) -> String;

    /// Bytes of a state that has grown to `context` positions.
    fn state_bytes(&self, context: usize) -> usize;

    /// Begins a sequence of at most `context` positions.
    ///
    /// # Errors
    /// Not enough memory.
    fn open(&mut self, context: usize) -> Result<SequenceId, Error>;

    /// Forgets a sequence.
    fn close(&mut self, sequence: SequenceId);

    /// Positions a sequence has seen.
    fn position(&self, sequence: SequenceId) -> usize;

    /// One step; returns `[positions with logits, vocab]` in the order of `work`. If it fails, all
    /// sequences are as they were.
    ///
    /// # Errors
    /// A failed read, a number that is not finite, tokens the model refuses.
    fn step(&mut self, work: &[Work<'_>]) -> Result<&[f32], Error>;

    /// What the last [`Engine::step`] returned.
    fn logits(&self) -> &[f32];

    /// The tokens after `token`, which follows what the sequence has seen and has not been
    /// processed: as many as one step of the backbone confirms, see [`Model::round`]. `choose`
    /// is called once for each, in order, with its logits and what has been read so far.
    ///
    /// # Errors
    /// As [`Engine::step`], and those of `choose`.
    fn round(
        &mut self,
        sequence: SequenceId,
        token: u32,
        most_drafts: usize,
        choose: &mut Choose<'_>,
    ) -> Result<Round, Error>;

    /// The sequence's state.
    fn save(&self, sequence: SequenceId) -> Snapshot<'_>;

    /// A sequence from a saved state, to the same bits.
    ///
    /// # Errors
    /// A damaged file or one of another model, numerics id or length.
    fn restore(&mut self, bytes: &[u8], context: usize) -> Result<SequenceId, Error>;

    /// What has been read so far.
    fn counters(&self) -> Counters;

    /// Requests for experts since the last call, if [`super::Demand::record`] asked for them.
    fn trace(&mut self) -> Vec<ExpertId>;

    /// What the user should hear of the disk, each once.
    fn events(&mut self) -> Vec<store::Event>;
}

/// The one implementation of [`Engine`].
pub struct Loaded<M: Model> {
    model: M,
    host: Box<dyn Host>,
    kernels: Kernels,
    digest: String,
    sequences: Vec<Option<M::State>>,
    logits: Vec<f32>,
}

impl<M: Model> Loaded<M> {
    /// `digest` names the weights in saved states.
    pub fn new(model: M, host: Box<dyn Host>, kernels: Kernels, digest: String) -> Self {
        Loaded { model, host, kernels, digest, sequences: Vec::new(), logits: Vec::new() }
    }

    fn keep(&mut self, state: M::State) -> SequenceId {
        let free = self.sequences.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.sequences[at] = Some(state);
        SequenceId(at)
    }

    fn state(&self, sequence: SequenceId) -> &M::State {
        self.sequences[sequence.0].as_ref().expect("an open sequence")
    }

    fn run(&mut self, work: &[Work<'_>], states: &mut [M::State]) -> Result<(), Error> {
        let chunks = work.iter().zip(states).map(|(w, state)| Chunk {
            state,
            tokens: w.tokens,
            logits: w.logits,
        });
        let mut step = self.model.step(chunks.collect())?;
        drive(&mut step, &mut *self.host, &self.kernels)?;
        self.logits.clear();
        self.logits.extend_from_slice(step.logits());
        Ok(())
    }
}

impl<M: Model + Send> Engine for Loaded<M> {
    fn layout(&self) -> &Layout {
        self.model.layout()
    }

    fn vocab(&self) -> usize {
        self.model.vocab()
    }

    fn numerics_id(&self) -> String {
        self.model.numerics_id()
    }

    fn state_bytes(&self, context: usize) -> usize {
        self.model.state_bytes(context)
    }

    fn open(&mut self, context: usize) -> Result<SequenceId, Error> {
        let state = self.model.new_state(context)?;
        Ok(self.keep(state))
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences[sequence.0] = None;
    }

    fn position(&self, sequence: SequenceId) -> usize {
        self.model.position(self.state(sequence))
    }

    fn step(&mut self, work: &[Work<'_>]) -> Result<&[f32], Error> {
        let take = |w: &Work| self.sequences[w.sequence.0].take().expect("once a step, and open");
        let mut states: Vec<M::State> = work.iter().map(take).collect();
        let result = self.run(work, &mut states);
        for (w, state) in work.iter().zip(states) {
            self.sequences[w.sequence.0] = Some(state);
        }
        result.map(|()| self.logits.as_slice())
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn round(
        &mut self,
        sequence: SequenceId,
        token: u32,
        most_drafts: usize,
        choose: &mut Choose<'_>,
    ) -> Result<Round, Error> {
        let Loaded { model, host, kernels, sequences, .. } = self;
        let state = sequences[sequence.0].as_mut().expect("an open sequence");
        let read = Cell::new(host.counters());
        let run = |step: &mut dyn Step| {
            drive(step, &mut **host, kernels)?;
            read.set(host.counters());
            Ok(())
        };
        model.round(state, token, most_drafts, run, |logits| choose(logits, read.get()))
    }

    fn save(&self, sequence: SequenceId) -> Snapshot<'_> {
        self.model.save(self.state(sequence), &self.digest)
    }

    fn restore(&mut self, bytes: &[u8], context: usize) -> Result<SequenceId, Error> {
        let state = self.model.restore(bytes, &self.digest, context)?;
        Ok(self.keep(state))
    }

    fn counters(&self) -> Counters {
        self.host.counters()
    }

    fn trace(&mut self) -> Vec<ExpertId> {
        self.host.trace()
    }

    fn events(&mut self) -> Vec<store::Event> {
        self.host.events()
    }
}
