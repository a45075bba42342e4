//! The state of a run: one flat buffer, defined to the byte, that any target continues from.
//!
//! A header of 128 bytes tagged [`TAG`], then buffers, each at the next multiple of eight:
//! prompt, prompt tokens (u32, prompt bytes + 2), output tokens (u32), output text (128 bytes a
//! token), four i64 vectors of the model dimension, gate and up (i64, hidden), logits (i64,
//! vocabulary), attention scores (i64, cache positions), keys and values (i32,
//! `[layer, position, kv_dim]`). All little-endian, the buffer aligned to eight bytes.

use crate::arith::words::{I32, I64, i32s_mut, i64s_mut};
use crate::bytes::{align8, read_u32, read_u64, write_u32, write_u64};
use crate::format::{Config, TOKEN_BYTES, matrix_shape};
use crate::planner::{Cursor, Request, phase};
use crate::{Error, Fault};

/// The first eight bytes of every state.
pub const TAG: &[u8; 8] = b"CURTAST2";
/// Bytes of the state's header.
pub const HEADER: usize = 128;
/// Longest prompt in bytes.
pub const MAX_PROMPT: usize = 1024;
/// Highest temperature: 16 with 16 fractional bits.
pub const MAX_TEMPERATURE: u32 = 16 << 16;
/// Largest state in bytes.
pub const MAX_STATE: u64 = (1 << 31) - 1;

/// Byte offsets of a state's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Positions the run can reach.
    pub positions: usize,
    prompt_len: usize,
    max_tokens: usize,
    /// Start of each buffer after the prompt, in the order of the module's description.
    prompt_tokens: usize,
    output_tokens: usize,
    text: usize,
    vectors: usize,
    /// Bytes of the whole state.
    pub size: usize,
}

impl Layout {
    pub(crate) fn new(
        config: &Config,
        prompt_len: usize,
        max_tokens: u32,
    ) -> Result<Layout, Error> {
        let max = max_tokens as usize;
        if prompt_len > MAX_PROMPT || max == 0 || max > config.seq() {
            return Err(Error::InvalidPrompt);
        }
        let positions = (prompt_len + max + 1).min(config.seq());
        let prompt_tokens = HEADER as u64 + align8(prompt_len as u64);
        let output_tokens = align8(prompt_tokens + 4 * (prompt_len as u64 + 2));
        let text = align8(output_tokens + 4 * max as u64);
        let vectors = text + (TOKEN_BYTES * max) as u64;
        let words = 4 * config.dim() + 2 * config.hidden() + config.vocab() + positions;
        let cache = 4 * (config.layers() * positions) as u64 * config.kv_dim() as u64;
        let size = vectors + 8 * words as u64 + 2 * align8(cache);
        if size > MAX_STATE {
            return Err(Error::InvalidConfig);
        }
        // All offsets are below `size`, which fits 31 bits.
        Ok(Layout {
            positions,
            prompt_len,
            max_tokens: max,
            prompt_tokens: prompt_tokens as usize,
            output_tokens: output_tokens as usize,
            text: text as usize,
            vectors: vectors as usize,
            size: size as usize,
        })
    }
}

/// The header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub cursor: Cursor,
    pub token: u32,
    pub prompt_len: u32,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub temperature: u32,
    pub text_len: u32,
    pub next_byte: u32,
    pub pair: u32,
    pub best_pos: u32,
    pub best_key: u32,
    pub best_id: u32,
    pub seed: u64,
    pub turns: u64,
    pub largest: i64,
    pub chosen: u32,
    pub total: u64,
    pub draw: u64,
}

