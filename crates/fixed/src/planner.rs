//! How far a turn goes: phases, the cursor, the price of every chunk of work, and [`plan_turn`].
//!
//! Prices are compute units of the Solana VM and part of the format: every target cuts a run at
//! the same places. The planner reads the configuration and the state's cursor, never weights.

use crate::Error;
use crate::format::{Config, Locator, Matrix};
use crate::state::{self, Header};

/// The phases of a run.
pub mod phase {
    /// Writes the opening token and the token for a space.
    pub const OPEN: u32 = 0;
    /// Looks up the prompt's characters.
    pub const CHARACTERS: u32 = 1;
    /// Merges pairs of tokens.
    pub const MERGES: u32 = 2;
    /// Reads the current token's row of the embedding.
    pub const EMBEDDING: u32 = 3;
    /// Normalises before attention.
    pub const ATTENTION_NORM: u32 = 4;
    /// Query matrix.
    pub const QUERY: u32 = 5;
    /// Key matrix, into the cache.
    pub const KEY: u32 = 6;
    /// Value matrix, into the cache.
    pub const VALUE: u32 = 7;
    /// Rotates queries and this position's keys.
    pub const ROTARY: u32 = 8;
    /// Scores, exponentials, probabilities and weighted values of each head.
    pub const ATTENTION: u32 = 9;
    /// Attention output matrix.
    pub const ATTENTION_OUTPUT: u32 = 10;
    /// Adds the attention output and normalises before the feed-forward.
    pub const FEED_FORWARD_NORM: u32 = 11;
    /// Gate matrix.
    pub const GATE: u32 = 12;
    /// Up matrix.
    pub const UP: u32 = 13;
    /// SiLU of the gate, times up.
    pub const SILU: u32 = 14;
    /// Down matrix.
    pub const DOWN: u32 = 15;
    /// Adds the feed-forward output; on to the next layer, position or the classifier.
    pub const RESIDUAL: u32 = 16;
    /// Final normalisation.
    pub const FINAL_NORM: u32 = 17;
    /// Classifier matrix.
    pub const CLASSIFIER: u32 = 18;
    /// Chooses the token and appends it.
    pub const SAMPLING: u32 = 19;
    /// The run is complete.
    pub const DONE: u32 = 20;
}

/// The most compute units a turn may be given, and what [`plan_turn`] gives it.
pub const ALLOWANCE: u32 = 1_350_000;
/// The fewest compute units a turn may be given.
pub const MIN_ALLOWANCE: u32 = 22_096;
/// Charged once a turn: accounts, payment and the event.
pub const TURN_COST: u32 = 18_000;
/// Charged for every chunk: reading the cursor, dispatching, writing it back.
pub const CHUNK_COST: u32 = 160;
/// Charged when a sampling pass ends.
pub const FINISH_PASS_COST: u32 = 4_000;
/// Charged for a step between tokenizer phases.
pub const TOKENIZER_STEP_COST: u32 = 1_000;

/// The price of looking up `bytes` bytes in a vocabulary of `vocab` entries.
#[inline]
pub fn lookup_cost(vocab: usize, bytes: usize) -> u32 {
    500 + (vocab.ilog2() + 1) * (100 + 20 * bytes.min(128) as u32)
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// One of [`phase`].
    pub phase: u32,
    /// Layer in phases 4 to 16.
    pub layer: u32,
    /// Next row of a matrix, head in attention, next vocabulary entry in sampling.
    pub row: u32,
    /// Position in the sequence.
    pub position: u32,
    /// Tokens generated so far.
    pub generated: u32,
    /// Sampling pass: 0 maximum, 1 sum, 2 draw.
    pub pass: u32,
    /// Attention stage, 0 to 3.
    pub stage: u32,
    /// Attention: next position in stages 0 to 2, next element in stage 3.
    pub index: u32,
}

/// What the next turn will do, known before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnPlan {
    /// The matrix sections it reads, in the order it reaches them.
    pub sections: [u32; 2],
    /// How many entries of `sections` are used; zero for a turn that tokenizes.
    pub section_count: usize,
    /// The compute units charged.
    pub estimated_cu: u32,
    /// The most tokens it can complete.
    pub max_generated: u32,
    /// Where the cursor stands afterwards (for a turn that tokenizes: where it stands now).
    pub end: Cursor,
}

impl TurnPlan {
    /// The used entries of `sections`.
    pub fn sections(&self) -> &[u32] {
        &self.sections[..self.section_count]
    }
}

/// What a run's plans depend on besides the cursor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    /// Temperature zero: sampling takes one pass.
    pub greedy: bool,
}

/// A run of rows, positions, elements or entries that one turn does in one go, or a whole vector
/// operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Units of work.
    pub units: u32,
    /// Whether it finishes the matrix, stage, pass or operation.
    pub done: bool,
    /// The matrix it reads.
    pub matrix: Option<Matrix>,
}

