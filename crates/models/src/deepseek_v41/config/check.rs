//! The relations between fields that the machine relies on. Everything later is computed from
//! a checked configuration and need not look again.

use super::{Config, ConfigError};

/// Bounds on single sizes: far above the released model, low enough that no product of the
/// few sizes that make a tensor can overflow 64 bits.
pub const MAX_SIZE: usize = 1 << 20;
/// Most layers and draft stages.
pub const MAX_LAYERS: usize = 1024;
/// Most copies of the stream.
pub const MAX_HC_MULT: usize = 8;
/// Most Sinkhorn iterations.
pub const MAX_HC_ITERS: usize = 1000;
/// Longest n-gram.
pub const MAX_NGRAM: usize = 8;
/// Most layers with engram tables.
pub const MAX_ENGRAM_LAYERS: usize = 64;
/// Most rows a position looks up in one table.
pub const MAX_LOOKUPS: usize = 1024;
/// Most rows of an engram table: row numbers travel as u64, sizes stay below 2^48 bytes.
pub const MAX_ENGRAM_ROWS: u64 = 1 << 36;

type Checked = Result<(), ConfigError>;

fn require(
    ok: bool,
    field: &'static str,
    got: impl ToString,
    expected: impl Into<String>,
) -> Checked {
    if ok {
        return Ok(());
    }
    Err(ConfigError::Value { field, got: got.to_string(), expected: expected.into() })
}

fn multiple(field: &'static str, value: usize, of: usize, why: &str) -> Checked {
    require(value.is_multiple_of(of), field, value, format!("a multiple of {of} ({why})"))
}

pub(super) fn check(c: &Config) -> Checked {
    sizes(c)?;
    blocks(c)?;
    layers(c)?;
    engram(c)?;
    dspark(c)
}

fn sizes(c: &Config) -> Checked {
    let positive = [
        ("vocab_size", c.vocab),
        ("hidden_size", c.dim),
        ("num_attention_heads", c.heads),
        ("head_dim", c.head_dim),
        ("qk_rope_head_dim", c.rope_dim),
        ("q_lora_rank", c.q_rank),
        ("o_lora_rank", c.o_rank),
        ("o_groups", c.o_groups),
        ("sliding_window", c.window),
        ("n_routed_experts", c.experts),
        ("num_experts_per_tok", c.active),
        ("moe_intermediate_size", c.moe_dim),
        ("max_position_embeddings", c.max_positions),
        ("index_n_heads", c.index_heads),
        ("index_head_dim", c.index_dim),
        ("index_topk", c.index_topk),
        ("candidate_topk_blocks", c.candidates.topk_blocks),
        ("candidate_block_size", c.candidates.block),
    ];
    for (field, value) in positive {
        require((1..=MAX_SIZE).contains(&value), field, value, format!("1 to {MAX_SIZE}"))?;
    }
    require(
        (1..=MAX_LAYERS).contains(&c.layers),
        "num_hidden_layers",
        c.layers,
        format!("1 to {MAX_LAYERS}"),
    )?;
    require(
        (1..=MAX_HC_MULT).contains(&c.hc_mult),
        "hc_mult",
        c.hc_mult,
        format!("1 to {MAX_HC_MULT}"),
    )?;
    require(
        (1..=MAX_HC_ITERS).contains(&c.hc_iters),
        "hc_sinkhorn_iters",
        c.hc_iters,
        format!("1 to {MAX_HC_ITERS}"),
    )?;
    for (field, value) in [
        ("rms_norm_eps", c.eps),
        ("hc_eps", c.hc_eps),
        ("routed_scaling_factor", c.route_scale),
        ("gate_temp", c.gate_temp),
        ("rope_scaling.factor", c.yarn.factor),
        ("rope_scaling.beta_fast", c.yarn.beta_fast),
        ("rope_scaling.beta_slow", c.yarn.beta_slow),
    ] {
        require(value > 0.0, field, value, "a positive number")?;
    }
    require(c.swiglu_limit >= 0.0, "swiglu_limit", c.swiglu_limit, "zero or a positive number")?;
    for (field, value) in [("rope_theta", c.rope_theta), ("compress_rope_theta", c.compress_theta)]
    {
        require(value > 1.0, field, value, "a number above 1")?;
    }
    require(
        c.yarn.original > 0,
        "rope_scaling.original_max_position_embeddings",
        c.yarn.original,
        "a positive integer",
    )?;
    require(
        c.active <= c.experts,
        "num_experts_per_tok",
        c.active,
        format!("at most n_routed_experts ({})", c.experts),
    )
}

/// Sizes that scales and packing divide.
fn blocks(c: &Config) -> Checked {
    let quantised = "one scale every 32 values";
    for (field, value) in [
        ("hidden_size", c.dim),
        ("q_lora_rank", c.q_rank),
        ("o_lora_rank", c.o_rank),
        ("moe_intermediate_size", c.moe_dim),
        ("head_dim", c.head_dim),
        ("index_head_dim", c.index_dim),
    ] {
        multiple(field, value, 32, quantised)?;
    }
    require(
        c.heads.is_multiple_of(c.o_groups),
        "o_groups",
        c.o_groups,
        format!("a divisor of num_attention_heads ({})", c.heads),
    )?;
    require(
        c.rope_dim.is_multiple_of(2) && c.rope_dim <= c.head_dim.min(c.index_dim),
        "qk_rope_head_dim",
        c.rope_dim,
        "an even number, at most head_dim and index_head_dim",
    )?;
    let reachable = (c.candidates.topk_blocks - 1) * c.candidates.block + 1;
    require(
        reachable >= c.index_topk,
        "candidate_topk_blocks",
        c.candidates.topk_blocks,
        format!(
            "enough blocks of {} to hold index_topk ({}) positions",
            c.candidates.block, c.index_topk
        ),
    )
}