impl Header {
    /// Reads the fields of a buffer of at least [`HEADER`] bytes.
    fn read(state: &[u8]) -> Header {
        let word = |offset| read_u32(state, offset);
        Header {
            cursor: Cursor {
                phase: word(8),
                layer: word(12),
                row: word(16),
                position: word(20),
                generated: word(44),
                pass: word(100),
                stage: word(120),
                index: word(124),
            },
            token: word(24),
            prompt_len: word(28),
            prompt_tokens: word(32),
            max_tokens: word(36),
            temperature: word(40),
            text_len: word(48),
            next_byte: word(52),
            pair: word(56),
            best_pos: word(60),
            best_key: word(64),
            best_id: word(68),
            seed: read_u64(state, 72),
            turns: read_u64(state, 80),
            largest: read_u64(state, 88) as i64,
            chosen: word(96),
            total: read_u64(state, 104),
            draw: read_u64(state, 112),
        }
    }

    /// Writes the fields back, tag included.
    pub(crate) fn write(&self, state: &mut [u8]) {
        let c = &self.cursor;
        state[..8].copy_from_slice(TAG);
        let words = [
            (8, c.phase),
            (12, c.layer),
            (16, c.row),
            (20, c.position),
            (24, self.token),
            (28, self.prompt_len),
            (32, self.prompt_tokens),
            (36, self.max_tokens),
            (40, self.temperature),
            (44, c.generated),
            (48, self.text_len),
            (52, self.next_byte),
            (56, self.pair),
            (60, self.best_pos),
            (64, self.best_key),
            (68, self.best_id),
            (96, self.chosen),
            (100, c.pass),
            (120, c.stage),
            (124, c.index),
        ];
        for (offset, value) in words {
            write_u32(state, offset, value);
        }
        write_u64(state, 72, self.seed);
        write_u64(state, 80, self.turns);
        write_u64(state, 88, self.largest as u64);
        write_u64(state, 104, self.total);
        write_u64(state, 112, self.draw);
    }

    pub(crate) fn request(&self) -> Request {
        Request {
            prompt_tokens: self.prompt_tokens,
            max_tokens: self.max_tokens,
            greedy: self.temperature == 0,
        }
    }
}

/// A state's buffers, to work in.
#[derive(Default)]
pub(crate) struct Buffers<'a> {
    pub prompt: &'a [u8],
    pub prompt_tokens: &'a mut [[u8; 4]],
    pub output_tokens: &'a mut [[u8; 4]],
    pub text: &'a mut [u8],
    /// Activations `[dim]`.
    pub x: &'a mut [I64],
    /// Normalised vector, later the heads' outputs `[dim]`.
    pub n: &'a mut [I64],
    /// Queries `[dim]`.
    pub q: &'a mut [I64],
    /// Output of the attention output and the down matrix `[dim]`.
    pub o: &'a mut [I64],
    /// `[hidden]`.
    pub gate: &'a mut [I64],
    /// `[hidden]`.
    pub up: &'a mut [I64],
    /// `[vocab]`.
    pub logits: &'a mut [I64],
    /// `[positions]`.
    pub scores: &'a mut [I64],
    /// `[layer, position, kv_dim]`.
    pub keys: &'a mut [I32],
    /// `[layer, position, kv_dim]`.
    pub values: &'a mut [I32],
}

impl<'a> Buffers<'a> {
    /// Splits a checked, aligned state.
    pub(crate) fn split(
        config: &Config,
        layout: &Layout,
        state: &'a mut [u8],
    ) -> Result<Buffers<'a>, Error> {
        let (head, vectors) = state.split_at_mut(layout.vectors);
        let (head, text) = head.split_at_mut(layout.text);
        let (head, output) = head.split_at_mut(layout.output_tokens);
        let (head, tokens) = head.split_at_mut(layout.prompt_tokens);
        let (dim, hidden) = (config.dim(), config.hidden());
        let words = 4 * dim + 2 * hidden + config.vocab() + layout.positions;
        let (vectors, cache) = vectors.split_at_mut(8 * words);
        let (keys, values) = cache.split_at_mut(cache.len() / 2);
        let cached = config.layers() * layout.positions * config.kv_dim();

