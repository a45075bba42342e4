//! Writing a packed trunk: run by run, resumable, visible only when whole.

use super::format::{Block, blocks, encode_block, head_name, pad_hash, place, sample};
use super::{Codec, Run, Trunk};
use crate::atomic::{parent, partial_path};
use crate::io::{DIRECT_ALIGN, Disk, File, Mode, read_exact_at, write_all_at};
use crate::layout::Layout;
use crate::safetensors::{Index, TensorRef, TensorSpec};
use crate::{Digest, Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Blocks held in memory at once.
const BATCH: usize = 32;

/// What has been done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress {
    /// Runs written (or found written by an earlier attempt).
    pub runs: usize,
    /// Runs in all.
    pub of_runs: usize,
    /// Bytes of weights read.
    pub bytes: u64,
    /// Bytes of weights in all.
    pub of_bytes: u64,
}

/// The finished trunk.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Its index.
    pub trunk: Trunk,
    /// Runs taken over from an earlier attempt.
    pub resumed: usize,
}

/// What a run holds: tensors, or rows `from..` of the head's matrix.
pub(crate) struct Planned {
    pub what: String,
    pub specs: Vec<TensorSpec>,
    /// Byte of each tensor at which the run's part of it begins.
    pub from: u64,
}

/// Bytes of a piece of the head: no more than the smallest layer, so that pieces never make
/// the slots larger that layers stream through.
pub(crate) fn head_piece_rows(layout: &Layout) -> u64 {
    const AT_LEAST: u64 = 1 << 20;
    let layer = |l: &crate::layout::LayerSpec| l.tensors.iter().filter_map(TensorSpec::bytes).sum();
    let smallest: u64 = layout.layers.iter().map(layer).min().unwrap_or(0);
    let rows = layout.head.matrix.shape.first().copied().unwrap_or(0);
    let row = layout.head.matrix.bytes().unwrap_or(0) / rows.max(1);
    (smallest.max(AT_LEAST) / row.max(1)).clamp(1, rows.max(1))
}

/// Row ranges of the head's pieces.
pub(crate) fn head_pieces(layout: &Layout) -> Vec<std::ops::Range<u64>> {
    let rows = layout.head.matrix.shape.first().copied().unwrap_or(0);
    let piece = head_piece_rows(layout);
    (0..rows).step_by(piece as usize).map(|r| r..(r + piece).min(rows)).collect()
}

/// Layers, then the given pieces of the head.
pub(crate) fn plan(layout: &Layout, pieces: &[std::ops::Range<u64>]) -> Vec<Planned> {
    let mut runs: Vec<Planned> = layout
        .layers
        .iter()
        .enumerate()
        .map(|(l, layer)| Planned {
            what: format!("layer {l}"),
            specs: layer.tensors.clone(),
            from: 0,
        })
        .collect();
    let matrix = &layout.head.matrix;
    let rows = matrix.shape.first().copied().unwrap_or(0);
    let row = matrix.bytes().unwrap_or(0) / rows.max(1);
    for piece in pieces {
        let mut spec = matrix.clone();
        spec.shape[0] = piece.end - piece.start;
        let what = head_name(piece);
        runs.push(Planned { what, specs: vec![spec], from: piece.start * row });
    }
    runs
}

/// Packs the always-active weights of a checkpoint into `path`. `threads` compress;
/// `progress` is called after every batch of blocks and may stop the work (which can be
/// continued later) by returning false.
///
/// # Errors
/// If the layout does not cover the checkpoint exactly, or the disk fails.
pub fn pack(
    disk: &Arc<dyn Disk>,
    index: &Index,
    layout: &Layout,
    path: &Path,
    codec: Codec,
    threads: usize,
    mut progress: impl FnMut(PackProgress) -> bool,
) -> Result<Packed> {
    layout.check(index)?;
    let planned = plan(layout, &head_pieces(layout));
    let total = planned.iter().flat_map(|p| &p.specs).filter_map(TensorSpec::bytes).sum();
    let mut writer = Writer::open(disk, path, index, codec, threads)?;
    writer.resume(index, &planned)?;
    let resumed = writer.trunk.runs.len();
    let mut state =
        PackProgress { runs: resumed, of_runs: planned.len(), bytes: 0, of_bytes: total };
    for run in &planned[..resumed] {
        state.bytes += run.specs.iter().filter_map(TensorSpec::bytes).sum::<u64>();
    }
    for run in &planned[resumed..] {
        let mut go_on = true;
        let done = writer.run(index, run, |bytes| {
            state.bytes += bytes;
            go_on = progress(state);
            go_on
        })?;
        if !done {
            return Err(Error::Refused("packing was stopped; run it again to continue".to_owned()));
        }
        state.runs += 1;
        progress(state);
    }
    Ok(Packed { trunk: writer.finish()?, resumed })
}

