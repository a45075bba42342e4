//! Runs: opened, advanced turn by turn, closed.

use crate::accounts::{Account, Accounts, same};
use crate::system;
use fixed::arith::{Backend, Scratch};
use fixed::planner::{ALLOWANCE, plan_turn};
use fixed::protocol::{
    ConfigAccount, HEADER_LEN, Key, ModelAccount, Refusal, RunAccount, SectionEntry, Status,
    TurnEvent, run_len,
};
use fixed::{Error, Metadata, StateInfo, TurnResult, WeightSection, init_state, turn_planned};

/// Accounts of a turn before the matrix sections.
const TURN_ACCOUNTS: usize = 6;

/// What a run is to do.
pub struct Request<'a> {
    pub max_tokens: u32,
    pub temperature_q16: u32,
    pub seed: u64,
    pub prompt: &'a [u8],
}

/// Accounts: run (new, signs, changes), owner (signs), model (changes), configuration.
pub fn open(program: &Key, accounts: Accounts<'_>, request: &Request<'_>) -> Result<(), Refusal> {
    let [run, owner, model, settings] = accounts.all()?;
    owner.signs()?;
    model.ours_to_change(program)?;
    settings.ours(program)?;
    run.fresh_and_signed(program)?;
    let mut header = ModelAccount::read(model.data)?;
    if !header.sealed {
        return Err(Refusal::ModelNotSealed);
    }
    let Request { max_tokens, temperature_q16, seed, prompt } = *request;
    if run.data.len() != run_len(header.config, prompt.len(), max_tokens)? {
        return Err(Refusal::Core(Error::BufferTooSmall));
    }
    let account = RunAccount {
        status: Status::Open,
        owner: *owner.key,
        model: *model.key,
        artifact_digest: header.artifact_digest,
        turn_price: ConfigAccount::read(settings.data)?.turn_price,
        royalty: header.royalty,
        paid: 0,
        state_len: (run.data.len() - HEADER_LEN) as u64,
        reserved_tokens: 0,
        core_error: 0,
    };
    account.write(run.data)?;
    let state = &mut run.data[HEADER_LEN..];
    init_state(header.config, state, prompt, max_tokens, temperature_q16, seed)?;
    header.runs += 1;
    Ok(header.write(model.data)?)
}

