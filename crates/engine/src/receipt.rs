//! Receipts: what a run did, so that anybody with the model can check every turn of it.
//! Not the replay, which is [`verify`](mod@crate::verify).
//!
//! # The file, to the byte
//!
//! A receipt is one JSON object in UTF-8. Its last 78 bytes are always
//!
//! ```text
//! ,"sha256":"<64 lower-case hexadecimal digits>"}⏎
//! ```
//!
//! (⏎ is one line feed) where the digits are the SHA-256 of all bytes before those 78. A reader
//! checks this first, on the bytes, before it parses anything: whatever byte changed, it is
//! noticed. The object's other members, in the order written; none may be missing, repeated or
//! unknown:
//!
//! | member | content |
//! |---|---|
//! | `format` | `"facit-receipt-1"` |
//! | `numerics` | `"facit-fixed-1"`, the arithmetic |
//! | `model` | `sha256` of the artifact file, `bytes` its length, `config` its seven numbers (the vocabulary negative when the classifier has its own matrix) |
//! | `prompt` | the prompt |
//! | `max_tokens`, `temperature_q16` | as given to `init_state` |
//! | `seed` | as given to `init_state`; a decimal *string*, since JavaScript's numbers end at 2^53 |
//! | `state_bytes` | length of the state |
//! | `initial_state_sha256` | of the state that `init_state` writes |
//! | `turns` | one object a turn, in order: the plan (`sections`: 0 to 2 numbers, `estimated_cu`, `max_generated`), then the outcome (`work`: compute units charged, `generated`: tokens so far, `state_sha256`: of the whole state after the turn) |
//! | `checkpoints` | states from which the replay of a stretch of turns can start, see below |
//! | `complete` | whether the run ended; `false` when it was paused |
//! | `tokens` | the ids generated |
//! | `text` | their text; bytes that are not UTF-8 appear as U+FFFD |
//!
//! A turn depends on nothing but the state before it, so stretches can be replayed at the same
//! time. A checkpoint `{"turn": t, "delta": "…"}` gives the state after `t` turns; `t` is a
//! multiple of [`CHECKPOINT_TURNS`], ascending without a gap, and less than the number of turns.
//! `delta` is base64 (RFC 4648, with padding) of a zlib stream (RFC 1950) of records, each a
//! little-endian u32 page number, strictly ascending, followed by that page *exclusive-or* its
//! content in the checkpoint before (the first one: in the initial state). Page `p` is bytes
//! `256 p .. 256 (p + 1)` of the state, the last page being what is left. Pages without a change
//! are left out. The SHA-256 of the state so rebuilt is the `state_sha256` of turn `t`.
//!
//! ## Replaying one (the recipe for another implementation)
//!
//! 1. Check the last 78 bytes, parse, compare `model.sha256` with the model at hand.
//! 2. `init_state` from `prompt`, `max_tokens`, `temperature_q16`, `seed`; compare its SHA-256.
//! 3. For each turn: `plan_turn` and compare the plan, run it, compare `work`, `generated` and
//!    `state_sha256`. The first difference names the turn (counted from 1).
//! 4. In the last state compare `complete`, `tokens` and `text` (in JavaScript: a `TextDecoder`
//!    with `ignoreBOM`, not `fatal`).

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use crate::artifact::Model;
use crate::inspect::Kind;
use crate::session::State;
use crate::{Digest, Error, NUMERICS, Params, Session, Temperature, files};

/// The value of `format`.
pub const FORMAT: &str = "facit-receipt-1";
/// How every receipt begins.
pub const PREFIX: &[u8] = br#"{"format":"facit-receipt-"#;
/// The largest receipt read.
pub const MAX_BYTES: u64 = 256 << 20;
/// Turns between checkpoints. More make the file smaller and the stretches replayed at the same
/// time longer: at 16 a receipt of 512 tokens of stories260K stays under 3 MB, and has a hundred
/// stretches to share out.
pub const CHECKPOINT_TURNS: usize = 16;
/// Bytes of a page of the state.
pub const PAGE_BYTES: usize = 256;
/// zlib's level: above this one the time doubles and the size stays.
const COMPRESSION: u8 = 6;
/// Length of the end of the file that carries the digest.
const SEAL_BYTES: usize = 78;

