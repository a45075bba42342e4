//! Facit's exact integer core: llama2-family models in fixed point, the same bits on every machine.
//!
//! A run lives in one flat buffer, the *state*, and advances in *turns*. A turn reads section zero
//! of the weights and at most two matrix sections, does as much as fits its allowance of compute
//! units, and leaves the state where any other target (native, WebAssembly, the Solana VM) can
//! continue. Without the feature `std` there is no float, clock, allocation or input/output
//! here. With it come `convert`, the only code with floats; `run`, whole runs that allocate and use
//! threads; and `exports`, the C interface.
//!
//! ```no_run
//! use fixed::{
//!     format::SECTION_TABLE, init_state, output_text, planner, read_u64, state_size, turn,
//!     Metadata, StateInfo, WeightSection,
//! };
//!
//! fn main() {
//!     let artifact = std::fs::read("stories260K.facit").unwrap();
//!     // Section zero's length is the second field of the first section table entry.
//!     let zero = read_u64(&artifact, SECTION_TABLE + 8) as usize;
//!     let m = Metadata::new(&artifact[..zero]).unwrap();
//!
//!     let prompt = b"Once upon a time";
//!     let mut state = vec![0u8; state_size(m.config, prompt.len(), 32).unwrap()];
//!     init_state(m.config, &mut state, prompt, 32, 0, 42).unwrap();
//!
//!     while !StateInfo::read(&state).unwrap().complete {
//!         let plan = planner::plan_turn(m.config, &state).unwrap();
//!         let mut sections = [WeightSection { index: 0, bytes: &[] }; 2];
//!         for i in 0..plan.section_count {
//!             let index = plan.sections[i] as usize;
//!             let offset = m.section_offset(index);
//!             sections[i] = WeightSection {
//!                 index: index as u32,
//!                 bytes: &artifact[offset..offset + m.section_len(index)],
//!             };
//!         }
//!         turn(m.config, &mut state, m.bytes, &sections[..plan.section_count]).unwrap();
//!     }
//!     println!("{}", String::from_utf8_lossy(output_text(m.config, &state)));
//! }
//! ```
#![cfg_attr(not(any(feature = "std", test)), no_std)]

pub mod arith;
mod bytes;
#[cfg(feature = "std")]
pub mod convert;
mod error;
#[cfg(feature = "std")]
pub mod exports;
pub mod format;
pub mod inference;
pub mod planner;
pub mod protocol;
#[cfg(feature = "std")]
pub mod run;
pub mod sampler;
mod state;
pub mod tokenizer;

pub use bytes::{read_u32, read_u64};
pub use error::{Error, Fault};
pub use format::{Artifact, Config, Metadata};
pub use inference::{TurnResult, WeightSection, turn, turn_planned, turn_with};
pub use planner::{Cursor, TurnPlan};
pub use state::{
    MAX_PROMPT, MAX_TEMPERATURE, StateInfo, check_state, init_state, output_text, output_tokens,
    state_size,
};
