//! Hostile input, bounded and the same every time: mutations of real artifacts, states, tokenizers,
//! checkpoints and prompts, through the targets that `fuzz/` uses too. Catches a panic, an overflow,
//! an allocation by a forged count, and backends that part on values no honest run has.

use testkit::fixed_hostile as hostile;
use testkit::fixed_models::model;

/// Feeds mutations to a target: `n`, times `FACIT_HOSTILE` for a longer search. Some must be accepted
/// and some refused, or the mutations prove nothing.
fn search(n: u64, seeds: &[Vec<u8>], hot: usize, target: fn(&[u8]) -> bool) {
    for seed in seeds {
        target(seed);
    }
    let times = std::env::var("FACIT_HOSTILE").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
    let accepted =
        (0..n * times).filter(|i| target(&hostile::mutate(seeds, *i, hot))).count() as u64;
    assert!(accepted > n / 200 && accepted < n * times, "{accepted} of {n} accepted");
}

#[test]
fn artifacts() {
    search(1500, hostile::artifacts(), 400, hostile::artifact);
}

/// Every bit of the header and section table, and a bit of every byte after the tables.
#[test]
fn artifact_headers_bit_by_bit() {
    let seed = &hostile::artifacts()[0];
    let descriptors_end = 160 + 16 * 8;
    for bit in 0..8 * descriptors_end {
        let mut bytes = seed.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let refused = fixed::Artifact::new(&bytes).is_err();
        // The square root at 44 can hold any value; every other bit is checked.
        assert_eq!(refused, !(44..48).contains(&(bit / 8)), "bit {bit}");
    }
    for len in [0, 1, 7, 8, 127, 128, 143, 144, 160, seed.len() / 2, seed.len() - 1] {
        assert!(fixed::Artifact::new(&seed[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn states() {
    let seeds = hostile::states();
    assert!(seeds.len() > 50);
    search(6000, &seeds, 129, hostile::state);
}

/// Cached keys, values and activations that no run computes: extremes everywhere.
#[test]
fn states_full_of_extremes() {
    for (i, seed) in hostile::states().iter().enumerate() {
        for filler in [0x00, 0x7F, 0x80, 0xFF] {
            let mut bytes = seed.clone();
            let from = bytes.len() / 3;
            bytes[from..].fill(filler);
            hostile::state(&bytes);
            let mixed = bytes[from..].iter_mut().enumerate();
            mixed.for_each(|(j, b)| *b = testkit::random::hash(i as u64, j as u64) as u8);
            hostile::state(&bytes);
        }
    }
}

#[test]
fn tokenizer_files() {
    let seeds = [model("tiny").unwrap().tokenizer];
    search(1500, &seeds, 200, hostile::tokenizer_file);
}

#[test]
fn checkpoints() {
    let seeds = [model("tiny").unwrap().checkpoint];
    search(1500, &seeds, 28, hostile::checkpoint);
}

#[test]
fn prompts() {
    let texts = ["Once upon a time", "naïve 日本 🐶", "aaaa abab  ", "\u{10FFFF}<0x41><s>\n"];
    let long = ["aab".repeat(341), "é".repeat(512), "x".repeat(1025)];
    let seeds: Vec<Vec<u8>> =
        texts.iter().map(|t| t.as_bytes().to_vec()).chain(long.map(String::into_bytes)).collect();
    search(600, &seeds, 24, hostile::prompt);
}
