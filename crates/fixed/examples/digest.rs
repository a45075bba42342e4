//! Tells the built-in model's story on every backend of this machine: one line each, backend, tokens,
//! turns and the SHA-256 of the final state, tab-separated. `cargo xtask targets` compares them
//! across machines.
#![allow(clippy::print_stdout)]

use fixed::arith::Backend;
use fixed::run::{Model, Options, Until};
use fixed::{Artifact, init_state, planner, state_size};
use std::ops::ControlFlow;

const PROMPT: &[u8] = b"Once upon a time";
const MAX_TOKENS: u32 = 120;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let artifact = std::fs::read(testkit::root().join("assets/facit-tales/facit-tales.facit"))?;
    let artifact = Artifact::new(&artifact)?;
    let config = artifact.metadata.config;
    let model = Model::new(artifact);
    for backend in Backend::supported() {
        let mut state = vec![0; state_size(config, PROMPT.len(), MAX_TOKENS)?];
        init_state(config, &mut state, PROMPT, MAX_TOKENS, 0, 0)?;
        let options = Options { backend, threads: 1, allowance: planner::ALLOWANCE };
        let report =
            model.run(&mut state, options, Until::Complete, &mut |_| ControlFlow::Continue(()))?;
        let (name, digest) = (backend.name(), testkit::sha256(&state));
        println!("{name}\t{}\t{}\t{digest}", report.generated, report.turns);
    }
    Ok(())
}
