//! The published capacity table, from the published trace; and a small trace of our own.

mod common;

use common::{Random, shared};
use store::cache::{ExpertId, Policy};
use store::cache_sim::{hits, hits_belady, read_trace, simulate, write_trace};
use store::io::Real;

fn percent(hits: u64, requests: usize) -> String {
    format!("{:.2}", 100.0 * hits as f64 / requests as f64)
}

/// To the digit as published; and the default must beat LRU wherever LRU can be beaten.
#[test]
fn the_published_table_is_reproduced() {
    let Some(path) = shared("goldens/public/kimi-k3/expert_trace.bin") else { return };
    let trace = read_trace(&Real, &path).unwrap();
    assert_eq!(trace.len(), 100_096);
    for (slots, lru, belady) in [
        (455, "36.24", "39.42"),
        (911, "36.24", "42.61"),
        (1823, "36.24", "48.99"),
        (3647, "36.24", "61.74"),
        (7294, "49.19", "84.59"),
        (10_941, "90.00", "90.00"),
        (14_588, "90.00", "90.00"),
    ] {
        let n = trace.len();
        assert_eq!(percent(hits(&trace, Policy::Lru, slots), n), lru, "LRU at {slots}");
        let bound = hits_belady(&trace, slots);
        assert_eq!(percent(bound, n), belady, "Belady at {slots}");
        if [455, 1823].contains(&slots) {
            let ours = hits(&trace, Policy::History, slots);
            assert!(ours <= bound);
            assert!(bound - ours <= n as u64 / 100, "{} at {slots}", percent(ours, n));
        }
    }
}

/// Decoding: few experts a layer, some more popular, some used twice in a row.
fn decode_trace() -> Vec<ExpertId> {
    let mut random = Random(21);
    let mut trace = Vec::new();
    let mut last = [[0u32; 4]; 12];
    for _ in 0..200 {
        for layer in 0..12 {
            for i in 0..4 {
                if random.below(3) > 0 {
                    let popular = random.below(64).min(random.below(64)) as u32;
                    last[layer as usize][i] = (popular + 7 * layer) % 64;
                }
                trace.push(ExpertId { layer, expert: last[layer as usize][i] });
            }
        }
    }
    trace
}

/// LRU is at its best when exactly the last token's experts fit (48 here); there the default
/// may be a little behind, everywhere else it must be at least as good, and where less fits
/// LRU finds nothing at all.
#[test]
fn the_default_beats_lru_on_decoding() {
    let trace = decode_trace();
    for row in simulate(&trace, &[12, 24, 48, 96, 192, 384, 768]) {
        assert!(
            row.history >= if row.slots == 48 { row.lru * 95 / 100 } else { row.lru },
            "{row:?}"
        );
        assert!(row.belady >= row.history.max(row.pinned), "{row:?}");
    }
    let small = simulate(&trace, &[40])[0];
    assert!(small.history > 2 * small.lru, "{small:?}");
}

#[test]
fn traces_round_trip_and_bad_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.bin");
    let trace = decode_trace();
    write_trace(&Real::shared(), &path, &trace).unwrap();
    assert_eq!(read_trace(&Real, &path).unwrap(), trace);
    for bad in [&[][..], &[1; 7], &[0, 0, 0, 0, 255, 255, 255, 255]] {
        std::fs::write(&path, bad).unwrap();
        assert!(read_trace(&Real, &path).unwrap_err().to_string().contains("trace.bin"));
    }
}
