//! The released Kimi K3 by its published figures: names, types and shapes of all its tensors
//! (from testkit's own list), bound to the model without a single weight.

use models::kimi_k3::{Config, KimiK3};
use models::machine::{Model, Stored, TensorSpec};
use std::collections::HashMap;
use testkit::k3::Shape;

#[test]
fn the_released_checkpoint_binds_and_adds_up() {
    let checkpoint = Shape::released().checkpoint(0);
    let mut tensors: HashMap<&str, Stored> = checkpoint
        .tensors()
        .map(|t| (&t.name[..], Stored { dtype: t.dtype.into(), shape: t.shape.clone() }))
        .collect();
    let config = Config::parse(checkpoint.config.as_bytes()).unwrap();
    let start = std::time::Instant::now();
    let model = KimiK3::bind(config, |name| tensors.get(name).cloned()).unwrap();
    testkit::note(format_args!("bound in {:.2} s", start.elapsed().as_secs_f64()));

    let layout = model.layout();
    let bytes = |specs: &[TensorSpec]| specs.iter().map(TensorSpec::bytes).sum::<usize>();
    let trunk: usize = layout.layers.iter().map(|l| l.bytes()).sum();
    assert_eq!(trunk / 10_000_000, 10_881, "108.81 GB of always-active weights");
    let largest = layout.layers.iter().map(|l| l.bytes()).max().unwrap();
    assert_eq!(largest / 1_000_000, 2_341, "the largest layer");
    let experts: usize = layout.layers.iter().map(|l| l.experts).sum();
    assert_eq!((experts, layout.layers[1].expert_bytes()), (82_432, 17_547_264));
    let ends = bytes(&layout.tables[0].tensors) + layout.head.matrix.bytes();
    assert_eq!(ends / 10_000_000, 469, "embedding and head: 4.70 GB");

    // Every tensor but the vision tower's is read, by exactly one name.
    let mut read = 0;
    let mut take = |name: &str| {
        assert!(tensors.remove(name).is_some(), "{name} is not in the checkpoint");
        read += 1;
    };
    for spec in layout.tables.iter().flat_map(|t| &t.tensors).chain(&layout.head.tensors) {
        take(&spec.name);
    }
    take(&layout.head.matrix.name);
    for layer in &layout.layers {
        layer.tensors.iter().for_each(|spec| take(&spec.name));
        for id in 0..layer.experts {
            (0..layer.expert.len()).for_each(|j| take(&layer.expert_name(id, j)));
        }
    }
    assert_eq!(read, 494_592 + 2_460);
    assert!(
        tensors.keys().all(|n| n.starts_with("vision_tower.") || n.starts_with("mm_projector."))
    );

    // 55 KB a position, whatever the context.
    assert_eq!(model.state_bytes(1001) - model.state_bytes(1000), 24 * 576 * 4);
}