/// A run's record. The fields are the file's members; see the module for their meaning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // one table documents them all
pub struct Receipt {
    pub format: String,
    pub numerics: String,
    pub model: ModelRecord,
    pub prompt: String,
    pub max_tokens: u32,
    pub temperature_q16: u32,
    #[serde(with = "decimal_string")]
    pub seed: u64,
    pub state_bytes: u64,
    pub initial_state_sha256: Digest,
    pub turns: Vec<TurnRecord>,
    pub checkpoints: Vec<Checkpoint>,
    pub complete: bool,
    pub tokens: Vec<u32>,
    pub text: String,
}

/// Which model ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ModelRecord {
    pub sha256: Digest,
    pub bytes: u64,
    pub config: [i32; 7],
}

/// One turn: its plan and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct TurnRecord {
    pub sections: Vec<u32>,
    pub estimated_cu: u32,
    pub max_generated: u32,
    pub work: u32,
    pub generated: u32,
    pub state_sha256: Digest,
}

/// A state on the way, as its difference from the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Checkpoint {
    pub turn: usize,
    pub delta: String,
}

/// Writes a receipt along with a run.
#[derive(Debug)]
pub struct Recorder {
    receipt: Receipt,
    /// The state of the last checkpoint.
    last: State,
}

impl Recorder {
    /// Starts with a session that has not run a turn.
    ///
    /// # Errors
    /// [`Error::Refused`] for a session that has; [`Error::DoesNotFit`].
    pub fn new(session: &Session<'_>, params: &Params) -> Result<Self, Error> {
        if session.info().turns != 0 {
            return Err(Error::Refused("a receipt starts with the first turn of a run".into()));
        }
        let receipt = Receipt {
            format: FORMAT.into(),
            numerics: NUMERICS.into(),
            model: ModelRecord::of(session.model()),
            prompt: params.prompt.clone(),
            max_tokens: params.max_tokens,
            temperature_q16: params.temperature.q16(),
            seed: params.seed,
            state_bytes: session.state().len() as u64,
            initial_state_sha256: Digest::of(session.state()),
            turns: Vec::new(),
            checkpoints: Vec::new(),
            complete: false,
            tokens: Vec::new(),
            text: String::new(),
        };
        Ok(Self { receipt, last: State::copy_of(session.state())? })
    }

    /// Adds the turn that `session` has just run after planning `plan`.
    pub fn record(&mut self, session: &Session<'_>, turn: TurnRecord) {
        // A checkpoint is where a stretch starts: there is none after the last turn.
        let done = self.receipt.turns.len();
        debug_assert_eq!(session.info().turns, done as u64 + 1);
        self.receipt.turns.push(turn);
        if (done + 1).is_multiple_of(CHECKPOINT_TURNS) && !session.info().complete {
            let records = delta(self.last.bytes(), session.state());
            let packed = miniz_oxide::deflate::compress_to_vec_zlib(&records, COMPRESSION);
            self.receipt
                .checkpoints
                .push(Checkpoint { turn: done + 1, delta: BASE64.encode(packed) });
            self.last.bytes_mut().copy_from_slice(session.state());
        }
    }

    /// Closes the record with what `session` has produced.
    pub fn finish(mut self, session: &Session<'_>) -> Receipt {
        // A run paused exactly at a checkpoint has no stretch after it.
        if self.receipt.checkpoints.last().is_some_and(|c| c.turn == self.receipt.turns.len()) {
            self.receipt.checkpoints.pop();
        }
        self.receipt.complete = session.info().complete;
        self.receipt.tokens = session.tokens();
        self.receipt.text = String::from_utf8_lossy(session.text()).into_owned();
        self.receipt
    }
}

impl ModelRecord {
    fn of(model: &Model<'_>) -> Self {
        let config = model.config().words().map(|word| word as i32);
        Self { sha256: model.digest(), bytes: model.bytes().len() as u64, config }
    }
}

