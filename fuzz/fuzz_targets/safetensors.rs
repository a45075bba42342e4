//! Bytes as a safetensors file: refused with an error, or every tensor can be read in full.
//! `crates/store/tests/safetensors.rs` does the same with damaged files of the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let disk = store::io::Memory::shared(bytes.to_vec());
    if let Ok(index) = store::safetensors::Index::open_file(&*disk, "fuzz".as_ref()) {
        let total: usize = index.iter().map(|t| index.read(&t).unwrap().len()).sum();
        assert!(total <= bytes.len());
    }
});
