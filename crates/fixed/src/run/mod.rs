//! Whole runs: the fastest way through many turns that leaves the same bytes as turn by turn.
//!
//! A turn is a unit of price, not of work: a native host has all sections at hand. So a run goes
//! position by position, on several threads if asked to, and the planner is stepped beside it only
//! to count turns and to know where they end, because a run may be paused where a turn ends.

mod attention;
mod position;
mod progress;
mod team;

use crate::Error;
use crate::arith::{Backend, Input, Rows, Scratch};
use crate::format::{Artifact, Matrices, Matrix};
use crate::inference::{self, WeightSection};
use crate::planner::{self, ALLOWANCE, Chunk, Cursor, Planner, phase};
use crate::state::{self, Buffers};
use position::Pass;
use progress::{Progress, Turns};
use std::ops::ControlFlow;
use std::vec::Vec;
use team::{Dismiss, Task, Team, Work};

/// Most threads a run can use; more heads or rows than this are rare.
pub const MAX_THREADS: usize = 64;

/// A model laid out for whole runs.
pub struct Model<'a> {
    artifact: Artifact<'a>,
    sections: Vec<WeightSection<'a>>,
    embedding: Rows<'a>,
    classifier: Rows<'a>,
    layers: Vec<Layer<'a>>,
}

struct Layer<'a> {
    query: Rows<'a>,
    key: Rows<'a>,
    value: Rows<'a>,
    attention_output: Rows<'a>,
    gate: Rows<'a>,
    up: Rows<'a>,
    down: Rows<'a>,
}

/// How a run is done; nothing here changes its bytes, but for the allowance, which is where turns
/// end and so what the turn counter says.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The arithmetic.
    pub backend: Backend,
    /// Threads, the caller included: 1 to [`MAX_THREADS`], others are brought into that range.
    pub threads: usize,
    /// Compute units a turn.
    pub allowance: u32,
}

impl Default for Options {
    /// The fastest backend, one thread, the usual allowance.
    fn default() -> Self {
        Options { backend: Backend::detect(), threads: 1, allowance: ALLOWANCE }
    }
}

/// How far to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until the last token.
    Complete,
    /// So many turns further, or until the last token if that comes first.
    Turns(u64),
}

/// A token as it is generated.
#[derive(Clone, Copy, Debug)]
pub struct Token<'t> {
    /// Its id; 1 and 2 end the run.
    pub id: u32,
    /// The bytes it appends to the text; not always whole characters.
    pub text: &'t [u8],
    /// Tokens generated, this one included.
    pub generated: u32,
}

/// What a run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether the last token was generated.
    pub complete: bool,
    /// Tokens generated, also by runs before this one.
    pub generated: u32,
    /// Turns this run did.
    pub turns: u64,
    /// Compute units charged for them.
    pub work: u64,
}

impl<'a> Model<'a> {
    /// Finds the matrices of an artifact.
    pub fn new(artifact: Artifact<'a>) -> Model<'a> {
        let config = artifact.metadata.config;
        let sections: Vec<_> = (1..artifact.metadata.section_count() as u32)
            .map(|index| artifact.section(index))
            .collect();
        let rows = |matrix: &Matrix| {
            let section = sections[matrix.section as usize - 1].bytes;
            let block = &section[matrix.offset as usize..];
            Rows::of_block(block, matrix.rows as usize, matrix.columns as usize)
        };
        let all: Vec<Rows<'a>> = Matrices::new(config).map(|m| rows(&m)).collect();
        let (tables, layers) = all.split_at(1 + config.own_classifier() as usize);
        let layers = layers.as_chunks().0.iter().map(
            |[query, key, value, attention_output, gate, up, down]| Layer {
                query: *query,
                key: *key,
                value: *value,
                attention_output: *attention_output,
                gate: *gate,
                up: *up,
                down: *down,
            },
        );
        let layers = layers.collect();
        Model {
            artifact,
            sections,
            embedding: tables[0],
            classifier: tables[tables.len() - 1],
            layers,
        }
    }

    /// The artifact.
    pub fn artifact(&self) -> Artifact<'a> {
        self.artifact
    }

