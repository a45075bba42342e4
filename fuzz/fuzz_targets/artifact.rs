//! Bytes as an artifact of the integer core. The checks are `testkit::fixed_hostile`'s, which `cargo test` runs too.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    testkit::fixed_hostile::artifact(bytes);
});
