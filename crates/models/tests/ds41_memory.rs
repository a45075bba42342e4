//! What a step and a state are said to need, against what they allocate: a host plans memory by
//! these figures.

mod ds41_common;

use ds41_common::tiny;
use models::deepseek_v41::{Config, DeepSeekV41, Options, Regime};
use models::machine::{Chunk, Logits, Model};
use numerics::{Backend, Kernels};
use testkit::alloc::Counting;
use testkit::host::Resident;

#[global_allocator]
static ALLOC: Counting = Counting::new();

/// A model wide enough that activations dominate, with few experts.
fn wide() -> (Resident, DeepSeekV41) {
    let mut config = testkit::deepseek_v41::preset("bench5g").unwrap();
    let edits = serde_json::json!({
        "hidden_size": 512, "moe_intermediate_size": 256, "head_dim": 128, "q_lora_rank": 128,
        "o_lora_rank": 64, "n_routed_experts": 8, "dspark_n_routed_experts": 4,
        "engram_vocab_size": 97, "index_head_dim": 64, "index_n_heads": 8,
    });
    config["text_config"].as_object_mut().unwrap().extend(edits.as_object().unwrap().clone());
    testkit::deepseek_v41::set_engram_rows(&mut config);
    let parsed = Config::from_json(config.to_string().as_bytes()).unwrap();
    let host = Resident::new(&testkit::deepseek_v41::checkpoint(&config, 1));
    let options = Options { regime: Regime::W8a8, drafts: true };
    let model = DeepSeekV41::bind(parsed, options, tiny::token_map(), host.lookup()).unwrap();
    (host, model)
}

/// Catches a plan that promises less than is taken (one test, so that nothing else allocates):
/// steps of several lengths, and a state that has grown.
#[test]
fn planned_bytes_bound_what_is_allocated() {
    let (host, m) = wide();
    let k = Kernels::new(Backend::detect(), 1);
    let text: Vec<u32> = (0..400u32).map(|i| i * 37 % 384).collect();
    let mut state = m.new_state(1024).unwrap();
    for (range, logits) in [
        (0..1, Logits::All),
        (1..33, Logits::Last),
        (33..97, Logits::All),
        (97..353, Logits::None),
        (353..354, Logits::Last),
    ] {
        let tokens = &text[range.clone()];
        let before = ALLOC.now();
        ALLOC.reset();
        let chunk = Chunk { state: &mut state, tokens, logits };
        let out = host.feed(&m, &k, m.step(vec![chunk]).unwrap()).unwrap();
        let took = ALLOC.peak() - before;
        let planned = m.step_bytes(tokens.len(), range.end, logits.count(tokens.len()));
        testkit::note(format_args!("{} positions: {took} of {planned} bytes", tokens.len()));
        assert!(took <= planned, "{} positions take {took}, planned {planned}", tokens.len());
        // A bound ten times too high would keep a host from using its memory.
        assert!(planned <= 10 * took, "{} positions take {took}, planned {planned}", tokens.len());
        drop(out);
    }
    let with = ALLOC.now();
    let saved = m.save(&state, "").write().len();
    drop(state);
    let took = with - ALLOC.now();
    let planned = m.state_bytes(354);
    testkit::note(format_args!("state: {took} of {planned} bytes, {saved} saved"));
    assert!(took <= planned && planned <= 2 * saved, "state takes {took}, planned {planned}");
}
