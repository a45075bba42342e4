//! The four kinds of accounts. Layouts: the tables of the parent module.

use super::fields::{Key, Problem, Reader, Writer};
use super::{
    CONFIG_LEN, CONFIG_TAG, HEADER_LEN, MODEL_TAG, RUN_TAG, SECTION_ENTRY_LEN, WEIGHTS_TAG,
};
use crate::format::{Config, section_count};

/// The program's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigAccount {
    /// May change the prices and withdraw.
    pub authority: Key,
    /// Lamports a turn costs.
    pub turn_price: u64,
    /// The highest royalty a token that a model may ask, in lamports.
    pub max_royalty: u64,
}

impl ConfigAccount {
    /// Reads the account's data.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(data: &[u8]) -> Result<Self, Problem> {
        exact(data, CONFIG_LEN)?;
        let r = Reader::open(data, CONFIG_LEN, CONFIG_TAG)?;
        r.zero(12, 16)?;
        r.zero(64, CONFIG_LEN)?;
        Ok(ConfigAccount { authority: r.key(16), turn_price: r.u64(48), max_royalty: r.u64(56) })
    }

    /// Writes the account's data.
    ///
    /// # Errors
    /// [`Problem::WrongLength`].
    pub fn write(&self, data: &mut [u8]) -> Result<(), Problem> {
        exact(data, CONFIG_LEN)?;
        let mut w = Writer::open(data, CONFIG_LEN, CONFIG_TAG)?;
        w.bytes(16, &self.authority);
        w.u64(48, self.turn_price);
        w.u64(56, self.max_royalty);
        Ok(())
    }
}

fn exact(data: &[u8], len: usize) -> Result<(), Problem> {
    if data.len() == len { Ok(()) } else { Err(Problem::WrongLength) }
}

/// A model account's header; its section entries follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelAccount {
    /// No section can change any more, and runs can be opened.
    pub sealed: bool,
    /// Uploads, seals, withdraws royalties.
    pub owner: Key,
    /// Lamports a generated token costs.
    pub royalty: u64,
    /// SHA-256 of all section digests in order; zero until sealed.
    pub artifact_digest: Key,
    /// The model's configuration.
    pub config: Config,
    /// Sections sealed so far.
    pub sealed_sections: u32,
    /// Open runs.
    pub runs: u64,
}

impl ModelAccount {
    /// Reads the header of an account of exactly [`super::model_len`] bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(data: &[u8]) -> Result<Self, Problem> {
        let r = Reader::open(data, HEADER_LEN, MODEL_TAG)?;
        let config = Config::from_bytes(&r.0[88..116]).map_err(|_| Problem::OutOfRange)?;
        let sections = r.u32(116) as usize;
        if sections != section_count(&config) || r.u32(120) as usize > sections {
            return Err(Problem::OutOfRange);
        }
        exact(data, HEADER_LEN + SECTION_ENTRY_LEN * sections)?;
        r.zero(124, 128)?;
        r.zero(136, HEADER_LEN)?;
        Ok(ModelAccount {
            sealed: r.flag(12)?,
            owner: r.key(16),
            royalty: r.u64(48),
            artifact_digest: r.key(56),
            config,
            sealed_sections: r.u32(120),
            runs: r.u64(128),
        })
    }

    /// Writes the header and leaves the section entries as they are.
    ///
    /// # Errors
    /// [`Problem::WrongLength`].
    pub fn write(&self, data: &mut [u8]) -> Result<(), Problem> {
        let sections = section_count(&self.config);
        exact(data, HEADER_LEN + SECTION_ENTRY_LEN * sections)?;
        let mut w = Writer::open(data, HEADER_LEN, MODEL_TAG)?;
        w.u32(12, self.sealed as u32);
        w.bytes(16, &self.owner);
        w.u64(48, self.royalty);
        w.bytes(56, &self.artifact_digest);
        w.bytes(88, &self.config.to_bytes());
        w.u32(116, sections as u32);
        w.u32(120, self.sealed_sections);
        w.u64(128, self.runs);
        Ok(())
    }
}

/// A section of a model: which account holds it, and what it must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionEntry {
    /// The weight account; zero while there is none.
    pub account: Key,
    /// Bytes of the section.
    pub len: u64,
    /// The section's digest.
    pub digest: Key,
    /// Length and digest were checked, and the account is read-only.
    pub sealed: bool,
}

impl SectionEntry {
    fn offset(index: u32) -> Option<usize> {
        HEADER_LEN.checked_add(SECTION_ENTRY_LEN.checked_mul(index as usize)?)
    }

    /// Reads entry `index` of a model account's data.
    ///
    /// # Errors
    /// [`Problem::OutOfRange`] if there is no such section.
    pub fn read(model: &[u8], index: u32) -> Result<Self, Problem> {
        let from = Self::offset(index).ok_or(Problem::OutOfRange)?;
        let entry = model.get(from..).and_then(|m| m.get(..SECTION_ENTRY_LEN));
        let r = Reader(entry.ok_or(Problem::OutOfRange)?);
        r.zero(76, SECTION_ENTRY_LEN)?;
        Ok(SectionEntry {
            account: r.key(0),
            len: r.u64(32),
            digest: r.key(40),
            sealed: r.flag(72)?,
        })
    }

