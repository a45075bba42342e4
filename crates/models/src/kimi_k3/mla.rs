//! Gated multi-head latent attention. All heads share one cached row a position: a normalised
//! latent and the "rope" values, which despite their name are never rotated, but exist, are
//! cached and scored. Keys and values are not expanded: the query is carried into the latent
//! (absorbed) and the attended latent out of it, the same function at a fraction of the memory.

use super::layer::{Batch, Span};
use super::ops::{project, rms_rows};
use super::state::MlaState;
use super::weights::Weights;
use numerics::elementary::sigmoid;
use numerics::{Matrix, Weights as Stored, rms_norm, softmax};

/// Scores held at once: bounds the memory of long contexts (16 MB) without changing a bit.
pub const MAX_SCORES: usize = 1 << 22;

/// Queries scored together: enough that a cached row read once serves many.
pub const MAX_QUERIES: usize = 1024;

/// Attention of all positions `x` (`[t, hidden]`) to `[t, hidden]`. Rows are appended to
/// `states`, which go with the batch's spans; they count once the step ends.
pub fn attention(b: &Batch, w: &Weights, x: &[f32], states: &mut [&mut MlaState]) -> Vec<f32> {
    let (c, k) = (b.config, b.kernels);
    let (heads, nope, lat, v) = (c.heads, c.qk_nope, c.kv_lora, c.v_head);
    let t = x.len() / c.hidden;
    let of = |name: &str| w.matrix(&format!("self_attn.{name}.weight"));
    let vector = |name: &str| w.vector(&format!("self_attn.{name}.weight"));

    // Both inner norms have an epsilon of their own.
    let qa = rms_rows(k, &project(k, &of("q_a_proj"), x), &vector("q_a_layernorm"), c.mla_eps);
    let q = project(k, &of("q_b_proj"), &qa);
    let kv = project(k, &of("kv_a_proj_with_mqa"), x);
    append(b, &kv, &vector("kv_a_layernorm"), states);

    // kv_b: for each head `nope` rows of keys, then `v` rows of values, over the latent.
    let kv_b = of("kv_b_proj");
    let keys = |h: usize| kv_b.row_range(h * (nope + v)..h * (nope + v) + nope);
    let values = |h: usize| kv_b.row_range(h * (nope + v) + nope..(h + 1) * (nope + v));

    // The query carried into the latent: sum_i q[i] * keys[i][:], by [head][t][latent].
    let mut absorbed = vec![0.0; heads * t * lat];
    k.for_each_chunk(&mut absorbed, t * lat, |h, out| {
        let q: Vec<f32> =
            (0..t).flat_map(|t| &q[(t * heads + h) * c.qk()..][..nope]).copied().collect();
        k.matmul_transposed(&keys(h), &q, t, out);
    });

    // Attended latents, by [head][t][latent].
    let mut attended = vec![0.0; heads * t * lat];
    for (span, state) in b.spans.iter().zip(states.iter()) {
        attend(b, span, state, &q, &absorbed, &mut attended);
    }

    // Out of the latent, by [head][t][v].
    let mut by_head = vec![0.0; heads * t * v];
    k.for_each_chunk(&mut by_head, t * v, |h, out| {
        k.matmul(&values(h), &attended[h * t * lat..][..t * lat], t, out);
    });
    let mut o = project(k, &of("g_proj"), x);
    k.for_each_chunk(&mut o, heads * v, |row, o| {
        for (i, o) in o.iter_mut().enumerate() {
            *o = by_head[((i / v) * t + row) * v + i % v] * sigmoid(*o);
        }
    });
    project(k, &of("o_proj"), &o)
}

/// Appends each position's cache row: the latent normalised, the rope values as they are.
fn append(b: &Batch, kv: &[f32], norm: &[f32], states: &mut [&mut MlaState]) {
    let (width, lat) = (b.config.cache_width(), b.config.kv_lora);
    for (span, state) in b.spans.iter().zip(states.iter_mut()) {
        for row in kv[span.first * width..][..span.len * width].chunks_exact(width) {
            let start = state.rows.len();
            state.rows.extend_from_slice(row);
            let latent = &mut state.rows[start..start + lat];
            rms_norm(&row[..lat], Some(norm), b.config.mla_eps, latent);
        }
    }
}

/// Scores, softmax and weighted sum for the positions of one sequence. Queries are numbered
/// `position * heads + head` and taken in blocks; a block is scored against every row its last
/// query may see, and what its earlier ones may not see gets weight zero.
fn attend(
    b: &Batch,
    span: &Span,
    state: &MlaState,
    q: &[f32],
    absorbed: &[f32],
    attended: &mut [f32],
) {
    let (c, k) = (b.config, b.kernels);
    let (heads, lat, width) = (c.heads, c.kv_lora, c.cache_width());
    let all = absorbed.len() / (heads * lat);
    let scale = (1.0 / (c.qk() as f64).sqrt()) as f32;
    // Where query `i` of this span lies in [head][t][latent].
    let place = |i: usize| ((i % heads) * all + span.first + i / heads) * lat;

    let block = (MAX_SCORES / (span.position + span.len)).clamp(1, MAX_QUERIES);
    let (mut x, mut scores, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = 0;
    while first < span.len * heads {
        let n = block.min(span.len * heads - first);
        let seen = |i: usize| span.position + (first + i) / heads + 1;
        let rows = seen(n - 1);
        let cache = &state.rows[..rows * width];

        x.clear();
        for i in first..first + n {
            x.extend_from_slice(&absorbed[place(i)..][..lat]);
            x.extend_from_slice(&q[(span.first * heads + i) * c.qk() + c.qk_nope..][..c.qk_rope]);
        }
        scores.resize(n * rows, 0.0);
        let keys = Matrix::new(rows, width, Stored::Floats(cache)).expect("whole rows");
        k.matmul(&keys, &x, n, &mut scores);
        k.for_each_chunk(&mut scores, rows, |i, p| {
            let (p, hidden) = p.split_at_mut(seen(i));
            p.iter_mut().for_each(|s| *s *= scale);
            softmax(p);
            hidden.fill(0.0);
        });

        out.resize(n * lat, 0.0);
        let latents = Matrix::strided(cache, rows, lat, width).expect("whole rows");
        k.matmul_transposed(&latents, &scores, n, &mut out);
        for (i, out) in out.chunks_exact(lat).enumerate() {
            attended[place(first + i)..][..lat].copy_from_slice(out);
        }
        first += n;
    }
}
