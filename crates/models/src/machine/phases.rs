//! Where a step is and what follows from it: what it wants, what comes after that, and which
//! method computes with what is fed. All models go through these phases in the order that the
//! [module above](super) describes; they differ in what the methods compute.

use super::{Fed, Part, Step, StepError, Upcoming, Want};
use numerics::Kernels;
use std::ops::Range;

/// Where a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Rows of a table of the layout.
    Rows(usize),
    Layer(usize, Part),
    Experts(usize),
    /// Rows of the head done so far.
    Head(usize),
    /// Everything is computed.
    Done,
    Failed,
}

/// A step in phases; each method computes with what its phase wants and sets the next phase.
pub(crate) trait Phases {
    /// Whether the last layer's tensors are wanted once more after the head.
    const RETURNS: bool = false;

    fn phase(&self) -> Phase;

    fn set_phase(&mut self, phase: Phase);

    /// The layers it goes through.
    fn layers(&self) -> Range<usize>;

    /// Whether the head will be wanted after them.
    fn wants_head(&self) -> bool;

    /// Distinct rows wanted of a table, ascending.
    fn ids(&self, table: usize) -> &[u64];

    /// Experts of the current layer that the router has chosen and that have not been fed,
    /// ascending.
    fn missing(&self) -> &[u32];

    /// The logits, whole once the step is done.
    fn computed(&self) -> &[f32];

    fn rows(&mut self, table: usize, rows: &[&[u8]]) -> Result<(), StepError>;

    fn layer(
        &mut self,
        kernels: &Kernels,
        layer: usize,
        part: Part,
        tensors: &[&[u8]],
    ) -> Result<(), StepError>;

    /// One of the missing experts.
    fn expert(
        &mut self,
        kernels: &Kernels,
        layer: usize,
        id: u32,
        tensors: &[&[u8]],
    ) -> Result<(), StepError>;

    /// Rows of the head from `done` on.
    fn head(
        &mut self,
        kernels: &Kernels,
        done: usize,
        tensors: &[&[u8]],
        rows: &[u8],
    ) -> Result<(), StepError>;
}

/// Hands what is fed to the method of the phase, if that is what the phase wants.
fn dispatch(step: &mut impl Phases, kernels: &Kernels, fed: &Fed<'_>) -> Result<(), StepError> {
    match (step.phase(), *fed) {
        (Phase::Rows(table), Fed::Rows { rows }) => step.rows(table, rows),
        (Phase::Layer(l, part), Fed::Layer { tensors }) => step.layer(kernels, l, part, tensors),
        (Phase::Experts(l), Fed::Expert { id, .. })
            if step.missing().binary_search(&id).is_err() =>
        {
            Err(StepError::Unexpected {
                wanted: format!("experts {:?} of layer {l}", step.missing()),
                fed: format!("expert {id}"),
            })
        }
        (Phase::Experts(l), Fed::Expert { id, tensors }) => step.expert(kernels, l, id, tensors),
        (Phase::Head(done), Fed::Head { tensors, rows }) => step.head(kernels, done, tensors, rows),
        (Phase::Failed, _) => Err(StepError::Failed),
        _ => Err(StepError::Unexpected {
            wanted: step.want().map_or("nothing", |w| w.kind()).into(),
            fed: fed.kind().into(),
        }),
    }
}

impl<S: Phases> Step for S {
    fn want(&self) -> Option<Want<'_>> {
        match self.phase() {
            Phase::Rows(table) => Some(Want::Rows { table, ids: self.ids(table) }),
            Phase::Layer(layer, part) => Some(Want::Layer { layer, part }),
            Phase::Experts(layer) => Some(Want::Experts { layer, ids: self.missing() }),
            Phase::Head(first_row) => Some(Want::Head { first_row }),
            Phase::Done | Phase::Failed => None,
        }
    }

    fn upcoming(&self) -> Upcoming<'_> {
        let Range { start, end } = self.layers();
        let (current, begun) = match self.phase() {
            Phase::Rows(_) => (None, start),
            Phase::Layer(l, _) | Phase::Experts(l) => (Some(l), l + 1),
            Phase::Head(_) if S::RETURNS => (None, end - 1),
            Phase::Head(_) | Phase::Done | Phase::Failed => (None, end),
        };
        let missing = Some(self.missing()).filter(|m| !m.is_empty());
        let before = matches!(self.phase(), Phase::Rows(_) | Phase::Layer(..) | Phase::Experts(_));
        Upcoming {
            experts: current.zip(missing),
            layers: begun..end,
            head: before && self.wants_head(),
        }
    }

    fn feed(&mut self, kernels: &Kernels, fed: Fed<'_>) -> Result<(), StepError> {
        let result = dispatch(self, kernels, &fed);
        if result.is_err() {
            self.set_phase(Phase::Failed);
        }
        result
    }

    fn logits(&self) -> &[f32] {
        if self.phase() == Phase::Done { self.computed() } else { &[] }
    }
}
