//! Accounts, instructions and events of the on-chain program, to the byte. This module reads and
//! writes; who may do what is the program's business.
//!
//! Everything is little-endian. *Key* is a 32-byte address, *lamports* are u64. Bytes not listed are
//! zero and readers insist on it. Every account opens with an eight-byte tag and the version
//! [`VERSION`] (u32); an account whose first eight bytes are zero has not been initialised.
//!
//! # Config: [`CONFIG_LEN`] bytes, one a program
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | 8 bytes | [`CONFIG_TAG`] |
//! | 8 | u32 | version |
//! | 16 | key | authority: may change the prices and withdraw |
//! | 48 | lamports | price of a turn |
//! | 56 | lamports | highest royalty a token that a model may ask |
//!
//! # Model: [`model_len`] bytes
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | 8 bytes | [`MODEL_TAG`] |
//! | 8 | u32 | version |
//! | 12 | u32 | 1 when sealed, else 0 |
//! | 16 | key | owner: uploads, seals, withdraws royalties |
//! | 48 | lamports | royalty a generated token |
//! | 56 | 32 bytes | artifact digest: SHA-256 of all section digests, in order; zero until sealed |
//! | 88 | 28 bytes | configuration |
//! | 116 | u32 | section count, section zero included |
//! | 120 | u32 | sections sealed so far |
//! | 128 | u64 | open runs: the model cannot be closed while there are any |
//! | 256 | 80 bytes a section | section entries |
//!
//! A section entry is the weight account's key (offset 0), the section's length (u64, 32), its digest
//! (32 bytes, 40) and 1 when sealed, else 0 (u32, 72). An all-zero entry has no account yet.
//!
//! # Weights: 256 bytes, then one section
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | 8 bytes | [`WEIGHTS_TAG`] |
//! | 8 | u32 | version |
//! | 12 | u32 | section number |
//! | 16 | key | model |
//! | 48 | u64 | length of the section |
//! | 56 | u64 | bytes digested so far |
//! | 64 | 32 bytes | digest so far |
//! | 96 | u32 | 1 when sealed (read-only from then on), else 0 |
//! | 100 | u32 | section zero: sorted ids checked so far |
//!
//! A section's *digest* is a chain, so that many transactions can share the work: from 32 zero bytes,
//! each piece of [`PIECE`] bytes (the last may be shorter) replaces it by SHA-256(digest, piece).
//! Writing to an account that is not sealed starts digest and check over.
//!
//! # Run: 256 bytes, then the core state
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | 8 bytes | [`RUN_TAG`] |
//! | 8 | u32 | version |
//! | 12 | u32 | [`Status`]: 0 open, 1 complete, 2 failed |
//! | 16 | key | owner: may close it |
//! | 48 | key | model |
//! | 80 | 32 bytes | the model's artifact digest |
//! | 112 | lamports | price of a turn, fixed when the run was opened |
//! | 120 | lamports | royalty a token, fixed when the run was opened |
//! | 128 | lamports | paid for turns and royalties so far |
//! | 136 | u64 | length of the core state |
//! | 144 | u32 | tokens reserved for the last turn (`max_generated` of its plan) |
//! | 148 | u32 | core error that ended a failed run, else 0 |
//! | 256 | | the core state, at an address that is a multiple of eight |
//!
//! A turn reserves `turn price + royalty * max_generated` and settles `turn price + royalty *
//! generated_this_turn` ([`RunAccount::reservation`], [`RunAccount::settlement`]).
//!
//! Instructions are in [`instruction`](Instruction), events in [`event`](TurnEvent).

mod accounts;
mod event;
mod fields;
mod instruction;
mod refusal;

pub use accounts::{ConfigAccount, ModelAccount, RunAccount, SectionEntry, Status, WeightAccount};
pub use event::{EVENT_LEN, EVENT_TAG, TurnEvent};
pub use fields::{Key, Problem};
pub use instruction::Instruction;
pub use refusal::{CORE, PROBLEMS, Refusal};

use crate::format::{Config, section_count};

/// Version of all accounts, instructions and events.
pub const VERSION: u32 = 1;
/// The first bytes of the program's configuration account.
pub const CONFIG_TAG: &[u8; 8] = b"FACITCFG";
/// The first bytes of a model account.
pub const MODEL_TAG: &[u8; 8] = b"FACITMDL";
/// The first bytes of a weight account.
pub const WEIGHTS_TAG: &[u8; 8] = b"FACITWGT";
/// The first bytes of a run account.
pub const RUN_TAG: &[u8; 8] = b"FACITRUN";
/// Bytes of the configuration account.
pub const CONFIG_LEN: usize = 128;
/// Bytes before a model's section entries, a weight account's section and a run's core state.
pub const HEADER_LEN: usize = 256;
/// Bytes of a section entry in a model account.
pub const SECTION_ENTRY_LEN: usize = 80;
/// The largest account: 10 MiB. Sections of at most
/// [`SECTION_LIMIT`](crate::format::SECTION_LIMIT) bytes fit with their header.
pub const MAX_ACCOUNT_LEN: u64 = 10 * 1024 * 1024;
/// Bytes of a section that one step of its digest takes.
pub const PIECE: usize = 1024 * 1024;

/// Bytes of the account of a model.
pub fn model_len(config: &Config) -> usize {
    HEADER_LEN + SECTION_ENTRY_LEN * section_count(config)
}

/// Bytes of the account of a run.
///
/// # Errors
/// Those of [`state_size`](crate::state_size), and [`Error::InvalidConfig`](crate::Error) for a run
/// that no account can hold.
pub fn run_len(config: Config, prompt_len: usize, max_tokens: u32) -> Result<usize, crate::Error> {
    let len = HEADER_LEN + crate::state_size(config, prompt_len, max_tokens)?;
    if len as u64 > MAX_ACCOUNT_LEN {
        return Err(crate::Error::InvalidConfig);
    }
    Ok(len)
}

/// Whether every section of a model fits an account.
pub fn fits_accounts(config: &Config, section_zero: u64) -> bool {
    let room = MAX_ACCOUNT_LEN - HEADER_LEN as u64;
    section_zero <= room
        && (1..section_count(config) as u32).all(|i| crate::format::section_len(config, i) <= room)
}
