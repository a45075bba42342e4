//! The weight store brings exactly the checkpoint's bytes, whatever the budget, the trunk's
//! form, the backend and the order of use; and when the disk fails it says which tensor.

mod common;

use common::model::{EXPERTS, HIDDEN, LAYERS, VOCAB, content, layout, write};
use common::{Random, spec};
use std::path::Path;
use std::sync::Arc;
use store::direct::Backend;
use store::io::{Action, Disk, Faulty, Op, Real, Rule};
use store::pack::{Codec, TRUNK_FILE, Trunk, pack};
use store::plan::{Needs, Plan, Wishes, plan};
use store::safetensors::{Dtype, Index, TensorSpec};
use store::weights::{Options, Source, Upcoming, WeightStore};
use store::{Error, Kind, Result};

const TOP_K: usize = 4;

fn packed(dir: &Path, index: &Index, codec: Codec) -> Trunk {
    let disk = Real::shared();
    pack(&disk, index, &layout(), &dir.join(TRUNK_FILE), codec, 2, |_| true).unwrap().trunk
}

fn planned(source: &Source, wishes: Wishes) -> Plan {
    plan(1 << 32, &source.shape(TOP_K as u64).unwrap(), Needs::default(), wishes).unwrap()
}

fn wishes(ring: usize, pinned: usize, experts: usize) -> Wishes {
    Wishes { ring: Some(ring), pinned: Some(pinned), experts: Some(experts) }
}

/// One token as an engine would do it; compares every byte.
fn token(store: &mut WeightStore, random: &mut Random, head: bool, announce: bool) -> Result<()> {
    let layout = layout();
    let ids: Vec<u64> = vec![0, 1 + random.below(VOCAB as usize - 2) as u64, VOCAB - 1];
    let embed = content(&layout.tables[0][0]);
    let rows = store.rows(0, &ids)?;
    for (row, &id) in rows.slices().into_iter().zip(&ids) {
        let n = 2 * HIDDEN as usize;
        assert!(row == &embed[id as usize * n..][..n]);
    }
    for (l, spec) in layout.layers.iter().enumerate() {
        let mut chosen: Vec<u32> = Vec::new();
        while spec.experts > 0 && chosen.len() < TOP_K {
            let id = random.below(EXPERTS) as u32;
            if !chosen.contains(&id) {
                chosen.push(id);
            }
        }
        chosen.sort_unstable();
        for part in 0..2 {
            let layer = store.layer(l)?;
            let tensors = layer.tensors();
            assert_eq!(tensors.len(), spec.tensors.len());
            for (bytes, spec) in tensors.iter().zip(&spec.tensors) {
                assert!(*bytes == content(spec).as_slice(), "{}", spec.name);
            }
            if announce && part == 0 {
                let experts = (spec.experts > 0).then_some((l, &chosen[..]));
                store.announce(&Upcoming { experts, layers: l + 1..LAYERS, head });
            }
        }
        while !chosen.is_empty() {
            for expert in store.experts(l, &chosen)? {
                for (i, bytes) in expert.tensors().iter().enumerate() {
                    let name = spec.expert_name(expert.id as usize, i);
                    let spec = TensorSpec { name, ..spec.expert[i].clone() };
                    assert!(*bytes == content(&spec).as_slice(), "{}", spec.name);
                }
                chosen.retain(|&c| c != expert.id);
            }
        }
    }
    let matrix = content(&layout.head.matrix);
    let mut row = if head { 0 } else { VOCAB };
    while row < VOCAB {
        let piece = store.head(row)?;
        assert_eq!(piece.tensors(), [content(&layout.head.tensors[0]).as_slice()]);
        let n = 2 * HIDDEN as usize;
        assert!(piece.bytes() == &matrix[row as usize * n..piece.rows.end as usize * n]);
        row = piece.rows.end;
    }
    Ok(())
}

