//! The system calls that the program uses, at the runtime's prices.

use crate::Key;
use sha2::{Digest, Sha256};
use solana_sbpf::declare_builtin_function;
use solana_sbpf::error::{EbpfError, ProgramResult};
use solana_sbpf::memory_region::MemoryMapping;
use solana_sbpf::program::{BuiltinFunctionDefinition, BuiltinProgram};
use solana_sbpf::vm::ContextObject;
use std::ptr::NonNull;

/// Rent for two years.
pub const LAMPORTS_PER_BYTE: u64 = 6960;

/// Compute units: of a call, of a hash, of a call of another program; bytes moved or read a unit.
const CALL: u64 = 100;
const HASH: u64 = 85;
const INVOKE: u64 = 1000;
const BYTES_A_UNIT: u64 = 250;

/// What the runtime knows of an account while an instruction runs.
pub struct Known {
    pub key: Key,
    pub signer: bool,
    pub writable: bool,
    pub of_system: bool,
    /// Virtual address of its lamports.
    pub lamports: u64,
}

/// The instruction meter, the program's memory, and what it logged.
pub struct Context {
    pub left: u64,
    pub memory: MemoryMapping,
    pub accounts: Vec<Known>,
    pub logs: Vec<Vec<u8>>,
}

impl ContextObject for Context {
    fn consume(&mut self, units: u64) {
        self.left = self.left.saturating_sub(units);
    }
    fn get_remaining(&self) -> u64 {
        self.left
    }
    fn active_mapping_ptr(&mut self) -> NonNull<MemoryMapping> {
        NonNull::from_mut(&mut self.memory)
    }
}

type Error = Box<dyn std::error::Error>;
type Outcome<T> = Result<T, Error>;

fn result(found: ProgramResult) -> Outcome<u64> {
    match found {
        ProgramResult::Ok(value) => Ok(value),
        ProgramResult::Err(error) => Err(Box::new(error)),
    }
}

impl Context {
    fn pay(&mut self, units: u64) -> Outcome<()> {
        if units > self.left {
            self.left = 0;
            return Err(Box::new(EbpfError::ExceededMaxInstructions));
        }
        self.left -= units;
        Ok(())
    }

    fn word(&mut self, at: u64) -> Outcome<u64> {
        result(self.memory.load::<u64>(at))
    }

    fn bytes(&mut self, at: u64, len: u64) -> Outcome<Vec<u8>> {
        (at..at + len).map(|at| Ok(result(self.memory.load::<u8>(at))? as u8)).collect()
    }

    fn key(&mut self, at: u64) -> Outcome<Key> {
        Ok(self.bytes(at, 32)?.try_into().expect("32 bytes"))
    }

    fn store(&mut self, bytes: &[u8], at: u64) -> Outcome<()> {
        for (i, byte) in bytes.iter().enumerate() {
            result(self.memory.store::<u8>(*byte, at + i as u64))?;
        }
        Ok(())
    }

    /// The parts of a list of (address, length).
    fn parts(&mut self, list: u64, count: u64) -> Outcome<Vec<Vec<u8>>> {
        let part = |i: u64| {
            let (at, len) = (self.word(list + 16 * i)?, self.word(list + 16 * i + 8)?);
            self.bytes(at, len)
        };
        (0..count).map(part).collect()
    }

    /// The system program's transfer, for accounts that the transaction named.
    fn transfer(&mut self, call: u64) -> Outcome<()> {
        let (program, metas, count) =
            (self.word(call)?, self.word(call + 8)?, self.word(call + 16)?);
        let (data, len) = (self.word(call + 24)?, self.word(call + 32)?);
        let data = self.bytes(data, len)?;
        if self.key(program)? != [0; 32] || count != 2 || len != 12 || data[..4] != [2, 0, 0, 0] {
            return Err("only the system program's transfer is known here".into());
        }
        let amount = u64::from_le_bytes(data[4..].try_into()?);
        let mut found = Vec::new();
        for i in 0..count {
            let key = self.word(metas + 16 * i)?;
            let key = self.key(key)?;
            let known = self.accounts.iter().find(|a| a.key == key).ok_or("an unknown account")?;
            if !known.writable || (i == 0 && !(known.signer && known.of_system)) {
                return Err("an account gains a privilege".into());
            }
            found.push(known.lamports);
        }
        let (from, to) = (self.word(found[0])?, self.word(found[1])?);
        let rest = from.checked_sub(amount).ok_or("insufficient lamports for a transfer")?;
        self.store(&rest.to_le_bytes(), found[0])?;
        self.store(&(to + amount).to_le_bytes(), found[1])
    }
}

