//! A checkpoint bound to a model's layout: all files open, every read planned.

use super::units::{LayerExperts, Unit, units};
use crate::direct::{DirectFile, Event};
use crate::io::Disk;
use crate::layout::{Layout, bind};
use crate::pack::{TRUNK_FILE, Trunk, head_pieces};
use crate::plan::{ExpertShape, Shape, UnitShape};
use crate::safetensors::{Index, TensorSpec};
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// Where a table's rows lie.
#[derive(Debug)]
pub(super) struct Table {
    pub name: String,
    pub shard: usize,
    pub offset: u64,
    pub row: u64,
    pub rows: u64,
}

/// A model's weights, found and checked but not read.
#[derive(Debug)]
pub struct Source {
    pub(super) layout: Layout,
    pub(super) files: Vec<Arc<DirectFile>>,
    pub(super) units: Vec<Unit>,
    /// Rows of each piece of the head.
    pub(super) pieces: Vec<std::ops::Range<u64>>,
    pub(super) experts: Vec<LayerExperts>,
    pub(super) tables: Vec<Vec<Table>>,
    /// The head's small tensors.
    pub(super) head: Vec<Vec<u8>>,
    trunk: Option<Trunk>,
    index_bytes: u64,
    events: Vec<Event>,
}

impl Source {
    /// Binds `layout` to the checkpoint of `index`. Layers come from the packed trunk in
    /// `dir` if there is one.
    ///
    /// # Errors
    /// The first tensor that is missing or has another type or shape; a packed trunk that is
    /// damaged or belongs to another checkpoint.
    pub fn open(disk: &dyn Disk, index: &Index, layout: Layout, dir: &Path) -> Result<Self> {
        let trunk = Trunk::open(disk, &dir.join(TRUNK_FILE), index.digest())?;
        Self::with_trunk(disk, index, layout, trunk)
    }

    /// Like [`Source::open`], with a given packed trunk or none.
    pub fn with_trunk(
        disk: &dyn Disk,
        index: &Index,
        layout: Layout,
        trunk: Option<Trunk>,
    ) -> Result<Self> {
        let specs = layout.layers.iter().flat_map(|l| &l.tensors);
        for spec in specs.chain(&layout.head.tensors).chain([&layout.head.matrix]) {
            bind(index, &spec.name, spec)?;
        }
        let mut files = Vec::new();
        for shard in index.shards() {
            files.push(Arc::new(DirectFile::open(disk, shard.path())?));
        }
        let trunk_file = match &trunk {
            Some(t) => Some(Arc::new(DirectFile::open(disk, &t.path)?)),
            None => None,
        };
        let pieces = match &trunk {
            Some(trunk) => {
                trunk.head_pieces(layout.head.matrix.shape.first().copied().unwrap_or(0))?
            }
            None => head_pieces(&layout),
        };
        let packed = trunk.as_ref().zip(trunk_file.clone());
        let units = units(index, &files, packed, &layout, &pieces)?;
        let experts = layout.layers.iter().map(|l| LayerExperts::new(index, l));
        let experts = experts.collect::<Result<Vec<_>>>()?;
        let tables = layout.tables.iter().map(|t| t.iter().map(|s| table(index, s)).collect());
        let tables = tables.collect::<Result<Vec<Vec<_>>>>()?;
        let head = layout.head.tensors.iter().map(|s| index.read(&index.require(&s.name)?));
        let head = head.collect::<Result<Vec<_>>>()?;
        // One file stands for all of them: they lie in one directory.
        let events = files.iter().chain(&trunk_file).find_map(|f| f.event()).into_iter().collect();
        let experts_bytes: u64 = experts.iter().map(LayerExperts::memory).sum();
        let head_bytes: usize = head.iter().map(Vec::len).sum();
        let pieces_bytes: u64 = units.iter().map(Unit::memory).sum();
        Ok(Source {
            pieces,
            index_bytes: index.memory() as u64 + experts_bytes + head_bytes as u64 + pieces_bytes,
            layout,
            files,
            units,
            experts,
            tables,
            head,
            trunk,
            events,
        })
    }

    /// The packed trunk in use.
    pub fn trunk(&self) -> Option<&Trunk> {
        self.trunk.as_ref()
    }

    /// Whether layers have to be decoded.
    pub(super) fn compressed(&self) -> bool {
        self.units.iter().any(Unit::coded)
    }

    /// What the user should hear, once.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Sizes for [`crate::plan::plan`]; `top_k` experts are chosen for a token in a layer.
    pub fn shape(&self, top_k: u64) -> Result<Shape> {
        let page = |n: usize| (n as u64).next_multiple_of(crate::io::DIRECT_ALIGN);
        let unit = |u: &Unit| UnitShape {
            stored: u.stored,
            buffer: page(u.buffer),
            staging: u.staging() as u64,
        };
        let mut experts = Vec::new();
        for e in self.experts.iter().filter(|e| e.len() > 0) {
            let buffer = page(e.buffer(&self.files)?);
            experts.push(ExpertShape { count: e.len() as u64, stored: e.bytes, buffer });
        }
        Ok(Shape {
            units: self.units.iter().map(unit).collect(),
            layers: self.layout.layers.len(),
            experts,
            top_k,
            rows: self.tables.first().map_or(0, |t| t.iter().map(|t| t.row).sum()),
            index: self.index_bytes,
        })
    }
}

fn table(index: &Index, spec: &TensorSpec) -> Result<Table> {
    let t = bind(index, &spec.name, spec)?;
    let rows = spec.shape.first().copied().filter(|&r| r > 0 && t.len > 0);
    let rows = rows.ok_or_else(|| Error::Refused(format!("table {} has no rows", spec.name)))?;
    Ok(Table { name: spec.name.clone(), shard: t.shard, offset: t.offset, row: t.len / rows, rows })
}
