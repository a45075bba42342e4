//! A host that brings weights from disk within a memory budget.

use std::collections::VecDeque;

use models::machine::{self, Fed, StepError, Want};
use store::cache::ExpertId;
use store::layout;
use store::safetensors::{Dtype, TensorSpec};
use store::weights::{Expert, Head, Layer, Options, Rows, Source, Upcoming, WeightStore};

use super::host::{Block, Counters, Host};
use crate::Error;

/// Weights by way of a [`WeightStore`]: pinned layers, a ring for the others, an expert cache.
pub struct Streaming {
    store: WeightStore,
    rows: Option<Rows>,
    layer: Option<(usize, Layer)>,
    head: Option<Head>,
    /// Experts that have arrived and have not been fed; the one being fed is in front.
    experts: VecDeque<Expert>,
}

impl Streaming {
    /// Takes the memory; reading begins with the first step.
    ///
    /// # Errors
    /// Memory that the plan asks for and the system does not give.
    pub fn new(source: Source, plan: &store::plan::Plan, options: Options) -> Result<Self, Error> {
        let store = WeightStore::new(source, plan, options)?;
        Ok(Streaming { store, rows: None, layer: None, head: None, experts: VecDeque::new() })
    }

    /// The first layers of a step are read while its embeddings are looked up; reading them sooner
    /// would charge one step's bytes to another, and the last step's to none.
    fn announce(&mut self, upcoming: &machine::Upcoming<'_>) {
        self.store.announce(&Upcoming {
            experts: upcoming.experts,
            layers: upcoming.layers.clone(),
            head: upcoming.head,
        });
    }

    /// Drops everything that is lent, so that its memory can be used again.
    fn release(&mut self) {
        self.rows = None;
        self.layer = None;
        self.head = None;
        self.experts.clear();
    }
}

impl Host for Streaming {
    fn fetch(&mut self, want: Want<'_>, upcoming: &machine::Upcoming<'_>) -> Result<Block, Error> {
        match want {
            Want::Rows { table, ids } => {
                self.release();
                self.announce(upcoming);
                self.rows = Some(self.store.rows(table, ids)?);
                Ok(Block::Rows)
            }
            Want::Layer { layer, .. } => {
                self.rows = None;
                self.experts.clear();
                if self.layer.as_ref().is_none_or(|(held, _)| *held != layer) {
                    self.release();
                    self.layer = Some((layer, self.store.layer(layer)?));
                }
                self.announce(upcoming);
                Ok(Block::Layer(layer))
            }
            Want::Experts { layer, ids } => {
                // What is not wanted any more has been fed (or is left of a step that failed).
                self.experts.retain(|e| ids.binary_search(&e.id).is_ok());
                if self.experts.is_empty() {
                    self.experts.extend(self.store.experts(layer, ids)?);
                } else {
                    // The slot of the expert fed last is free for another.
                    self.announce(upcoming);
                }
                Ok(Block::Expert { layer, id: self.experts[0].id })
            }
            Want::Head { first_row } => {
                self.release();
                self.head = Some(self.store.head(first_row as u64)?);
                self.announce(upcoming);
                Ok(Block::Head { first_row })
            }
        }
    }

    fn lend(
        &mut self,
        block: &Block,
        use_it: &mut dyn FnMut(Fed<'_>) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let gone = || StepError::Unexpected {
            wanted: format!("{block:?}"),
            fed: "nothing: it was not fetched last".into(),
        };
        match block {
            Block::Rows => {
                let rows = self.rows.as_ref().ok_or_else(gone)?;
                use_it(Fed::Rows { rows: &rows.slices() })
            }
            Block::Layer(layer) => {
                let held = self.layer.as_ref().filter(|(held, _)| held == layer);
                let (_, tensors) = held.ok_or_else(gone)?;
                use_it(Fed::Layer { tensors: &tensors.tensors() })
            }
            Block::Expert { id, .. } => {
                let expert = self.experts.front().filter(|e| e.id == *id).ok_or_else(gone)?;
                use_it(Fed::Expert { id: *id, tensors: &expert.tensors() })
            }
            Block::Head { first_row } => {
                let head = self.head.as_ref().filter(|h| h.rows.start == *first_row as u64);
                let head = head.ok_or_else(gone)?;
                use_it(Fed::Head { tensors: &head.tensors(), rows: head.bytes() })
            }
        }
    }

    fn counters(&self) -> Counters {
        let s = self.store.stats();
        Counters {
            trunk_bytes: s.trunk_bytes,
            expert_bytes: s.expert_bytes,
            other_bytes: s.row_bytes,
            expert_requests: s.expert_requests,
            expert_hits: s.expert_hits,
            wait_seconds: (s.trunk_wait_ns + s.expert_wait_ns + s.row_wait_ns) as f64 / 1e9,
            disk_bytes: s.disk_bytes,
            disk_seconds: s.disk_ns as f64 / 1e9,
        }
    }

    fn trace(&mut self) -> Vec<ExpertId> {
        self.store.trace()
    }

    fn events(&mut self) -> Vec<store::Event> {
        self.store.take_events()
    }
}

/// A model's layout in the store's terms; `ignored` are prefixes of tensors it does not use.
///
/// # Errors
/// An element type the store does not know.
pub fn store_layout(of: &machine::Layout, ignored: Vec<String>) -> Result<layout::Layout, Error> {
    let spec = |s: &machine::TensorSpec, name: &str| {
        let dtype = Dtype::from_name(s.dtype.name());
        let dtype =
            dtype.ok_or_else(|| Error::Refused(format!("tensor {}: type {}", s.name, s.dtype)))?;
        let shape = s.shape.iter().map(|&d| d as u64).collect();
        Ok::<_, Error>(TensorSpec { name: name.to_owned(), dtype, shape })
    };
    let specs = |all: &[machine::TensorSpec]| {
        all.iter().map(|s| spec(s, &s.name)).collect::<Result<Vec<_>, Error>>()
    };
    let layer = |l: &machine::LayerSpec| {
        let (prefix, suffixes) = &l.expert_names;
        Ok::<_, Error>(layout::LayerSpec {
            tensors: specs(&l.tensors)?,
            experts: l.experts,
            expert: l
                .expert
                .iter()
                .zip(suffixes)
                .map(|(s, suffix)| spec(s, suffix))
                .collect::<Result<_, _>>()?,
            expert_prefix: prefix.clone(),
        })
    };
    Ok(layout::Layout {
        tables: of.tables.iter().map(|t| specs(&t.tensors)).collect::<Result<_, _>>()?,
        layers: of.layers.iter().map(layer).collect::<Result<_, _>>()?,
        head: layout::HeadSpec {
            tensors: specs(&of.head.tensors)?,
            matrix: spec(&of.head.matrix, &of.head.matrix.name)?,
        },
        ignored,
    })
}
