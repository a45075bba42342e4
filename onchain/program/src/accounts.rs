//! The loader's serialised input as accounts.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | count of accounts |
//! | | the accounts |
//! | 8, n | length of the instruction data, the data |
//! | 32 | program id |
//!
//! An account is `0xFF`, signer, writable, executable (a byte each), 4 bytes, key, owner, lamports,
//! data length, data, 10,240 bytes to grow into, up to the next multiple of eight, rent epoch. One
//! that was given before is its index and 7 bytes instead; it is refused, so no two [`Account`]s
//! share memory.

use crate::system;
use fixed::protocol::{Key, MAX_ACCOUNT_LEN, Problem, Refusal};

/// Most accounts an instruction takes: a turn with two sections.
pub const MAX_ACCOUNTS: usize = 8;
/// First byte of an account that was not given before.
const NEW: u8 = 0xFF;
/// Bytes before an account's data.
const HEADER: usize = 88;
/// Bytes after an account's data that it can grow into.
const GROWTH: usize = 10_240;

/// An account of the instruction.
pub struct Account<'a> {
    pub key: &'a Key,
    pub owner: &'a Key,
    pub signer: bool,
    pub writable: bool,
    pub lamports: &'a mut u64,
    pub data: &'a mut [u8],
    /// The length the runtime reads back.
    len: &'a mut u64,
}

/// What the loader passes.
pub struct Input<'a> {
    pub accounts: Accounts<'a>,
    pub data: &'a [u8],
    pub program: &'a Key,
}

/// The accounts in the order they were given.
pub struct Accounts<'a> {
    list: [Option<Account<'a>>; MAX_ACCOUNTS],
    count: usize,
}

impl<'a> Input<'a> {
    /// Reads the loader's input. Counts and lengths are bounded; that the bytes are there is the
    /// loader's promise, and reading beyond them stops the program.
    ///
    /// # Safety
    /// `input` is in the loader's layout, nobody else refers to it, and it stays for `'a`.
    pub unsafe fn read(input: *mut u8) -> Result<Input<'a>, Refusal> {
        let mut at = input;
        // SAFETY (all of this block): the pointer moves along the layout by the lengths it names,
        // at addresses that are multiples of eight; no two references overlap.
        unsafe {
            let count = *at.cast::<u64>();
            if count > MAX_ACCOUNTS as u64 {
                return Err(Refusal::WrongAccountCount);
            }
            at = at.add(8);
            let mut list = [const { None }; MAX_ACCOUNTS];
            for slot in list.iter_mut().take(count as usize) {
                if *at != NEW {
                    return Err(Refusal::DuplicateAccount);
                }
                let len = *at.add(80).cast::<u64>();
                if len > MAX_ACCOUNT_LEN {
                    return Err(Refusal::Layout(Problem::WrongLength));
                }
                *slot = Some(Account {
                    key: &*at.add(8).cast(),
                    owner: &*at.add(40).cast(),
                    signer: *at.add(1) != 0,
                    writable: *at.add(2) != 0,
                    lamports: &mut *at.add(72).cast(),
                    data: core::slice::from_raw_parts_mut(at.add(HEADER), len as usize),
                    len: &mut *at.add(80).cast(),
                });
                at = at.add((HEADER + len as usize + GROWTH).next_multiple_of(8) + 8);
            }
            let len = *at.cast::<u64>() as usize;
            let data = core::slice::from_raw_parts(at.add(8), len);
            let program = &*at.add(8 + len).cast();
            Ok(Input { accounts: Accounts { list, count: count as usize }, data, program })
        }
    }
}

impl<'a> Accounts<'a> {
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first `N` accounts; there may be more.
    pub fn first<const N: usize>(&mut self) -> Result<[Account<'a>; N], Refusal> {
        if self.count < N {
            return Err(Refusal::WrongAccountCount);
        }
        let mut list = self.list.iter_mut();
        let taken = [(); N].map(|()| list.next().and_then(Option::take));
        if taken.iter().any(Option::is_none) {
            return Err(Refusal::WrongAccountCount);
        }
        Ok(taken.map(|account| account.unwrap_or_else(|| system::stop())))
    }

    /// All accounts, which must be `N`.
    pub fn all<const N: usize>(mut self) -> Result<[Account<'a>; N], Refusal> {
        if self.count != N {
            return Err(Refusal::WrongAccountCount);
        }
        self.first()
    }

    /// The account at `index`, unless it was taken.
    pub fn take(&mut self, index: usize) -> Result<Account<'a>, Refusal> {
        self.list.get_mut(index).and_then(Option::take).ok_or(Refusal::WrongAccountCount)
    }
}

impl Account<'_> {
    pub fn signs(&self) -> Result<(), Refusal> {
        if self.signer { Ok(()) } else { Err(Refusal::MissingSignature) }
    }

    pub fn changes(&self) -> Result<(), Refusal> {
        if self.writable { Ok(()) } else { Err(Refusal::NotWritable) }
    }

    /// Belongs to the program: only the program has written its data.
    pub fn ours(&self, program: &Key) -> Result<(), Refusal> {
        if same(self.owner, program) { Ok(()) } else { Err(Refusal::WrongOwner) }
    }

    /// Belongs to the program and changes.
    pub fn ours_to_change(&self, program: &Key) -> Result<(), Refusal> {
        self.ours(program)?;
        self.changes()
    }

    /// Ready to be initialised: of the program, not in use, with lamports enough to stay.
    pub fn fresh(&self, program: &Key) -> Result<(), Refusal> {
        self.ours_to_change(program)?;
        match self.data.first_chunk() {
            None => return Err(Refusal::Layout(Problem::WrongLength)),
            Some(tag) if u64::from_le_bytes(*tag) != 0 => return Err(Refusal::AlreadyInitialised),
            Some(_) => {}
        }
        if *self.lamports < system::rent_exemption(self.data.len()) {
            return Err(Refusal::NotRentExempt);
        }
        Ok(())
    }

    /// As [`Account::fresh`], and signs for it.
    pub fn fresh_and_signed(&self, program: &Key) -> Result<(), Refusal> {
        self.signs()?;
        self.fresh(program)
    }

    /// Lamports beyond what keeps the account rent exempt.
    pub fn spare(&self) -> u64 {
        self.lamports.saturating_sub(system::rent_exemption(self.data.len()))
    }

    /// Empties the account into another: no lamports, no data.
    pub fn close(&mut self, into: &mut Account<'_>) -> Result<(), Refusal> {
        into.receive(*self.lamports)?;
        *self.lamports = 0;
        let header = self.data.len().min(fixed::protocol::HEADER_LEN);
        self.data[..header].fill(0);
        *self.len = 0;
        Ok(())
    }

    /// Adds lamports taken from elsewhere.
    pub fn receive(&mut self, lamports: u64) -> Result<(), Refusal> {
        let sum = self.lamports.checked_add(lamports).ok_or(Refusal::TooManyLamports)?;
        *self.lamports = sum;
        Ok(())
    }
}

/// Whether two keys are equal, by words.
pub fn same(a: &Key, b: &Key) -> bool {
    let (a, b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    a.iter().zip(b).all(|(a, b)| u64::from_le_bytes(*a) == u64::from_le_bytes(*b))
}
