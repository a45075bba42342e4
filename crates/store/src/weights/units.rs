//! What is read as one piece: a layer, a piece of the head, an expert.

use crate::direct::{AlignedBuf, DirectFile, Window};
use crate::io::DIRECT_ALIGN;
use crate::layout::{LayerSpec, Layout, bind};
use crate::pack::{Codec, CodedBlock, Planned, Run, Trunk, plan, sample};
use crate::safetensors::{Index, TensorRef, TensorSpec};
use crate::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Place of a tensor's bytes in a buffer.
pub(super) type Place = (usize, usize);

/// Parts of files that go into one buffer.
#[derive(Clone, Debug)]
pub(super) struct Gather {
    pub windows: Vec<Window>,
    /// Bytes of the buffer.
    pub len: usize,
    /// Of each part, in the order asked.
    pub places: Vec<Place>,
}

fn to_usize(n: u64, what: &'static str) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::Memory { what, bytes: usize::MAX })
}

/// Plans aligned windows over parts `(shard, offset, len)`: neighbours share a window, so
/// that contiguous tensors are one read.
pub(super) fn gather(files: &[Arc<DirectFile>], parts: &[(usize, u64, u64)]) -> Result<Gather> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&i| parts[i]);
    let mut windows: Vec<(usize, Window)> = Vec::new();
    let mut places = vec![(0, 0); parts.len()];
    let mut len = 0;
    for i in order {
        let (shard, offset, bytes) = parts[i];
        let (start, end) = (offset / DIRECT_ALIGN * DIRECT_ALIGN, offset + bytes);
        let joins = windows.last().filter(|(s, w)| *s == shard && start <= w.offset + w.len as u64);
        if joins.is_none() {
            let file = Arc::clone(&files[shard]);
            windows.push((shard, Window { file, offset: start, len: 0, need: 0, at: len }));
        }
        let Some((_, w)) = windows.last_mut() else { continue };
        let need = to_usize(end - w.offset, "a layer")?;
        w.need = w.need.max(need);
        w.len = w.need.next_multiple_of(DIRECT_ALIGN as usize);
        len = w.at + w.len;
        let place = w.at + to_usize(offset - w.offset, "a layer")?;
        places[i] = (place, place + to_usize(bytes, "a tensor")?);
    }
    let windows = windows.into_iter().map(|(_, w)| w).filter(|w| w.len > 0).collect();
    Ok(Gather { windows, len, places })
}

/// Memory of a piece of a compressed layer that is read as one: small, so that little memory
/// holds what waits to be decoded; large enough for the disk's full rate. On whole huge pages,
/// see [`AlignedBuf::huge`].
const PIECE: u64 = 8 << 20;

/// Neighbouring blocks of a compressed unit.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub window: Window,
    /// Place of the first block's code in the window.
    pub skip: usize,
    pub blocks: Vec<CodedBlock>,
}

impl Piece {
    /// Bytes of its codes.
    pub fn stored(&self) -> u64 {
        self.blocks.iter().map(|b| u64::from(b.len)).sum()
    }

    /// Where its bytes go in the decoded unit.
    pub fn room(&self) -> Range<usize> {
        let first = self.blocks.first().map_or(0, |b| b.at as usize);
        first..first + self.blocks.iter().map(|b| b.room as usize).sum::<usize>()
    }
}

/// A layer or a piece of the head.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub what: String,
    pub names: Vec<String>,
    /// What is read, and where tensors lie in it; nothing if the unit is compressed.
    pub gather: Gather,
    /// What is read instead if it is.
    pub pieces: Vec<Piece>,
    /// Bytes of the weights as stored: what a token costs.
    pub stored: u64,
    /// Bytes of the buffer the tensors are used from.
    pub buffer: usize,
    pub places: Arc<[Place]>,
    /// Which run of the packed trunk it is, if there is one.
    pub run: Option<usize>,
}