declare_builtin_function! {
    Abort,
    fn rust(_context: &mut Context, _a: u64, _b: u64, _c: u64, _d: u64, _e: u64,) -> Result<u64, Error> {
        Err("the program stopped itself".into())
    }
}
declare_builtin_function! {
    Move,
    fn rust(c: &mut Context, to: u64, from: u64, len: u64, _d: u64, _e: u64,) -> Result<u64, Error> {
        c.pay((len / BYTES_A_UNIT).max(10))?;
        let bytes = c.bytes(from, len)?;
        c.store(&bytes, to)?;
        Ok(0)
    }
}
declare_builtin_function! {
    Set,
    fn rust(c: &mut Context, to: u64, byte: u64, len: u64, _d: u64, _e: u64,) -> Result<u64, Error> {
        c.pay((len / BYTES_A_UNIT).max(10))?;
        c.store(&vec![byte as u8; len as usize], to)?;
        Ok(0)
    }
}
declare_builtin_function! {
    Hash,
    fn rust(c: &mut Context, list: u64, count: u64, out: u64, _d: u64, _e: u64,) -> Result<u64, Error> {
        let parts = c.parts(list, count)?;
        let cost = parts.iter().map(|p| (p.len() as u64 / 2).max(10)).sum::<u64>();
        c.pay(HASH + cost)?;
        let mut hash = Sha256::new();
        parts.iter().for_each(|part| hash.update(part));
        c.store(&hash.finalize(), out)?;
        Ok(0)
    }
}
declare_builtin_function! {
    Log,
    fn rust(c: &mut Context, list: u64, count: u64, _c: u64, _d: u64, _e: u64,) -> Result<u64, Error> {
        let parts = c.parts(list, count)?;
        c.pay(CALL * (1 + count) + parts.iter().map(|p| p.len() as u64).sum::<u64>())?;
        c.logs.push(parts.concat());
        Ok(0)
    }
}
declare_builtin_function! {
    GetRent,
    fn rust(c: &mut Context, out: u64, _b: u64, _c: u64, _d: u64, _e: u64,) -> Result<u64, Error> {
        c.pay(CALL + 17)?;
        c.store(&(LAMPORTS_PER_BYTE / 2).to_le_bytes(), out)?;
        c.store(&2f64.to_le_bytes(), out + 8)?;
        c.store(&[50], out + 16)?;
        Ok(0)
    }
}
declare_builtin_function! {
    Invoke,
    fn rust(c: &mut Context, call: u64, _b: u64, _c: u64, _d: u64, _e: u64,) -> Result<u64, Error> {
        c.pay(INVOKE)?;
        c.transfer(call)?;
        Ok(0)
    }
}

/// Makes the calls known to a loader.
pub fn register(loader: &mut BuiltinProgram<Context>) -> Result<(), String> {
    let failed = |e: solana_sbpf::elf::ElfError| e.to_string();
    Abort::register(loader, "abort").map_err(failed)?;
    Move::register(loader, "sol_memmove_").map_err(failed)?;
    Set::register(loader, "sol_memset_").map_err(failed)?;
    Hash::register(loader, "sol_sha256").map_err(failed)?;
    Log::register(loader, "sol_log_data").map_err(failed)?;
    GetRent::register(loader, "sol_get_rent_sysvar").map_err(failed)?;
    Invoke::register(loader, "sol_invoke_signed_c").map_err(failed)
}
