//! Phase 19: chooses a token from the logits and appends it to the output.
//!
//! One pass finds the largest logit; at a temperature above zero a second sums the weights
//! `exp((logit - largest) / temperature)` and a third walks them until a drawn number falls inside
//! one. Each pass can stop at any entry. The generator is xorshift64*.

use crate::Error;
use crate::arith::plain;
use crate::format::Metadata;
use crate::planner::{Chunk, phase};
use crate::state::{Buffers, Header};
use crate::tokenizer::{self, CLOSING, OPENING};

/// Where the generator starts when the seed is zero, which it could never leave.
pub const ZERO_SEED: u64 = 0x9E37_79B9_7F4A_7C15;
/// `chosen` while the draw has not fallen inside an entry yet.
const NOT_CHOSEN: u32 = u32::MAX;

/// The generator's next state.
#[inline]
pub fn next_seed(seed: u64) -> u64 {
    let mut x = if seed == 0 { ZERO_SEED } else { seed };
    x ^= x >> 12;
    x ^= x << 25;
    x ^ (x >> 27)
}

/// The number drawn from a generator's state, below `total`.
#[inline]
pub fn draw_below(seed: u64, total: u64) -> u64 {
    // Only a forged table can make a total of zero; the draw then finds no entry.
    seed.wrapping_mul(0x2545_F491_4F6C_DD1D) % total.max(1)
}

/// Works through one chunk of a pass; the token when it ends the last one.
pub(crate) fn run(m: &Metadata<'_>, h: &mut Header, b: &Buffers<'_>, chunk: &Chunk) -> Option<u32> {
    let (row, units) = (h.cursor.row as usize, chunk.units as usize);
    let (table, logits, range) = (m.exponential(), &*b.logits, row..row + units);
    match h.cursor.pass {
        0 => {
            (h.largest, h.chosen) = plain::largest(logits, range, h.largest, h.chosen);
            (chunk.done && h.temperature == 0).then_some(h.chosen)
        }
        1 => {
            h.total = plain::weights(table, logits, h.largest, h.temperature, range, h.total);
            if chunk.done {
                h.seed = next_seed(h.seed);
                h.draw = draw_below(h.seed, h.total);
                h.chosen = NOT_CHOSEN;
            }
            None
        }
        _ => {
            if h.chosen == NOT_CHOSEN {
                let (draw, found) =
                    plain::draw(table, logits, h.largest, h.temperature, range, h.draw);
                h.draw = draw;
                h.chosen = found.unwrap_or(NOT_CHOSEN);
            }
            chunk.done.then_some(h.chosen)
        }
    }
}

/// Appends a token and its text to the output. The cursor has counted the token already and moved on
/// from `position`, which chose it; a stop token ends the run there.
///
/// # Errors
/// [`Error::InvalidState`] when a forged state or table chose no entry or leaves no room.
pub(crate) fn emit(
    m: &Metadata<'_>,
    h: &mut Header,
    b: &mut Buffers<'_>,
    token: u32,
    position: u32,
) -> Result<(), Error> {
    if token as usize >= m.config.vocab() {
        return Err(Error::InvalidState);
    }
    let slot = h.cursor.generated.checked_sub(1).ok_or(Error::InvalidState)?;
    let slot = b.output_tokens.get_mut(slot as usize).ok_or(Error::InvalidState)?;
    *slot = token.to_le_bytes();
    let text = tokenizer::decode(m, h.token, token)?;
    let room = b.text.get_mut(h.text_len as usize..).and_then(|t| t.get_mut(..text.len()));
    room.ok_or(Error::InvalidState)?.copy_from_slice(text);
    h.text_len += text.len() as u32;
    h.token = token;
    if token == OPENING || token == CLOSING {
        h.cursor.phase = phase::DONE;
        h.cursor.position = position;
    }
    Ok(())
}