    /// Writes entry `index` of a model account's data.
    ///
    /// # Errors
    /// [`Problem::OutOfRange`] if there is no such section.
    pub fn write(&self, model: &mut [u8], index: u32) -> Result<(), Problem> {
        let from = Self::offset(index).ok_or(Problem::OutOfRange)?;
        let entry = model.get_mut(from..).and_then(|m| m.get_mut(..SECTION_ENTRY_LEN));
        let mut w = Writer(entry.ok_or(Problem::OutOfRange)?);
        w.bytes(0, &self.account);
        w.u64(32, self.len);
        w.bytes(40, &self.digest);
        w.u64(72, self.sealed as u64);
        Ok(())
    }
}

/// A weight account's header; its section follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightAccount {
    /// The section's number, zero for section zero.
    pub index: u32,
    /// The model it belongs to.
    pub model: Key,
    /// Bytes of the section.
    pub len: u64,
    /// Bytes digested so far.
    pub digested: u64,
    /// The digest so far.
    pub digest: Key,
    /// Read-only from now on.
    pub sealed: bool,
    /// In section zero: sorted ids checked so far.
    pub checked: u32,
}

impl WeightAccount {
    /// Reads the header of an account of 256 bytes and its section.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(data: &[u8]) -> Result<Self, Problem> {
        let r = Reader::open(data, HEADER_LEN, WEIGHTS_TAG)?;
        r.zero(104, HEADER_LEN)?;
        let account = WeightAccount {
            index: r.u32(12),
            model: r.key(16),
            len: r.u64(48),
            digested: r.u64(56),
            digest: r.key(64),
            sealed: r.flag(96)?,
            checked: r.u32(100),
        };
        if account.len != (data.len() - HEADER_LEN) as u64 {
            return Err(Problem::WrongLength);
        }
        if account.digested > account.len || (account.sealed && account.digested != account.len) {
            return Err(Problem::OutOfRange);
        }
        Ok(account)
    }

    /// Writes the header and leaves the section as it is.
    ///
    /// # Errors
    /// [`Problem::WrongLength`].
    pub fn write(&self, data: &mut [u8]) -> Result<(), Problem> {
        if data.len() as u64 != HEADER_LEN as u64 + self.len {
            return Err(Problem::WrongLength);
        }
        let mut w = Writer::open(data, HEADER_LEN, WEIGHTS_TAG)?;
        w.u32(12, self.index);
        w.bytes(16, &self.model);
        w.u64(48, self.len);
        w.u64(56, self.digested);
        w.bytes(64, &self.digest);
        w.u32(96, self.sealed as u32);
        w.u32(100, self.checked);
        Ok(())
    }
}

/// Where a run account stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Turns can run.
    Open = 0,
    /// The core state is complete.
    Complete = 1,
    /// A turn failed; the core state must not be used.
    Failed = 2,
}

/// A run account's header; its core state follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAccount {
    /// Open, complete or failed.
    pub status: Status,
    /// May close it.
    pub owner: Key,
    /// The model it runs.
    pub model: Key,
    /// The model's artifact digest.
    pub artifact_digest: Key,
    /// Lamports a turn costs, fixed when it was opened.
    pub turn_price: u64,
    /// Lamports a token costs, fixed when it was opened.
    pub royalty: u64,
    /// Lamports paid so far.
    pub paid: u64,
    /// Bytes of the core state.
    pub state_len: u64,
    /// Tokens reserved for the last turn.
    pub reserved_tokens: u32,
    /// Number of the core error that ended a failed run, else 0.
    pub core_error: u32,
}

impl RunAccount {
    /// Reads the header of an account of 256 bytes and its core state.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(data: &[u8]) -> Result<Self, Problem> {
        let r = Reader::open(data, HEADER_LEN, RUN_TAG)?;
        r.zero(152, HEADER_LEN)?;
        let status = match r.u32(12) {
            0 => Status::Open,
            1 => Status::Complete,
            2 => Status::Failed,
            _ => return Err(Problem::OutOfRange),
        };
        let account = RunAccount {
            status,
            owner: r.key(16),
            model: r.key(48),
            artifact_digest: r.key(80),
            turn_price: r.u64(112),
            royalty: r.u64(120),
            paid: r.u64(128),
            state_len: r.u64(136),
            reserved_tokens: r.u32(144),
            core_error: r.u32(148),
        };
        if account.state_len != (data.len() - HEADER_LEN) as u64 {
            return Err(Problem::WrongLength);
        }
        if (account.core_error != 0) != (status == Status::Failed) {
            return Err(Problem::OutOfRange);
        }
        Ok(account)
    }

    /// Writes the header and leaves the core state as it is.
    ///
    /// # Errors
    /// [`Problem::WrongLength`].
    pub fn write(&self, data: &mut [u8]) -> Result<(), Problem> {
        if data.len() as u64 != HEADER_LEN as u64 + self.state_len {
            return Err(Problem::WrongLength);
        }
        let mut w = Writer::open(data, HEADER_LEN, RUN_TAG)?;
        w.u32(12, self.status as u32);
        w.bytes(16, &self.owner);
        w.bytes(48, &self.model);
        w.bytes(80, &self.artifact_digest);
        w.u64(112, self.turn_price);
        w.u64(120, self.royalty);
        w.u64(128, self.paid);
        w.u64(136, self.state_len);
        w.u32(144, self.reserved_tokens);
        w.u32(148, self.core_error);
        Ok(())
    }

    /// Lamports to set aside before a turn that can complete `max_generated` tokens; `None` if they
    /// exceed 64 bits.
    pub fn reservation(&self, max_generated: u32) -> Option<u64> {
        self.royalty.checked_mul(max_generated as u64)?.checked_add(self.turn_price)
    }

    /// Lamports a turn that completed `generated` tokens costs; never above the reservation.
    pub fn settlement(&self, generated: u32) -> Option<u64> {
        self.reservation(generated)
    }
}
