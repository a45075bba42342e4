//! The released models' dimensions, as headers over holes: what a stranger with the real files and
//! an ordinary machine is told before the first byte is read.

mod common;

use common::facit;

fn plan(dir: &std::path::Path, memory: &str) -> serde_json::Value {
    let args = ["plan", dir.to_str().unwrap(), "--memory", memory, "--json", "--context", "2048"];
    let args = [&args[..], &["--disk-rate", "5GB"]].concat();
    facit(&args).ok().json()
}

/// Catches a plan that does not let Kimi K3 run in 8 GB, or counts other bytes than its files hold.
#[test]
fn kimi_k3_fits_in_eight_gigabytes() {
    let dir = tempfile::tempdir().unwrap();
    testkit::k3::Shape::released().checkpoint(0).write_headers(dir.path(), 16 << 30).unwrap();
    let small = plan(dir.path(), "8GB");
    assert!(small["total"].as_u64().unwrap() <= 8_000_000_000, "{small}");
    // Sixteen experts of 92 layers; all layers but the pinned ones and the head.
    assert_eq!(small["plan"]["experts_per_token"], 16u64 * 92 * 17_547_264);
    let trunk = small["plan"]["trunk_per_token"].as_u64().unwrap();
    let all = 108_810_000_000 + 2_348_810_240;
    assert!((all - 4_000_000_000..all + 10_000_000).contains(&trunk), "{trunk}");
    // Every layer stays in memory long before every expert does.
    let large = plan(dir.path(), "224GiB");
    assert_eq!(large["plan"]["trunk_per_token"], 0);
    assert!(large["plan"]["expert_slots"].as_u64() > Some(5000), "{large}");
    let args = ["plan", dir.path().to_str().unwrap(), "--memory", "3GB"];
    facit(&args).ends(5, &["allow at least"]);
}

/// The same of DeepSeek-V4.1-Flash, from 6 GB on; a token then reads the published 13.0 GB.
#[test]
fn deepseek_fits_in_six_gigabytes() {
    let dir = tempfile::tempdir().unwrap();
    testkit::deepseek_v41::write_released_headers(dir.path()).unwrap();
    testkit::deepseek_v41::write_released_tokenizer(dir.path()).unwrap();
    let small = plan(dir.path(), "6GB");
    let part = |name: &str| small["plan"][name].as_u64().unwrap();
    assert!(small["total"].as_u64().unwrap() <= 6_000_000_000, "{small}");
    let pinned = part("pinned_bytes");
    let read = small["bytes_per_token"].as_u64().unwrap();
    assert!((13_000_000_000..13_100_000_000).contains(&(read + pinned)), "{read} + {pinned}");
    let seconds = small["seconds_per_token"].as_f64().unwrap();
    assert_eq!(seconds, read as f64 / 5e9);
    // 48 engram rows of 264 bytes and an embedding row of bf16.
    assert_eq!(part("rows_per_token"), 48 * 264 + 2 * 5120);
    assert_eq!(part("experts_per_token"), 40 * 6 * 18_800_640);
}
