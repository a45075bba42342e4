//! Bytes as a llama2.c checkpoint. The checks are `testkit::fixed_hostile`'s, which `cargo test` runs too.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    testkit::fixed_hostile::checkpoint(bytes);
});
