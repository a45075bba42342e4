//! The recurrence of Kimi Delta Attention for one head and one position.

/// One step. `state` is `[d_k, d_v]` (row `i` belongs to key channel `i`), `q`, `k` and `alpha` are
/// `[d_k]`, `v` and `out` are `[d_v]`:
///
/// ```text
/// S[i][j] *= alpha[i]
/// u[j]     = sum_i k[i] * S[i][j]
/// S[i][j] += (k[i] * beta) * (v[j] - u[j])
/// o[j]     = sum_i q[i] * S[i][j]
/// ```
///
/// All in `f32`, multiply and add rounded separately, sums in order of `i` from `+0.0`. Columns `j`
/// are independent, which is what the vectors run across. Panics if lengths do not fit.
pub fn step(
    state: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    alpha: &[f32],
    beta: f32,
    out: &mut [f32],
) {
    let (dk, dv) = (k.len(), v.len());
    assert!(q.len() == dk && alpha.len() == dk && out.len() == dv, "KDA operands differ in length");
    assert_eq!(state.len(), dk * dv, "the KDA state is not [d_k, d_v]");
    for j in 0..dv {
        let mut u = 0f32;
        for i in 0..dk {
            state[i * dv + j] *= alpha[i];
            u += k[i] * state[i * dv + j];
        }
        let mut o = 0f32;
        for i in 0..dk {
            state[i * dv + j] += (k[i] * beta) * (v[j] - u);
            o += q[i] * state[i * dv + j];
        }
        out[j] = o;
    }
}
