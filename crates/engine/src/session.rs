//! One run of the exact core: a model, a state and the turns between them.
//! Not files ([`saved`](crate::saved)), not records ([`receipt`](mod@crate::receipt)).

use std::ops::ControlFlow;

use fixed::StateInfo;
use fixed::arith::{Backend, Scratch};
use fixed::format::Config;
use fixed::planner;
use fixed::run::{self, Options, Until};

use crate::artifact::Model;
use crate::receipt::{Recorder, TurnRecord};
use crate::{Digest, Error, Params, Temperature, params};

/// Bytes of a state before its prompt, and where in them words lie that [`StateInfo`] has not.
pub(crate) const STATE_HEADER: usize = 128;
const PROMPT_LEN: usize = 28;
pub(crate) const MAX_TOKENS: usize = 36;
pub(crate) const TEMPERATURE: usize = 40;
pub(crate) const SEED: usize = 72;

/// The bytes of a state, aligned to eight as the core demands.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    words: Vec<u64>,
    len: usize,
}

impl State {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`].
    pub fn zeroed(len: usize) -> Result<Self, Error> {
        let mut words = Vec::new();
        words
            .try_reserve_exact(len.div_ceil(8))
            .map_err(|_| Error::DoesNotFit { what: "the state of the run", bytes: len as u64 })?;
        words.resize(len.div_ceil(8), 0);
        Ok(Self { words, len })
    }

    /// A copy of `bytes`, whatever they are.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`].
    pub fn copy_of(bytes: &[u8]) -> Result<Self, Error> {
        let mut state = Self::zeroed(bytes.len())?;
        state.bytes_mut().copy_from_slice(bytes);
        Ok(state)
    }

    /// A copy of `bytes` if they are a state of `config`; `name` is for the error.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the check that failed.
    pub fn checked(config: Config, bytes: &[u8], name: &str) -> Result<Self, Error> {
        match fixed::check_state(config, bytes) {
            Ok(()) => Self::copy_of(bytes),
            Err(fault) => Err(Error::corrupt(name, format!("a damaged state: {}", fault.what))),
        }
    }

    /// The state.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    /// The state, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

/// Why a run stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model ended its text with one of the two stop tokens.
    EndOfText,
    /// The asked number of tokens is made.
    Length,
    /// Before its end: the run can go on.
    Paused,
}

/// A run in progress.
pub struct Session<'a> {
    model: Model<'a>,
    state: State,
    backend: Backend,
    threads: usize,
    scratch: Scratch,
}

impl<'a> Session<'a> {
    /// Starts a run.
    ///
    /// # Errors
    /// [`Error::Refused`] for parameters out of range, [`Error::DoesNotFit`].
    pub fn new(model: Model<'a>, params: &Params) -> Result<Self, Error> {
        let config = model.config();
        let prompt = params::prompt_from_bytes(params.prompt.clone().into_bytes())?;
        if params.max_tokens == 0 || params.max_tokens as usize > config.seq() {
            return Err(Error::Refused(format!(
                "{} tokens asked for: {} makes 1 to {}, its context",
                params.max_tokens,
                model.name(),
                config.seq()
            )));
        }
        let core = |source| Error::Core { doing: "starting the run", source };
        let size = fixed::state_size(config, prompt.len(), params.max_tokens).map_err(core)?;
        let mut state = State::zeroed(size)?;
        let (temperature, seed) = (params.temperature.q16(), params.seed);
        let bytes = state.bytes_mut();
        fixed::init_state(config, bytes, prompt.as_bytes(), params.max_tokens, temperature, seed)
            .map_err(core)?;
        Ok(Self::with(model, state))
    }

    fn with(model: Model<'a>, state: State) -> Self {
        Self { model, state, backend: Backend::detect(), threads: 1, scratch: Scratch::default() }
    }

    /// The same run on another arithmetic than the fastest, or on more threads than one, with the
    /// same outcome to the bit. Single turns always take one thread.
    pub fn on(self, backend: Backend, threads: usize) -> Self {
        Self { backend, threads, ..self }
    }

    /// Continues a run from a state.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a state that is not one of this model's configuration.
    pub fn from_state(model: Model<'a>, state: State) -> Result<Self, Error> {
        fixed::check_state(model.config(), state.bytes())
            .map_err(|fault| Error::corrupt("the state", fault.what))?;
        Ok(Self::with(model, state))
    }

