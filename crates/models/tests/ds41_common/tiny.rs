//! The tiny golden model, bound and in memory.

use super::{bytes, json};
use models::deepseek_v41::{Config, DeepSeekV41, Options, Regime};
use models::tensor_file::TensorFile;
use testkit::host::Resident;

/// Both shards of the tiny checkpoint.
pub fn resident() -> Resident {
    let mut host = Resident::default();
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        let bytes = bytes(&format!("tiny_model/{shard}"));
        let file = TensorFile::parse(&bytes).unwrap();
        for name in file.names() {
            let t = file.get(name).unwrap();
            host.insert(name, &t.dtype, &t.shape, t.bytes.to_vec());
        }
    }
    host
}

pub fn config() -> Config {
    Config::from_json(&bytes("tiny_model/config.json")).unwrap()
}

pub fn token_map() -> Vec<u32> {
    let tables = json("tiny_model/engram_tables.json");
    tables["token_map"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

pub fn model(host: &Resident, regime: Regime, drafts: bool) -> DeepSeekV41 {
    DeepSeekV41::bind(config(), Options { regime, drafts }, token_map(), host.lookup()).unwrap()
}

/// The 16 golden tokens: a prompt of 11 and the five greedy tokens after it.
pub fn ids() -> Vec<u32> {
    let bytes = bytes("tiny_expect/logits.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    file.integers("ids").unwrap().1.into_iter().map(|v| v as u32).collect()
}
