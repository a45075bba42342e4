//! The artifact inside the program is the conversion of the committed checkpoint, nothing else.

use std::path::Path;

use engine::{Artifact, Digest};

/// Catches a checkpoint, tokenizer or converter that changed without the artifact.
/// To regenerate: `facit convert assets/facit-tales/{model,tokenizer}.bin -o assets/facit-tales/facit-tales.facit`.
#[test]
fn the_builtin_model_is_converted_from_the_committed_checkpoint() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/facit-tales");
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let converted = fixed::convert::convert(&read("model.bin"), &read("tokenizer.bin")).unwrap();
    let artifact = Artifact::builtin();
    assert_eq!(Digest::of(&converted), artifact.model().digest());
    assert!(converted == artifact.model().bytes());
}