impl Unit {
    /// Whether it has to be decoded.
    pub fn coded(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Largest buffer that a piece is read into.
    pub fn staging(&self) -> usize {
        AlignedBuf::huge(self.pieces.iter().map(|p| p.window.len).max().unwrap_or(0))
    }

    /// Memory of what is known about its pieces.
    pub fn memory(&self) -> u64 {
        let piece = |p: &Piece| size_of::<Piece>() + size_of_val(p.blocks.as_slice());
        self.pieces.iter().map(piece).sum::<usize>() as u64
    }
}

/// All units: layers, then the pieces of the head.
pub(super) fn units(
    index: &Index,
    files: &[Arc<DirectFile>],
    trunk: Option<(&Trunk, Arc<DirectFile>)>,
    layout: &Layout,
    pieces: &[Range<u64>],
) -> Result<Vec<Unit>> {
    let wanted = plan(layout, pieces).into_iter();
    if let Some((trunk, file)) = trunk {
        return wanted
            .map(|Planned { what, specs, from }| {
                let unit = packed(trunk, &file, what, &specs)?;
                let now = sample(index, &specs, from)?;
                match unit.run.is_some_and(|i| trunk.runs[i].sample == now) {
                    true => Ok(unit),
                    false => Err(trunk.other(&unit.what)),
                }
            })
            .collect();
    }
    wanted
        .map(|Planned { what, specs, from }| {
            let mut parts = Vec::new();
            for spec in &specs {
                let t = index.require(&spec.name)?;
                parts.push((t.shard, t.offset + from, spec.bytes().unwrap_or(0)));
            }
            let gather = gather(files, &parts)?;
            Ok(Unit {
                what,
                names: specs.into_iter().map(|s| s.name).collect(),
                stored: parts.iter().map(|p| p.2).sum(),
                buffer: gather.len,
                places: gather.places.clone().into(),
                gather,
                pieces: Vec::new(),
                run: None,
            })
        })
        .collect()
}

fn packed(
    trunk: &Trunk,
    file: &Arc<DirectFile>,
    what: String,
    specs: &[TensorSpec],
) -> Result<Unit> {
    // By name: a trunk may hold layers that this run does not use, such as draft stages.
    let i = trunk.runs.iter().position(|r| r.what == what).filter(|&i| {
        let tensors = &trunk.runs[i].tensors;
        tensors.len() == specs.len() && tensors.iter().zip(specs).all(|(t, s)| t.spec == *s)
    });
    let i = i.ok_or_else(|| trunk.other(&what))?;
    let run = &trunk.runs[i];
    let mut places = Vec::new();
    for t in &run.tensors {
        let at = to_usize(t.at, "a layer")?;
        places.push((at, at + to_usize(t.spec.bytes().unwrap_or(0), "a tensor")?));
    }
    let (pieces, parts) = match trunk.codec {
        Codec::None => (Vec::new(), vec![(0, run.offset, run.stored)]),
        Codec::Bf16 => (pieces(trunk, file, run)?, Vec::new()),
    };
    let gather = gather(std::slice::from_ref(file), &parts)?;
    let coded = !pieces.is_empty();
    Ok(Unit {
        what,
        names: specs.iter().map(|s| s.name.clone()).collect(),
        stored: if coded { pieces.iter().map(Piece::stored).sum() } else { run.stored },
        buffer: if coded { to_usize(run.raw, "a layer")? } else { gather.len },
        gather,
        pieces,
        places: places.into(),
        run: Some(i),
    })
}

/// The pieces of a compressed run: in small models smaller ones, so that decoding overlaps with
/// reading there as well.
fn pieces(trunk: &Trunk, file: &Arc<DirectFile>, run: &Run) -> Result<Vec<Piece>> {
    let blocks = trunk.coded_blocks(file.buffered(), run)?;
    let largest = trunk.runs.iter().map(|r| r.stored).max().unwrap_or(0);
    // A window reaches over both ends to whole blocks of the disk.
    let most = (largest / 4).min(PIECE - 2 * DIRECT_ALIGN);
    let mut pieces = Vec::new();
    let mut rest = blocks.as_slice();
    while let Some(first) = rest.first() {
        let n = rest.iter().take_while(|b| b.end() - first.from <= most).count().max(1);
        let (blocks, tail) = rest.split_at(n);
        let (from, end) = (run.offset + first.from, run.offset + blocks[n - 1].end());
        let offset = from / DIRECT_ALIGN * DIRECT_ALIGN;
        let need = to_usize(end - offset, "a layer")?;
        let len = need.next_multiple_of(DIRECT_ALIGN as usize);
        let window = Window { file: Arc::clone(file), offset, len, need, at: 0 };
        pieces.push(Piece { window, skip: (from - offset) as usize, blocks: blocks.to_vec() });
        rest = tail;
    }
    Ok(pieces)
}

/// Where one layer's experts lie.
#[derive(Debug, Default)]
pub(super) struct LayerExperts {
    /// Offset and shard of each expert whose tensors lie together in `pattern`'s order.
    together: Vec<(u64, u32)>,
    /// Places of the tensors relative to the first byte.
    pattern: Vec<(u64, u64)>,
    /// Bytes of an expert.
    pub bytes: u64,
    /// The others, part by part.
    apart: HashMap<u32, Vec<(usize, u64, u64)>>,
}

const APART: u32 = u32::MAX;

impl LayerExperts {
    pub fn new(index: &Index, layer: &LayerSpec) -> Result<Self> {
        let mut all = LayerExperts {
            bytes: layer.expert.iter().filter_map(TensorSpec::bytes).sum(),
            ..LayerExperts::default()
        };
        for id in 0..layer.experts {
            let refs = (0..layer.expert.len())
                .map(|i| bind(index, &layer.expert_name(id, i), &layer.expert[i]))
                .collect::<Result<Vec<TensorRef<'_>>>>()?;
            let Some(first) = refs.iter().min_by_key(|t| (t.shard, t.offset)) else { continue };
            let pattern: Option<Vec<(u64, u64)>> = refs
                .iter()
                .map(|t| (t.shard == first.shard).then(|| (t.offset - first.offset, t.len)))
                .collect();
            let dense = |p: &Vec<(u64, u64)>| p.iter().all(|(at, len)| at + len <= all.bytes);
            match pattern.filter(dense) {
                Some(p) if id == 0 || p == all.pattern => {
                    all.pattern = p;
                    all.together.push((first.offset, first.shard as u32));
                }
                _ => {
                    all.together.push((0, APART));
                    let parts = refs.iter().map(|t| (t.shard, t.offset, t.len)).collect();
                    all.apart.insert(id as u32, parts);
                }
            }
        }
        Ok(all)
    }