/// Catches any dependence of the bytes on how they come in.
#[test]
fn every_budget_and_form_brings_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    for codec in [None, Some(Codec::None), Some(Codec::Bf16)] {
        let trunk = codec.map(|c| packed(dir.path(), &index, c));
        for (i, wish) in [
            wishes(1, 0, TOP_K),
            wishes(2, 0, 7),
            wishes(2, 3, 20),
            wishes(3, 7, 60),
            wishes(1, 8, 60),
        ]
        .into_iter()
        .enumerate()
        {
            let source = Source::with_trunk(&Real, &index, layout(), trunk.clone()).unwrap();
            let plan = planned(&source, wish);
            let backend = if i % 2 == 0 { Backend::Auto } else { Backend::Plain };
            let options = Options { backend, threads: 2, verify: i == 1, ..Options::default() };
            let mut store = WeightStore::new(source, &plan, options).unwrap();
            let mut random = Random(5);
            for t in 0..3 {
                token(&mut store, &mut random, t != 1, t > 0).unwrap();
            }
        }
    }
}

/// Catches a store that waits for ever, or brings other bytes, when layers are not used in the
/// order that was announced: what was read ahead has to make way.
#[test]
fn layers_in_any_order_are_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    for codec in [None, Some(Codec::Bf16)] {
        let trunk = codec.map(|c| packed(dir.path(), &index, c));
        for (ring, pinned) in [(1, 0), (2, 0), (2, 2), (2, 3), (3, 1)] {
            let source = Source::with_trunk(&Real, &index, layout(), trunk.clone()).unwrap();
            let plan = planned(&source, wishes(ring, pinned, TOP_K));
            let largest = index.iter().map(|t| t.len).max().unwrap();
            assert!(codec.is_none() || plan.staging_slot < largest, "a layer is several pieces");
            let options = Options { threads: 2, ..Options::default() };
            let mut store = WeightStore::new(source, &plan, options).unwrap();
            // Pinned layers on their way are wanted no longer.
            store.announce(&Upcoming { experts: None, layers: 0..LAYERS, head: true });
            store.layer(4).unwrap();
            let mut random = Random(7);
            let mut held = None;
            for _ in 0..60 {
                let l = random.below(LAYERS);
                if ring == 1 || random.below(3) > 0 {
                    held = None;
                }
                if random.below(2) > 0 {
                    let from = random.below(LAYERS);
                    let head = random.below(2) > 0;
                    store.announce(&Upcoming { experts: None, layers: from..LAYERS, head });
                }
                let layer = store.layer(l).unwrap();
                for (bytes, spec) in layer.tensors().iter().zip(&layout().layers[l].tensors) {
                    assert!(*bytes == content(spec).as_slice(), "{}", spec.name);
                }
                held = held.or(Some(layer));
            }
        }
    }
}

/// What a plan promises is what is read, to the byte, once all pinned units are in.
#[test]
fn bytes_read_are_those_of_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    for codec in [None, Some(Codec::Bf16)] {
        let trunk = codec.map(|c| packed(dir.path(), &index, c));
        let source = Source::with_trunk(&Real, &index, layout(), trunk).unwrap();
        let plan = planned(&source, wishes(2, 3, TOP_K));
        let mut store = WeightStore::new(source, &plan, Options::default()).unwrap();
        let mut random = Random(5);
        let mut last = None;
        for _ in 0..4 {
            token(&mut store, &mut random, true, true).unwrap();
            let now = store.stats();
            // What has been read ahead for the next token is the same every time.
            if let Some((trunk, experts, hits)) = last {
                let hits = now.expert_hits - hits;
                assert_eq!(now.trunk_bytes - trunk, plan.trunk_per_token);
                let one = plan.experts_per_token / (5 * TOP_K) as u64;
                assert_eq!(now.expert_bytes - experts + hits * one, plan.experts_per_token);
            }
            last = Some((now.trunk_bytes, now.expert_bytes, now.expert_hits));
        }
        let stats = store.stats();
        assert_eq!(stats.expert_requests, 4 * 5 * TOP_K as u64);
        assert_eq!(stats.row_bytes, 4 * 3 * 2 * HIDDEN);
        assert!(stats.disk_bytes >= stats.trunk_bytes - 2 * plan.ring_slot);
    }
}

