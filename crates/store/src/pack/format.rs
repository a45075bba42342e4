//! The packed trunk's index and how a run becomes a layer's bytes again.

use super::{BLOCK, TENSOR_ALIGN, codec};
use crate::io::{DIRECT_ALIGN, Disk, Mode, read_exact_at};
use crate::safetensors::{Dtype, Index, TensorSpec};
use crate::{Digest, Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Name of the packed trunk in a model's directory.
pub const TRUNK_FILE: &str = "trunk.facit";

const FORMAT: &str = "facit trunk 2";
const MAGIC: &[u8; 8] = b"FACITTRK";
/// Digest, length, magic.
const TRAILER: u64 = 32 + 8 + 8;
/// How the names of the head's pieces begin.
const HEAD: &str = "head rows ";
/// Longest index accepted.
const MAX_INDEX: u64 = 64 << 20;
/// A stored block that is not compressed.
const PLAIN: u32 = 1 << 31;

/// How runs are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// As they are.
    #[default]
    None,
    /// bf16 tensors compressed without loss by [`codec`].
    Bf16,
}

/// A tensor of a run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RunTensor {
    /// Name, type and shape. A piece of the head has the shape of its rows.
    #[serde(flatten)]
    pub spec: TensorSpec,
    /// Place of its first byte in the (decoded) run.
    pub at: u64,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Run {
    /// "layer 17", "head rows 0..1024".
    pub what: String,
    /// Offset in the file, a multiple of 4096.
    pub offset: u64,
    /// Bytes in the file.
    pub stored: u64,
    /// Bytes when decoded.
    pub raw: u64,
    /// Of the decoded bytes.
    pub digest: Digest,
    /// Of a few bytes of each of its tensors, see [`sample`].
    pub sample: Digest,
    /// Its tensors.
    pub tensors: Vec<RunTensor>,
}

/// Bytes of a tensor that [`sample`] looks at.
const SAMPLE: u64 = 256;

/// Digest of the bytes in the middle of each tensor of a run, in the checkpoint: read at every
/// start, so that weights that were packed are not taken for others under the same headers (a
/// fine-tuned model, a later revision). The head's piece begins at byte `from` of its matrix.
pub(crate) fn sample(index: &Index, specs: &[TensorSpec], from: u64) -> Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    for spec in specs {
        let len = spec.bytes().unwrap_or(0);
        let mut bytes = [0; SAMPLE as usize];
        let bytes = &mut bytes[..len.min(SAMPLE) as usize];
        let middle = (len - bytes.len() as u64) / 2;
        index.read_range(&index.require(&spec.name)?, from + middle, bytes)?;
        hasher.update(bytes);
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}

/// Feeds `n` zeros, the bytes between tensors.
pub(super) fn pad_hash(hasher: &mut blake3::Hasher, n: u64) {
    debug_assert!(n < TENSOR_ALIGN);
    hasher.update(&[0; TENSOR_ALIGN as usize][..n as usize]);
}

/// Digest of all of a run's tensors in the checkpoint: what [`Run::digest`] must be.
pub(crate) fn source_digest(index: &Index, run: &Run, from: u64) -> Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    let (mut at, mut buf) = (0, vec![0; BLOCK]);
    for t in &run.tensors {
        pad_hash(&mut hasher, t.at - at);
        let (tensor, len) = (index.require(&t.spec.name)?, t.spec.bytes().unwrap_or(0));
        for start in (0..len).step_by(BLOCK) {
            let block = &mut buf[..(len - start).min(BLOCK as u64) as usize];
            index.read_range(&tensor, from + start, block)?;
            hasher.update(block);
        }
        at = t.at + len;
    }
    pad_hash(&mut hasher, run.raw - at);
    Ok(Digest(*hasher.finalize().as_bytes()))
}

/// The name of a piece of the head.
pub(super) fn head_name(rows: &std::ops::Range<u64>) -> String {
    format!("{HEAD}{}..{}", rows.start, rows.end)
}

impl Run {
    /// Whether it is a piece of the head.
    pub(crate) fn is_head(&self) -> bool {
        self.what.starts_with(HEAD)
    }
}

/// Places tensors one after another: where each begins and the length of the whole.
pub(super) fn place(specs: &[TensorSpec]) -> Result<(Vec<RunTensor>, u64)> {
    let mut at = 0u64;
    let mut tensors = Vec::with_capacity(specs.len());
    for spec in specs {
        let end = spec.bytes().and_then(|n| at.checked_add(n)).filter(|&end| end < 1 << 62);
        let end =
            end.ok_or_else(|| Error::Refused(format!("tensor {} is too large", spec.name)))?;
        tensors.push(RunTensor { spec: spec.clone(), at });
        at = end.next_multiple_of(TENSOR_ALIGN);
    }
    Ok((tensors, at))
}

