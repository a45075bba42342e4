//! What every function of a layer needs to know about the step it computes, and the window
//! through which tests look at its intermediates.

use super::config::Config;
use super::linear::Regime;
use super::reference::cos_sin;
use crate::machine::StepError;
use numerics::{Error, Kernels, norm};

/// The positions of one sequence: `len` rows of the step from row `first` on, the first of
/// which is position `position` of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row in the step.
    pub first: usize,
    /// Number of rows.
    pub len: usize,
    /// Position of the first row in its sequence.
    pub position: usize,
}

/// Sees the intermediates of a step by the names of the golden traces.
pub trait Probe {
    /// The stream `h` (`[T, m, dim]`) and its weights `pre` (`[T, m]`) as they enter a layer;
    /// a test may put others in their place, to judge each layer alone.
    fn enter(&mut self, _layer: usize, _h: &mut [f32], _pre: &mut [f32]) {}

    /// An intermediate of a layer.
    fn see(&mut self, layer: usize, name: &'static str, values: &[f32]);
}

/// The step as a layer sees it.
pub struct Cx<'a> {
    pub config: &'a Config,
    pub kernels: &'a Kernels,
    pub regime: Regime,
    pub spans: &'a [Span],
    pub layer: usize,
    pub probe: Option<&'a mut (dyn Probe + Send + 'a)>,
}

impl Cx<'_> {
    /// Shows an intermediate to the probe.
    pub fn see(&mut self, name: &'static str, values: &[f32]) {
        if let Some(probe) = &mut self.probe {
            probe.see(self.layer, name, values);
        }
    }

    /// Shows indices to the probe (exact as f32: they are far below 2^24).
    pub fn see_ids(&mut self, name: &'static str, ids: impl Iterator<Item = u32>) {
        if self.probe.is_some() {
            self.see(name, &ids.map(|id| id as f32).collect::<Vec<_>>());
        }
    }

    /// Number of positions in the step.
    pub fn positions(&self) -> usize {
        self.spans.iter().map(|s| s.len).sum()
    }

    /// Position of row `row` in its sequence.
    pub fn position(&self, row: usize) -> usize {
        let span = self.spans.iter().rfind(|s| s.first <= row).expect("a row of the step");
        span.position + row - span.first
    }

    /// The error of a row that is not finite.
    pub fn non_finite(&self, what: &'static str, row: usize) -> StepError {
        StepError::NonFinite { layer: self.layer, what, position: self.position(row) }
    }

    /// The first row of `x` that is not all finite becomes an error.
    pub fn check_finite(&self, what: &'static str, x: &[f32]) -> Result<(), StepError> {
        // One cheap pass over everything; the place is looked for only if there is one.
        if x.iter().all(|v| v.is_finite()) {
            return Ok(());
        }
        let width = x.len() / self.positions();
        let bad = x.iter().position(|v| !v.is_finite()).unwrap_or(0);
        Err(self.non_finite(what, bad / width))
    }

    /// The step's error for one of `numerics`, which only a value that is not finite can cause
    /// here: `x` is what was given to it.
    pub fn refused<'s>(
        &'s self,
        what: &'static str,
        x: &'s [f32],
    ) -> impl Fn(Error) -> StepError + 's {
        move |_| self.check_finite(what, x).err().unwrap_or_else(|| self.non_finite(what, 0))
    }

    /// `bf16` RMSNorm of rows, see [`super::reference::rms_norm`].
    pub fn rms(&self, x: &[f32], w: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        for (x, y) in x.chunks_exact(w.len()).zip(out.chunks_exact_mut(w.len())) {
            norm::rms_norm(x, Some(w), f64::from(self.config.eps), y);
        }
        numerics::bf16::round_all(&mut out);
        out
    }
}

/// `(cos, sin)` of one frequency set for given positions, `[position, pair]`.
#[derive(Clone, Debug, Default)]
pub struct Rotations {
    pairs: usize,
    values: Vec<(f32, f32)>,
}

impl Rotations {
    /// Rotations of `positions`.
    pub fn new(freqs: &[f32], positions: impl Iterator<Item = usize>) -> Self {
        let row = |p: usize| freqs.iter().map(move |&f| cos_sin(p as u32, f));
        Rotations { pairs: freqs.len(), values: positions.flat_map(row).collect() }
    }

    /// The pairs of the `i`-th position.
    pub fn at(&self, i: usize) -> &[(f32, f32)] {
        &self.values[i * self.pairs..(i + 1) * self.pairs]
    }
}