struct Writer<'d> {
    disk: &'d Arc<dyn Disk>,
    path: PathBuf,
    partial: PathBuf,
    file: Arc<dyn File>,
    journal_path: PathBuf,
    journal: Arc<dyn File>,
    journal_len: u64,
    trunk: Trunk,
    end: u64,
    threads: usize,
}

impl<'d> Writer<'d> {
    fn open(
        disk: &'d Arc<dyn Disk>,
        path: &Path,
        index: &Index,
        codec: Codec,
        threads: usize,
    ) -> Result<Self> {
        let partial = partial_path(path);
        let journal_path = path.with_extension("journal");
        let open = |p: &Path| disk.open(p, Mode::Update).map_err(|e| Error::io("create", p, e));
        Ok(Writer {
            disk,
            file: open(&partial)?,
            journal: open(&journal_path)?,
            path: path.to_owned(),
            partial,
            journal_path,
            journal_len: 0,
            trunk: Trunk::new(index.digest(), codec),
            end: 0,
            threads: threads.max(1),
        })
    }

    /// Takes over the runs of an earlier attempt whose bytes are still right.
    fn resume(&mut self, index: &Index, planned: &[Planned]) -> Result<()> {
        let io = |e| Error::io("read", &self.journal_path, e);
        let size = self.journal.size().map_err(io)?;
        let mut text = vec![0; size.min(64 << 20) as usize];
        read_exact_at(&*self.journal, &mut text, 0).map_err(io)?;
        let mut lines = text.split_inclusive(|&b| b == b'\n');
        let header = self.header();
        if lines.next() == Some(header.as_bytes()) {
            self.journal_len = header.len() as u64;
            let file = Arc::clone(&self.file);
            for (line, plan) in lines.zip(planned) {
                // A torn last line, or anything unexpected, ends what can be taken over.
                let Ok(run) = serde_json::from_slice::<Run>(line) else { break };
                let (tensors, raw) = place(&plan.specs)?;
                let expected = run.what == plan.what
                    && run.tensors == tensors
                    && run.raw == raw
                    && run.offset == self.end
                    && run.sample == sample(index, &plan.specs, plan.from)?
                    && line.ends_with(b"\n");
                if !expected || self.trunk.verify_run(&*file, &run, self.threads).is_err() {
                    break;
                }
                self.journal_len += line.len() as u64;
                self.end = (run.offset + run.stored).next_multiple_of(DIRECT_ALIGN);
                self.trunk.runs.push(run);
            }
        } else {
            self.append_journal(&header)?;
        }
        let cut = |f: &dyn File, len, path| f.set_size(len).map_err(|e| Error::io("cut", path, e));
        cut(&*self.journal, self.journal_len, &self.journal_path)?;
        cut(&*self.file, self.end, &self.partial)
    }

    /// First line of the journal: what its runs belong to.
    fn header(&self) -> String {
        format!("{}\n", serde_json::json!({ "model": self.trunk.model, "codec": self.trunk.codec }))
    }

    fn append_journal(&mut self, line: &str) -> Result<()> {
        write_all_at(&*self.journal, line.as_bytes(), self.journal_len)
            .and_then(|()| self.journal.sync())
            .map_err(|e| Error::io("write", &self.journal_path, e))?;
        self.journal_len += line.len() as u64;
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        write_all_at(&*self.file, bytes, at).map_err(|e| Error::io("write", &self.partial, e))
    }