/// Cuts a run into chunks: the one place that decides how far a turn goes. [`plan_turn`] walks it
/// to plan, [`crate::turn`] walks it again and does the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planner {
    config: Config,
    request: Request,
    locator: Locator,
    sections: [u32; 2],
    section_count: usize,
    left: u32,
}

/// Price of a chunk: `base + units * unit`, and `finish` more when it does all of `todo`.
struct Price {
    base: u32,
    unit: u32,
    todo: u32,
    finish: u32,
}

impl Planner {
    pub(crate) fn new(config: Config, request: Request, allowance: u32) -> Self {
        Planner {
            config,
            request,
            locator: Locator::new(config),
            sections: [0; 2],
            section_count: 0,
            left: allowance - TURN_COST,
        }
    }

    fn price(&self, cursor: &Cursor, matrix: Option<&Matrix>) -> Price {
        let c = &self.config;
        let (dim, hidden) = (c.dim() as u32, c.hidden() as u32);
        let vector = |unit| Price { base: CHUNK_COST, unit, todo: 1, finish: 0 };
        match cursor.phase {
            phase::EMBEDDING => vector(16 * dim + 512),
            phase::ATTENTION_NORM | phase::FINAL_NORM => vector(48 * dim + 1500),
            phase::ROTARY => vector(48 * dim + 512),
            phase::FEED_FORWARD_NORM => vector(56 * dim + 1500),
            phase::SILU => vector(24 * hidden + 512),
            phase::RESIDUAL => vector(8 * dim + 128),
            phase::ATTENTION => {
                let (size, positions) = (c.head_size() as u32, cursor.position + 1);
                let (base, unit) = match cursor.stage {
                    0 => (100, 53 * (size / 8) + 11 * (size % 8) + 25),
                    1 => (80, 23),
                    2 => (60, 8),
                    _ => (60, 11 * positions + 32),
                };
                let all = if cursor.stage < 3 { positions } else { size };
                Price { base: base + CHUNK_COST, unit, todo: all - cursor.index, finish: 0 }
            }
            phase::SAMPLING => Price {
                base: 350 + CHUNK_COST,
                unit: [11, 36, 42][cursor.pass as usize],
                todo: c.vocab() as u32 - cursor.row,
                finish: FINISH_PASS_COST,
            },
            _ => {
                let (rows, n) = matrix.map_or((0, 0), |m| (m.rows, m.columns));
                let store = if matches!(cursor.phase, phase::KEY | phase::VALUE) { 42 } else { 34 };
                Price {
                    base: 6 * n + 350 + CHUNK_COST,
                    unit: 37 * (n / 8) + 8 * (n % 8) + store,
                    todo: rows - cursor.row,
                    finish: 0,
                }
            }
        }
    }

    /// The next chunk that fits the turn, charged; `None` when the turn ends at this cursor.
    pub(crate) fn next(&mut self, cursor: &Cursor) -> Option<Chunk> {
        if cursor.phase == phase::DONE {
            return None;
        }
        let matrix = self.locator.find(cursor.phase, cursor.layer);
        let known = matrix.is_none_or(|m| self.sections[..self.section_count].contains(&m.section));
        if !known && self.section_count == 2 {
            return None;
        }
        let price = self.price(cursor, matrix.as_ref());
        let mut units = price.todo.min(self.left.checked_sub(price.base)? / price.unit);
        let mut cost = price.base + units * price.unit;
        if units == price.todo {
            if cost + price.finish <= self.left {
                cost += price.finish;
            } else {
                // The finishing charge does not fit: leave the last unit to the next turn.
                units -= 1;
                cost -= price.unit;
            }
        }
        if units == 0 {
            return None;
        }
        if let (Some(m), false) = (matrix, known) {
            self.sections[self.section_count] = m.section;
            self.section_count += 1;
        }
        self.left -= cost;
        Some(Chunk { units, done: units == price.todo, matrix })
    }

    /// Moves a cursor past a chunk, assuming that no stop token comes. Returns whether the chunk
    /// completed a token.
    pub(crate) fn advance(&self, cursor: &mut Cursor, chunk: &Chunk) -> bool {
        match cursor.phase {
            phase::ATTENTION => {
                cursor.index += chunk.units;
                if chunk.done {
                    cursor.index = 0;
                    cursor.stage += 1;
                }
                if cursor.stage == 4 {
                    cursor.stage = 0;
                    cursor.row += 1;
                }
                if cursor.row as usize == self.config.heads() {
                    cursor.row = 0;
                    cursor.phase = phase::ATTENTION_OUTPUT;
                }
            }
            phase::RESIDUAL => {
                if cursor.layer as usize + 1 < self.config.layers() {
                    cursor.layer += 1;
                    cursor.phase = phase::ATTENTION_NORM;
                } else {
                    cursor.layer = 0;
                    cursor.phase = phase::FINAL_NORM;
                    if cursor.position + 1 < self.request.prompt_tokens {
                        cursor.position += 1;
                        cursor.phase = phase::EMBEDDING;
                    }
                }
            }
            phase::SAMPLING => {
                cursor.row += chunk.units;
                if chunk.done {
                    cursor.row = 0;
                    cursor.pass += 1;
                    if self.request.greedy || cursor.pass == 3 {
                        cursor.pass = 0;
                        cursor.generated += 1;
                        if cursor.generated == self.request.max_tokens {
                            cursor.phase = phase::DONE;
                        } else {
                            cursor.phase = phase::EMBEDDING;
                            cursor.position += 1;
                        }
                        return true;
                    }
                }
            }
            _ if chunk.matrix.is_some() && cursor.phase != phase::EMBEDDING => {
                cursor.row += chunk.units;
                if chunk.done {
                    cursor.row = 0;
                    cursor.phase += 1;
                }
            }
            _ => cursor.phase += 1,
        }
        false
    }