        let mut rest = i64s_mut(vectors).ok_or(Error::InvalidState)?;
        let mut take = |n: usize| {
            let (part, after) = core::mem::take(&mut rest).split_at_mut(n);
            rest = after;
            part
        };
        Ok(Buffers {
            prompt: &head[HEADER..][..layout.prompt_len],
            prompt_tokens: &mut tokens.as_chunks_mut().0[..layout.prompt_len + 2],
            output_tokens: &mut output.as_chunks_mut().0[..layout.max_tokens],
            text,
            x: take(dim),
            n: take(dim),
            q: take(dim),
            o: take(dim),
            gate: take(hidden),
            up: take(hidden),
            logits: take(config.vocab()),
            scores: take(layout.positions),
            keys: &mut i32s_mut(keys).ok_or(Error::InvalidState)?[..cached],
            values: &mut i32s_mut(values).ok_or(Error::InvalidState)?[..cached],
        })
    }
}

/// The size of the state for a prompt of `prompt_len` bytes and up to `max_tokens` tokens.
///
/// # Errors
/// [`Error::InvalidPrompt`] for a prompt above 1,024 bytes or `max_tokens` outside 1..=context,
/// [`Error::InvalidConfig`] for a state above 2^31 - 1 bytes.
pub fn state_size(config: Config, prompt_len: usize, max_tokens: u32) -> Result<usize, Error> {
    Ok(Layout::new(&config, prompt_len, max_tokens)?.size)
}

/// Writes a fresh state into a buffer of exactly [`state_size`] bytes, aligned to eight.
///
/// `temperature_q16` has 16 fractional bits; zero takes the most probable token every time.
///
/// # Errors
/// Those of [`state_size`]; [`Error::InvalidPrompt`] for a prompt that is not UTF-8 or holds a zero
/// byte, or a temperature above 16; [`Error::BufferTooSmall`] for another buffer length;
/// [`Error::InvalidState`] for an unaligned buffer. Nothing is written on an error.
pub fn init_state(
    config: Config,
    state: &mut [u8],
    prompt: &[u8],
    max_tokens: u32,
    temperature_q16: u32,
    seed: u64,
) -> Result<(), Error> {
    let layout = Layout::new(&config, prompt.len(), max_tokens)?;
    if temperature_q16 > MAX_TEMPERATURE
        || prompt.contains(&0)
        || core::str::from_utf8(prompt).is_err()
    {
        return Err(Error::InvalidPrompt);
    }
    if state.len() != layout.size {
        return Err(Error::BufferTooSmall);
    }
    check_aligned(state)?;
    state.fill(0);
    state[..8].copy_from_slice(TAG);
    write_u32(state, 28, prompt.len() as u32);
    write_u32(state, 36, max_tokens);
    write_u32(state, 40, temperature_q16);
    write_u64(state, 72, seed);
    state[HEADER..][..prompt.len()].copy_from_slice(prompt);
    Ok(())
}

pub(crate) fn check_aligned(state: &[u8]) -> Result<(), Error> {
    if (state.as_ptr() as usize).is_multiple_of(8) { Ok(()) } else { Err(Error::InvalidState) }
}

/// Checks a state against its configuration, whatever its alignment, and names the failed check.
///
/// # Errors
/// [`Error::InvalidState`] with the first check that failed.
pub fn check_state(config: Config, state: &[u8]) -> Result<(), Fault> {
    check(&config, state).map(|_| ())
}

/// Every condition execution relies on: a state that passes cannot make a turn index out of range.
pub(crate) fn check(config: &Config, state: &[u8]) -> Result<(Layout, Header), Fault> {
    if state.len() < HEADER || !state.starts_with(TAG) {
        return Err(Fault::state("the state does not open with CURTAST2 and a header"));
    }
    let h = Header::read(state);
    let layout = Layout::new(config, h.prompt_len as usize, h.max_tokens)
        .map_err(|_| Fault::state("the prompt's length or maximum tokens are out of range"))?;
    if state.len() != layout.size {
        return Err(Fault::state("the state's length does not fit its prompt and maximum tokens"));
    }
    check_fields(config, &layout, &h)?;
    check_cursor(config, &h.cursor, h.temperature == 0)?;
    check_prompt(config, &layout, &h, state)?;
    if h.cursor.phase >= phase::EMBEDDING {
        check_progress(config, &h.cursor, &h.request())?;
    }
    Ok((layout, h))
}

