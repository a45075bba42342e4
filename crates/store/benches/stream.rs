//! How near a token's weights come to the disk's own rate: a checkpoint of layers of the
//! size of a small giant, streamed with almost nothing pinned, beside plain large reads of
//! the same files measured in turns with it.
#![allow(clippy::print_stdout, reason = "a bench prints its measurements")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Random, spec};
use std::path::Path;
use std::time::{Duration, Instant};
use store::direct::Backend;
use store::doctor::measure;
use store::io::Real;
use store::layout::{HeadSpec, LayerSpec, Layout};
use store::pack::{Codec, TRUNK_FILE, pack};
use store::plan::{Needs, Wishes, plan};
use store::safetensors::{Dtype, Index, Writer};
use store::weights::{Options, Source, Upcoming, WeightStore};

const LAYERS: usize = 12;
const EXPERTS: usize = 48;
const TOP_K: usize = 16;
const HIDDEN: u64 = 2048;

fn layout() -> Layout {
    let layer = |l: usize| LayerSpec {
        tensors: (0..5)
            .map(|i| spec(&format!("layers.{l}.q{i}"), Dtype::Bf16, &[4096, HIDDEN]))
            .collect(),
        experts: EXPERTS,
        expert: vec![spec(".w1", Dtype::U8, &[896, 1024]), spec(".w2", Dtype::U8, &[1024, 476])],
        expert_prefix: format!("layers.{l}.experts."),
    };
    Layout {
        tables: vec![],
        layers: (0..LAYERS).map(layer).collect(),
        head: HeadSpec { tensors: vec![], matrix: spec("head", Dtype::Bf16, &[32_768, HIDDEN]) },
        ignored: vec![],
    }
}

/// Normal weights with a scale a row, repeated: only the bytes' statistics matter here.
fn weights(n: usize) -> Vec<u8> {
    let mut random = Random(5);
    let mut out = Vec::with_capacity(n);
    while out.len() < n {
        let scale = 0.01 * f32::from_bits((127 << 23) + random.below(2 << 23) as u32);
        for _ in 0..HIDDEN {
            let sum: usize = (0..12).map(|_| random.below(1 << 20)).sum();
            let value = (sum as f32 / (1 << 20) as f32 - 6.0) * scale;
            out.extend_from_slice(&(value.to_bits() >> 16).to_le_bytes()[..2]);
        }
    }
    out
}

fn write(dir: &Path, layout: &Layout) -> Index {
    let block = weights(16 << 20);
    for (l, layer) in layout.layers.iter().enumerate() {
        let mut specs = layer.tensors.clone();
        for id in 0..layer.experts {
            for (i, s) in layer.expert.iter().enumerate() {
                specs.push(spec(&layer.expert_name(id, i), s.dtype, &s.shape));
            }
        }
        if l == 0 {
            specs.push(layout.head.matrix.clone());
        }
        let path = dir.join(format!("layer{l:02}.safetensors"));
        let mut w = Writer::create(&Real::shared(), &path, &specs, &[]).unwrap();
        for s in &specs {
            let mut left = s.bytes().unwrap() as usize;
            while left > 0 {
                let n = left.min(block.len());
                w.write(&block[..n]).unwrap();
                left -= n;
            }
        }
        w.finish().unwrap();
    }
    Index::open(dir).unwrap()
}

fn token(store: &mut WeightStore, random: &mut Random) {
    for l in 0..LAYERS {
        drop(store.layer(l).unwrap());
        let mut chosen: Vec<u32> = Vec::new();
        while chosen.len() < TOP_K {
            let id = random.below(EXPERTS) as u32;
            if !chosen.contains(&id) {
                chosen.push(id);
            }
        }
        chosen.sort_unstable();
        store.announce(&Upcoming {
            experts: Some((l, &chosen)),
            layers: l + 1..LAYERS,
            head: true,
        });
        drop(store.layer(l).unwrap());
        while !chosen.is_empty() {
            for e in store.experts(l, &chosen).unwrap() {
                chosen.retain(|&c| c != e.id);
            }
        }
    }
    let mut row = 0;
    while row < 32_768 {
        row = store.head(row).unwrap().rows.end;
    }
}

fn main() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let layout = layout();
    let index = write(dir.path(), &layout);
    let path = dir.path().join(TRUNK_FILE);
    for codec in [None, Some(Codec::None), Some(Codec::Bf16)] {
        if let Some(codec) = codec {
            let start = Instant::now();
            let packed = pack(&Real::shared(), &index, &layout, &path, codec, 2, |_| true).unwrap();
            let (stored, raw) = packed.trunk.bytes();
            println!(
                "pack {codec:?}: {:.2} GB/s, {:.1} % fewer bytes",
                raw as f64 / 1e9 / start.elapsed().as_secs_f64(),
                100.0 - 100.0 * stored as f64 / raw as f64,
            );
        }
        for backend in [Backend::Auto, Backend::Plain] {
            let source = Source::open(&Real, &index, layout.clone(), dir.path()).unwrap();
            let shape = source.shape(TOP_K as u64).unwrap();
            let wishes = Wishes { experts: Some(2 * TOP_K), pinned: Some(0), ..Wishes::default() };
            let plan = plan(1 << 34, &shape, Needs::default(), wishes).unwrap();
            let options = Options { backend, threads: 2, ..Options::default() };
            let mut store = WeightStore::new(source, &plan, options).unwrap();
            let mut random = Random(1);
            token(&mut store, &mut random);
            let (mut best, mut disk) = (f64::INFINITY, 0f64);
            let mut bytes = 0;
            for _ in 0..3 {
                let time = Duration::from_millis(400);
                disk = disk.max(measure(&Real, index.shards()[0].path(), time).unwrap().best());
                let before = store.stats();
                let start = Instant::now();
                token(&mut store, &mut random);
                let seconds = start.elapsed().as_secs_f64();
                let now = store.stats();
                let read =
                    now.trunk_bytes + now.expert_bytes - before.trunk_bytes - before.expert_bytes;
                if seconds < best {
                    (best, bytes) = (seconds, read);
                }
            }
            let limit = bytes as f64 / disk;
            println!(
                "trunk {codec:?}, {}: {:.3} s and {:.2} GB a token; the disk alone ({:.2} GB/s): {limit:.3} s; {:.0} % of its rate",
                store.backend(),
                best,
                bytes as f64 / 1e9,
                disk / 1e9,
                100.0 * limit / best,
            );
        }
    }
}
