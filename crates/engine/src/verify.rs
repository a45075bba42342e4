//! Replays a receipt and names the first turn that differs.
//!
//! Between two checkpoints of a receipt lies a stretch of turns that depends on nothing but the
//! state at its start. Each stretch begins with a state whose digest is the one recorded for the
//! turn before, so when all stretches agree, the whole run does, in whatever order they ran.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::iter::{ParallelBridge as _, ParallelIterator as _};

use crate::artifact::Model;
use crate::receipt::{self, CHECKPOINT_TURNS, Receipt, TurnRecord};
use crate::session::State;
use crate::{Backend, Digest, Error, Session};

/// How to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Stretches from their recorded states, on this many threads at once.
    Parallel {
        /// At least one.
        threads: usize,
    },
    /// Every turn from the state the one before left, in one thread.
    Sequential,
}

/// Replays `receipt` with `model` on `backend`. `progress` is called with each turn that agreed.
///
/// # Errors
/// [`Error::Mismatch`] for another model, [`Error::Corrupt`] for parameters it cannot have run with,
/// [`Error::TurnDiffers`] with the first turn that differs.
pub fn verify(
    receipt: &Receipt,
    model: Model<'_>,
    order: Order,
    backend: Backend,
    progress: &(dyn Fn() + Sync),
) -> Result<(), Error> {
    receipt.check_model(&model)?;
    let start = Session::new(model, &receipt.params())
        .map_err(|why| Error::corrupt("the receipt's parameters", why.to_string()))?
        .on(backend, 1);
    let fresh = Digest::of(start.state());
    if receipt.state_bytes != start.state().len() as u64 {
        return Err(Error::mismatch("state_bytes", start.state().len(), receipt.state_bytes));
    }
    if fresh != receipt.initial_state_sha256 {
        return Err(Error::mismatch("the initial state", fresh, receipt.initial_state_sha256));
    }
    let replay = Replay { receipt, model, backend, progress, bad: AtomicUsize::new(usize::MAX) };
    let stretches = Stretches { receipt, turn: 0, state: Some(State::copy_of(start.state())) };
    match order {
        Order::Sequential => replay.in_order(start, stretches),
        Order::Parallel { threads } => {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads.max(1))
                .build()
                .map_err(|e| Error::Refused(format!("cannot start {threads} threads: {e}")))?;
            pool.install(|| replay.in_parallel(stretches))
        }
    }
}

/// A stretch of turns and the state it starts from.
struct Stretch {
    /// Turns before it.
    turn: usize,
    state: State,
}

/// Rebuilds the recorded states one after the other; only as many exist as threads work on them.
struct Stretches<'r> {
    receipt: &'r Receipt,
    /// Turns before the next stretch.
    turn: usize,
    /// The state it starts from, or why there is none; nothing after the last.
    state: Option<Result<State, Error>>,
}

impl Stretches<'_> {
    /// The state after `self.turn` turns, from the checkpoint before.
    fn rebuild(&self, before: &State) -> Result<State, Error> {
        let mut state = State::copy_of(before.bytes())?;
        // `Receipt::check` saw to it that there is one checkpoint for every stretch but the first.
        let checkpoint = &self.receipt.checkpoints[self.turn / CHECKPOINT_TURNS - 1];
        receipt::apply(checkpoint, state.bytes_mut()).map_err(|why| {
            Error::corrupt(format!("the checkpoint after turn {}", checkpoint.turn), why)
        })?;
        Ok(state)
    }
}

impl Iterator for Stretches<'_> {
    type Item = (usize, Result<Stretch, Error>);

    fn next(&mut self) -> Option<Self::Item> {
        let turn = self.turn;
        let stretch = self.state.take()?.map(|state| Stretch { turn, state });
        self.turn += CHECKPOINT_TURNS;
        if let Ok(stretch) = &stretch
            && self.turn < self.receipt.turns.len()
        {
            self.state = Some(self.rebuild(&stretch.state));
        }
        Some((turn, stretch))
    }
}

