//! Facit's exact integer core as a Solana program: models live in accounts, a run's state lives in an
//! account, and a transaction runs one turn of it.
//!
//! Layouts are in [`fixed::protocol`]; the accounts that each instruction takes, in order, are with
//! its function in `models`, `runs` and `funds`. Rules for all of them: no account twice, accounts
//! that change are writable, accounts with data belong to the program, an account that is being
//! initialised signs (so nobody else can take it first) and is rent exempt. A refused instruction
//! returns [`Refusal::number`]; the runtime then undoes everything it did.
#![no_std]
#![feature(asm_experimental_arch)]

mod accounts;
mod funds;
mod kernel;
mod models;
mod runs;
mod system;

use accounts::Input;
use fixed::protocol::{Instruction, Refusal};

/// Called by the loader with the serialised accounts, instruction data and program id.
///
/// # Safety
/// `input` is the loader's, in its (aligned) layout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn entrypoint(input: *mut u8) -> u64 {
    // SAFETY: the caller's promise.
    let done = unsafe { Input::read(input) }.and_then(process);
    done.map_or_else(|refusal| refusal.number() as u64, |()| 0)
}

fn process(input: Input<'_>) -> Result<(), Refusal> {
    let Input { accounts, data, program } = input;
    match Instruction::read(data)? {
        Instruction::SetConfig { authority, turn_price, max_royalty } => {
            let config = fixed::protocol::ConfigAccount { authority, turn_price, max_royalty };
            funds::set_config(program, accounts, &config)
        }
        Instruction::CreateModel { royalty, config } => {
            models::create(program, accounts, royalty, config)
        }
        Instruction::AddWeights { index, digest } => {
            models::add_weights(program, accounts, index, digest)
        }
        Instruction::Upload { offset, bytes } => models::upload(program, accounts, offset, bytes),
        Instruction::SealWeights => models::seal_weights(program, accounts),
        Instruction::SealModel => models::seal(program, accounts),
        Instruction::OpenRun { max_tokens, temperature_q16, seed, prompt } => {
            let request = runs::Request { max_tokens, temperature_q16, seed, prompt };
            runs::open(program, accounts, &request)
        }
        Instruction::Turn { turns } => runs::turn(program, accounts, turns),
        Instruction::CloseRun => runs::close(program, accounts),
        Instruction::CloseWeights => models::close_weights(program, accounts),
        Instruction::CloseModel => models::close(program, accounts),
        Instruction::WithdrawFees { lamports } => funds::withdraw_fees(program, accounts, lamports),
        Instruction::WithdrawRoyalties { lamports } => {
            funds::withdraw_royalties(program, accounts, lamports)
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    system::stop()
}