fn ascending(field: &'static str, list: &[usize], below: usize) -> Checked {
    let ok = list.windows(2).all(|w| w[0] < w[1]) && list.iter().all(|l| *l < below);
    require(ok, field, format!("{list:?}"), format!("ascending layer numbers below {below}"))
}

fn layers(c: &Config) -> Checked {
    ascending("kv_source_layer_ids", &c.kv_sources, c.layers)?;
    ascending("index_source_layer_ids", &c.index_sources, c.layers)?;
    require(!c.kv_sources.is_empty(), "kv_source_layer_ids", "[]", "at least one source")?;
    for &source in &c.kv_sources {
        require(
            c.index_sources.contains(&source),
            "index_source_layer_ids",
            format!("{:?}", c.index_sources),
            format!("every KV source among them ({source} is missing)"),
        )?;
    }
    for layer in 0..c.layers {
        let ratio = c.ratios[layer];
        let at = || format!("{ratio} in layer {layer}");
        if ratio == 0 {
            let source = c.index_sources.contains(&layer);
            require(!source, "compress_ratios", at(), "1 or 2 in a layer with an indexer")?;
            continue;
        }
        let Some(source) = c.source(layer) else {
            return require(false, "compress_ratios", at(), "a KV source at or below the layer");
        };
        let of_source = c.source_ratio(source);
        require(
            ratio == of_source,
            "compress_ratios",
            at(),
            format!("{of_source}, its KV source's"),
        )?;
    }
    let candidate = c.candidates.source;
    require(
        c.kv_sources.last() == Some(&candidate),
        "candidate_source_layer_id",
        candidate,
        "the last KV source: later indexers choose among its positions",
    )
}

fn engram(c: &Config) -> Checked {
    let e = &c.engram;
    ascending("engram_layer_ids", &e.layers, c.layers)?;
    require(
        e.rows.len() == e.layers.len(),
        "engram_num_embeddings",
        format!("{} entries", e.rows.len()),
        format!("{} (one a layer in engram_layer_ids)", e.layers.len()),
    )?;
    require(
        (2..=MAX_NGRAM).contains(&e.max_ngram),
        "engram_max_ngram_size",
        e.max_ngram,
        format!("2 to {MAX_NGRAM}"),
    )?;
    require(
        (1..=MAX_SIZE).contains(&e.heads),
        "engram_n_heads",
        e.heads,
        format!("1 to {MAX_SIZE}"),
    )?;
    require(
        (1..=MAX_SIZE).contains(&e.head_dim),
        "engram_head_dim",
        e.head_dim,
        format!("1 to {MAX_SIZE}"),
    )?;
    multiple("engram_head_dim", e.head_dim, 32, "one scale every 32 values")?;
    require(
        e.lookups() * e.head_dim <= MAX_SIZE,
        "engram_n_heads",
        e.heads,
        "a row of lookups below the size limit",
    )?;
    require(
        (1..=c.vocab).contains(&e.compressed_vocab),
        "engram_compressed_vocab_size",
        e.compressed_vocab,
        "1 to vocab_size",
    )?;
    require(
        (e.pad_id as usize) < c.vocab,
        "engram_pad_token_id",
        e.pad_id,
        "a token of the vocabulary",
    )?;
    require(
        e.layers.len() <= MAX_ENGRAM_LAYERS,
        "engram_layer_ids",
        e.layers.len(),
        format!("at most {MAX_ENGRAM_LAYERS} layers"),
    )?;
    require(
        e.lookups() <= MAX_LOOKUPS,
        "engram_n_heads",
        e.heads,
        format!("at most {MAX_LOOKUPS} lookups a position"),
    )?;
    for &rows in &e.rows {
        require(
            (1..=MAX_ENGRAM_ROWS).contains(&rows),
            "engram_num_embeddings",
            rows,
            format!("1 to {MAX_ENGRAM_ROWS}"),
        )?;
        // Each lookup has a prime of at least this size; this also bounds the search for them.
        let most = rows / e.lookups() as u64;
        require(
            (2..=most).contains(&e.first_prime),
            "engram_vocab_size",
            e.first_prime,
            format!("2 to {most}, so that the primes' sum can be engram_num_embeddings ({rows})"),
        )?;
    }
    Ok(())
}

fn dspark(c: &Config) -> Checked {
    let d = &c.dspark;
    require(
        d.stages <= MAX_LAYERS,
        "num_nextn_predict_layers",
        d.stages,
        format!("at most {MAX_LAYERS}"),
    )?;
    if d.stages == 0 {
        return Ok(());
    }
    ascending("dspark_target_layer_ids", &d.targets, c.layers)?;
    require(!d.targets.is_empty(), "dspark_target_layer_ids", "[]", "at least one layer")?;
    let sizes = [
        ("dspark_block_size", d.block),
        ("dspark_markov_rank", d.markov_rank),
        ("dspark_n_routed_experts", d.experts),
        ("dspark_num_experts_per_tok", d.active),
    ];
    for (field, value) in sizes {
        require((1..=MAX_SIZE).contains(&value), field, value, format!("1 to {MAX_SIZE}"))?;
    }
    require(
        d.active <= d.experts,
        "dspark_num_experts_per_tok",
        d.active,
        format!("at most dspark_n_routed_experts ({})", d.experts),
    )?;
    require(
        (d.noise_id as usize) < c.vocab,
        "dspark_noise_token_id",
        d.noise_id,
        "a token of the vocabulary",
    )
}
