//! The run of `cargo xtask targets`: the built-in model's story, turn by turn, on the fastest backend.

use crate::arith::{Backend, Scratch};
use crate::{Artifact, StateInfo, init_state, machine, planner, state_size, turn_with};
use alloc::string::String;
use sha2::{Digest, Sha256};

/// Where `cargo xtask avx512` puts the artifact on the disk, in sectors of 512 bytes.
const FIRST_SECTOR: u32 = 2048;
/// Its length. (Only that: the program has to stay short, so the bytes are not in it.)
const LEN: usize = include_bytes!("../../../assets/facit-tales/facit-tales.facit").len();

// As in `crates/fixed/examples/digest.rs`.
const PROMPT: &[u8] = b"Once upon a time";
const MAX_TOKENS: u32 = 120;

/// Backend, tokens, turns and SHA-256 of the final state, tab-separated.
pub fn tell() -> String {
    let backend = Backend::detect();
    let mut artifact = vec![0; LEN.next_multiple_of(machine::SECTOR)];
    machine::read_disk(FIRST_SECTOR, &mut artifact);
    let artifact = Artifact::new(&artifact[..LEN]).expect("the built-in model");
    let config = artifact.metadata.config;

    // The allocator gives every block the alignment that a state needs.
    let mut state = vec![0; state_size(config, PROMPT.len(), MAX_TOKENS).expect("a size")];
    init_state(config, &mut state, PROMPT, MAX_TOKENS, 0, 0).expect("a request");
    let mut scratch = Scratch::default();
    let mut info = StateInfo::read(&state).expect("a state");
    while !info.complete {
        let plan = planner::plan_turn(config, &state).expect("a plan");
        let sections = artifact.sections(&plan);
        let given = &sections[..plan.section_count];
        let allowance = planner::ALLOWANCE;
        turn_with(backend, &mut scratch, &artifact.metadata, &mut state, given, allowance)
            .expect("a turn");
        info = StateInfo::read(&state).expect("a state");
    }
    let digest = Sha256::digest(&state);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}\t{}\t{}\t{digest}", backend.name(), info.generated, info.turns)
}
