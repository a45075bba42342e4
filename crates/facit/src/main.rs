//! The `facit` binary.
fn main() {}
