//! The recurrence of Kimi Delta Attention for one head and one position:
//!
//! ```text
//! S[i][j] *= alpha[i]
//! u[j]     = sum_i k[i] * S[i][j]
//! S[i][j] += (k[i] * beta) * (v[j] - u[j])
//! o[j]     = sum_i q[i] * S[i][j]
//! ```
//!
//! All in `f32`, multiply and add rounded separately, sums in order of `i` from `+0.0`. Columns `j`
//! are independent, which is what vectors run across. [`Kernels::kda_step`](crate::Kernels::kda_step)
//! computes it.

/// The operands of one step. `d_k` channels of keys, `d_v` of values.
#[derive(Debug)]
pub struct Step<'a> {
    /// `S`, `[d_k, d_v]`, updated.
    pub state: &'a mut [f32],
    /// `[d_k]`.
    pub q: &'a [f32],
    /// `[d_k]`.
    pub k: &'a [f32],
    /// `[d_v]`.
    pub v: &'a [f32],
    /// The decay of each key channel, `[d_k]`.
    pub alpha: &'a [f32],
    /// The head's learning rate.
    pub beta: f32,
    /// `o`, `[d_v]`, overwritten.
    pub out: &'a mut [f32],
}

impl Step<'_> {
    fn assert_shapes(&self) -> (usize, usize) {
        let (dk, dv) = (self.k.len(), self.v.len());
        assert!(self.q.len() == dk && self.alpha.len() == dk, "q, k and alpha differ in length");
        assert_eq!(self.out.len(), dv, "v and out differ in length");
        assert_eq!(self.state.len(), dk * dv, "the state is not [d_k, d_v]");
        (dk, dv)
    }
}

/// One step, with the operands as a list: the scalar definition.
pub fn step(
    state: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    alpha: &[f32],
    beta: f32,
    out: &mut [f32],
) {
    definition(Step { state, q, k, v, alpha, beta, out })
}

/// The step as written, one column after the other.
pub(crate) fn definition(s: Step) {
    let (dk, dv) = s.assert_shapes();
    for j in 0..dv {
        let mut u = 0f32;
        for i in 0..dk {
            s.state[i * dv + j] *= s.alpha[i];
            u += s.k[i] * s.state[i * dv + j];
        }
        let mut o = 0f32;
        for i in 0..dk {
            s.state[i * dv + j] += (s.k[i] * s.beta) * (s.v[j] - u);
            o += s.q[i] * s.state[i * dv + j];
        }
        s.out[j] = o;
    }
}

/// The same, several columns side by side: 64 while there are, then fewer.
#[inline(always)]
pub(crate) fn columns(mut s: Step) {
    let (_, dv) = s.assert_shapes();
    let mut j = 0;
    while j + 64 <= dv {
        some_columns::<64>(&mut s, j);
        j += 64;
    }
    while j + 8 <= dv {
        some_columns::<8>(&mut s, j);
        j += 8;
    }
    for j in j..dv {
        some_columns::<1>(&mut s, j);
    }
}

/// Columns `j..j + W`.
#[inline(always)]
fn some_columns<const W: usize>(s: &mut Step, j: usize) {
    let dv = s.v.len();
    let mut u = [0f32; W];
    for (i, row) in s.state.chunks_exact_mut(dv).enumerate() {
        let row = &mut row[j..j + W];
        for c in 0..W {
            row[c] *= s.alpha[i];
            u[c] += s.k[i] * row[c];
        }
    }
    // From here on `u` is what the key should have recalled and did not.
    for c in 0..W {
        u[c] = s.v[j + c] - u[c];
    }
    let mut o = [0f32; W];
    for (i, row) in s.state.chunks_exact_mut(dv).enumerate() {
        let row = &mut row[j..j + W];
        let rate = s.k[i] * s.beta;
        for c in 0..W {
            row[c] += rate * u[c];
            o[c] += s.q[i] * row[c];
        }
    }
    s.out[j..j + W].copy_from_slice(&o);
}
