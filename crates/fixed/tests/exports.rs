//! The C interface through raw pointers, as a WebAssembly host uses it: a whole run equals the Rust
//! interface, and every function reports errors as published.
//!
//! SAFETY of every call: pointers come from `Memory` with its length, or are null.
#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks)]

use std::ptr::null;
use std::sync::Mutex;

use fixed::exports::*;
use fixed::{Artifact, StateInfo, output_text};
use testkit::fixed_models::facit_tales;

/// `result_len` belongs to the last conversion: tests that convert take turns.
static CONVERTING: Mutex<()> = Mutex::new(());

/// Memory from `alloc`, released at the end.
struct Memory(*mut u8, usize);

impl Memory {
    fn zeroed(len: usize) -> Memory {
        let memory = Memory(alloc(len), len);
        assert!(!memory.0.is_null() && (memory.0 as usize).is_multiple_of(8));
        assert!(memory.bytes().iter().all(|b| *b == 0));
        memory
    }

    fn of(bytes: &[u8]) -> Memory {
        let memory = Memory::zeroed(bytes.len());
        // SAFETY: as many bytes were reserved, and nobody else knows of them.
        unsafe { std::slice::from_raw_parts_mut(memory.0, bytes.len()) }.copy_from_slice(bytes);
        memory
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: reserved with this length; the functions under test have returned.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: from `alloc` or `convert` with this length, once.
        unsafe { dealloc(self.0, self.1) }
    }
}

fn converted() -> Memory {
    let _turn = CONVERTING.lock().unwrap_or_else(|e| e.into_inner());
    let model = facit_tales();
    let (c, t) = (Memory::of(&model.checkpoint), Memory::of(&model.tokenizer));
    // SAFETY: both buffers have these lengths.
    let pointer = unsafe { convert(c.0, c.1, t.0, t.1) };
    assert!(!pointer.is_null());
    Memory(pointer, result_len())
}

#[test]
fn a_run_through_pointers_equals_the_rust_interface() {
    let artifact = converted();
    let parsed = Artifact::new(artifact.bytes()).unwrap();
    let m = parsed.metadata;
    let config = Memory::of(&m.config.to_bytes());
    let zero = Memory::of(m.bytes);
    let weights = Memory::of(parsed.section(1).bytes);
    let prompt = Memory::of(b"One day, a shy bear");
    let (max, temperature, seed) = (4, 52_429, 0xDEAD_BEEF_0000_0007u64);

    let size = unsafe { state_size(config.0, prompt.1, max) } as usize;
    let state = Memory::zeroed(size);
    let (low, high) = (seed as u32, (seed >> 32) as u32);
    let started = unsafe {
        init_state(config.0, state.0, size, prompt.0, prompt.1, max, temperature, low, high)
    };
    assert_eq!(started, 0);
    let mut expected = vec![0; size];
    fixed::init_state(m.config, &mut expected, prompt.bytes(), max, temperature, seed).unwrap();
    assert_eq!(state.bytes(), expected);

    let quoted = unsafe { quote(config.0, zero.0, zero.1, prompt.0, prompt.1, max, temperature) };
    let mut turns = 0;
    while !StateInfo::read(state.bytes()).unwrap().complete {
        let plan = fixed::planner::plan_turn(m.config, &expected).unwrap();
        let output = Memory::zeroed(20);
        assert_eq!(unsafe { plan_turn(config.0, state.0, size, output.0) }, 0);
        let words: Vec<u32> =
            output.bytes().as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
        let [first, second] = plan.sections;
        let count = plan.section_count as u32;
        assert_eq!(words, [count, first, second, plan.estimated_cu, plan.max_generated]);
        assert_eq!(unsafe { required_section(config.0, state.0, size) }, first);
        let result = if turns % 2 == 0 {
            unsafe { turn(config.0, state.0, size, zero.0, zero.1, weights.0, weights.1) }
        } else {
            unsafe {
                let (w, n) = (weights.0, weights.1);
                turn_with_sections(config.0, state.0, size, zero.0, zero.1, w, n, null(), 0)
            }
        };
        assert_eq!(result, 0);
        let sections = parsed.sections(&plan);
        fixed::turn(m.config, &mut expected, m.bytes, &sections[..plan.section_count]).unwrap();
        assert_eq!(state.bytes(), expected);
        turns += 1;
    }
    assert_eq!(quoted, turns);
    assert!(!output_text(m.config, state.bytes()).is_empty());
}

#[test]
fn errors_come_back_as_published() {
    let artifact = converted();
    let parsed = Artifact::new(artifact.bytes()).unwrap();
    let m = parsed.metadata;
    let config = Memory::of(&m.config.to_bytes());
    let bad = Memory::of(&[0; 28]);
    let zero = Memory::of(m.bytes);
    let prompt = Memory::of(b"a");
    unsafe {
        assert_eq!(state_size(bad.0, 1, 1), FAILED);
        assert_eq!(state_size(null(), 1, 1), FAILED);
        assert_eq!(state_size(config.0, 1, 0), FAILED);
        let size = state_size(config.0, 1, 1) as usize;
        let state = Memory::zeroed(size);
        let s = state.0;
        assert_eq!(init_state(config.0, s, size - 1, prompt.0, 1, 1, 0, 0, 0), 4);
        assert_eq!(init_state(config.0, s, size, prompt.0, 1, 1, 1_048_577, 0, 0), 6);
        let out = Memory::zeroed(20);
        assert_eq!(plan_turn(config.0, s, size, out.0), 3, "not a state yet");
        assert_eq!(out.bytes(), [0; 20]);
        assert_eq!(required_section(config.0, s, size), FAILED);
        assert_eq!(init_state(config.0, s, size, prompt.0, 1, 1, 0, 0, 0), 0);
        assert_eq!(required_section(config.0, s, size), 0, "tokenizing reads section zero alone");
        assert_eq!(turn(config.0, s, size, null(), 0, null(), 0), 2);
        assert_eq!(turn(config.0, s, size, zero.0, zero.1, null(), 0), 0);
        assert_eq!(turn(config.0, s, size, zero.0, zero.1, null(), 0), 5, "weights are needed");
        assert_eq!(turn(bad.0, s, size, zero.0, zero.1, null(), 0), 1);
        assert_eq!(quote(config.0, zero.0, zero.1, prompt.0, 1, 513, 0), 0);
        assert_eq!(quote(config.0, zero.0, 100, prompt.0, 1, 1, 0), 0);
        assert_eq!(quote(bad.0, zero.0, zero.1, prompt.0, 1, 1, 0), 0);
        let _turn = CONVERTING.lock().unwrap_or_else(|e| e.into_inner());
        assert!(convert(zero.0, zero.1, null(), 0).is_null());
        assert_eq!(result_len(), 0);
        assert!(alloc(0).is_null());
        dealloc(std::ptr::null_mut(), 0);
    }
}