    /// Parts of an expert's tensors, in feeding order.
    pub fn parts(&self, id: u32) -> Vec<(usize, u64, u64)> {
        let (offset, shard) = self.together[id as usize];
        match self.apart.get(&id) {
            Some(parts) => parts.clone(),
            None => {
                self.pattern.iter().map(|&(at, len)| (shard as usize, offset + at, len)).collect()
            }
        }
    }

    /// Where an expert begins on disk.
    pub fn position(&self, id: u32) -> (usize, u64) {
        match self.apart.get(&id).and_then(|parts| parts.first()) {
            Some(&(shard, offset, _)) => (shard, offset),
            None => {
                let (offset, shard) = self.together[id as usize];
                (shard as usize, offset)
            }
        }
    }

    pub fn len(&self) -> usize {
        self.together.len()
    }

    /// Largest buffer an expert may need, wherever its parts lie.
    pub fn buffer(&self, files: &[Arc<DirectFile>]) -> Result<usize> {
        let align = DIRECT_ALIGN as usize;
        // A run that begins anywhere in a block.
        let together = to_usize(self.bytes, "an expert")?.next_multiple_of(align) + align;
        self.apart
            .values()
            .map(|parts| Ok(gather(files, parts)?.len))
            .try_fold(together, |most, len: Result<usize>| Ok(most.max(len?)))
    }

    pub fn memory(&self) -> u64 {
        let apart: usize = self.apart.values().map(|p| 48 + 24 * p.len()).sum();
        (self.together.len() * size_of::<(u64, u32)>() + apart) as u64
    }
}
