//! What a sequence leaves behind: for a KDA layer one matrix a head and the last inputs of its
//! convolution, for an MLA layer one cache row a position. Kept so that a step changes nothing
//! until it ends.

use super::config::Config;
use super::layer::Span;
use crate::machine::{Piece, Snapshot, SnapshotError, StepError};
use numerics::{Kernels, kda};

/// Most positions a state may be made for.
pub const MAX_CONTEXT: usize = 1 << 20;

/// The state of one sequence.
#[derive(Debug)]
pub struct State {
    pub(super) identity: String,
    pub(super) position: usize,
    pub(super) context: usize,
    pub(super) layers: Vec<LayerState>,
}

/// The state of one layer.
#[derive(Debug)]
pub enum LayerState {
    Kda(KdaState),
    Mla(MlaState),
}

/// A KDA layer. A step that fails must leave no trace, so it writes only what is `next`, and its
/// end makes that the state.
#[derive(Debug)]
pub struct KdaState {
    /// `[heads, d, d]`: key channel, then value channel.
    pub matrices: Vec<f32>,
    /// What the step under way makes of the matrices.
    pub next: NextMatrices,
    /// Inputs before the next position, `[q k v, taps - 1, heads * d]`, oldest first.
    pub conv: Vec<f32>,
    next_conv: Vec<f32>,
}

/// The matrices after a step, in whichever form is smaller.
#[derive(Debug, Default)]
pub enum NextMatrices {
    /// As they were.
    #[default]
    Same,
    /// The step's inputs, `[heads, positions, 3 d + 1]`: k, v, alpha, beta. Its end repeats the
    /// recurrence with them. Of one position they are a fortieth of the matrices.
    Inputs(Vec<f32>),
    /// The matrices themselves.
    Whole(Vec<f32>),
}

/// One head's part of [`NextMatrices`].
#[derive(Debug)]
pub enum NextMatrix<'a> {
    /// `[positions, 3 d + 1]`.
    Inputs(&'a mut [f32]),
    /// `[d, d]`.
    Whole(&'a mut [f32]),
}

impl NextMatrices {
    /// The smaller form for a step of so many positions.
    pub fn of(matrices: &[f32], c: &Config, positions: usize) -> NextMatrices {
        let inputs = c.kda_heads * positions * recurrence_inputs(c.kda_head_dim);
        if inputs < matrices.len() {
            NextMatrices::Inputs(vec![0.0; inputs])
        } else {
            NextMatrices::Whole(matrices.to_vec())
        }
    }

    /// The parts of all heads.
    pub fn heads(&mut self, heads: usize) -> impl Iterator<Item = NextMatrix<'_>> {
        let (values, whole) = match self {
            NextMatrices::Same => (&mut [][..], true),
            NextMatrices::Inputs(values) => (&mut values[..], false),
            NextMatrices::Whole(values) => (&mut values[..], true),
        };
        let each = (values.len() / heads).max(1);
        values.chunks_mut(each).map(move |head| match whole {
            true => NextMatrix::Whole(head),
            false => NextMatrix::Inputs(head),
        })
    }
}

impl NextMatrix<'_> {
    /// The matrix to go on with at position `t`: `before` in `scratch`, or the next one itself.
    pub fn matrix<'s>(
        &'s mut self,
        before: &[f32],
        scratch: &'s mut Vec<f32>,
        t: usize,
    ) -> &'s mut [f32] {
        match self {
            NextMatrix::Whole(matrix) => matrix,
            NextMatrix::Inputs(_) => {
                if t == 0 {
                    scratch.clear();
                    scratch.extend_from_slice(before);
                }
                scratch
            }
        }
    }

    /// Keeps the inputs of position `t`, if that is what is kept.
    pub fn record(&mut self, t: usize, [k, v, alpha]: [&[f32]; 3], beta: f32) {
        if let NextMatrix::Inputs(values) = self {
            let d = k.len();
            let row = &mut values[t * recurrence_inputs(d)..][..recurrence_inputs(d)];
            for (to, from) in row.chunks_exact_mut(d).zip([k, v, alpha]) {
                to.copy_from_slice(from);
            }
            row[3 * d] = beta;
        }
    }
}

/// Values a head's recurrence takes at one position.
pub fn recurrence_inputs(d: usize) -> usize {
    3 * d + 1
}

/// An MLA layer.
#[derive(Debug)]
pub struct MlaState {
    /// `[positions, latent + rope]`; rows beyond the state's position do not count yet.
    pub rows: Vec<f32>,
}

