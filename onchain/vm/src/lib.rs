//! The Solana program under test: validators' virtual machine (crate `solana-sbpf`, metered), the system
//! calls the program uses, and the runtime's rules around an instruction, so that `cargo test` can run
//! everything without a validator. What a whole runtime adds (signatures, fees, transactions) is tested
//! in LiteSVM by `onchain/client`.

mod calls;
pub mod machine;
pub mod world;

/// A key.
pub type Key = [u8; 32];

/// Compute units a transaction may use.
pub const LIMIT: u64 = 1_400_000;

/// Lamports that keep an account of `len` bytes, as [`calls`] answers the program.
pub const fn rent(len: usize) -> u64 {
    (128 + len as u64) * calls::LAMPORTS_PER_BYTE
}
