//! The program's configuration, and what was earned.

use crate::accounts::{Account, Accounts, same};
use crate::system::{self, Bytes};
use fixed::protocol::{CONFIG_LEN, ConfigAccount, Key, ModelAccount, Problem, Refusal};

/// The configuration lies at the address with this seed and the program's own key as the base, so
/// only who deployed the program could create it, and only once.
const CONFIG_SEED: &[u8] = b"facit-config";

/// Accounts: configuration (changes), its authority (signs); to create it: the new authority, and
/// the program itself (signs).
pub fn set_config(
    program: &Key,
    mut accounts: Accounts<'_>,
    new: &ConfigAccount,
) -> Result<(), Refusal> {
    let creates = accounts.count() == 3;
    let [config, authority] = accounts.first()?;
    authority.signs()?;
    if creates {
        let deployer = accounts.take(2)?;
        deployer.signs()?;
        if !same(deployer.key, program) {
            return Err(Refusal::WrongAuthority);
        }
        config.fresh(program)?;
        let parts = [Bytes::new(program), Bytes::new(CONFIG_SEED), Bytes::new(program)];
        if !same(config.key, &system::sha256(&parts)) {
            return Err(Refusal::WrongConfigAddress);
        }
        if config.data.len() != CONFIG_LEN {
            return Err(Refusal::Layout(Problem::WrongLength));
        }
    } else {
        if accounts.count() != 2 {
            return Err(Refusal::WrongAccountCount);
        }
        config.ours_to_change(program)?;
        if !same(&ConfigAccount::read(config.data)?.authority, authority.key) {
            return Err(Refusal::WrongAuthority);
        }
    }
    Ok(new.write(config.data)?)
}

/// Accounts: configuration (changes), its authority (signs, changes).
pub fn withdraw_fees(program: &Key, accounts: Accounts<'_>, lamports: u64) -> Result<(), Refusal> {
    let [mut config, mut authority] = accounts.all()?;
    config.ours_to_change(program)?;
    let owner = ConfigAccount::read(config.data)?.authority;
    withdraw(&mut config, &mut authority, &owner, lamports)
}

/// Accounts: model (changes), its owner (signs, changes).
pub fn withdraw_royalties(
    program: &Key,
    accounts: Accounts<'_>,
    lamports: u64,
) -> Result<(), Refusal> {
    let [mut model, mut signer] = accounts.all()?;
    model.ours_to_change(program)?;
    let owner = ModelAccount::read(model.data)?.owner;
    withdraw(&mut model, &mut signer, &owner, lamports)
}

fn withdraw(
    from: &mut Account<'_>,
    to: &mut Account<'_>,
    owner: &Key,
    lamports: u64,
) -> Result<(), Refusal> {
    to.signs()?;
    to.changes()?;
    if !same(to.key, owner) {
        return Err(Refusal::WrongAuthority);
    }
    if lamports > from.spare() {
        return Err(Refusal::InsufficientFunds);
    }
    *from.lamports -= lamports;
    to.receive(lamports)
}