/// A block of a run: where its bytes go and whether the codec may be used.
pub(super) struct Block {
    pub at: u64,
    pub len: usize,
    pub bf16: bool,
}

/// The blocks of tensors in order.
pub(super) fn blocks(tensors: &[RunTensor]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for t in tensors {
        let bytes = t.spec.bytes().unwrap_or(0);
        for start in (0..bytes).step_by(BLOCK) {
            let len = (bytes - start).min(BLOCK as u64) as usize;
            blocks.push(Block { at: t.at + start, len, bf16: t.spec.dtype == Dtype::Bf16 });
        }
    }
    blocks
}

/// How many blocks there are, without making them.
fn block_count(tensors: &[RunTensor]) -> u64 {
    tensors.iter().map(|t| t.spec.bytes().unwrap_or(0).div_ceil(BLOCK as u64)).sum()
}

/// Compresses one block; returns its entry in the run's table.
pub(super) fn encode_block(raw: &[u8], bf16: bool, out: &mut Vec<u8>) -> u32 {
    let start = out.len();
    if bf16 {
        codec::encode(raw, out);
        if out.len() - start < raw.len() {
            return (out.len() - start) as u32;
        }
        out.truncate(start);
    }
    out.extend_from_slice(raw);
    raw.len() as u32 | PLAIN
}

/// A block as it is stored in a run of [`Codec::Bf16`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedBlock {
    /// Place of its code, from the run's first stored byte on.
    pub from: u64,
    /// Bytes of its code.
    pub len: u32,
    /// The code is the bytes themselves.
    plain: bool,
    /// Place of its bytes in the decoded run.
    pub at: u64,
    /// How many there are.
    raw: u32,
    /// Bytes to the next block's, or to the run's end: those after its own are zero.
    pub room: u32,
}

impl CodedBlock {
    /// Where its code ends.
    pub fn end(&self) -> u64 {
        self.from + u64::from(self.len)
    }
}

/// Bytes of the table that a run of [`Codec::Bf16`] begins with.
fn table_bytes(run: &Run) -> usize {
    4 * block_count(&run.tensors) as usize
}

/// The blocks of a run stored with [`Codec::Bf16`], from its first bytes.
///
/// # Errors
/// If they cannot be what [`super::pack`] wrote.
pub fn coded_blocks(run: &Run, stored: &[u8]) -> Result<Vec<CodedBlock>, String> {
    let blocks = blocks(&run.tensors);
    let table = stored.get(..4 * blocks.len()).ok_or("its table is cut off")?;
    let mut from = table.len() as u64;
    let mut coded = Vec::with_capacity(blocks.len());
    for (i, (block, entry)) in blocks.iter().zip(table.as_chunks::<4>().0).enumerate() {
        let entry = u32::from_le_bytes(*entry);
        let (len, plain) = (entry & !PLAIN, entry & PLAIN != 0);
        let raw = block.len as u32;
        if plain && len != raw || !plain && !block.bf16 {
            return Err("a block has the wrong length or kind".to_owned());
        }
        // Tensors do not overlap and are in order, see `Trunk::check`.
        let next = blocks.get(i + 1).map_or(run.raw, |next| next.at);
        let room = (next - block.at) as u32;
        coded.push(CodedBlock { from, len, plain, at: block.at, raw, room });
        from += u64::from(len);
        if from > run.stored {
            return Err("a block lies past its end".to_owned());
        }
    }
    Ok(coded)
}

/// Decodes neighbouring blocks on `threads` threads. `codes` begins with the first one's code,
/// `out` is the room of all of them.
///
/// # Errors
/// If the stored bytes cannot be what [`super::pack`] wrote.
pub fn decode_blocks(
    blocks: &[CodedBlock],
    codes: &[u8],
    out: &mut [u8],
    threads: usize,
) -> Result<(), String> {
    let first = blocks.first().map_or(0, |b| b.from);
    let mut jobs = Vec::with_capacity(blocks.len());
    let mut rest = out;
    for block in blocks {
        let from = (block.from - first) as usize;
        let code = codes.get(from..from + block.len as usize).ok_or("a block is cut off")?;
        let (room, tail) =
            rest.split_at_mut_checked(block.room as usize).ok_or("it is longer than its place")?;
        let (dest, zeros) =
            room.split_at_mut_checked(block.raw as usize).ok_or("a block has no room")?;
        zeros.fill(0);
        rest = tail;
        jobs.push(std::sync::Mutex::new(Some((code, block.plain, dest))));
    }
    let next = AtomicUsize::new(0);
    let corrupt = AtomicBool::new(false);
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let job = job.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            let Some((code, plain, dest)) = job else { continue };
            if plain {
                dest.copy_from_slice(code);
            } else if codec::decode(code, dest).is_err() {
                corrupt.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|s| {
        for _ in 1..threads.min(jobs.len()) {
            // Where the system gives no more threads, those that there are do it all.
            if std::thread::Builder::new().spawn_scoped(s, work).is_err() {
                break;
            }
        }
        work();
    });
    if corrupt.into_inner() { Err("a block cannot be decoded".to_owned()) } else { Ok(()) }
}

