//! A run allocates when it starts and never again, on any backend and number of threads.
#![cfg(feature = "std")]

use fixed::arith::Backend;
use fixed::run::{Model, Options, Token, Until};
use fixed::{Artifact, init_state, state_size};
use std::ops::ControlFlow;
use testkit::alloc::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Catches buffers that grow with the position, and digits, scores or results made anew.
#[test]
fn no_token_allocates() {
    let bytes = testkit::fixed_models::facit_tales().artifact();
    let model = Model::new(Artifact::new(&bytes).unwrap());
    let config = model.artifact().metadata.config;
    let (prompt, max_tokens) = (b"Once upon a time", 120);
    for backend in Backend::supported() {
        for threads in [1, 2] {
            // A temperature, so that all three sampling passes run.
            let mut state = vec![0; state_size(config, prompt.len(), max_tokens).unwrap()];
            init_state(config, &mut state, prompt, max_tokens, 1 << 16, 7).unwrap();
            let mut counts = Vec::with_capacity(max_tokens as usize);
            let mut count = |_: Token<'_>| {
                counts.push(ALLOCATOR.calls());
                ControlFlow::Continue(())
            };
            let options = Options { backend, threads, ..Options::default() };
            ALLOCATOR.reset();
            model.run(&mut state, options, Until::Complete, &mut count).unwrap();
            assert!(counts.len() > 60, "a run long enough to show growth");
            assert!(counts[0] > 0, "the allocator counts");
            // A thread's own start allocates once, and the system may let it start late.
            let late = (counts[counts.len() - 1] - counts[0]) as u64;
            assert!(late < threads as u64, "{} on {threads} threads: {counts:?}", backend.name());
        }
    }
}
