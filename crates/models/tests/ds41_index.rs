//! The released checkpoint's index, from headers over holes: every one of the 96,085 tensors is
//! found, fits the configuration, and none is missing from the table.

use models::deepseek_v41::{Config, DeepSeekV41, Options, Regime};
use models::machine::Stored;
use store::safetensors::Index;

/// Catches a table that differs from the checkpoint's, an index that needs more memory than
/// promised, and a bind that takes long at this size.
#[test]
fn the_released_checkpoint_is_indexed_and_bound() {
    let dir = tempfile::tempdir().unwrap();
    testkit::deepseek_v41::write_released_headers(dir.path()).unwrap();
    let index = Index::open(dir.path()).unwrap();
    assert_eq!((index.len(), index.shards().len()), (96_085, 48));
    let bytes: u64 = index.iter().map(|t| t.len).sum();
    assert_eq!(bytes, 510_286_023_000);
    let each = index.memory() as f64 / index.len() as f64;
    assert!(each <= 130.0, "{each} bytes a tensor");

    let start = std::time::Instant::now();
    let config = std::fs::read(dir.path().join("config.json")).unwrap();
    let config = Config::from_json(&config).unwrap();
    let tokens = (0..129_280).map(|t| t % 99_092).collect();
    let options = Options { regime: Regime::W8a8, drafts: true };
    let lookup = |name: &str| {
        index.get(name).map(|t| Stored {
            dtype: t.dtype.name().to_owned(),
            shape: t.shape.iter().map(|&d| d as usize).collect(),
        })
    };
    let model = DeepSeekV41::bind(config, options, tokens, lookup).unwrap();
    testkit::note(format_args!(
        "{each:.1} bytes a tensor in the index; bound in {:.3} s",
        start.elapsed().as_secs_f64()
    ));
    assert_eq!(model.config().layers, 40);
}