/// Decodes a whole run stored with [`Codec::Bf16`] into `out` (its whole raw length) on
/// `threads` threads.
///
/// # Errors
/// If the stored bytes cannot be what [`super::pack`] wrote.
pub fn decode_run(run: &Run, stored: &[u8], out: &mut [u8], threads: usize) -> Result<(), String> {
    let blocks = coded_blocks(run, stored)?;
    decode_blocks(&blocks, &stored[table_bytes(run)..], out, threads)
}

/// A packed trunk's index, checked.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Trunk {
    format: String,
    /// Digest of the checkpoint's headers it was made from.
    pub model: Digest,
    /// How its runs are stored.
    pub codec: Codec,
    /// Layers, then pieces of the head.
    pub runs: Vec<Run>,
    /// Where it lies.
    #[serde(skip)]
    pub path: PathBuf,
}

impl Trunk {
    pub(super) fn new(model: Digest, codec: Codec) -> Self {
        Trunk { format: FORMAT.to_owned(), model, codec, runs: Vec::new(), path: PathBuf::new() }
    }

    /// What follows the runs in the file.
    pub(super) fn tail(&self) -> Vec<u8> {
        let mut tail = serde_json::to_vec(self).unwrap_or_else(|e| unreachable!("plain data: {e}"));
        let len = tail.len() as u64;
        tail.extend_from_slice(&Digest::of(&tail).0);
        tail.extend_from_slice(&len.to_le_bytes());
        tail.extend_from_slice(MAGIC);
        tail
    }

