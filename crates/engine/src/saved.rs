//! A paused run in a file: the state with what it takes to know which model it belongs to and
//! that no byte of it changed. The state itself is laid out by `fixed`.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `FACITSV1` |
//! | 8 | 32 | numerics id ([`NUMERICS`]) in ASCII, filled up with zero bytes |
//! | 40 | 32 | SHA-256 of the model's artifact |
//! | 72 | 28 | the model's configuration, seven little-endian u32 as in the artifact |
//! | 100 | 4 | zero |
//! | 104 | 8 | length of the state, little-endian u64 |
//! | 112 | length | the state |
//! | 112 + length | 32 | SHA-256 of everything before |

use std::path::Path;

use fixed::format::Config;

use crate::artifact::Model;
use crate::inspect::Kind;
use crate::session::State;
use crate::{Digest, Error, NUMERICS, Session, files};

/// The first eight bytes of a saved state.
pub const MAGIC: [u8; 8] = *b"FACITSV1";
/// Bytes before the state.
pub const HEADER_BYTES: usize = 112;
/// Bytes after the state.
pub const TRAILER_BYTES: usize = 32;
/// The largest file accepted: a state is below 2 GiB by its specification.
pub const MAX_BYTES: u64 = (1 << 31) + (HEADER_BYTES + TRAILER_BYTES) as u64;

/// A saved state whose bytes are whole and whose cursor is valid for its configuration.
#[derive(Debug)]
pub struct Saved {
    /// The artifact it belongs to.
    pub model: Digest,
    /// That artifact's configuration.
    pub config: Config,
    /// The state.
    pub state: State,
}

/// Writes `session` to `path`, atomically.
///
/// # Errors
/// [`Error::Write`].
pub fn save(path: &Path, session: &Session<'_>) -> Result<(), Error> {
    let state = session.state();
    let header = header(session.model().digest(), session.model().config(), state.len());
    let mut hash = sha2::Sha256::default();
    sha2::Digest::update(&mut hash, header);
    sha2::Digest::update(&mut hash, state);
    let digest: [u8; 32] = sha2::Digest::finalize(hash).into();
    files::write_atomically(path, &[&header, state, &digest])
}

fn header(model: Digest, config: Config, state_len: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..8 + NUMERICS.len()].copy_from_slice(NUMERICS.as_bytes());
    header[40..72].copy_from_slice(&model.0);
    header[72..100].copy_from_slice(&config.to_bytes());
    header[104..].copy_from_slice(&(state_len as u64).to_le_bytes());
    header
}

impl Saved {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Corrupt`], and [`Error::Mismatch`] for other numerics.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let accept = |head: &[u8], len| Kind::of(head, len).must_be(Kind::Saved, &name);
        Self::decode(&files::read_if(path, MAX_BYTES, accept)?, &name)
    }

    /// Checks `bytes`, called `name` in errors.
    ///
    /// # Errors
    /// As [`Saved::open`].
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self, Error> {
        let corrupt = |why: String| Error::corrupt(name, why);
        Kind::of(bytes, bytes.len() as u64).must_be(Kind::Saved, name)?;
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(corrupt(format!("cut off inside the {HEADER_BYTES} bytes of its header")));
        };
        let (state, digest) = rest.split_at(rest.len().saturating_sub(TRAILER_BYTES));
        let len = u64::from_le_bytes(header[104..].try_into().expect("8 bytes"));
        if len != state.len() as u64 || digest.len() != TRAILER_BYTES {
            let wanted = u128::from(len) + (HEADER_BYTES + TRAILER_BYTES) as u128;
            return Err(corrupt(format!(
                "{} bytes long where its header says {wanted}: truncated or changed",
                bytes.len()
            )));
        }
        let computed = Digest::of(&bytes[..HEADER_BYTES + state.len()]);
        if computed.0 != digest {
            return Err(corrupt(format!(
                "bytes were changed after it was saved: their SHA-256 is {computed}, the file says {}",
                Digest(digest.try_into().expect("32 bytes"))
            )));
        }
        let numerics = String::from_utf8_lossy(&header[8..40]);
        let numerics = numerics.trim_end_matches('\0');
        if numerics != NUMERICS {
            return Err(Error::mismatch(format!("{name}: numerics"), NUMERICS, numerics));
        }
        if header[100..104] != [0; 4] {
            return Err(corrupt("bytes 100 to 103, kept zero for later, are not zero".into()));
        }
        let config = Config::from_bytes(&header[72..100])
            .map_err(|e| corrupt(format!("its model configuration: {e}")))?;
        let model = Digest(header[40..72].try_into().expect("32 bytes"));
        let state = State::checked(config, state, name)?;
        Ok(Self { model, config, state })
    }

    /// Refuses any model but the one the run was started with.
    ///
    /// # Errors
    /// [`Error::Mismatch`] with both digests.
    pub fn check_model(&self, model: &Model<'_>, name: &str) -> Result<(), Error> {
        if self.model == model.digest() {
            return Ok(());
        }
        Err(Error::mismatch(
            format!(
                "{name} was saved by another model than {}; name the right one with --model",
                model.name()
            ),
            format!("SHA-256 {}", self.model),
            model.digest(),
        ))
    }
}