struct Replay<'r> {
    receipt: &'r Receipt,
    model: Model<'r>,
    backend: Backend,
    progress: &'r (dyn Fn() + Sync),
    /// The first turn known to differ, from 0: nothing after it needs a look.
    bad: AtomicUsize,
}

impl Replay<'_> {
    fn in_parallel(&self, stretches: Stretches<'_>) -> Result<(), Error> {
        let first = stretches
            .par_bridge()
            .filter_map(|(turn, stretch)| {
                let outcome = stretch.and_then(|stretch| {
                    self.check_start(&stretch)?;
                    let mut session =
                        Session::from_state(self.model, stretch.state)?.on(self.backend, 1);
                    self.stretch(&mut session, stretch.turn)
                });
                outcome.err().map(|error| (turn, error))
            })
            .min_by_key(|(turn, _)| *turn);
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn in_order(&self, mut session: Session<'_>, stretches: Stretches<'_>) -> Result<(), Error> {
        for (_, stretch) in stretches {
            let stretch = stretch?;
            self.check_start(&stretch)?;
            self.stretch(&mut session, stretch.turn)?;
        }
        Ok(())
    }

    /// The recorded state a stretch starts from must be the one that the turn before left.
    fn check_start(&self, stretch: &Stretch) -> Result<(), Error> {
        if stretch.turn == 0 || stretch.turn > self.bad.load(Ordering::Relaxed) {
            return Ok(());
        }
        let recorded = self.receipt.turns[stretch.turn - 1].state_sha256;
        let stored = Digest::of(stretch.state.bytes());
        self.same(stretch.turn - 1, "the checkpoint's state", recorded, stored)
    }

    fn same<T: PartialEq + ToString>(
        &self,
        turn: usize,
        field: &'static str,
        recorded: T,
        computed: T,
    ) -> Result<(), Error> {
        if recorded == computed {
            return Ok(());
        }
        self.bad.fetch_min(turn, Ordering::Relaxed);
        let (recorded, computed) = (recorded.to_string(), computed.to_string());
        Err(Error::TurnDiffers { turn: turn + 1, field, recorded, computed })
    }

    /// Replays the turns from `first` to the next checkpoint, and the end if they reach it.
    fn stretch(&self, session: &mut Session<'_>, first: usize) -> Result<(), Error> {
        let turns = &self.receipt.turns;
        let end = turns.len().min(first + CHECKPOINT_TURNS);
        for (turn, recorded) in turns.iter().enumerate().take(end).skip(first) {
            if turn > self.bad.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.turn(session, turn, recorded)?;
            (self.progress)();
        }
        if end == turns.len() { self.end(session) } else { Ok(()) }
    }

    fn turn(
        &self,
        session: &mut Session<'_>,
        turn: usize,
        recorded: &TurnRecord,
    ) -> Result<(), Error> {
        let plan = |record: &TurnRecord| {
            let TurnRecord { sections, estimated_cu, max_generated, .. } = record;
            format!(
                "sections {sections:?}, {estimated_cu} compute units, at most {max_generated} tokens"
            )
        };
        let computed = match session.turn() {
            Ok(record) => record,
            // The receipt has a turn where the model has none.
            Err(error) => return self.same(turn, "the turn", "done".into(), error.to_string()),
        };
        self.same(turn, "the plan", plan(recorded), plan(&computed))?;
        self.same(turn, "work", recorded.work, computed.work)?;
        self.same(turn, "generated", recorded.generated, computed.generated)?;
        self.same(turn, "the state", recorded.state_sha256, computed.state_sha256)
    }

    fn end(&self, session: &Session<'_>) -> Result<(), Error> {
        let receipt = self.receipt;
        let last = receipt.turns.len().saturating_sub(1);
        let text = String::from_utf8_lossy(session.text()).into_owned();
        self.same(last, "complete", receipt.complete, session.info().complete)?;
        let show = |tokens: &[u32]| format!("{tokens:?}");
        self.same(last, "the tokens", show(&receipt.tokens), show(&session.tokens()))?;
        self.same(last, "the text", format!("{:?}", receipt.text), format!("{text:?}"))
    }
}
