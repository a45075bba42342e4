//! Models: created, uploaded in parts, digested and checked in parts, sealed, closed.
//!
//! Nothing of a model can be used before all of it is sealed, and nothing sealed changes: a turn
//! relies on that and does not look at the weights again.

use crate::accounts::{Account, Accounts, same};
use crate::system::{self, Bytes};
use fixed::format::{section_count, section_len};
use fixed::protocol::{
    ConfigAccount, HEADER_LEN, Key, ModelAccount, PIECE, Refusal, SECTION_ENTRY_LEN, SectionEntry,
    WeightAccount, fits_accounts, model_len,
};
use fixed::{Config, Error, Metadata};

/// Tokens of the vocabulary checked by one instruction.
const TOKENS_A_STEP: usize = 1024;
/// Most sections of a model: what the list of digests to hash holds in the VM's memory for this.
const MAX_SECTIONS: usize = 2048;
/// The VM's memory for programs' own use: 32 KiB, zeroed before every instruction.
const HEAP: *mut Bytes = 0x3_0000_0000 as *mut Bytes;

/// Accounts: model (new, signs, changes), owner (signs), configuration.
pub fn create(
    program: &Key,
    accounts: Accounts<'_>,
    royalty: u64,
    config: Config,
) -> Result<(), Refusal> {
    let [model, owner, settings] = accounts.all()?;
    owner.signs()?;
    settings.ours(program)?;
    if royalty > ConfigAccount::read(settings.data)?.max_royalty {
        return Err(Refusal::RoyaltyTooHigh);
    }
    model.fresh_and_signed(program)?;
    if section_count(&config) > MAX_SECTIONS || !fits_accounts(&config, 0) {
        return Err(Refusal::ModelTooLarge);
    }
    debug_assert!(model_len(&config) > HEADER_LEN);
    let account = ModelAccount {
        sealed: false,
        owner: *owner.key,
        royalty,
        artifact_digest: [0; 32],
        config,
        sealed_sections: 0,
        runs: 0,
    };
    Ok(account.write(model.data)?)
}

/// A model that its owner signs for.
fn owned(program: &Key, model: &Account<'_>, owner: &Account<'_>) -> Result<ModelAccount, Refusal> {
    owner.signs()?;
    model.ours(program)?;
    let account = ModelAccount::read(model.data)?;
    if same(&account.owner, owner.key) { Ok(account) } else { Err(Refusal::WrongAuthority) }
}

/// A weight account of a model.
fn weights_of(
    program: &Key,
    weights: &Account<'_>,
    model: &Account<'_>,
) -> Result<WeightAccount, Refusal> {
    weights.ours_to_change(program)?;
    let account = WeightAccount::read(weights.data)?;
    if same(&account.model, model.key) { Ok(account) } else { Err(Refusal::WrongModel) }
}

/// Accounts: weights (new, signs, changes), model (changes), its owner (signs).
pub fn add_weights(
    program: &Key,
    accounts: Accounts<'_>,
    index: u32,
    digest: Key,
) -> Result<(), Refusal> {
    let [weights, model, owner] = accounts.all()?;
    let header = owned(program, &model, &owner)?;
    model.changes()?;
    if header.sealed {
        return Err(Refusal::ModelSealed);
    }
    if !same(&SectionEntry::read(model.data, index)?.account, &[0; 32]) {
        return Err(Refusal::SectionOccupied);
    }
    weights.fresh_and_signed(program)?;
    let room = weights.data.len().checked_sub(HEADER_LEN);
    let len = room.ok_or(Refusal::WrongSectionLength)? as u64;
    // Section zero's length depends on its texts: its own header is checked against it later.
    if index > 0 && section_len(&header.config, index) != len {
        return Err(Refusal::WrongSectionLength);
    }
    let entry = SectionEntry { account: *weights.key, len, digest, sealed: false };
    entry.write(model.data, index)?;
    let account = WeightAccount {
        index,
        model: *model.key,
        len,
        digested: 0,
        digest: [0; 32],
        sealed: false,
        checked: 0,
    };
    Ok(account.write(weights.data)?)
}

/// Accounts: weights (changes), model, its owner (signs).
pub fn upload(
    program: &Key,
    accounts: Accounts<'_>,
    offset: u64,
    bytes: &[u8],
) -> Result<(), Refusal> {
    let [weights, model, owner] = accounts.all()?;
    owned(program, &model, &owner)?;
    let mut account = weights_of(program, &weights, &model)?;
    if account.sealed {
        return Err(Refusal::SectionSealed);
    }
    let section = &mut weights.data[HEADER_LEN..];
    let from = usize::try_from(offset).map_err(|_| Refusal::OutOfBounds)?;
    let to = from.checked_add(bytes.len()).ok_or(Refusal::OutOfBounds)?;
    section.get_mut(from..to).ok_or(Refusal::OutOfBounds)?.copy_from_slice(bytes);
    (account.digested, account.digest, account.checked) = (0, [0; 32], 0);
    Ok(account.write(weights.data)?)
}

