//! The engram token map against that of the synthetic checkpoint.

mod support;

use serde_json::Value;

/// A wrong order of the normalising steps merges or splits ids, and every later number moves.
#[test]
fn token_map_of_the_synthetic_checkpoint() {
    let want: Value = serde_json::from_str(&support::vector("deepseek/token_map.json")).unwrap();
    let map = text::engram::token_map(&support::deepseek()).unwrap();
    let wanted: Vec<u32> = serde_json::from_value(want["token_map"].clone()).unwrap();
    assert_eq!(map, wanted);
    let count = map.iter().max().unwrap() + 1;
    assert_eq!(u64::from(count), want["compressed_vocab_size"].as_u64().unwrap());
}
