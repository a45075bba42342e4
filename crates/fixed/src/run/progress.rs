//! What a run keeps beside the state: where its turns end, where it is to stop, whom to tell.

use super::Token;
use crate::Error;
use crate::format::Config;
use crate::planner::{Cursor, Planner, Request, phase};
use crate::state::Header;
use std::ops::ControlFlow;

/// The turns of a run, planned from where it started: the planner stepped beside a run that does
/// not stop for it.
#[derive(Clone, Copy)]
pub(super) struct Turns {
    config: Config,
    request: Request,
    allowance: u32,
    /// Where the last planned turn ends.
    pub end: Cursor,
    /// Turns planned.
    pub count: u64,
    /// What they were charged.
    pub work: u64,
}

impl Turns {
    pub fn new(config: Config, request: Request, allowance: u32, start: Cursor) -> Turns {
        Turns { config, request, allowance, end: start, count: 0, work: 0 }
    }

    /// Plans one more turn, unless the run is complete.
    fn step(&mut self) -> Result<(), Error> {
        if self.end.phase != phase::DONE {
            let plan = Planner::new(self.config, self.request, self.allowance)
                .plan(self.end, |_, _| ())?;
            self.end = plan.end;
            self.count += 1;
            self.work += plan.estimated_cu as u64;
        }
        Ok(())
    }

    /// Plans `count` turns, or as many as there are.
    pub fn take(&mut self, count: u64) -> Result<(), Error> {
        while self.count < count && self.end.phase != phase::DONE {
            self.step()?;
        }
        Ok(())
    }

    /// Plans turns until one ends at or after the start of `position`.
    pub fn reach(&mut self, position: u32) -> Result<(), Error> {
        while self.end.phase != phase::DONE && self.end.position < position {
            self.step()?;
        }
        Ok(())
    }

    /// Plans turns up to the one that contains the end of the run, which stands at `cursor`.
    pub fn close(&mut self, cursor: &Cursor) -> Result<(), Error> {
        if cursor.phase == phase::DONE {
            // The last token was sampled at this position; a plan goes on where it stopped.
            return self.reach(cursor.position + 1);
        }
        while self.end != *cursor {
            assert_ne!(self.end.phase, phase::DONE, "a run stops only where a turn ends");
            self.step()?;
        }
        Ok(())
    }
}

/// A run's progress.
pub(super) struct Progress<'r> {
    pub turns: Turns,
    /// Where to stop, if before the last token; always the end of a turn.
    pub target: Option<Cursor>,
    pub on_token: &'r mut dyn FnMut(Token<'_>) -> ControlFlow<()>,
    /// Bytes of the text told so far.
    pub told: usize,
}

impl Progress<'_> {
    /// Tells of a token just generated; if it is to be the last for now, aims at the present turn's
    /// end.
    pub fn tell(&mut self, id: u32, header: &Header, text: &[u8]) -> Result<(), Error> {
        let text = &text[self.told..header.text_len as usize];
        self.told += text.len();
        let go_on = (self.on_token)(Token { id, text, generated: header.cursor.generated });
        if go_on.is_break() && header.cursor.phase != phase::DONE {
            self.turns.reach(header.cursor.position)?;
            self.target = Some(self.turns.end);
        }
        Ok(())
    }
}
