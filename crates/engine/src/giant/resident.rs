//! A host that holds every weight in memory.

use super::host::{Block, Counters, Host};
use crate::Error;
use models::machine::{Fed, Layout, StepError, TensorSpec, Upcoming, Want};
use store::safetensors::Index;

/// All weights of a layout, read once.
pub struct Resident {
    tables: Vec<Vec<Table>>,
    layers: Vec<Vec<Vec<u8>>>,
    /// `[layer][expert][tensor]`.
    experts: Vec<Vec<Vec<Vec<u8>>>>,
    head: Vec<Vec<u8>>,
    head_matrix: Table,
    /// Ids of the last `Want::Rows`, with their table.
    rows: (usize, Vec<u64>),
    counters: Counters,
}

struct Table {
    bytes: Vec<u8>,
    row: usize,
}

impl Table {
    fn read(index: &Index, spec: &TensorSpec) -> Result<Table, Error> {
        Ok(Table { bytes: read(index, &spec.name)?, row: spec.row_bytes() })
    }

    fn rows_from(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.row..]
    }
}

fn read(index: &Index, name: &str) -> Result<Vec<u8>, Error> {
    Ok(index.read(&index.require(name)?)?)
}

fn read_all(index: &Index, specs: &[TensorSpec]) -> Result<Vec<Vec<u8>>, Error> {
    specs.iter().map(|s| read(index, &s.name)).collect()
}

impl Resident {
    /// Reads everything; `progress` is told the bytes read so far.
    ///
    /// # Errors
    /// A tensor that cannot be read, by name.
    pub fn read(
        index: &Index,
        layout: &Layout,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Resident, Error> {
        let mut done = 0u64;
        let mut layers = Vec::with_capacity(layout.layers.len());
        let mut experts = Vec::with_capacity(layout.layers.len());
        for layer in &layout.layers {
            layers.push(read_all(index, &layer.tensors)?);
            done += layer.bytes() as u64;
            progress(done);
            let mut of_layer = Vec::with_capacity(layer.experts);
            for id in 0..layer.experts {
                let tensors = 0..layer.expert.len();
                let read = |t| read(index, &layer.expert_name(id, t));
                of_layer.push(tensors.map(read).collect::<Result<Vec<_>, Error>>()?);
                done += layer.expert_bytes() as u64;
                progress(done);
            }
            experts.push(of_layer);
        }
        let table = |t: &models::machine::TableSpec| {
            t.tensors.iter().map(|s| Table::read(index, s)).collect::<Result<Vec<_>, Error>>()
        };
        Ok(Resident {
            tables: layout.tables.iter().map(table).collect::<Result<_, _>>()?,
            layers,
            experts,
            head: read_all(index, &layout.head.tensors)?,
            head_matrix: Table::read(index, &layout.head.matrix)?,
            rows: (0, Vec::new()),
            counters: Counters::default(),
        })
    }
}

impl Host for Resident {
    fn fetch(&mut self, want: Want<'_>, _: &Upcoming<'_>) -> Result<Block, Error> {
        Ok(match want {
            Want::Rows { table, ids } => {
                self.rows.0 = table;
                self.rows.1.clear();
                self.rows.1.extend_from_slice(ids);
                Block::Rows
            }
            Want::Layer { layer, .. } => Block::Layer(layer),
            Want::Experts { layer, ids } => {
                self.counters.expert_requests += 1;
                self.counters.expert_hits += 1;
                Block::Expert { layer, id: ids[0] }
            }
            Want::Head { first_row } => Block::Head { first_row },
        })
    }

    fn lend(
        &mut self,
        block: &Block,
        use_it: &mut dyn FnMut(Fed<'_>) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        match *block {
            Block::Rows => {
                let tables = &self.tables[self.rows.0];
                let rows: Vec<&[u8]> = self
                    .rows
                    .1
                    .iter()
                    .flat_map(|&id| tables.iter().map(move |t| &t.rows_from(id as usize)[..t.row]))
                    .collect();
                use_it(Fed::Rows { rows: &rows })
            }
            Block::Layer(layer) => use_it(Fed::Layer { tensors: &slices(&self.layers[layer]) }),
            Block::Expert { layer, id } => {
                let tensors = slices(&self.experts[layer][id as usize]);
                use_it(Fed::Expert { id, tensors: &tensors })
            }
            Block::Head { first_row } => use_it(Fed::Head {
                tensors: &slices(&self.head),
                rows: self.head_matrix.rows_from(first_row),
            }),
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

fn slices(tensors: &[Vec<u8>]) -> Vec<&[u8]> {
    tensors.iter().map(Vec::as_slice).collect()
}
