//! The built-in model's story on the program: prints backend, tokens, turns and the SHA-256 of the
//! final state, tab-separated, as `crates/fixed/examples/digest.rs` does.

use facit_program_vm::machine::Ended;
use facit_program_vm::world::{Request, World};
use fixed::protocol::Status;
use fixed::{Artifact, StateInfo};
use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let bytes = std::fs::read(root.join("assets/facit-tales/facit-tales.facit"))?;
    let artifact = Artifact::new(&bytes)?;
    let (model, run) = ([1; 32], [2; 32]);
    let mut world = World::new(0, 0);
    world.upload(model, &artifact, 0);
    world.seal(model, &artifact);
    let request =
        Request { prompt: b"Once upon a time", max_tokens: 120, temperature_q16: 0, seed: 0 };
    world.open(run, model, &artifact, &request);
    while world.run(run).status == Status::Open {
        let report = world.turn(run, model, &artifact);
        if report.ended != Ended::Done {
            return Err(format!("{:?}", report.ended).into());
        }
    }
    let state = world.state(run);
    let info = StateInfo::read(state)?;
    let digest: String = Sha256::digest(state).iter().map(|b| format!("{b:02x}")).collect();
    println!("solana-sbpf\t{}\t{}\t{digest}", info.generated, info.turns);
    Ok(())
}