impl KdaState {
    /// Makes what the step computed the state.
    fn commit(&mut self, c: &Config, kernels: &Kernels) {
        std::mem::swap(&mut self.conv, &mut self.next_conv);
        match std::mem::take(&mut self.next) {
            NextMatrices::Same => (),
            NextMatrices::Whole(matrices) => self.matrices = matrices,
            NextMatrices::Inputs(inputs) => {
                let (d, of_head) = (c.kda_head_dim, inputs.len() / c.kda_heads);
                kernels.for_each_chunk(&mut self.matrices, d * d, |head, state| {
                    let inputs = &inputs[head * of_head..][..of_head];
                    let mut out = vec![0.0; d];
                    for x in inputs.chunks_exact(recurrence_inputs(d)) {
                        let (k, v, alpha, beta) =
                            (&x[..d], &x[d..2 * d], &x[2 * d..3 * d], x[3 * d]);
                        // What a query reads is not needed again.
                        let (q, out) = (k, &mut out[..]);
                        kernels.kda_step(kda::Step { state, q, k, v, alpha, beta, out });
                    }
                });
            }
        }
    }

    /// Writes the history after the step: the last rows of the old one and the span's inputs
    /// `qkv` (each `[t, p]`).
    pub fn next_conv(&mut self, qkv: &[Vec<f32>; 3], span: &Span, p: usize) {
        let past = self.conv.len() / (3 * p);
        for (part, x) in qkv.iter().enumerate() {
            for j in 0..past {
                // Row `j` of the new history is row `span.len + j` of old history and inputs.
                let at = span.len + j;
                let row = match at.checked_sub(past) {
                    None => &self.conv[(part * past + at) * p..][..p],
                    Some(t) => &x[(span.first + t) * p..][..p],
                };
                self.next_conv[(part * past + j) * p..][..p].copy_from_slice(row);
            }
        }
    }
}

impl LayerState {
    /// The MLA states of a layer of many sequences.
    pub fn mla<'a>(states: &'a mut [&mut LayerState]) -> Vec<&'a mut MlaState> {
        let mla = |s: &'a mut &mut LayerState| match &mut **s {
            LayerState::Mla(s) => s,
            LayerState::Kda(_) => unreachable!("states are made from the config's layer map"),
        };
        states.iter_mut().map(mla).collect()
    }

    /// The KDA states of a layer of many sequences.
    pub fn kda<'a>(states: &'a mut [&mut LayerState]) -> Vec<&'a mut KdaState> {
        let kda = |s: &'a mut &mut LayerState| match &mut **s {
            LayerState::Kda(s) => s,
            LayerState::Mla(_) => unreachable!("states are made from the config's layer map"),
        };
        states.iter_mut().map(kda).collect()
    }
}

/// Zeros, or `None` where memory cannot be had.
fn zeros(n: usize) -> Option<Vec<f32>> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).ok()?;
    v.resize(n, 0.0);
    Some(v)
}

/// Values of a KDA layer: matrices, history.
fn kda_sizes(c: &Config) -> (usize, usize) {
    (c.kda_width() * c.kda_head_dim, 3 * (c.conv_kernel - 1) * c.kda_width())
}

impl State {
    /// An empty sequence. MLA rows get their address space now and their memory when written.
    pub(super) fn new(c: &Config, identity: &str, context: usize) -> Result<State, StepError> {
        if context > MAX_CONTEXT {
            return Err(StepError::Context { needed: context, context: MAX_CONTEXT });
        }
        let (matrices, history) = kda_sizes(c);
        let layer = |&full: &bool| -> Option<LayerState> {
            Some(if full {
                let mut rows = Vec::new();
                rows.try_reserve_exact(context * c.cache_width()).ok()?;
                LayerState::Mla(MlaState { rows })
            } else {
                LayerState::Kda(KdaState {
                    matrices: zeros(matrices)?,
                    next: NextMatrices::Same,
                    conv: zeros(history)?,
                    next_conv: zeros(history)?,
                })
            })
        };
        let bytes = Self::bytes(c, context);
        let layers = c.full_attention.iter().map(layer).collect::<Option<_>>();
        let layers = layers.ok_or(StepError::Memory { what: "a sequence's state", bytes })?;
        Ok(State { identity: identity.into(), position: 0, context, layers })
    }

