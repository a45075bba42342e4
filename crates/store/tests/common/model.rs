//! A small checkpoint of layers, experts, a table and a head, with known bytes.

use super::spec;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use store::io::Real;
use store::layout::{HeadSpec, LayerSpec, Layout};
use store::safetensors::{Dtype, Index, TensorSpec, Writer};

pub const LAYERS: usize = 6;
pub const EXPERTS: usize = 12;
pub const VOCAB: u64 = 700;
pub const HIDDEN: u64 = 1024;

/// Layer 0 is dense, the others have experts of an unaligned size.
pub fn layout() -> Layout {
    let layer = |l: usize| {
        let t =
            |name: &str, dtype, shape: &[u64]| spec(&format!("m.layers.{l}.{name}"), dtype, shape);
        let mut tensors = vec![
            t("norm", Dtype::Bf16, &[HIDDEN]),
            t("q", Dtype::Bf16, &[600 + 10 * l as u64, HIDDEN]),
            t("bias", Dtype::F32, &[33]),
            t("odd", Dtype::U8, &[7]),
        ];
        if l == 0 {
            tensors.push(t("dense", Dtype::Bf16, &[900, HIDDEN]));
        }
        LayerSpec {
            tensors,
            experts: if l == 0 { 0 } else { EXPERTS },
            expert: vec![
                spec(".w1", Dtype::U8, &[77, 111]),
                spec(".s", Dtype::U8, &[77]),
                spec(".w2", Dtype::U8, &[1001]),
            ],
            expert_prefix: format!("m.layers.{l}.experts."),
        }
    };
    Layout {
        tables: vec![vec![spec("m.embed", Dtype::Bf16, &[VOCAB, HIDDEN])]],
        layers: (0..LAYERS).map(layer).collect(),
        head: HeadSpec {
            tensors: vec![spec("m.norm", Dtype::Bf16, &[HIDDEN])],
            matrix: spec("m.head", Dtype::Bf16, &[VOCAB, HIDDEN]),
        },
        ignored: vec!["vision.".to_owned()],
    }
}

/// The bytes of a tensor, made once.
pub fn content(spec: &TensorSpec) -> Arc<Vec<u8>> {
    static MADE: LazyLock<Mutex<HashMap<String, Arc<Vec<u8>>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap();
    Arc::clone(made.entry(spec.name.clone()).or_insert_with(|| Arc::new(make(spec))))
}

/// They depend on its name alone; bf16 ones look like weights.
fn make(spec: &TensorSpec) -> Vec<u8> {
    let mut x =
        spec.name.bytes().fold(0x9e37_79b9u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    };
    let bytes = spec.bytes().unwrap() as usize;
    if spec.dtype != Dtype::Bf16 {
        return (0..bytes).map(|_| next() as u8).collect();
    }
    (0..bytes / 2)
        .flat_map(|_| {
            let sum: u32 = (0..4).map(|_| next() >> 12).sum();
            let value = (sum as f32 / (1 << 20) as f32 - 2.0) * 0.02;
            ((value.to_bits() >> 16) as u16).to_le_bytes()
        })
        .collect()
}

fn experts(layout: &Layout, l: usize) -> Vec<TensorSpec> {
    let layer = &layout.layers[l];
    let mut all = Vec::new();
    for id in 0..layer.experts {
        for (i, s) in layer.expert.iter().enumerate() {
            all.push(TensorSpec { name: layer.expert_name(id, i), ..s.clone() });
        }
        // In layer 2 expert 3's tensors lie in another order, so that its pattern differs.
        if (l, id) == (2, 3) {
            let n = all.len();
            all.swap(n - 1, n - 3);
        }
    }
    all
}

/// Writes the checkpoint in three shards; layer 4's last experts spill into another shard.
pub fn write(dir: &Path) -> Index {
    let layout = layout();
    let disk = Real::shared();
    let mut shards: [Vec<TensorSpec>; 3] = Default::default();
    shards[0].push(spec("vision.tower", Dtype::U8, &[12_345]));
    for l in 0..LAYERS {
        let shard = usize::from(l >= 3);
        shards[shard].extend(layout.layers[l].tensors.clone());
        let mut experts = experts(&layout, l);
        if l == 4 {
            let rest = experts.split_off(experts.len() - 4);
            shards[2].extend(rest);
        }
        shards[shard].extend(experts);
    }
    shards[2].extend(layout.tables[0].clone());
    shards[2].extend(layout.head.tensors.clone());
    shards[2].push(layout.head.matrix.clone());
    for (i, specs) in shards.iter().enumerate() {
        let path = dir.join(format!("model-0000{}-of-00003.safetensors", i + 1));
        let mut w = Writer::create(&disk, &path, specs, &[]).unwrap();
        for s in specs {
            w.write(&content(s)).unwrap();
        }
        w.finish().unwrap();
    }
    Index::open(dir).unwrap()
}