    /// Writes one run. `step` hears of every batch's bytes and may stop; then `Ok(false)`.
    fn run(
        &mut self,
        index: &Index,
        plan: &Planned,
        mut step: impl FnMut(u64) -> bool,
    ) -> Result<bool> {
        let (tensors, raw) = place(&plan.specs)?;
        let sources =
            plan.specs.iter().map(|s| index.require(&s.name)).collect::<Result<Vec<_>>>()?;
        let blocks = blocks(&tensors);
        let offset = self.end;
        let mut table = Vec::new();
        let mut at = match self.trunk.codec {
            Codec::None => offset,
            Codec::Bf16 => offset + 4 * blocks.len() as u64,
        };
        let mut hasher = blake3::Hasher::new();
        let mut hashed = 0;
        for batch in blocks.chunks(BATCH) {
            let read = read_batch(index, &sources, &tensors, plan.from, batch)?;
            for (block, bytes) in batch.iter().zip(&read) {
                pad_hash(&mut hasher, block.at - hashed);
                hasher.update(bytes);
                hashed = block.at + block.len as u64;
            }
            if self.trunk.codec == Codec::None {
                for (block, bytes) in batch.iter().zip(&read) {
                    self.write(bytes, offset + block.at)?;
                }
                at = offset + raw;
            } else {
                for (entry, code) in encode_batch(batch, &read, self.threads) {
                    table.extend_from_slice(&entry.to_le_bytes());
                    self.write(&code, at)?;
                    at += code.len() as u64;
                }
            }
            if !step(batch.iter().map(|b| b.len as u64).sum()) {
                return Ok(false);
            }
        }
        pad_hash(&mut hasher, raw - hashed);
        self.write(&table, offset)?;
        self.end = at.next_multiple_of(DIRECT_ALIGN);
        // Extends the file over the padding: direct reads are of whole blocks.
        self.file
            .set_size(self.end)
            .and_then(|()| self.file.sync())
            .map_err(|e| Error::io("sync", &self.partial, e))?;
        let digest = Digest(*hasher.finalize().as_bytes());
        let stored = at - offset;
        let sample = sample(index, &plan.specs, plan.from)?;
        let run = Run { what: plan.what.clone(), offset, stored, raw, digest, sample, tensors };
        let line = serde_json::to_string(&run).unwrap_or_else(|e| unreachable!("plain data: {e}"));
        self.append_journal(&format!("{line}\n"))?;
        self.trunk.runs.push(run);
        Ok(true)
    }

    fn finish(mut self) -> Result<Trunk> {
        self.write(&self.trunk.tail(), self.end)?;
        self.file.sync().map_err(|e| Error::io("sync", &self.partial, e))?;
        self.disk
            .rename(&self.partial, &self.path)
            .map_err(|e| Error::io("rename into place", &self.path, e))?;
        let dir = parent(&self.path);
        self.disk.sync_dir(dir).map_err(|e| Error::io("sync directory", dir, e))?;
        // Without its data the journal is refused by the next attempt, so this may fail.
        let _ = self.disk.remove(&self.journal_path);
        self.trunk.path = self.path;
        Ok(self.trunk)
    }
}

fn read_batch(
    index: &Index,
    sources: &[TensorRef<'_>],
    tensors: &[super::RunTensor],
    from: u64,
    batch: &[Block],
) -> Result<Vec<Vec<u8>>> {
    let read = |block: &Block| {
        let t = tensors.partition_point(|t| t.at <= block.at) - 1;
        // Tensors without bytes share their place with the next one.
        let t = (0..=t).rev().find(|&t| tensors[t].spec.bytes() != Some(0)).unwrap_or(t);
        let mut bytes = vec![0; block.len];
        index.read_range(&sources[t], from + block.at - tensors[t].at, &mut bytes)?;
        Ok(bytes)
    };
    batch.iter().map(read).collect()
}

fn encode_batch(batch: &[Block], read: &[Vec<u8>], threads: usize) -> Vec<(u32, Vec<u8>)> {
    let each = batch.len().div_ceil(threads);
    let encode = |(block, bytes): (&Block, &Vec<u8>)| {
        let mut code = Vec::with_capacity(bytes.len());
        let entry = encode_block(bytes, block.bf16, &mut code);
        (entry, code)
    };
    std::thread::scope(|s| {
        let parts: Vec<_> = batch
            .chunks(each)
            .zip(read.chunks(each))
            .map(|(b, r)| {
                let work = move || b.iter().zip(r).map(encode).collect::<Vec<_>>();
                // Where the system gives no more threads, this one does it.
                std::thread::Builder::new().spawn_scoped(s, work).map_err(|_| work())
            })
            .collect();
        let part = |p: Result<std::thread::ScopedJoinHandle<'_, Vec<_>>, Vec<_>>| match p {
            Ok(p) => p.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(done) => done,
        };
        parts.into_iter().flat_map(part).collect()
    })
}
