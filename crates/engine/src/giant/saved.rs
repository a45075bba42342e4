//! A sequence on disk: the model's state as a safetensors file, the ids still to be processed and
//! a digest over all of it.

use std::path::Path;

use models::machine::{Snapshot, SnapshotError};
use store::Digest;

use super::{Engine, SequenceId};
use crate::{Error, files};

/// Largest saved state that is read.
pub const MAX_BYTES: u64 = 64 << 30;

/// Metadata: ids chosen but not yet processed, separated by commas.
const PENDING: &str = "facit.pending_ids";
/// Metadata: digest over metadata and tensors.
const DIGEST: &str = "facit.blake3";

/// Writes the sequence to `path`, whole or not at all. `pending` has been chosen and not yet
/// processed; a resumed run begins with it.
///
/// # Errors
/// The disk's.
pub fn save(
    engine: &dyn Engine,
    sequence: SequenceId,
    pending: &[u32],
    path: &Path,
) -> Result<(), Error> {
    let mut snapshot = engine.save(sequence);
    let ids: Vec<String> = pending.iter().map(u32::to_string).collect();
    snapshot.meta.insert(PENDING.into(), ids.join(","));
    snapshot.meta.insert(DIGEST.into(), digest(&snapshot));
    let header = snapshot.header();
    let pieces = snapshot.pieces.iter().map(|p| &*p.bytes);
    files::write_atomically(path, &std::iter::once(&*header).chain(pieces).collect::<Vec<_>>())
}

/// A saved sequence that has been read and checked and waits for an engine.
pub struct Saved {
    bytes: Vec<u8>,
    /// Positions it has seen.
    pub position: usize,
    /// Ids chosen but not yet processed.
    pub pending: Vec<u32>,
}

impl Saved {
    /// Reads a file of [`save`].
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Saved, Error> {
        let bytes = files::read(path, MAX_BYTES)?;
        let corrupt = |why: &str| Error::corrupt(path.display().to_string(), why);
        let named = |e: SnapshotError| match e {
            SnapshotError::Damaged(why) => corrupt(&why),
            other => other.into(),
        };
        let mut snapshot = Snapshot::read(&bytes).map_err(named)?;
        let claimed = snapshot
            .meta
            .remove(DIGEST)
            .ok_or_else(|| corrupt("it has no digest: not a state saved by Facit"))?;
        if claimed != digest(&snapshot) {
            return Err(corrupt("its digest does not match its contents: it was altered or cut"));
        }
        let pending = snapshot.meta.remove(PENDING).unwrap_or_default();
        let pending: Result<Vec<u32>, _> =
            pending.split(',').filter(|s| !s.is_empty()).map(str::parse).collect();
        let pending = pending.map_err(|_| corrupt("its pending ids are not numbers"))?;
        let position = snapshot.meta.get("position").and_then(|p| p.parse::<usize>().ok());
        let position = position.ok_or_else(|| corrupt("it does not say its position"))?;
        Ok(Saved { bytes, position, pending })
    }

    /// The sequence, to the same bits, with room for `context` positions.
    ///
    /// # Errors
    /// A state of another model, numerics id or length.
    pub fn restore(&self, engine: &mut dyn Engine, context: usize) -> Result<SequenceId, Error> {
        engine.restore(&self.bytes, context)
    }
}

fn digest(snapshot: &Snapshot<'_>) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for (key, value) in snapshot.meta.iter().filter(|(key, _)| *key != DIGEST) {
        part(key.as_bytes());
        part(value.as_bytes());
    }
    // By name: empty pieces share a place in the file, so their order there says nothing.
    let mut pieces: Vec<_> = snapshot.pieces.iter().collect();
    pieces.sort_unstable_by_key(|piece| &*piece.name);
    for piece in pieces {
        part(piece.name.as_bytes());
        part(piece.dtype.name().as_bytes());
        part(format!("{:?}", piece.shape).as_bytes());
        part(&piece.bytes);
    }
    Digest(*hasher.finalize().as_bytes()).to_string()
}
