//! The host's side of *the model asks, the host feeds*: where weights come from.
//!
//! A host first makes a wanted block available ([`Host::fetch`]: may wait for a disk), then
//! lends its bytes ([`Host::lend`]). Two calls, because the want borrows the step that the bytes
//! are then fed to.

use crate::Error;
use models::machine::{Fed, Layout, Part, Step, StepError, Upcoming, Want};
use numerics::Kernels;
use store::cache::ExpertId;

/// A block that a host has made available, until the next [`Host::fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// The rows of the last [`Want::Rows`].
    Rows,
    /// A layer's always-active tensors.
    Layer(usize),
    /// One expert of a layer.
    Expert {
        /// Layer from 0.
        layer: usize,
        /// Which of the wanted ones is here.
        id: u32,
    },
    /// The head from this row on.
    Head {
        /// First row.
        first_row: usize,
    },
}

/// What a host has read and waited so far. All counts are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Counters {
    /// Bytes of always-active weights read from disk: layers and head.
    pub trunk_bytes: u64,
    /// Bytes of routed experts read from disk.
    pub expert_bytes: u64,
    /// Bytes of everything else read from disk (embedding and engram rows).
    pub other_bytes: u64,
    /// Requests for an expert.
    pub expert_requests: u64,
    /// Requests for an expert whose weights were in memory, complete, when the router chose it.
    pub expert_hits: u64,
    /// Seconds spent waiting for the disk with nothing to compute.
    pub wait_seconds: f64,
    /// Bytes of all requests to the disk, with what alignment adds to the bytes above.
    pub disk_bytes: u64,
    /// Seconds during which a request to the disk was under way.
    pub disk_seconds: f64,
}

impl Counters {
    /// All bytes read.
    pub fn bytes(&self) -> u64 {
        self.trunk_bytes + self.expert_bytes + self.other_bytes
    }

    /// What happened since `earlier`.
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            trunk_bytes: self.trunk_bytes - earlier.trunk_bytes,
            expert_bytes: self.expert_bytes - earlier.expert_bytes,
            other_bytes: self.other_bytes - earlier.other_bytes,
            expert_requests: self.expert_requests - earlier.expert_requests,
            expert_hits: self.expert_hits - earlier.expert_hits,
            wait_seconds: self.wait_seconds - earlier.wait_seconds,
            disk_bytes: self.disk_bytes - earlier.disk_bytes,
            disk_seconds: self.disk_seconds - earlier.disk_seconds,
        }
    }

    /// Adds what happened in another stretch of time.
    pub fn add(&mut self, other: &Counters) {
        self.trunk_bytes += other.trunk_bytes;
        self.expert_bytes += other.expert_bytes;
        self.other_bytes += other.other_bytes;
        self.expert_requests += other.expert_requests;
        self.expert_hits += other.expert_hits;
        self.wait_seconds += other.wait_seconds;
        self.disk_bytes += other.disk_bytes;
        self.disk_seconds += other.disk_seconds;
    }

    /// Share of the requests for experts that memory answered; `None` without requests.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.expert_requests > 0).then(|| self.expert_hits as f64 / self.expert_requests as f64)
    }

    /// Bytes a second while the disk was reading; `None` if it was not.
    pub fn disk_rate(&self) -> Option<f64> {
        (self.disk_seconds > 0.0).then(|| self.disk_bytes as f64 / self.disk_seconds)
    }
}

/// Where weights come from.
pub trait Host: Send {
    /// Makes one block of what is wanted available and may begin reading what is upcoming.
    ///
    /// # Errors
    /// A read that failed, naming the tensor. The step must then be dropped.
    fn fetch(&mut self, want: Want<'_>, upcoming: &Upcoming<'_>) -> Result<Block, Error>;

    /// Lends the block's bytes to `use_it`.
    ///
    /// # Errors
    /// What `use_it` returned.
    fn lend(
        &mut self,
        block: &Block,
        use_it: &mut dyn FnMut(Fed<'_>) -> Result<(), StepError>,
    ) -> Result<(), StepError>;

    /// What has been read so far.
    fn counters(&self) -> Counters;

    /// Requests for experts since the last call, where they are recorded.
    fn trace(&mut self) -> Vec<ExpertId> {
        Vec::new()
    }

    /// What the user should hear of the disk, each once.
    fn events(&mut self) -> Vec<store::Event> {
        Vec::new()
    }
}

/// Feeds a step until it has ended.
///
/// # Errors
/// The first failed read or refused feed; the states are then as before the step.
pub fn drive(step: &mut dyn Step, host: &mut dyn Host, kernels: &Kernels) -> Result<(), Error> {
    while let Some(want) = step.want() {
        let block = host.fetch(want, &step.upcoming())?;
        host.lend(&block, &mut |fed| step.feed(kernels, fed))?;
    }
    Ok(())
}

/// A person's name for a part of the work, for progress lines.
pub fn describe(want: &Want<'_>, layout: &Layout) -> String {
    let layers = layout.layers.len();
    match want {
        Want::Rows { table: 0, .. } => "embedding".into(),
        Want::Rows { .. } => "table rows".into(),
        Want::Layer { layer, part: Part::Mix } => format!("layer {}/{layers}", layer + 1),
        Want::Layer { layer, .. } => format!("layer {}/{layers}, shared", layer + 1),
        Want::Experts { layer, .. } => format!("layer {}/{layers}, experts", layer + 1),
        Want::Head { .. } => "head".into(),
    }
}
