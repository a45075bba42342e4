//! The system calls the program uses, behind safe functions.

use crate::accounts::Account;
use fixed::protocol::Key;

/// A run of bytes as system calls take it.
#[repr(C)]
pub struct Bytes {
    address: *const u8,
    len: u64,
}

impl Bytes {
    pub const fn new(bytes: &[u8]) -> Bytes {
        Bytes { address: bytes.as_ptr(), len: bytes.len() as u64 }
    }
}

/// One account in an instruction to another program.
#[repr(C)]
struct Meta {
    key: *const Key,
    writable: bool,
    signer: bool,
}

/// An instruction to another program.
#[repr(C)]
struct Call {
    program: *const Key,
    accounts: *const Meta,
    account_count: u64,
    data: *const u8,
    data_len: u64,
}

/// What the caller knows of an account.
#[repr(C)]
struct Info {
    key: *const Key,
    lamports: *mut u64,
    data_len: u64,
    data: *mut u8,
    owner: *const Key,
    rent_epoch: u64,
    signer: bool,
    writable: bool,
    executable: bool,
}

unsafe extern "C" {
    fn abort() -> !;
    fn sol_sha256(parts: *const Bytes, count: u64, digest: *mut Key) -> u64;
    fn sol_log_data(parts: *const Bytes, count: u64);
    fn sol_get_rent_sysvar(rent: *mut Rent) -> u64;
    fn sol_invoke_signed_c(
        call: *const Call,
        infos: *const Info,
        info_count: u64,
        seeds: *const u8,
        seed_count: u64,
    ) -> u64;
}

/// The system program's key.
pub const SYSTEM_PROGRAM: Key = [0; 32];
/// The system program's transfer instruction.
const TRANSFER: u32 = 2;
/// Bytes that the rent of an account counts besides its data.
const ACCOUNT_OVERHEAD: u64 = 128;

/// The rent that the cluster asks; its threshold is a float of which two values are known.
#[repr(C)]
struct Rent {
    lamports_per_byte: u64,
    threshold_bits: u64,
    burn_percent: u8,
}

const ONE: u64 = 0x3FF0_0000_0000_0000;
const TWO: u64 = 0x4000_0000_0000_0000;

/// Stops the program; the transaction fails.
pub fn stop() -> ! {
    // SAFETY: takes nothing, does not return.
    unsafe { abort() }
}

/// SHA-256 of the parts, one after the other.
pub fn sha256(parts: &[Bytes]) -> Key {
    let mut digest = [0; 32];
    // SAFETY: the parts were made of slices; the digest has 32 bytes.
    if unsafe { sol_sha256(parts.as_ptr(), parts.len() as u64, &mut digest) } != 0 {
        stop();
    }
    digest
}

/// Writes bytes to the transaction's log.
pub fn log(bytes: &[u8]) {
    // SAFETY: one part, made of a slice.
    unsafe { sol_log_data(&Bytes::new(bytes), 1) }
}

/// Lamports that keep an account of `len` bytes of data.
pub fn rent_exemption(len: usize) -> u64 {
    let mut rent = Rent { lamports_per_byte: 0, threshold_bits: 0, burn_percent: 0 };
    // SAFETY: the struct is laid out as the runtime writes it.
    if unsafe { sol_get_rent_sysvar(&mut rent) } != 0 {
        stop();
    }
    let years = match rent.threshold_bits {
        ONE => 1,
        TWO => 2,
        _ => stop(),
    };
    let bytes = ACCOUNT_OVERHEAD + len as u64;
    let lamports = bytes.checked_mul(rent.lamports_per_byte).and_then(|v| v.checked_mul(years));
    lamports.unwrap_or_else(|| stop())
}

/// Moves lamports of an account that is not the program's, which signed. The runtime fails the
/// transaction if that cannot be.
pub fn transfer(from: &mut Account<'_>, to: &mut Account<'_>, lamports: u64) {
    let mut data = [0; 12];
    data[..4].copy_from_slice(&TRANSFER.to_le_bytes());
    data[4..].copy_from_slice(&lamports.to_le_bytes());
    let accounts = [
        Meta { key: from.key, writable: true, signer: true },
        Meta { key: to.key, writable: true, signer: false },
    ];
    let call = Call {
        program: &SYSTEM_PROGRAM,
        accounts: accounts.as_ptr(),
        account_count: accounts.len() as u64,
        data: data.as_ptr(),
        data_len: data.len() as u64,
    };
    let infos = [info(from), info(to)];
    // SAFETY: all pointers are to what outlives the call; both accounts are borrowed mutably.
    let failed = unsafe {
        let none = core::ptr::null();
        sol_invoke_signed_c(&call, infos.as_ptr(), infos.len() as u64, none, 0)
    };
    if failed != 0 {
        stop();
    }
}

fn info(account: &mut Account<'_>) -> Info {
    Info {
        key: account.key,
        lamports: account.lamports,
        data_len: account.data.len() as u64,
        data: account.data.as_mut_ptr(),
        owner: account.owner,
        rent_epoch: u64::MAX,
        signer: account.signer,
        writable: account.writable,
        executable: false,
    }
}