/// Fails with a name unless the condition holds.
fn ensure(holds: bool, what: &'static str) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::state(what)) }
}

/// Each field in its own range.
fn check_fields(config: &Config, layout: &Layout, h: &Header) -> Result<(), Fault> {
    let c = &h.cursor;
    ensure(c.phase <= phase::DONE, "the phase is above 20")?;
    ensure((c.layer as usize) < config.layers(), "the layer is out of range")?;
    ensure((c.position as usize) < layout.positions, "the position is beyond the cache")?;
    ensure((h.token as usize) < config.vocab(), "the current token is outside the vocabulary")?;
    ensure(h.prompt_tokens <= h.prompt_len + 2, "there are more prompt tokens than room")?;
    ensure(c.generated <= h.max_tokens, "more tokens are generated than the maximum")?;
    ensure(h.text_len <= TOKEN_BYTES as u32 * h.max_tokens, "the text is longer than its room")?;
    ensure(h.temperature <= MAX_TEMPERATURE, "the temperature is above 16")?;
    ensure(h.next_byte <= h.prompt_len, "the next prompt byte is beyond the prompt")?;
    ensure(c.stage <= 3, "the attention stage is above 3")?;
    ensure(c.pass <= 2, "the sampling pass is above 2")
}

/// Row, stage, index, pass and layer fit the phase.
fn check_cursor(config: &Config, c: &Cursor, greedy: bool) -> Result<(), Fault> {
    let rows = match c.phase {
        // The embedding's matrix is read a row at a time, whole.
        phase::EMBEDDING => 1,
        phase::ATTENTION => config.heads(),
        phase::SAMPLING => config.vocab(),
        other => matrix_shape(config, other).map_or(1, |(rows, _)| rows),
    };
    ensure((c.row as usize) < rows, "the row is out of range for the phase")?;
    if c.phase == phase::ATTENTION {
        let all = if c.stage < 3 { c.position as usize + 1 } else { config.head_size() };
        ensure((c.index as usize) < all, "the attention index is out of range")?;
    } else {
        ensure(c.stage == 0 && c.index == 0, "an attention stage outside attention")?;
    }
    let passes = c.phase == phase::SAMPLING && !greedy;
    ensure(c.pass == 0 || passes, "a sampling pass where there is only one")?;
    let layered = (phase::ATTENTION_NORM..=phase::RESIDUAL).contains(&c.phase);
    ensure(c.layer == 0 || layered, "a layer outside the layers")
}

/// From the first embedding on: generated tokens agree with the position, and all fit the context.
fn check_progress(config: &Config, c: &Cursor, r: &Request) -> Result<(), Fault> {
    let (tokens, next) = (r.prompt_tokens as u64, c.position as u64 + 1);
    let all = tokens + r.max_tokens as u64 - 1;
    ensure(all <= config.seq() as u64, "prompt and maximum tokens exceed the context")?;
    if c.phase < phase::DONE {
        ensure(c.generated < r.max_tokens, "all tokens are generated, but the run goes on")?;
        let generated = next.saturating_sub(tokens);
        ensure(c.generated as u64 == generated, "the position does not fit the generated tokens")?;
    }
    let generates = (phase::FINAL_NORM..=phase::SAMPLING).contains(&c.phase);
    ensure(!generates || next >= tokens, "a position inside the prompt that generates")
}

