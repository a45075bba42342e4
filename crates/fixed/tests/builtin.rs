//! The artifact that the binary and the web page embed is what its checkpoint converts to.

use testkit::fixed_models::facit_tales;
use testkit::sha256;

/// Catches an embedded artifact that was not renewed after the converter or the model changed.
/// Renew it with `facit convert model.bin tokenizer.bin -o facit-tales.facit` in its folder.
#[test]
fn the_embedded_artifact_is_the_converted_checkpoint() {
    let path = testkit::root().join("assets/facit-tales/facit-tales.facit");
    let embedded = std::fs::read(&path).unwrap();
    let converted = facit_tales().artifact();
    assert_eq!(sha256(&embedded), sha256(&converted), "renew {}", path.display());
}
