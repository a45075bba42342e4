//! What Kimi K3 says it needs in memory, against what it takes: a plan that is wrong on a small
//! machine ends a run. One test, since the allocator counts the whole process.

use models::kimi_k3::{Config, KimiK3};
use models::machine::{Chunk, Logits, Model};
use numerics::{Backend, Kernels};
use testkit::alloc::Counting;
use testkit::host::Resident;
use testkit::k3::Shape;

#[global_allocator]
static ALLOC: Counting = Counting::new();

/// A shape in which activations outweigh bookkeeping.
fn shape() -> Shape {
    Shape {
        hidden: 256,
        layers: 5,
        full_attention: vec![4],
        kda_heads: 6,
        kda_head_dim: 32,
        heads: 8,
        q_lora: 96,
        kv_lora: 64,
        qk_nope: 32,
        qk_rope: 16,
        v_head: 32,
        experts: 8,
        top_k: 2,
        latent: 128,
        expert_width: 96,
        dense_width: 640,
        ..Shape::tiny()
    }
}

#[test]
fn states_and_steps_take_what_was_planned() {
    let checkpoint = shape().checkpoint(1);
    let host = Resident::new(&checkpoint);
    let config = Config::parse(checkpoint.config.as_bytes()).unwrap();
    let model = KimiK3::bind(config, host.lookup()).unwrap();
    let k = Kernels::new(Backend::detect(), 2);

    let context = 600;
    let before = ALLOC.now();
    let mut state = model.new_state(context).unwrap();
    let taken = ALLOC.now() - before;
    let planned = model.state_bytes(context);
    assert!((planned..planned + 20_000).contains(&taken), "state: planned {planned}, took {taken}");

    // Threads and their buffers come to life in a first step.
    let mut once = model.new_state(1).unwrap();
    host.logits(&model, &k, &mut once, &[1], 1).unwrap();
    drop(once);

    for (positions, logits) in
        [(1, Logits::Last), (8, Logits::None), (64, Logits::All), (400, Logits::Last)]
    {
        let tokens: Vec<u32> = (0..positions as u32).map(|i| i * 7 % 320).collect();
        let chunk = Chunk { state: &mut state, tokens: &tokens, logits };
        let before = ALLOC.now();
        ALLOC.reset();
        let out = host.feed(&model, &k, model.step(vec![chunk]).unwrap()).unwrap();
        let taken = ALLOC.peak() - before;
        drop(out);
        let length = model.position(&state);
        let planned = model.step_bytes(positions, length, logits.count(positions));
        testkit::note(format_args!("{positions} positions: planned {planned}, took {taken}"));
        assert!(taken <= planned, "{positions} positions: planned {planned}, took {taken}");
        // A bound that is far too large wastes what experts could be cached in.
        assert!(
            positions < 8 || planned < 3 * taken,
            "{positions}: planned {planned}, took {taken}"
        );
    }
}