    /// Runs a state on, telling `on_token` of every token. When that breaks, the run ends where the
    /// present turn ends.
    ///
    /// # Errors
    /// Those of [`crate::turn`]. After one from an arithmetic overflow or the tokenizer the state
    /// is partly written and must be discarded.
    pub fn run(
        &self,
        state: &mut [u8],
        options: Options,
        until: Until,
        on_token: &mut dyn FnMut(Token<'_>) -> ControlFlow<()>,
    ) -> Result<Report, Error> {
        planner::check_allowance(options.allowance)?;
        state::check_aligned(state)?;
        let config = self.artifact.metadata.config;
        let (layout, header) = state::check(&config, state)?;
        if header.cursor.phase == phase::DONE {
            return Err(Error::InvalidState);
        }
        let mut tokenized = Report { complete: false, generated: 0, turns: 0, work: 0 };
        self.tokenize(state, options, until, &mut tokenized)?;

        let (_, mut header) = state::check(&config, state)?;
        if header.cursor.phase < phase::EMBEDDING {
            return Ok(tokenized);
        }
        let mut turns = Turns::new(config, header.request(), options.allowance, header.cursor);
        let target = match until {
            Until::Complete => None,
            Until::Turns(all) => {
                let mut ahead = turns;
                ahead.take(all - tokenized.turns)?;
                Some(ahead.end)
            }
        };
        let scratch = &mut Scratch::default();
        let mut run = Run {
            model: self,
            threads: options.threads.clamp(1, MAX_THREADS),
            progress: Progress { turns, target, on_token, told: header.text_len as usize },
            turn: inference::Run {
                backend: options.backend,
                scratch,
                metadata: &self.artifact.metadata,
                positions: layout.positions,
                header,
                buffers: Buffers::split(&config, &layout, state)?,
            },
        };
        run.crawl()?;
        run.stride()?;
        run.crawl()?;
        (turns, header) = (run.progress.turns, run.turn.header);
        turns.close(&header.cursor)?;
        header.turns = header.turns.wrapping_add(turns.count);
        header.write(state);
        Ok(Report {
            complete: header.cursor.phase == phase::DONE,
            generated: header.cursor.generated,
            turns: tokenized.turns + turns.count,
            work: tokenized.work + turns.work,
        })
    }

    /// Outputs of the largest job, and room for what rounding adds to a share of it.
    fn widest_job(&self) -> usize {
        let c = self.artifact.metadata.config;
        let widest = c.vocab().max(2 * c.hidden()).max(c.dim() + 2 * c.kv_dim());
        widest + MAX_THREADS * (16 + c.head_size())
    }

    /// From `OPEN` to `MERGES`, turn by turn: their cost depends on what the tokenizer finds.
    fn tokenize(
        &self,
        state: &mut [u8],
        options: Options,
        until: Until,
        report: &mut Report,
    ) -> Result<(), Error> {
        let m = &self.artifact.metadata;
        while state::check(&m.config, state)?.1.cursor.phase < phase::EMBEDDING
            && until != Until::Turns(report.turns)
        {
            let (backend, allowance) = (options.backend, options.allowance);
            let scratch = &mut Scratch::default();
            let turn = inference::turn_with(backend, scratch, m, state, &[], allowance)?;
            report.turns += 1;
            report.work += turn.work as u64;
        }
        Ok(())
    }
}

/// A run at work.
struct Run<'r, 'a> {
    model: &'r Model<'a>,
    threads: usize,
    progress: Progress<'r>,
    /// The state, and the way to go on in it chunk by chunk.
    turn: inference::Run<'r, 'a>,
}

impl<'r, 'a: 'r> Run<'r, 'a> {
    /// Goes chunk by chunk as long as less than a whole position lies ahead.
    fn crawl(&mut self) -> Result<(), Error> {
        let config = self.model.artifact.metadata.config;
        // Without a price limit; a new planner forgets the sections that the last one counted.
        let unlimited =
            |turn: &inference::Run<'_, '_>| Planner::new(config, turn.header.request(), u32::MAX);
        let mut planner = unlimited(&self.turn);
        loop {
            let cursor = self.turn.header.cursor;
            let ended = cursor.phase == phase::DONE || Some(cursor) == self.progress.target;
            if ended || whole_position(&cursor, &self.progress.target) {
                return Ok(());
            }
            let Some(mut chunk) = planner.next(&cursor) else {
                planner = unlimited(&self.turn);
                continue;
            };
            if let Some(target) = &self.progress.target {
                clip(&mut chunk, &cursor, target);
            }
            if let Some(id) = self.turn.step(&planner, &chunk, &self.model.sections)? {
                let (header, text) = (self.turn.header, &*self.turn.buffers.text);
                self.progress.tell(id, &header, text)?;
            }
        }
    }

    /// Does whole positions, on all threads, as long as one lies ahead.
    fn stride(&mut self) -> Result<(), Error> {
        let turn = &mut self.turn;
        if !whole_position(&turn.header.cursor, &self.progress.target) {
            return Ok(());
        }
        let mut buffers = core::mem::take(&mut turn.buffers);
        let work = Work {
            input: Input::default(),
            task: Task::Rows([None; 3]),
            q: std::vec![Default::default(); buffers.q.len()],
            keys: core::mem::take(&mut buffers.keys),
            values: core::mem::take(&mut buffers.values),
        };
        let outputs = self.model.widest_job();
        let team = Team::new(work, self.threads, turn.backend, outputs, turn.positions);
        let (model, header, progress) = (self.model, turn.header, &mut self.progress);
        let (header, mut buffers, outcome) = std::thread::scope(|scope| {
            let _dismissed = Dismiss(&team);
            team.recruit(scope);
            let mut pass = Pass::new(model, turn.backend, turn.positions, header, buffers, &team);
            let mut outcome = Ok(());
            while outcome.is_ok() && whole_position(&pass.header.cursor, &progress.target) {
                outcome = pass.position().and_then(|token| match token {
                    Some(id) => progress.tell(id, &pass.header, pass.buffers.text),
                    None => Ok(()),
                });
            }
            (pass.header, pass.buffers, outcome)
        });
        let work = team.into_work();
        (buffers.keys, buffers.values) = (work.keys, work.values);
        (self.turn.header, self.turn.buffers) = (header, buffers);
        outcome
    }
}

/// Whether the cursor stands at the start of a position that ends at or before the target.
fn whole_position(cursor: &Cursor, target: &Option<Cursor>) -> bool {
    cursor.phase == phase::EMBEDDING
        && target.is_none_or(|t| t.phase == phase::DONE || t.position > cursor.position)
}

/// Cuts a chunk that would go beyond the target.
fn clip(chunk: &mut Chunk, cursor: &Cursor, target: &Cursor) {
    let place = |c: &Cursor| (c.position, c.phase, c.layer, c.pass, c.stage);
    if place(cursor) != place(target) {
        return;
    }
    let units = match cursor.phase {
        phase::ATTENTION if cursor.row == target.row => target.index - cursor.index,
        phase::ATTENTION => return,
        _ => target.row - cursor.row,
    };
    if units < chunk.units {
        (chunk.units, chunk.done) = (units, false);
    }
}