/// Runs one turn; anyone may who pays.
///
/// Accounts: run (changes), model (changes), configuration (changes), payer (signs, changes), system
/// program, section zero, and the matrix sections of the plan in its order.
pub fn turn(program: &Key, mut accounts: Accounts<'_>, turns: u64) -> Result<(), Refusal> {
    let [run, mut model, mut settings, mut payer, system_program, zero] = accounts.first()?;
    payer.signs()?;
    payer.changes()?;
    run.ours_to_change(program)?;
    model.ours_to_change(program)?;
    settings.ours_to_change(program)?;
    if !same(system_program.key, &system::SYSTEM_PROGRAM) {
        return Err(Refusal::WrongSystemProgram);
    }
    ConfigAccount::read(settings.data)?;
    let mut account = RunAccount::read(run.data)?;
    if !same(&account.model, model.key) {
        return Err(Refusal::WrongModel);
    }
    if account.status != Status::Open {
        return Err(Refusal::RunNotOpen);
    }
    let header = ModelAccount::read(model.data)?;
    if !header.sealed || !same(&account.artifact_digest, &header.artifact_digest) {
        return Err(Refusal::ModelNotSealed);
    }

    let state = &mut run.data[HEADER_LEN..];
    if StateInfo::read(state)?.turns != turns {
        return Err(Refusal::WrongTurn);
    }
    let plan = plan_turn(header.config, state)?;
    if accounts.count() != TURN_ACCOUNTS + plan.section_count {
        return Err(Refusal::WrongAccountCount);
    }
    let metadata = Metadata::sealed(sealed_section(program, &model, &zero, 0)?)?;
    let mut sections = [WeightSection { index: 0, bytes: &[] }; 2];
    let mut given = [None, None];
    for (i, account) in given.iter_mut().enumerate().take(plan.section_count) {
        *account = Some(accounts.take(TURN_ACCOUNTS + i)?);
    }
    for (i, account) in given.iter().flatten().enumerate() {
        let index = plan.sections[i];
        sections[i] =
            WeightSection { index, bytes: sealed_section(program, &model, account, index)? };
    }

    let reserved = account.reservation(plan.max_generated).ok_or(Refusal::TooManyLamports)?;
    if reserved > *payer.lamports {
        return Err(Refusal::InsufficientFunds);
    }
    if reserved > 0 {
        system::transfer(&mut payer, &mut settings, reserved);
    }
    let sections = &sections[..plan.section_count];
    let (backend, scratch) = (Backend::plain(), &mut Scratch::default());
    let done = turn_planned(backend, scratch, &metadata, state, sections, ALLOWANCE, &plan);
    let generated = match &done {
        Ok(result) => {
            if result.complete {
                account.status = Status::Complete;
            }
            result.generated_this_turn
        }
        // These three leave a state that is partly written: the run ends here, and the turn counts.
        Err(error @ (Error::InvalidPrompt | Error::ContextExceeded | Error::Arithmetic)) => {
            account.status = Status::Failed;
            account.core_error = error.number();
            0
        }
        Err(error) => return Err(Refusal::Core(*error)),
    };

    let royalties = account.royalty * generated as u64;
    let settled = account.turn_price + royalties;
    *settings.lamports -= reserved - account.turn_price;
    model.receive(royalties)?;
    payer.receive(reserved - settled)?;
    account.paid = account.paid.checked_add(settled).ok_or(Refusal::TooManyLamports)?;
    account.reserved_tokens = plan.max_generated;
    account.write(run.data)?;
    if let Ok(result) = done {
        announce(run.key, model.key, turns + 1, settled, &result, plan.sections);
    }
    Ok(())
}

/// The bytes of a section of a sealed model, if the account is the one that holds it.
fn sealed_section<'a>(
    program: &Key,
    model: &Account<'_>,
    weights: &'a Account<'_>,
    index: u32,
) -> Result<&'a [u8], Refusal> {
    weights.ours(program)?;
    let entry = SectionEntry::read(model.data, index)?;
    if !same(&entry.account, weights.key) {
        return Err(Refusal::WrongSection);
    }
    if !entry.sealed {
        return Err(Refusal::SectionNotSealed);
    }
    match weights.data.get(HEADER_LEN..) {
        Some(bytes) if bytes.len() as u64 == entry.len => Ok(bytes),
        _ => Err(Refusal::WrongSectionLength),
    }
}

fn announce(
    run: &Key,
    model: &Key,
    turns: u64,
    paid: u64,
    result: &TurnResult,
    sections: [u32; 2],
) {
    let event = TurnEvent {
        complete: result.complete,
        run: *run,
        model: *model,
        turns,
        paid,
        work: result.work,
        generated: result.generated,
        generated_this_turn: result.generated_this_turn,
        token: result.token,
        sections,
    };
    system::log(&event.to_bytes());
}

/// Accounts: run (changes), its owner (signs, changes), model (changes).
pub fn close(program: &Key, accounts: Accounts<'_>) -> Result<(), Refusal> {
    let [mut run, mut owner, model] = accounts.all()?;
    owner.signs()?;
    owner.changes()?;
    run.ours_to_change(program)?;
    model.ours_to_change(program)?;
    let account = RunAccount::read(run.data)?;
    if !same(&account.owner, owner.key) {
        return Err(Refusal::WrongAuthority);
    }
    if !same(&account.model, model.key) {
        return Err(Refusal::WrongModel);
    }
    let mut header = ModelAccount::read(model.data)?;
    header.runs -= 1;
    header.write(model.data)?;
    run.close(&mut owner)
}
