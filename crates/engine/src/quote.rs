//! What a run will take, before it is run: its turns and their compute units.

use fixed::planner::{self, Cursor, phase};

use crate::artifact::Model;
use crate::{Error, Params, Session};

/// The plan of a whole run. A run that ends early with a stop token takes fewer turns.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Quote {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Bytes of the state.
    pub state_bytes: u64,
    /// The turns in order.
    pub turns: Vec<QuotedTurn>,
}

/// One turn of a [`Quote`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct QuotedTurn {
    /// The matrix sections it reads.
    pub sections: Vec<u32>,
    /// The compute units it is charged.
    pub compute_units: u32,
    /// The most tokens it completes.
    pub max_generated: u32,
    /// Phase the turn starts in.
    pub phase: u32,
    /// Layer it starts in.
    pub layer: u32,
    /// Position it starts at.
    pub position: u32,
}

impl Quote {
    /// Compute units of all turns.
    pub fn total(&self) -> u64 {
        self.turns.iter().map(|turn| u64::from(turn.compute_units)).sum()
    }
}

/// Tokenizes the prompt for real (what merging costs depends on the text), then plans turn after
/// turn without computing any.
///
/// # Errors
/// Those of a run's start.
pub fn quote(model: Model<'_>, params: &Params) -> Result<Quote, Error> {
    let mut session = Session::new(model, params)?;
    let mut turns = Vec::new();
    while session.info().phase < phase::EMBEDDING {
        let info = session.info();
        let record = session.turn()?;
        turns.push(QuotedTurn {
            sections: Vec::new(),
            compute_units: record.work,
            max_generated: 0,
            phase: info.phase,
            layer: info.layer,
            position: info.position,
        });
    }
    let prompt_tokens = session.info().prompt_tokens;
    let state_bytes = session.state().len() as u64;
    let mut state = session.into_state();
    let mut cursor = Cursor { phase: phase::EMBEDDING, ..Cursor::default() };
    while cursor.phase != phase::DONE {
        let plan = planner::plan_turn(model.config(), state.bytes())
            .map_err(|source| Error::Core { doing: "planning a turn", source })?;
        turns.push(QuotedTurn {
            sections: plan.sections().to_vec(),
            compute_units: plan.estimated_cu,
            max_generated: plan.max_generated,
            phase: cursor.phase,
            layer: cursor.layer,
            position: cursor.position,
        });
        cursor = plan.end;
        move_to(state.bytes_mut(), &cursor);
    }
    Ok(Quote { prompt_tokens, state_bytes, turns })
}

/// Puts a state's cursor elsewhere, by the published offsets of its header. Good for planning
/// only: the numbers that belong there were never computed.
fn move_to(state: &mut [u8], cursor: &Cursor) {
    for (offset, value) in [
        (8, cursor.phase),
        (12, cursor.layer),
        (16, cursor.row),
        (20, cursor.position),
        (44, cursor.generated),
        (100, cursor.pass),
        (120, cursor.stage),
        (124, cursor.index),
    ] {
        state[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
}
