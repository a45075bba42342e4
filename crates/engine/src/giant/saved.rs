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
    let bytes = engine.save(sequence);
    let mut snapshot = Snapshot::read(&bytes)?;
    let ids: Vec<String> = pending.iter().map(u32::to_string).collect();
    snapshot.meta.insert(PENDING.into(), ids.join(","));
    snapshot.meta.insert(DIGEST.into(), digest(&snapshot));
    files::write_atomically(path, &[&snapshot.write()])
}

/// Reads a sequence back, to the same bits, and its pending ids. It may grow by `room` positions
/// beyond those ids.
///
/// # Errors
/// A damaged file, or a state of another model, numerics id or length.
pub fn resume(
    engine: &mut dyn Engine,
    path: &Path,
    room: usize,
) -> Result<(SequenceId, Vec<u32>), Error> {
    let bytes = files::read(path, MAX_BYTES)?;
    let named = |e: SnapshotError| match e {
        SnapshotError::Damaged(why) => Error::corrupt(path.display().to_string(), why),
        other => other.into(),
    };
    let mut snapshot = Snapshot::read(&bytes).map_err(named)?;
    let corrupt = |why: &str| Error::corrupt(path.display().to_string(), why);
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
    let context = position.saturating_add(pending.len()).saturating_add(room);
    let sequence = engine.restore(&bytes, context)?;
    Ok((sequence, pending))
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
    for piece in &snapshot.pieces {
        part(piece.name.as_bytes());
        part(piece.dtype.name().as_bytes());
        part(format!("{:?}", piece.shape).as_bytes());
        part(&piece.bytes);
    }
    Digest(*hasher.finalize().as_bytes()).to_string()
}