impl Receipt {
    /// The file's bytes.
    ///
    /// # Panics
    /// Never: a receipt has nothing JSON cannot express.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("strings and integers");
        bytes.pop(); // the closing brace returns with the seal
        let digest = Digest::of(&bytes);
        bytes.extend_from_slice(format!(",\"sha256\":\"{digest}\"}}\n").as_bytes());
        bytes
    }

    /// Writes the file, atomically.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        files::write_atomically(path, &[&self.encode()])
    }

    /// Reads and checks the file at `path`, except for the replay.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Corrupt`], and [`Error::Mismatch`] for other numerics.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let accept = |head: &[u8], len| Kind::of(head, len).must_be(Kind::Receipt, &name);
        Self::decode(&files::read_if(path, MAX_BYTES, accept)?, &name)
    }

    /// Checks `bytes`, called `name` in errors.
    ///
    /// # Errors
    /// As [`Receipt::open`].
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self, Error> {
        let corrupt = |why: String| Error::corrupt(name, why);
        Kind::of(bytes, bytes.len() as u64).must_be(Kind::Receipt, name)?;
        let (body, seal) = bytes.split_at(bytes.len().saturating_sub(SEAL_BYTES));
        let recorded = seal
            .strip_prefix(b",\"sha256\":\"")
            .and_then(|s| s.strip_suffix(b"\"}\n"))
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(Digest::from_hex)
            .ok_or_else(|| {
                corrupt("does not end with its own SHA-256: truncated or changed".into())
            })?;
        let computed = Digest::of(body);
        if computed != recorded {
            return Err(corrupt(format!(
                "bytes were changed after it was written: their SHA-256 is {computed}, the receipt says {recorded}"
            )));
        }
        let mut json = Vec::new();
        json.try_reserve_exact(body.len() + 1)
            .map_err(|_| Error::DoesNotFit { what: "a receipt", bytes: body.len() as u64 })?;
        json.extend_from_slice(body);
        json.push(b'}');
        let receipt: Self =
            serde_json::from_slice(&json).map_err(|e| corrupt(format!("not a receipt: {e}")))?;
        receipt.check(name)?;
        Ok(receipt)
    }

    /// What must hold before anything is replayed.
    fn check(&self, name: &str) -> Result<(), Error> {
        let corrupt = |why: String| Err(Error::corrupt(name, why));
        if self.format != FORMAT {
            return corrupt(format!("format {:?}; this version reads {FORMAT:?}", self.format));
        }
        if self.numerics != NUMERICS {
            return Err(Error::mismatch(format!("{name}: numerics"), NUMERICS, &self.numerics));
        }
        if Temperature::from_q16(self.temperature_q16).is_none() {
            return corrupt(format!("temperature_q16 {} is above 16", self.temperature_q16));
        }
        let expected = self.turns.len().saturating_sub(1) / CHECKPOINT_TURNS;
        let in_order = (1..).zip(&self.checkpoints).all(|(i, c)| c.turn == i * CHECKPOINT_TURNS);
        if self.checkpoints.len() != expected || !in_order {
            return corrupt(format!(
                "{} turns need a checkpoint after every {CHECKPOINT_TURNS} of them, {expected} in all",
                self.turns.len()
            ));
        }
        Ok(())
    }

    /// The parameters of the run.
    pub fn params(&self) -> Params {
        Params {
            prompt: self.prompt.clone(),
            max_tokens: self.max_tokens,
            temperature: Temperature::from_q16(self.temperature_q16).expect("checked on reading"),
            seed: self.seed,
        }
    }

    /// Refuses any model but the one that ran.
    ///
    /// # Errors
    /// [`Error::Mismatch`] with both digests.
    pub fn check_model(&self, model: &Model<'_>) -> Result<(), Error> {
        let given = ModelRecord::of(model);
        if self.model == given {
            return Ok(());
        }
        let show =
            |m: &ModelRecord| format!("SHA-256 {}, {} bytes, {:?}", m.sha256, m.bytes, m.config);
        Err(Error::mismatch(
            format!(
                "the receipt is of another model than {}; name the right one with --model",
                model.name()
            ),
            show(&self.model),
            show(&given),
        ))
    }
}