    /// Plans one turn of the forward pass from `start`, telling `charge` the phase and price of
    /// every chunk.
    pub(crate) fn plan(
        mut self,
        start: Cursor,
        mut charge: impl FnMut(u32, u32),
    ) -> Result<TurnPlan, Error> {
        let before = self.left;
        let mut plan = TurnPlan {
            sections: [0; 2],
            section_count: 0,
            estimated_cu: 0,
            max_generated: 0,
            end: start,
        };
        let mut left = before;
        while let Some(chunk) = self.next(&plan.end) {
            charge(plan.end.phase, left - self.left);
            left = self.left;
            plan.max_generated += self.advance(&mut plan.end, &chunk) as u32;
        }
        if self.left == before {
            // Every chunk fits a full turn, so this is an allowance too small for this model.
            return Err(Error::InvalidConfig);
        }
        plan.sections = self.sections;
        plan.section_count = self.section_count;
        plan.estimated_cu = TURN_COST + (before - self.left);
        Ok(plan)
    }
}

pub(crate) fn check_allowance(allowance: u32) -> Result<(), Error> {
    if (MIN_ALLOWANCE..=ALLOWANCE).contains(&allowance) {
        Ok(())
    } else {
        Err(Error::InvalidConfig)
    }
}

/// The plan of a state's next turn.
///
/// # Errors
/// [`Error::InvalidState`] for a state that is damaged, unaligned or complete.
pub fn plan_turn(config: Config, state: &[u8]) -> Result<TurnPlan, Error> {
    plan_turn_within(config, state, ALLOWANCE)
}

/// [`plan_turn`] with fewer compute units than the usual [`ALLOWANCE`].
///
/// # Errors
/// Also [`Error::InvalidConfig`] for an allowance out of range or too small for the next chunk.
pub fn plan_turn_within(config: Config, state: &[u8], allowance: u32) -> Result<TurnPlan, Error> {
    check_allowance(allowance)?;
    state::check_aligned(state)?;
    let (_, header) = state::check(&config, state)?;
    plan_checked(config, &header, allowance)
}

/// The plan of a state that was checked.
pub(crate) fn plan_checked(
    config: Config,
    header: &Header,
    allowance: u32,
) -> Result<TurnPlan, Error> {
    match header.cursor.phase {
        phase::DONE => Err(Error::InvalidState),
        // What merges cost depends on the vocabulary, which a plan does not need: name the limit.
        phase::OPEN..=phase::MERGES => Ok(TurnPlan {
            sections: [0; 2],
            section_count: 0,
            estimated_cu: allowance,
            max_generated: 0,
            end: header.cursor,
        }),
        _ => Planner::new(config, header.request(), allowance).plan(header.cursor, |_, _| {}),
    }
}

/// Plans a turn from a cursor of phases 3 to 19 without a state, telling `charge` the phase and
/// price of every chunk: what quotes and tables of costs are made of.
///
/// # Errors
/// [`Error::InvalidState`] for a cursor that no run with these numbers can have.
pub fn plan_from(
    config: Config,
    cursor: Cursor,
    prompt_tokens: u32,
    max_tokens: u32,
    temperature_q16: u32,
    charge: impl FnMut(u32, u32),
) -> Result<TurnPlan, Error> {
    let request = Request { prompt_tokens, max_tokens, greedy: temperature_q16 == 0 };
    state::check_forward(&config, &cursor, &request)?;
    Planner::new(config, request, ALLOWANCE).plan(cursor, charge)
}

/// Turns from the first embedding to the last token, if no stop token comes.
pub(crate) fn forward_turns(
    config: Config,
    request: Request,
    allowance: u32,
) -> Result<u64, Error> {
    let mut cursor = Cursor { phase: phase::EMBEDDING, ..Cursor::default() };
    let mut turns = 0;
    while cursor.phase != phase::DONE {
        cursor = Planner::new(config, request, allowance).plan(cursor, |_, _| {})?.end;
        turns += 1;
    }
    Ok(turns)
}
