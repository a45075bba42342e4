//! `facit check-op` on the committed goldens, and on files that are wrong.

mod common;

use common::facit;

fn golden() -> std::path::PathBuf {
    testkit::root().join("vectors/deepseek_v41/attn0/seedlike.safetensors")
}

#[test]
fn the_golden_passes_and_an_altered_result_is_named() {
    let path = golden();
    let json = facit(&["check-op", "attn0", path.to_str().unwrap(), "--json"]).ok().json();
    assert!(json["results"].as_array().unwrap().iter().all(|r| r["passed"] == true));

    // Damage the last result stored: the largest exponent bit of its last value.
    let mut bytes = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let end = header["step0.out"]["data_offsets"][1].as_u64().unwrap() as usize;
    bytes[8 + len + end - 1] ^= 0x40;
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.safetensors");
    std::fs::write(&bad, &bytes).unwrap();
    let ran = facit(&["check-op", "attn0", bad.to_str().unwrap()]).ends(3, &[]);
    assert!(ran.text().contains("step0.out"), "{}", ran.text());
}

/// Catches an operation that the help forgets, and an example that does not exist.
#[test]
fn the_help_lists_every_operation_and_a_file_that_is_there() {
    let help = facit(&["check-op", "--help"]).ok();
    for op in models::deepseek_v41::check::OPS {
        assert!(help.text().contains(&format!("\n  {op}  ")), "{op}: {}", help.text());
    }
    let example = golden().strip_prefix(testkit::root()).unwrap().display().to_string();
    assert!(help.text().contains(&format!("facit check-op attn0 {example}")), "{}", help.text());
}

#[test]
fn files_that_cannot_be_checked_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let arg = path.to_str().unwrap();
    facit(&["check-op", "attn0", arg]).ends(6, &["x"]);
    for bad in [&b""[..], b"short", &[0xff; 64]] {
        std::fs::write(&path, bad).unwrap();
        facit(&["check-op", "attn0", arg]).ends(6, &["x"]);
    }
    facit(&["check-op", "no_such_op", arg]).ends(2, &["attn0"]);
    // Another operation's file lacks this one's inputs.
    facit(&["check-op", "rms_norm", golden().to_str().unwrap()]).ends(6, &["seedlike"]);
}