/// Prompt tokens agree with the phase.
fn check_prompt(config: &Config, layout: &Layout, h: &Header, state: &[u8]) -> Result<(), Fault> {
    let (c, tokens) = (&h.cursor, h.prompt_tokens);
    if c.phase == phase::OPEN {
        return ensure(tokens == 0, "prompt tokens before the prompt was opened");
    }
    ensure(tokens >= 1, "no prompt tokens after the prompt was opened")?;
    if c.phase <= phase::MERGES {
        ensure(h.pair < tokens, "the merge scan is beyond the prompt tokens")?;
    }
    if c.phase == phase::MERGES && h.best_key != 0 {
        let inside = (h.best_pos as u64) + 1 < tokens as u64;
        let known = (h.best_id as usize) < config.vocab();
        ensure(inside && known, "the best merge is out of range")?;
    }
    let stored = state[layout.prompt_tokens..].as_chunks().0;
    let known = stored[..tokens as usize]
        .iter()
        .all(|t| (u32::from_le_bytes(*t) as usize) < config.vocab());
    ensure(known, "a prompt token is outside the vocabulary")
}

/// Checks a cursor of phases 3 to 19 on its own.
pub(crate) fn check_forward(config: &Config, c: &Cursor, r: &Request) -> Result<(), Fault> {
    let forward = (phase::EMBEDDING..phase::DONE).contains(&c.phase);
    let ranges = c.pass <= 2 && c.stage <= 3 && (c.layer as usize) < config.layers();
    ensure(forward && ranges, "the cursor is outside the forward pass")?;
    ensure((c.position as usize) < config.seq(), "the position is beyond the context")?;
    ensure(r.prompt_tokens >= 1 && r.max_tokens >= 1, "no prompt tokens or no tokens to make")?;
    check_cursor(config, c, r.greedy)?;
    check_progress(config, c, r)
}

/// Where a state stands, read from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// One of [`phase`].
    pub phase: u32,
    /// Layer.
    pub layer: u32,
    /// Next row of the matrix in progress, head in attention, vocabulary entry in sampling.
    pub row: u32,
    /// Position in the sequence.
    pub position: u32,
    /// Prompt tokens so far.
    pub prompt_tokens: u32,
    /// Tokens generated so far.
    pub generated: u32,
    /// Bytes of output text so far.
    pub text_len: u32,
    /// Turns run on this state.
    pub turns: u64,
    /// Whether the run is complete.
    pub complete: bool,
}

impl StateInfo {
    /// Reads a state's header. Only tag and phase are checked: without the configuration, nothing
    /// else can be ([`check_state`] does it).
    ///
    /// # Errors
    /// [`Error::InvalidState`].
    pub fn read(state: &[u8]) -> Result<StateInfo, Error> {
        if state.len() < HEADER || !state.starts_with(TAG) {
            return Err(Error::InvalidState);
        }
        let h = Header::read(state);
        if h.cursor.phase > phase::DONE {
            return Err(Error::InvalidState);
        }
        Ok(StateInfo {
            phase: h.cursor.phase,
            layer: h.cursor.layer,
            row: h.cursor.row,
            position: h.cursor.position,
            prompt_tokens: h.prompt_tokens,
            generated: h.cursor.generated,
            text_len: h.text_len,
            turns: h.turns,
            complete: h.cursor.phase == phase::DONE,
        })
    }
}

/// The generated token ids, four little-endian bytes each; empty for bytes that are not a state of
/// this configuration.
pub fn output_tokens(config: Config, state: &[u8]) -> &[u8] {
    match check(&config, state) {
        Ok((layout, h)) => &state[layout.output_tokens..][..4 * h.cursor.generated as usize],
        Err(_) => &[],
    }
}

/// The generated text; empty for bytes that are not a state of this configuration.
pub fn output_text(config: Config, state: &[u8]) -> &[u8] {
    match check(&config, state) {
        Ok((layout, h)) => &state[layout.text..][..h.text_len as usize],
        Err(_) => &[],
    }
}