    /// Positions the sequence has.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Positions the sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes of a state grown to `context` positions.
    pub(super) fn bytes(c: &Config, context: usize) -> usize {
        let full = c.full_attention.iter().filter(|&&full| full).count();
        let (matrices, history) = kda_sizes(c);
        let kda = (matrices + 2 * history) * (c.layers - full);
        4 * (kda + context * c.cache_width() * full)
    }

    /// Makes the step's work the state.
    pub(super) fn commit(&mut self, c: &Config, kernels: &Kernels, positions: usize) {
        self.position += positions;
        for layer in &mut self.layers {
            if let LayerState::Kda(s) = layer {
                s.commit(c, kernels);
            }
        }
    }

    /// Forgets what an unfinished step has left.
    pub(super) fn roll_back(&mut self, c: &Config) {
        for layer in &mut self.layers {
            match layer {
                LayerState::Mla(s) => s.rows.truncate(self.position * c.cache_width()),
                LayerState::Kda(s) => s.next = NextMatrices::Same,
            }
        }
    }

    pub(super) fn save(&self, c: &Config, digest: &str) -> Snapshot<'_> {
        let mut snapshot = Snapshot::default();
        for (key, value) in [
            ("format", FORMAT.to_string()),
            ("digest", digest.to_string()),
            ("numerics", c.numerics_id()),
            ("position", self.position.to_string()),
        ] {
            snapshot.meta.insert(key.into(), value);
        }
        for (l, layer) in self.layers.iter().enumerate() {
            match layer {
                LayerState::Kda(s) => {
                    let [matrices, history] = kda_shapes(c);
                    let name = |part: &str| format!("layers.{l}.kda.{part}");
                    snapshot.pieces.push(Piece::f32s(name("state"), &matrices, &s.matrices));
                    snapshot.pieces.push(Piece::f32s(name("conv"), &history, &s.conv));
                }
                LayerState::Mla(s) => {
                    let shape = [self.position, c.cache_width()];
                    let rows = &s.rows[..self.position * c.cache_width()];
                    snapshot.pieces.push(Piece::f32s(
                        format!("layers.{l}.mla.cache"),
                        &shape,
                        rows,
                    ));
                }
            }
        }
        snapshot
    }

    pub(super) fn restore(
        c: &Config,
        identity: &str,
        bytes: &[u8],
        digest: &str,
        context: usize,
    ) -> Result<State, SnapshotError> {
        let snapshot = Snapshot::read(bytes)?;
        snapshot.expect_meta("format", "kind of state", FORMAT)?;
        snapshot.expect_meta("digest", "model", digest)?;
        snapshot.expect_meta("numerics", "numerics id", &c.numerics_id())?;
        let position = snapshot.meta.get("position").and_then(|p| p.parse::<usize>().ok());
        let Some(position) = position.filter(|&p| p <= MAX_CONTEXT) else {
            return Err(SnapshotError::Damaged("no position".into()));
        };
        if position > context {
            return Err(SnapshotError::Context { position, context });
        }
        let mut state = State::new(c, identity, context)?;
        let mut pieces = 0;
        for (l, layer) in state.layers.iter_mut().enumerate() {
            match layer {
                LayerState::Kda(s) => {
                    let [matrices, history] = kda_shapes(c);
                    let name = |part: &str| format!("layers.{l}.kda.{part}");
                    snapshot.read_f32s(&name("state"), &matrices, &mut s.matrices)?;
                    snapshot.read_f32s(&name("conv"), &history, &mut s.conv)?;
                    pieces += 2;
                }
                LayerState::Mla(s) => {
                    let shape = [position, c.cache_width()];
                    // The shape is checked against the bytes there are before they get room.
                    snapshot.piece(
                        &format!("layers.{l}.mla.cache"),
                        crate::machine::DType::F32,
                        &shape,
                    )?;
                    s.rows.resize(position * c.cache_width(), 0.0);
                    snapshot.read_f32s(&format!("layers.{l}.mla.cache"), &shape, &mut s.rows)?;
                    pieces += 1;
                }
            }
        }
        if snapshot.pieces.len() != pieces {
            return Err(SnapshotError::Damaged("tensors of another model".into()));
        }
        state.position = position;
        Ok(state)
    }
}

/// Kind and version of a saved state.
const FORMAT: &str = "facit kimi_k3 state 1";

/// Shapes of a KDA layer's matrices and history.
fn kda_shapes(c: &Config) -> [[usize; 3]; 2] {
    let d = c.kda_head_dim;
    [[c.kda_heads, d, d], [3, c.conv_kernel - 1, c.kda_width()]]
}