    /// The model.
    pub fn model(&self) -> &Model<'a> {
        &self.model
    }

    /// The state's bytes.
    pub fn state(&self) -> &[u8] {
        self.state.bytes()
    }

    /// Gives the state away.
    pub fn into_state(self) -> State {
        self.state
    }

    /// Where the run stands.
    pub fn info(&self) -> StateInfo {
        StateInfo::read(self.state()).expect("a session's state is always valid")
    }

    /// The most tokens the run makes.
    pub fn max_tokens(&self) -> u32 {
        fixed::read_u32(self.state(), MAX_TOKENS)
    }

    /// The run's temperature.
    pub fn temperature(&self) -> Temperature {
        Temperature::from_q16(fixed::read_u32(self.state(), TEMPERATURE))
            .expect("checked with the state")
    }

    /// The threads [`Session::run`] uses.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The arithmetic in use.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The text made so far. A character may still be incomplete at its end.
    pub fn text(&self) -> &[u8] {
        fixed::output_text(self.model.config(), self.state())
    }

    /// The tokens made so far.
    pub fn tokens(&self) -> Vec<u32> {
        let bytes = fixed::output_tokens(self.model.config(), self.state());
        bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// Plans and runs one turn, and says what it did, without the digest of the state.
    fn advance(&mut self) -> Result<TurnRecord, fixed::Error> {
        let plan = planner::plan_turn(self.model.config(), self.state())?;
        let result = fixed::turn_with(
            self.backend,
            &mut self.scratch,
            &self.model.metadata(),
            self.state.bytes_mut(),
            &self.model.artifact().sections(&plan)[..plan.section_count],
            planner::ALLOWANCE,
        )?;
        Ok(TurnRecord {
            sections: plan.sections().to_vec(),
            estimated_cu: plan.estimated_cu,
            max_generated: plan.max_generated,
            work: result.work,
            generated: result.generated,
            state_sha256: Digest([0; 32]),
        })
    }

    /// Plans and runs one turn.
    ///
    /// # Errors
    /// [`Error::Refused`] when the prompt turns out not to fit the model, [`Error::Unsound`] when
    /// the model's numbers overflow, [`Error::Core`] otherwise. The state is then unusable.
    pub fn turn(&mut self) -> Result<TurnRecord, Error> {
        let mut record = self.advance().map_err(|source| self.explain(source))?;
        record.state_sha256 = Digest::of(self.state());
        Ok(record)
    }

    /// Says in the words of a request what the core has a number for.
    fn explain(&self, source: fixed::Error) -> Error {
        match source {
            fixed::Error::ContextExceeded => Error::Refused(self.too_long()),
            fixed::Error::InvalidPrompt => Error::Refused(
                "the prompt has a character this model's vocabulary cannot spell".into(),
            ),
            fixed::Error::Arithmetic => Error::Unsound,
            source => Error::Core { doing: "running a turn", source },
        }
    }

    fn too_long(&self) -> String {
        match room(self.model, &prompt_of(self.state())) {
            Ok((tokens, room)) => format!(
                "the context of {} has room for the prompt's {tokens} tokens and {room} more, \
                 not {}: ask for fewer with -n",
                self.model.config().seq(),
                self.max_tokens()
            ),
            Err(error) => error.to_string(),
        }
    }

    /// Runs until the end, or for `turns` turns, or until `on_text` breaks off, which gets the
    /// bytes of text as they are made; then the run stops where the present turn ends.
    ///
    /// # Errors
    /// Those of [`Session::turn`].
    pub fn run(
        &mut self,
        turns: Option<u64>,
        on_text: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<Stop, Error> {
        if self.info().complete || turns == Some(0) {
            return Ok(self.stop());
        }
        let options =
            Options { backend: self.backend, threads: self.threads, allowance: planner::ALLOWANCE };
        run::Model::new(self.model.artifact())
            .run(
                self.state.bytes_mut(),
                options,
                turns.map_or(Until::Complete, Until::Turns),
                &mut |token| on_text(token.text),
            )
            .map_err(|source| self.explain(source))?;
        Ok(self.stop())
    }

    /// [`Session::run`] turn by turn, with a record of each.
    ///
    /// # Errors
    /// Those of [`Session::turn`].
    pub fn run_recorded(
        &mut self,
        turns: Option<u64>,
        recorder: &mut Recorder,
        on_text: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<Stop, Error> {
        let mut left = turns.unwrap_or(u64::MAX);
        while left > 0 && !self.info().complete {
            left -= 1;
            let seen = self.text().len();
            let record = self.turn()?;
            recorder.record(self, record);
            if on_text(&self.text()[seen..]).is_break() {
                break;
            }
        }
        Ok(self.stop())
    }

    fn stop(&self) -> Stop {
        match self.tokens().last() {
            _ if !self.info().complete => Stop::Paused,
            Some(1 | 2) => Stop::EndOfText,
            _ => Stop::Length,
        }
    }
}

/// The prompt in a valid state.
pub(crate) fn prompt_of(state: &[u8]) -> String {
    let len = fixed::read_u32(state, PROMPT_LEN) as usize;
    String::from_utf8_lossy(&state[STATE_HEADER..][..len]).into_owned()
}

/// How many tokens `prompt` becomes, and how many the context then has room to generate.
///
/// # Errors
/// Those of [`Session::new`] and [`Session::turn`].
pub fn room(model: Model<'_>, prompt: &str) -> Result<(u32, u32), Error> {
    let prompt = prompt.to_owned();
    let params = Params { prompt, max_tokens: 1, temperature: Default::default(), seed: 0 };
    let mut session = Session::new(model, &params)?;
    while session.info().phase < planner::phase::EMBEDDING {
        session.advance().map_err(|source| match source {
            fixed::Error::ContextExceeded => Error::Refused(format!(
                "the prompt alone has more tokens than the context of {}: shorten it",
                model.config().seq()
            )),
            source => session.explain(source),
        })?;
    }
    let tokens = session.info().prompt_tokens;
    Ok((tokens, model.config().seq() as u32 + 1 - tokens))
}