/// Does the next step of checking a section: a piece of its digest, or some of section zero's
/// tokens. Repeat until the account is sealed.
///
/// Accounts: weights (changes), model (changes), its owner (signs).
pub fn seal_weights(program: &Key, accounts: Accounts<'_>) -> Result<(), Refusal> {
    let [weights, model, owner] = accounts.all()?;
    let mut header = owned(program, &model, &owner)?;
    model.changes()?;
    let mut account = weights_of(program, &weights, &model)?;
    if account.sealed {
        return Err(Refusal::SectionSealed);
    }
    let mut entry = SectionEntry::read(model.data, account.index)?;
    if !same(&entry.account, weights.key) {
        return Err(Refusal::WrongSection);
    }
    let section = &weights.data[HEADER_LEN..];
    if account.digested < account.len {
        let from = account.digested as usize;
        let to = section.len().min(from + PIECE);
        let parts = [Bytes::new(&account.digest), Bytes::new(&section[from..to])];
        account.digest = system::sha256(&parts);
        account.digested = to as u64;
        return Ok(account.write(weights.data)?);
    }
    if !same(&account.digest, &entry.digest) {
        return Err(Refusal::WrongDigest);
    }
    if account.index == 0 {
        let vocab = header.config.vocab();
        let (from, to) =
            (account.checked as usize, vocab.min(account.checked as usize + TOKENS_A_STEP));
        check_section_zero(section, &header.config, from, to)?;
        account.checked = to as u32;
        account.sealed = to == vocab;
    } else {
        account.sealed = true;
    }
    if account.sealed {
        entry.sealed = true;
        entry.write(model.data, account.index)?;
        header.sealed_sections += 1;
        header.write(model.data)?;
    }
    Ok(account.write(weights.data)?)
}

/// Checks section zero's structure, when it begins its tables, and tokens `from..to`.
fn check_section_zero(
    bytes: &[u8],
    config: &Config,
    from: usize,
    to: usize,
) -> Result<(), Refusal> {
    let metadata = Metadata::sealed(bytes)?;
    if metadata.config != *config {
        return Err(Refusal::WrongConfiguration);
    }
    if from == 0 {
        metadata.check_tables().map_err(Error::from)?;
    }
    Ok(metadata.check_tokens(from..to).map_err(Error::from)?)
}

/// Accounts: model (changes), its owner (signs).
pub fn seal(program: &Key, accounts: Accounts<'_>) -> Result<(), Refusal> {
    let [model, owner] = accounts.all()?;
    let mut header = owned(program, &model, &owner)?;
    model.changes()?;
    if header.sealed {
        return Err(Refusal::ModelSealed);
    }
    let sections = section_count(&header.config);
    if header.sealed_sections as usize != sections || sections > MAX_SECTIONS {
        return Err(Refusal::SectionNotSealed);
    }
    for i in 0..sections {
        let digest = HEADER_LEN + SECTION_ENTRY_LEN * i + 40;
        let part = Bytes::new(&model.data[digest..digest + 32]);
        // SAFETY: the heap has room for MAX_SECTIONS parts of 16 bytes, and no other user.
        unsafe { HEAP.add(i).write(part) };
    }
    // SAFETY: that many parts were just written.
    header.artifact_digest = system::sha256(unsafe { core::slice::from_raw_parts(HEAP, sections) });
    header.sealed = true;
    Ok(header.write(model.data)?)
}

/// Accounts: weights (changes), model (changes), its owner (signs, changes).
pub fn close_weights(program: &Key, accounts: Accounts<'_>) -> Result<(), Refusal> {
    let [mut weights, model, mut owner] = accounts.all()?;
    let mut header = owned(program, &model, &owner)?;
    model.changes()?;
    owner.changes()?;
    if header.sealed {
        return Err(Refusal::ModelSealed);
    }
    let account = weights_of(program, &weights, &model)?;
    if !same(&SectionEntry::read(model.data, account.index)?.account, weights.key) {
        return Err(Refusal::WrongSection);
    }
    header.sealed_sections -= account.sealed as u32;
    header.write(model.data)?;
    SectionEntry::default().write(model.data, account.index)?;
    weights.close(&mut owner)
}

/// Unseals a sealed model without open runs, so that its weights can be closed; closes a model
/// without weights.
///
/// Accounts: model (changes), its owner (signs, changes).
pub fn close(program: &Key, accounts: Accounts<'_>) -> Result<(), Refusal> {
    let [mut model, mut owner] = accounts.all()?;
    let mut header = owned(program, &model, &owner)?;
    model.changes()?;
    owner.changes()?;
    if header.runs > 0 {
        return Err(Refusal::RunsOpen);
    }
    if header.sealed {
        (header.sealed, header.artifact_digest) = (false, [0; 32]);
        return Ok(header.write(model.data)?);
    }
    for index in 0..section_count(&header.config) as u32 {
        if !same(&SectionEntry::read(model.data, index)?.account, &[0; 32]) {
            return Err(Refusal::SectionOccupied);
        }
    }
    model.close(&mut owner)
}