/// Slots that are in use must not be overwritten; running out of them is an error, no hang.
#[test]
fn what_is_held_stays_and_running_out_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    let source = Source::with_trunk(&Real, &index, layout(), None).unwrap();
    let plan = planned(&source, wishes(2, 0, TOP_K));
    let mut store = WeightStore::new(source, &plan, Options::default()).unwrap();
    let held: Vec<_> = (0..2).map(|l| store.layer(l).unwrap()).collect();
    let error = store.layer(3).unwrap_err();
    assert!(matches!(&error, Error::Refused(t) if t.contains("layer 3")), "{error}");
    for (l, layer) in held.iter().enumerate() {
        assert!(layer.tensors()[1] == content(&layout().layers[l].tensors[1]).as_slice());
    }
    drop(held);
    store.layer(3).unwrap();
    let ids = [0, 1, 2, 3];
    let mut held = Vec::new();
    while held.len() < ids.len() {
        let missing: Vec<u32> = ids
            .into_iter()
            .filter(|i| held.iter().all(|h: &store::weights::Expert| h.id != *i))
            .collect();
        held.extend(store.experts(1, &missing).unwrap());
    }
    assert!(matches!(store.experts(2, &[5]), Err(Error::Refused(_))));
    drop(held);
    assert_eq!(store.experts(2, &[5]).unwrap()[0].id, 5);
    assert!(store.experts(1, &[EXPERTS as u32]).is_err());
    assert!(
        store.layer(LAYERS).is_err()
            && store.head(VOCAB).is_err()
            && store.rows(0, &[VOCAB]).is_err()
    );
}

/// More experts wanted than there are slots: a long prefill. All come, in turns.
#[test]
fn more_experts_than_slots_come_in_turns() {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    let source = Source::with_trunk(&Real, &index, layout(), None).unwrap();
    let plan = planned(&source, wishes(1, 0, TOP_K));
    let mut store =
        WeightStore::new(source, &plan, Options { record: true, ..Options::default() }).unwrap();
    for _ in 0..2 {
        for l in 1..LAYERS {
            let mut left: Vec<u32> = (0..EXPERTS as u32).collect();
            store.announce(&Upcoming { experts: Some((l, &left)), ..Upcoming::default() });
            while !left.is_empty() {
                let got = store.experts(l, &left).unwrap();
                assert!(got.len() <= TOP_K);
                left.retain(|id| got.iter().all(|e| e.id != *id));
            }
        }
    }
    let trace = store.trace();
    assert_eq!(trace.len(), 2 * (LAYERS - 1) * EXPERTS, "every visit counts once");
    assert_eq!(store.stats().expert_requests, trace.len() as u64);
}

/// Runs tokens on a disk whose n-th read fails, for every n until none does.
fn each_read_fails(codec: Option<Codec>, action: Action, op: Op) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    let trunk = codec.map(|c| packed(dir.path(), &index, c));
    let mut failures = 0;
    for n in 0.. {
        let disk = Faulty::new([]);
        let source = Source::with_trunk(&disk, &index, layout(), trunk.clone()).unwrap();
        let plan = planned(&source, wishes(2, 2, TOP_K));
        let before = disk.count(op);
        disk.set([Rule::new(op, action).nth(n)]);
        let options = Options { backend: Backend::Plain, threads: 1, ..Options::default() };
        let mut store = WeightStore::new(source, &plan, options).unwrap();
        let mut random = Random(5);
        let result = token(&mut store, &mut random, true, true);
        if disk.count(op) - before <= n {
            result.unwrap();
            return failures;
        }
        if let Err(error) = result {
            failures += 1;
            let text = error.to_string();
            let named = text.contains("tensor m.") || text.contains("of the packed trunk");
            assert!(named && text.contains(&*dir.path().to_string_lossy()), "{text}");
            let expected = if action == Action::EIO { Kind::Disk } else { Kind::ModelFile };
            assert_eq!(error.kind(), expected, "{text}");
        }
        // Whatever failed, the store goes on once the disk works again.
        let mut random = Random(6);
        disk.set([]);
        token(&mut store, &mut random, true, false)
            .or_else(|_| token(&mut store, &mut random, true, false))
            .unwrap();
    }
    unreachable!()
}

