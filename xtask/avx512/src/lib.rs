//! `fixed`, the tests of its arithmetic and a whole run as a program without an operating system, for
//! an emulated processor that has AVX-512: `cargo xtask avx512`. Writes to the first serial port.
//!
//! Emulators that know AVX-512 take an hour to boot a system; this takes half a minute. What the
//! arithmetic needs of `std` is only `Vec` and the detection of instruction sets, so this crate
//! stands in for it, and for `fixed` as the tests see it.
#![no_std]

#[macro_use]
extern crate alloc;
extern crate self as fixed;
extern crate self as std;

#[path = "../../../crates/fixed/src/arith/mod.rs"]
pub mod arith;
#[path = "../../../crates/fixed/src/bytes.rs"]
mod bytes;
#[path = "../../../crates/fixed/src/error.rs"]
mod error;
#[path = "../../../crates/fixed/src/format/mod.rs"]
pub mod format;
#[path = "../../../crates/fixed/src/inference.rs"]
pub mod inference;
#[path = "../../../crates/fixed/src/planner.rs"]
pub mod planner;
#[path = "../../../crates/fixed/src/protocol/mod.rs"]
pub mod protocol;
#[path = "../../../crates/fixed/src/sampler.rs"]
pub mod sampler;
#[path = "../../../crates/fixed/src/state.rs"]
mod state;
#[path = "../../../crates/fixed/src/tokenizer.rs"]
pub mod tokenizer;

#[path = "../../../crates/fixed/tests/backends.rs"]
mod backends;
mod machine;
mod story;

pub use bytes::{read_u32, read_u64};
pub use error::{Error, Fault};
pub use format::{Artifact, Config, Metadata};
pub use inference::{TurnResult, WeightSection, turn, turn_planned, turn_with};
pub use planner::{Cursor, TurnPlan};
pub use state::{
    MAX_PROMPT, MAX_TEMPERATURE, StateInfo, check_state, init_state, output_text, output_tokens,
    state_size,
};

/// In place of `std::vec`.
pub mod vec {
    pub use alloc::vec::*;
}

/// In place of `std::arch`.
pub mod arch {
    pub use crate::is_x86_feature_detected;
    pub use core::arch::*;
}

/// In place of the macro of `std`, which asks the operating system too; `_start` asks the processor.
#[macro_export]
macro_rules! is_x86_feature_detected {
    ($feature:tt) => {
        true
    };
}

/// Runs every test and the story and says so, or panics.
fn run() {
    use core::fmt::Write;
    let mut out = machine::Serial;
    let mut say = |text: &str| out.write_str(text).expect("a serial port");
    assert!(machine::has_avx512_vnni(), "the processor has no AVX-512 VNNI");
    for backend in arith::Backend::supported() {
        say(&format!("backend {}\n", backend.name()));
    }
    for (name, test) in backends::ALL {
        say(&format!("test {name}\n"));
        test();
    }
    say(&format!("story\t{}\n", story::tell()));
    say("all passed\n");
}
