//! A byte that chooses a committed model, then bytes as a state of it. The checks are `testkit::fixed_hostile`'s, which `cargo test` runs too.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    testkit::fixed_hostile::state(bytes);
});