/// No failing read may be skipped over, hang, or go unnamed.
#[test]
fn every_single_read_may_fail() {
    for codec in [None, Some(Codec::None), Some(Codec::Bf16)] {
        for action in [Action::EIO, Action::EndAt(0)] {
            let failures = each_read_fails(codec, action, Op::ReadDirect);
            assert!(failures >= 6, "{failures}");
        }
    }
}

/// What is not a failure must not look like one.
#[test]
fn interrupted_short_and_refused_reads_are_survived() {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    let scripts: [Vec<Rule>; 4] = [
        vec![Rule::new(Op::ReadDirect, Action::Short(4096))],
        vec![
            Rule::new(Op::ReadDirect, Action::EINTR).nth(2),
            Rule::new(Op::ReadDirect, Action::Short(5000)),
        ],
        vec![Rule::new(Op::ReadDirect, Action::EINVAL).after(1)],
        vec![Rule::new(Op::OpenDirect, Action::EINVAL)],
    ];
    for (i, rules) in scripts.into_iter().enumerate() {
        let disk = Faulty::new(rules);
        let source = Source::with_trunk(&disk, &index, layout(), None).unwrap();
        let plan = planned(&source, wishes(2, 0, 9));
        let mut store = WeightStore::new(source, &plan, Options::default()).unwrap();
        let mut random = Random(5);
        token(&mut store, &mut random, true, true).unwrap();
        token(&mut store, &mut random, true, true).unwrap();
        let events = store.take_events();
        assert_eq!(events.len(), usize::from(i >= 2), "warned once: {events:?}");
        assert!(store.take_events().is_empty());
    }
}

#[test]
fn a_tensor_of_another_shape_or_a_missing_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    let open = |change: &dyn Fn(&mut store::layout::Layout)| {
        let mut l = layout();
        change(&mut l);
        Source::with_trunk(&Real, &index, l, None).unwrap_err().to_string()
    };
    let text = open(&|l| l.layers[3].tensors[1].shape = vec![1, 2]);
    assert!(
        text.contains("m.layers.3.q is BF16 [630, 1024]") && text.contains("BF16 [1, 2]"),
        "{text}"
    );
    let text = open(&|l| l.layers[2].experts = EXPERTS + 1);
    assert!(text.contains("no tensor m.layers.2.experts.12.w1"), "{text}");
    let text = open(&|l| l.tables[0].push(spec("m.none", Dtype::U8, &[1])));
    assert!(text.contains("no tensor m.none"), "{text}");
}

/// A packed trunk of other bytes than the checkpoint's is noticed before it is used.
#[test]
fn damage_in_the_packed_trunk_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let index = write(dir.path());
    for codec in [Codec::None, Codec::Bf16] {
        let trunk = packed(dir.path(), &index, codec);
        let disk: Arc<dyn Disk> =
            Arc::new(Faulty::new([Rule::new(Op::ReadDirect, Action::Flip).nth(3)]));
        let source = Source::with_trunk(&*disk, &index, layout(), Some(trunk)).unwrap();
        let plan = planned(&source, wishes(2, 0, TOP_K));
        let options = Options { verify: true, ..Options::default() };
        let mut store = WeightStore::new(source, &plan, options).unwrap();
        let errors: Vec<String> =
            (0..LAYERS).filter_map(|l| store.layer(l).err()).map(|e| e.to_string()).collect();
        assert!(
            errors.iter().any(|e| e.contains("packed trunk") || e.contains(TRUNK_FILE)),
            "{errors:?}"
        );
        // Experts and rows were not read, so it was a layer or a piece of the head.
        assert_eq!(errors.len(), 1, "{errors:?}");
    }
}
