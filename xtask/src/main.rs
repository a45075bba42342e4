//! Project chores (`cargo xtask …`).
fn main() {}
