//! `facit verify-model`: both families pass, and every kind of damage is named with exit code 6.

mod common;

use std::path::Path;

use common::{Ran, arg, deepseek, facit, flip, kimi, shard};

fn verify(dir: &Path) -> Ran {
    facit(&["verify-model", arg(dir)])
}

/// Writes a manifest as `facit pull` does.
fn manifest(dir: &Path) {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        serde_json::json!({
            "path": path.file_name().unwrap().to_str().unwrap(),
            "size": bytes.len(),
            "sha256": testkit::sha256(&bytes),
        })
    });
    let files: Vec<_> = files.collect();
    let manifest = serde_json::json!({ "repo": "o/m", "commit": "0".repeat(40), "files": files });
    std::fs::write(dir.join(store::pull::MANIFEST), manifest.to_string()).unwrap();
}

#[test]
fn sound_models_of_both_families_pass() {
    for dir in [kimi(), deepseek()] {
        let plain = verify(dir.path()).ok();
        assert!(plain.err.contains("no digests"), "{}", plain.err);
        facit(&["pack", arg(dir.path()), "--quiet"]).ok();
        manifest(dir.path());
        let json = facit(&["verify-model", arg(dir.path()), "--deep", "--json"]).ok().json();
        assert!(json["sound"] == true && json["manifest"] == true, "{json}");
        let checks = json["checks"].as_array().unwrap();
        for area in ["file", "headers", "tensors", "packed"] {
            assert!(checks.iter().any(|c| c["area"] == area), "{area} was not checked");
        }
    }
}

/// A run that reads packed layers.
fn streamed(dir: &Path) -> common::Ran {
    facit(&["run", arg(dir), "--ids", "1,2", "-n", "1", "--memory", "52MB"])
}

/// Catches damage that passes, or that is not named.
#[test]
fn damage_is_named() {
    for dir in [kimi(), deepseek()] {
        let path = dir.path();
        facit(&["pack", arg(path), "--quiet"]).ok();
        manifest(path);
        // One bit of the weights.
        let first = shard(path);
        let name = first.file_name().unwrap().to_str().unwrap();
        let last = std::fs::metadata(&first).unwrap().len() as usize - 1;
        flip(&first, last);
        verify(path).ends(6, &[name, "SHA-256"]);
        let json = facit(&["verify-model", arg(path), "--json"]).ends(6, &[name]).json();
        assert_eq!(json["sound"], false);
        flip(&first, last);
        // Packed weights.
        flip(&path.join("trunk.facit"), 3000);
        verify(path).ends(6, &["trunk.facit: layer 0"]);
        streamed(path).ends(6, &["layer 0"]);
        flip(&path.join("trunk.facit"), 3000);
        // Where the packed weights of a layer lie.
        flip(&path.join("trunk.facit"), 1);
        verify(path).ends(6, &["trunk.facit: layer 0"]);
        streamed(path).ends(6, &["layer 0"]);
        flip(&path.join("trunk.facit"), 1);
        // A cut shard and one that is not there.
        let whole = std::fs::read(&first).unwrap();
        std::fs::write(&first, &whole[..whole.len() - 1]).unwrap();
        verify(path).ends(6, &[name]);
        std::fs::remove_file(&first).unwrap();
        verify(path).ends(6, &[name]);
        std::fs::write(&first, whole).unwrap();
        verify(path).ok();
    }
}

/// Catches packed weights of another model with the same headers, which would give its tokens.
#[test]
fn packed_weights_of_other_shards_are_refused() {
    let (dir, other) = (kimi(), tempfile::tempdir().unwrap());
    testkit::k3::Shape::tiny().checkpoint(2).write(other.path(), 400_000).unwrap();
    facit(&["pack", arg(other.path()), "--quiet"]).ok();
    let name = store::pack::TRUNK_FILE;
    std::fs::copy(other.path().join(name), dir.path().join(name)).unwrap();
    streamed(dir.path()).ends(6, &["layer 0", "pack it again"]);
    verify(dir.path()).ends(6, &["layer 0", "head rows"]);
    facit(&["pack", arg(dir.path()), "--quiet"]).ok();
    streamed(dir.path()).ok();
    verify(dir.path()).ok();
}

/// Catches a value that stops a run and passes a deep look, and the advice to look that finds
/// nothing.
#[test]
fn a_deep_look_finds_what_stops_a_run() {
    let dir = deepseek();
    let first = shard(dir.path());
    let index = store::safetensors::Index::open(dir.path()).unwrap();
    for (tensor, code) in [("layers.0.ffn.experts.0.w1.scale", 6), ("layers.0.attn.wq_a.weight", 4)]
    {
        let t = index.require(tensor).unwrap();
        let mut bytes = std::fs::read(&first).unwrap();
        let whole = bytes.clone();
        // NaN as a scale, and as a code.
        bytes[t.offset as usize..][..t.len as usize].fill(255);
        std::fs::write(&first, bytes).unwrap();
        let ids: Vec<String> = (3..40).map(|id: u32| id.to_string()).collect();
        let run = facit(&["run", arg(dir.path()), "--ids", &ids.join(","), "-n", "1"]);
        run.ends(code, &["verify-model"]);
        verify(dir.path()).ok();
        facit(&["verify-model", arg(dir.path()), "--deep"]).ends(6, &[tensor, "not finite"]);
        std::fs::write(&first, whole).unwrap();
    }
    let sound = facit(&["verify-model", arg(dir.path()), "--deep"]).ok();
    assert!(sound.text().contains("every value"), "{}", sound.text());
}

/// Catches headers that are in order and of another model than config.json says.
#[test]
fn tensors_are_compared_with_the_configuration() {
    for (dir, field, tensor) in
        [(kimi(), "\"q_lora_rank\": 40", "q_a_proj"), (deepseek(), "\"q_lora_rank\": 64", "wq_a")]
    {
        let config = dir.path().join("config.json");
        let text = std::fs::read_to_string(&config).unwrap();
        let other = field[..field.len() - 2].to_owned() + "32";
        let wrong = text.replace(field, &other);
        assert_ne!(text, wrong);
        std::fs::write(&config, wrong).unwrap();
        verify(dir.path()).ends(6, &[tensor]);
    }
    // A tensor under another name.
    let dir = kimi();
    let name = b"language_model.model.norm.weight";
    for path in std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(name.len()).position(|w| w == name) {
            bytes[at..at + name.len()].copy_from_slice(b"language_model.model.n0rm.weight");
            std::fs::write(&path, bytes).unwrap();
        }
    }
    verify(dir.path()).ends(6, &["language_model.model.norm.weight"]);
}

#[test]
fn what_is_no_model_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    facit(&["verify-model", arg(&dir.path().join("none"))]).ends(6, &["none"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    verify(&file).ends(6, &["file"]);
    std::fs::remove_file(&file).unwrap();
    verify(dir.path()).ends(6, &["safetensors"]);
}