    /// Opens the packed trunk at `path`, which must have been made from the checkpoint with
    /// headers of digest `model`. `None` if there is no such file.
    pub fn open(disk: &dyn Disk, path: &Path, model: Digest) -> Result<Option<Self>> {
        let file = match disk.open(path, Mode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| Error::io("open", path, e))?,
        };
        let refuse = |problem: &str| {
            Error::format(path, format!("{problem}: delete it and run `facit pack` again"))
        };
        let size = file.size().map_err(|e| Error::io("measure", path, e))?;
        let mut trailer = [0; TRAILER as usize];
        let at = size.checked_sub(TRAILER).ok_or_else(|| refuse("not a packed trunk"))?;
        read_exact_at(&*file, &mut trailer, at).map_err(|e| Error::io("read", path, e))?;
        let (digest, rest) = trailer.split_at(32);
        let (len, magic) = rest.split_at(8);
        let len = len.try_into().map_or(u64::MAX, u64::from_le_bytes);
        if magic != MAGIC || len > at || len > MAX_INDEX {
            return Err(refuse("not a packed trunk, or cut off"));
        }
        let mut text = vec![0; len as usize];
        read_exact_at(&*file, &mut text, at - len).map_err(|e| Error::io("read", path, e))?;
        if Digest::of(&text).0 != digest {
            return Err(refuse("its index is damaged"));
        }
        let mut trunk: Trunk = serde_json::from_slice(&text)
            .map_err(|e| refuse(&format!("its index is not valid ({e})")))?;
        if trunk.format != FORMAT {
            return Err(refuse(&format!("unknown format {:?}", trunk.format)));
        }
        if trunk.model != model {
            return Err(refuse("made from another checkpoint"));
        }
        trunk.check(at - len).map_err(|problem| refuse(&problem))?;
        trunk.path = path.to_owned();
        Ok(Some(trunk))
    }

    /// Runs in order within `end` bytes, tensors in order within their run.
    fn check(&self, end: u64) -> Result<(), String> {
        let mut at = 0;
        for run in &self.runs {
            let specs: Vec<TensorSpec> = run.tensors.iter().map(|t| t.spec.clone()).collect();
            let (tensors, raw) = place(&specs).map_err(|e| e.to_string())?;
            let table = 4 * block_count(&run.tensors);
            let stored = match self.codec {
                Codec::None => raw..=raw,
                // A table, and blocks that are never longer than their bytes.
                Codec::Bf16 => table..=raw.saturating_add(table),
            };
            let run_end = run.offset.checked_add(run.stored).filter(|&e| e <= end);
            let fits = run.offset >= at
                && run.offset.is_multiple_of(DIRECT_ALIGN)
                && tensors == run.tensors
                && raw == run.raw
                && stored.contains(&run.stored);
            match run_end {
                Some(run_end) if fits => at = run_end,
                _ => return Err(format!("{} is not where it can be", run.what)),
            }
        }
        Ok(())
    }

    /// Row ranges of the head's pieces, which must be all of a head of `rows` rows.
    pub(crate) fn head_pieces(&self, rows: u64) -> Result<Vec<std::ops::Range<u64>>> {
        let mut pieces = Vec::new();
        let mut end = 0u64;
        for run in self.runs.iter().filter(|r| r.is_head()) {
            let n = run.tensors.first().and_then(|t| t.spec.shape.first().copied());
            let next = n.filter(|&n| n > 0).and_then(|n| end.checked_add(n)).unwrap_or(u64::MAX);
            pieces.push(end..next);
            end = next;
        }
        match end == rows {
            true => Ok(pieces),
            false => Err(self.other("the head")),
        }
    }

    /// It was packed from something else.
    pub(crate) fn other(&self, what: &str) -> Error {
        let problem = format!("it does not hold {what} as the model has it: pack it again");
        Error::format(&self.path, problem)
    }

    /// Bytes of all runs: in the file, and decoded.
    pub fn bytes(&self) -> (u64, u64) {
        self.runs.iter().fold((0, 0), |(s, r), run| (s + run.stored, r + run.raw))
    }

    /// A run's bytes are not what was packed.
    pub(crate) fn damaged(&self, what: &str, problem: &str) -> Error {
        Error::format(&self.path, format!("{what}: {problem} (damaged: run `facit pack` again)"))
    }

    /// Compares a run's decoded bytes with its digest.
    pub(crate) fn check_bytes(&self, run: &Run, bytes: &[u8]) -> Result<()> {
        let (got, right) = (Digest::of(bytes), run.digest);
        match got == right {
            true => Ok(()),
            false => Err(self.damaged(&run.what, &format!("its digest is {got}, not {right}"))),
        }
    }

    /// Reads where a compressed run's blocks lie.
    pub(crate) fn coded_blocks(
        &self,
        file: &dyn crate::io::File,
        run: &Run,
    ) -> Result<Vec<CodedBlock>> {
        let mut table = vec![0; table_bytes(run)];
        read_exact_at(file, &mut table, run.offset).map_err(|source| Error::Read {
            what: run.what.clone(),
            path: self.path.clone(),
            offset: run.offset,
            len: table_bytes(run) as u64,
            source,
        })?;
        coded_blocks(run, &table).map_err(|p| self.damaged(&run.what, &p))
    }

    /// Reads and decodes a whole run and compares its digest.
    pub fn verify_run(&self, file: &dyn crate::io::File, run: &Run, threads: usize) -> Result<()> {
        let memory = |n: u64| {
            let n = usize::try_from(n).unwrap_or(usize::MAX);
            crate::direct::AlignedBuf::new(n, "a run").map(|b| (b, n))
        };
        let (mut stored, n) = memory(run.stored)?;
        read_exact_at(file, &mut stored[..n], run.offset).map_err(|source| Error::Read {
            what: run.what.clone(),
            path: self.path.clone(),
            offset: run.offset,
            len: run.stored,
            source,
        })?;
        match self.codec {
            Codec::None => self.check_bytes(run, &stored[..n]),
            Codec::Bf16 => {
                let (mut raw, m) = memory(run.raw)?;
                decode_run(run, &stored[..n], &mut raw[..m], threads)
                    .map_err(|p| self.damaged(&run.what, &p))?;
                self.check_bytes(run, &raw[..m])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches memory sized by what a small file claims: an index with a right digest may name
    /// tensors of any size.
    #[test]
    fn a_run_is_as_long_as_its_blocks_need() {
        let spec = |elements| TensorSpec {
            name: "t".to_owned(),
            dtype: Dtype::Bf16,
            shape: vec![elements],
        };
        let trunk = |elements, stored| {
            let (tensors, raw) = place(&[spec(elements)]).unwrap();
            let (digest, sample) = (Digest::of(b""), Digest::of(b""));
            let what = "layer 0".to_owned();
            let mut trunk = Trunk::new(digest, Codec::Bf16);
            trunk.runs.push(Run { what, offset: 0, stored, raw, digest, sample, tensors });
            trunk
        };
        let block = BLOCK as u64;
        assert!(trunk(block, 8 + block).check(4 * block).is_ok());
        for (elements, stored) in [(1 << 45, 1 << 20), (block, 7), (block, 2 * block + 9)] {
            let problem = trunk(elements, stored).check(1 << 40).unwrap_err();
            assert_eq!(problem, "layer 0 is not where it can be");
        }
    }
}