/// The records of a checkpoint: every page that changed, exclusive-or its old content.
fn delta(old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    let pages = old.chunks(PAGE_BYTES).zip(new.chunks(PAGE_BYTES));
    for (page, (old, new)) in (0u32..).zip(pages) {
        if old != new {
            records.extend_from_slice(&page.to_le_bytes());
            records.extend(old.iter().zip(new).map(|(a, b)| a ^ b));
        }
    }
    records
}

/// Turns `state`, the checkpoint before, into the one that `checkpoint` describes. Inflates at
/// most what a change of every page takes.
///
/// # Errors
/// What is wrong with the delta.
pub(crate) fn apply(checkpoint: &Checkpoint, state: &mut [u8]) -> Result<(), String> {
    let packed = BASE64.decode(&checkpoint.delta).map_err(|e| format!("base64: {e}"))?;
    let limit = state.len() + 4 * state.len().div_ceil(PAGE_BYTES);
    let records = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(&packed, limit)
        .map_err(|e| format!("zlib: {:?}", e.status))?;
    let mut rest = records.as_slice();
    let mut next_page = 0;
    while let Some((number, after)) = rest.split_first_chunk::<4>() {
        let page = u32::from_le_bytes(*number) as usize;
        let start = page.saturating_mul(PAGE_BYTES);
        if page < next_page || start >= state.len() {
            return Err(format!("page {page} is out of order or out of range"));
        }
        let end = state.len().min(start + PAGE_BYTES);
        let Some((change, after)) = after.split_at_checked(end - start) else {
            return Err(format!("page {page} is cut off"));
        };
        state[start..end].iter_mut().zip(change).for_each(|(byte, x)| *byte ^= x);
        next_page = page + 1;
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err("bytes are left over".into()) }
}

mod decimal_string {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom("seed is not a decimal u64 in a string"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(records: &[u8]) -> Checkpoint {
        let packed = miniz_oxide::deflate::compress_to_vec_zlib(records, 6);
        Checkpoint { turn: 16, delta: BASE64.encode(packed) }
    }

    /// The last page is shorter than the rest: where an off-by-one would hide.
    #[test]
    fn deltas_rebuild_states() {
        let old: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        for changed in [vec![], vec![0], vec![999], vec![255, 256, 700], (0..1000).collect()] {
            let mut new = old.clone();
            for &at in &changed {
                new[at] ^= 0x55;
            }
            let mut rebuilt = old.clone();
            apply(&checkpoint(&delta(&old, &new)), &mut rebuilt).unwrap();
            assert_eq!(rebuilt, new, "{changed:?}");
        }
    }

    #[test]
    fn hostile_deltas_are_refused() {
        let page = |n: u32, len: usize| [n.to_le_bytes().to_vec(), vec![1; len]].concat();
        let bad = [
            (checkpoint(&page(4, 256)), "out of range"),
            (checkpoint(&page(u32::MAX, 256)), "out of range"),
            (checkpoint(&[page(1, 256), page(1, 256)].concat()), "out of order"),
            (checkpoint(&[page(2, 256), page(0, 256)].concat()), "out of order"),
            (checkpoint(&page(0, 255)), "cut off"),
            (checkpoint(&[0, 0, 0]), "left over"),
            // A bomb: 100 MB of zeros where 1,016 bytes are the most there can be.
            (checkpoint(&vec![0; 100_000_000]), "HasMoreOutput"),
            (Checkpoint { turn: 16, delta: "?".into() }, "base64"),
            (Checkpoint { turn: 16, delta: "AAAA".into() }, "zlib"),
        ];
        for (checkpoint, says) in bad {
            let message = apply(&checkpoint, &mut [0; 1000]).unwrap_err();
            assert!(message.contains(says), "{message}");
        }
    }
}
