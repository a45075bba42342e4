//! Instruction data: a u32 number, then fixed fields, then at most one run of bytes to the end.
//!
//! | number | instruction | fields after the number |
//! |---|---|---|
//! | 0 | set config | key authority, lamports turn price, lamports highest royalty |
//! | 1 | create model | lamports royalty, 28 bytes configuration |
//! | 2 | add weights | u32 section, 32 bytes digest |
//! | 3 | upload | u64 offset in the section, bytes |
//! | 4 | seal weights | (works on as much as one transaction can do) |
//! | 5 | seal model | |
//! | 6 | open run | u32 maximum tokens, u32 temperature, u64 seed, prompt bytes |
//! | 7 | turn | u64 turns the run has had (a repeated transaction is refused) |
//! | 8 | close run | |
//! | 9 | close weights | |
//! | 10 | close model | |
//! | 11 | withdraw fees | lamports |
//! | 12 | withdraw royalties | lamports |

use super::fields::{Key, Problem, Reader, Writer};
use crate::format::Config;

/// What a transaction asks of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction<'a> {
    /// Creates the configuration, or changes it.
    SetConfig {
        /// May change it from now on.
        authority: Key,
        /// Lamports a turn.
        turn_price: u64,
        /// Highest royalty a token.
        max_royalty: u64,
    },
    /// Initialises a model account.
    CreateModel {
        /// Lamports a token.
        royalty: u64,
        /// The model's configuration.
        config: Config,
    },
    /// Initialises a weight account for a section of a model.
    AddWeights {
        /// The section.
        index: u32,
        /// What its digest will be.
        digest: Key,
    },
    /// Writes bytes into a section.
    Upload {
        /// Where in the section.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Digests and checks the next part of a section; seals it at the end.
    SealWeights,
    /// Seals a model whose sections are all sealed.
    SealModel,
    /// Initialises a run account.
    OpenRun {
        /// Most tokens.
        max_tokens: u32,
        /// Temperature, 16 fractional bits.
        temperature_q16: u32,
        /// Seed.
        seed: u64,
        /// The prompt.
        prompt: &'a [u8],
    },
    /// Runs one turn.
    Turn {
        /// Turns the run has had.
        turns: u64,
    },
    /// Closes a run and returns its rent.
    CloseRun,
    /// Closes a weight account that belongs to no sealed model.
    CloseWeights,
    /// Closes a model without open runs.
    CloseModel,
    /// Withdraws turn prices from the configuration account.
    WithdrawFees {
        /// Lamports.
        lamports: u64,
    },
    /// Withdraws royalties from a model account.
    WithdrawRoyalties {
        /// Lamports.
        lamports: u64,
    },
}

/// Bytes of the fixed fields, number included, and whether bytes may follow.
const SHAPES: [(usize, bool); 13] = [
    (52, false),
    (40, false),
    (40, false),
    (12, true),
    (4, false),
    (4, false),
    (20, true),
    (12, false),
    (4, false),
    (4, false),
    (4, false),
    (12, false),
    (12, false),
];

impl<'a> Instruction<'a> {
    /// Reads instruction data.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(data: &'a [u8]) -> Result<Self, Problem> {
        let number = data.first_chunk().ok_or(Problem::WrongLength)?;
        let number = u32::from_le_bytes(*number);
        let (len, open) = *SHAPES.get(number as usize).ok_or(Problem::UnknownInstruction)?;
        let (fields, rest) = data.split_at_checked(len).ok_or(Problem::WrongLength)?;
        if !open && !rest.is_empty() {
            return Err(Problem::WrongLength);
        }
        let r = Reader(fields);
        Ok(match number {
            0 => Instruction::SetConfig {
                authority: r.key(4),
                turn_price: r.u64(36),
                max_royalty: r.u64(44),
            },
            1 => Instruction::CreateModel {
                royalty: r.u64(4),
                config: Config::from_bytes(&fields[12..]).map_err(|_| Problem::OutOfRange)?,
            },
            2 => Instruction::AddWeights { index: r.u32(4), digest: r.key(8) },
            3 => Instruction::Upload { offset: r.u64(4), bytes: rest },
            4 => Instruction::SealWeights,
            5 => Instruction::SealModel,
            6 => Instruction::OpenRun {
                max_tokens: r.u32(4),
                temperature_q16: r.u32(8),
                seed: r.u64(12),
                prompt: rest,
            },
            7 => Instruction::Turn { turns: r.u64(4) },
            8 => Instruction::CloseRun,
            9 => Instruction::CloseWeights,
            10 => Instruction::CloseModel,
            11 => Instruction::WithdrawFees { lamports: r.u64(4) },
            _ => Instruction::WithdrawRoyalties { lamports: r.u64(4) },
        })
    }

    /// The instruction's number.
    pub fn number(&self) -> u32 {
        match self {
            Instruction::SetConfig { .. } => 0,
            Instruction::CreateModel { .. } => 1,
            Instruction::AddWeights { .. } => 2,
            Instruction::Upload { .. } => 3,
            Instruction::SealWeights => 4,
            Instruction::SealModel => 5,
            Instruction::OpenRun { .. } => 6,
            Instruction::Turn { .. } => 7,
            Instruction::CloseRun => 8,
            Instruction::CloseWeights => 9,
            Instruction::CloseModel => 10,
            Instruction::WithdrawFees { .. } => 11,
            Instruction::WithdrawRoyalties { .. } => 12,
        }
    }

    /// Writes the instruction data and returns its length.
    ///
    /// # Errors
    /// [`Problem::WrongLength`] if `out` is too short.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, Problem> {
        let rest: &[u8] = match self {
            Instruction::Upload { bytes, .. } => bytes,
            Instruction::OpenRun { prompt, .. } => prompt,
            _ => &[],
        };
        let len = SHAPES[self.number() as usize].0;
        let total = len + rest.len();
        let mut w = Writer(out.get_mut(..total).ok_or(Problem::WrongLength)?);
        w.u32(0, self.number());
        w.bytes(len, rest);
        match self {
            Instruction::SetConfig { authority, turn_price, max_royalty } => {
                w.bytes(4, authority);
                w.u64(36, *turn_price);
                w.u64(44, *max_royalty);
            }
            Instruction::CreateModel { royalty, config } => {
                w.u64(4, *royalty);
                w.bytes(12, &config.to_bytes());
            }
            Instruction::AddWeights { index, digest } => {
                w.u32(4, *index);
                w.bytes(8, digest);
            }
            Instruction::Upload { offset, .. } => w.u64(4, *offset),
            Instruction::OpenRun { max_tokens, temperature_q16, seed, .. } => {
                w.u32(4, *max_tokens);
                w.u32(8, *temperature_q16);
                w.u64(12, *seed);
            }
            Instruction::Turn { turns } => w.u64(4, *turns),
            Instruction::WithdrawFees { lamports }
            | Instruction::WithdrawRoyalties { lamports } => {
                w.u64(4, *lamports);
            }
            _ => {}
        }
        Ok(total)
    }
}
