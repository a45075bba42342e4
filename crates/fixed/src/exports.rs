//! The core's C interface: plain functions over memory, exported under their own names by the
//! WebAssembly build and callable from native tests. Pointers and lengths are 32 bits there.
//!
//! An error result of zero is success, any other value an [`Error`]'s number. The configuration is
//! a pointer to 28 bytes, the seven words in order. Buffers must not overlap.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::planner::{TurnPlan, plan_turn as plan};
use crate::{Config, Error, WeightSection};

/// What functions that return a size or a section number return on an error.
pub const FAILED: u32 = u32::MAX;

/// Length of the last artifact [`convert`] made.
static RESULT_LEN: AtomicUsize = AtomicUsize::new(0);

/// All buffers are aligned to eight bytes, as states must be.
fn layout(length: usize) -> Option<Layout> {
    Layout::from_size_align(length, 8).ok().filter(|l| l.size() > 0)
}

/// Reserves `length` zeroed bytes, aligned to eight; null if there is no room for them (or zero are
/// asked for). Release them with [`dealloc`].
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub extern "C" fn alloc(length: usize) -> *mut u8 {
    // SAFETY: `layout` gives no empty layout.
    layout(length).map_or(std::ptr::null_mut(), |l| unsafe { alloc_zeroed(l) })
}

/// Releases bytes from [`alloc`] or [`convert`].
///
/// # Safety
/// `pointer` is null, or came from one of them with this `length` and was not released yet.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn dealloc(pointer: *mut u8, length: usize) {
    if let (false, Some(layout)) = (pointer.is_null(), layout(length)) {
        // SAFETY: the caller's promise; `alloc` used the same layout.
        unsafe { std::alloc::dealloc(pointer, layout) }
    }
}

/// The bytes at a pointer; none for null or length zero.
///
/// # Safety
/// Unless it is null, `length` bytes can be read at `pointer` and do not change meanwhile.
unsafe fn bytes<'a>(pointer: *const u8, length: usize) -> &'a [u8] {
    if pointer.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(pointer, length) }
}

/// The bytes at a pointer, to write to; none for null or length zero.
///
/// # Safety
/// Unless it is null, `length` bytes at `pointer` are nobody else's meanwhile.
unsafe fn bytes_mut<'a>(pointer: *mut u8, length: usize) -> &'a mut [u8] {
    if pointer.is_null() || length == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(pointer, length) }
}

/// # Safety
/// `pointer` is null or 28 bytes can be read there.
unsafe fn config_at(pointer: *const u8) -> Result<Config, Error> {
    // SAFETY: the caller's promise.
    Config::from_bytes(unsafe { bytes(pointer, Config::BYTES) })
}

fn number<T>(result: Result<T, Error>) -> u32 {
    result.err().map_or(0, Error::number)
}

/// The size of a state; [`FAILED`] for parameters out of range.
///
/// # Safety
/// `config`: 28 readable bytes.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn state_size(
    config: *const u8,
    prompt_length: usize,
    max_tokens: u32,
) -> u32 {
    // SAFETY: the caller's promise.
    let config = unsafe { config_at(config) };
    let size = config.and_then(|c| crate::state_size(c, prompt_length, max_tokens));
    size.map_or(FAILED, |size| size as u32)
}

/// Starts a state; the seed comes as its low and high 32 bits.
///
/// # Safety
/// `config`: 28 readable bytes; `state`: `state_length` writable bytes; `prompt`: `prompt_length`
/// readable bytes.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn init_state(
    config: *const u8,
    state: *mut u8,
    state_length: usize,
    prompt: *const u8,
    prompt_length: usize,
    max_tokens: u32,
    temperature_q16: u32,
    seed_low: u32,
    seed_high: u32,
) -> u32 {
    // SAFETY: the caller's promise.
    let (config, state, prompt) = unsafe {
        (config_at(config), bytes_mut(state, state_length), bytes(prompt, prompt_length))
    };
    let seed = u64::from(seed_high) << 32 | u64::from(seed_low);
    number(
        config.and_then(|c| crate::init_state(c, state, prompt, max_tokens, temperature_q16, seed)),
    )
}

/// Plans the next turn and writes 20 bytes at `output`: section count, first section, second section
/// (0 where absent), estimated compute units, the most tokens the turn can complete; each a u32.
///
/// # Safety
/// `config`: 28 readable bytes; `state`: `state_length` readable bytes; `output`: 20 writable bytes.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn plan_turn(
    config: *const u8,
    state: *const u8,
    state_length: usize,
    output: *mut u8,
) -> u32 {
    // SAFETY: the caller's promise.
    let (config, state) = unsafe { (config_at(config), bytes(state, state_length)) };
    let planned = config.and_then(|c| plan(c, state)).map(|p| {
        // SAFETY: the caller's promise.
        let output = unsafe { bytes_mut(output, 20) };
        let [first, second] = p.sections;
        let words = [p.section_count as u32, first, second, p.estimated_cu, p.max_generated];
        for (out, word) in output.as_chunks_mut().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
    });
    number(planned)
}

/// The first matrix section the next turn reads; zero for a turn that reads section zero alone;
/// [`FAILED`] for a bad or complete state.
///
/// # Safety
/// `config`: 28 readable bytes; `state`: `state_length` readable bytes.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn required_section(
    config: *const u8,
    state: *const u8,
    state_length: usize,
) -> u32 {
    // SAFETY: the caller's promise.
    let (config, state) = unsafe { (config_at(config), bytes(state, state_length)) };
    config.and_then(|c| plan(c, state)).map_or(FAILED, |p| p.sections[0])
}

/// Runs a turn whose plan names at most one section.
///
/// # Safety
/// `config`: 28 readable bytes; `state`: `state_length` writable bytes; `metadata` and `weights`:
/// readable bytes of their lengths.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn turn(
    config: *const u8,
    state: *mut u8,
    state_length: usize,
    metadata: *const u8,
    metadata_length: usize,
    weights: *const u8,
    weights_length: usize,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        turn_with_sections(
            config,
            state,
            state_length,
            metadata,
            metadata_length,
            weights,
            weights_length,
            std::ptr::null(),
            0,
        )
    }
}

/// Runs one turn with the sections its plan names, in its order. A slot the plan leaves out is
/// passed empty.
///
/// # Safety
/// `config`: 28 readable bytes; `state`: `state_length` writable bytes; `metadata`, `first` and
/// `second`: readable bytes of their lengths.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn turn_with_sections(
    config: *const u8,
    state: *mut u8,
    state_length: usize,
    metadata: *const u8,
    metadata_length: usize,
    first: *const u8,
    first_length: usize,
    second: *const u8,
    second_length: usize,
) -> u32 {
    // SAFETY: the caller's promise.
    let (config, state, metadata, given) = unsafe {
        let given = [bytes(first, first_length), bytes(second, second_length)];
        (config_at(config), bytes_mut(state, state_length), bytes(metadata, metadata_length), given)
    };
    let run = |config| {
        let plan: TurnPlan = plan(config, state)?;
        let sections: [WeightSection<'_>; 2] =
            std::array::from_fn(|i| WeightSection { index: plan.sections[i], bytes: given[i] });
        crate::turn(config, state, metadata, &sections[..plan.section_count])
    };
    number(config.and_then(run))
}

/// How many turns a run takes; zero on any error.
///
/// # Safety
/// `config`: 28 readable bytes; `metadata` and `prompt`: readable bytes of their lengths.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn quote(
    config: *const u8,
    metadata: *const u8,
    metadata_length: usize,
    prompt: *const u8,
    prompt_length: usize,
    max_tokens: u32,
    temperature_q16: u32,
) -> u64 {
    // SAFETY: the caller's promise.
    let (config, metadata, prompt) = unsafe {
        (config_at(config), bytes(metadata, metadata_length), bytes(prompt, prompt_length))
    };
    let Ok(config) = config else {
        return 0;
    };
    let Ok(size) = crate::state_size(config, prompt.len(), max_tokens) else {
        return 0;
    };
    let pointer = alloc(size);
    // SAFETY: `alloc` reserved `size` bytes, or gave null.
    let scratch = unsafe { bytes_mut(pointer, size) };
    let quote = crate::inference::quote_turns(
        config,
        metadata,
        prompt,
        max_tokens,
        temperature_q16,
        scratch,
    );
    // SAFETY: reserved above, and the slice is not used any more.
    unsafe { dealloc(pointer, size) };
    quote.unwrap_or(0)
}

/// Converts a checkpoint and returns the artifact's address, or null. [`result_len`] returns its
/// length; release it with [`dealloc`].
///
/// # Safety
/// `checkpoint` and `tokenizer`: readable bytes of their lengths.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn convert(
    checkpoint: *const u8,
    checkpoint_length: usize,
    tokenizer: *const u8,
    tokenizer_length: usize,
) -> *mut u8 {
    RESULT_LEN.store(0, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let (checkpoint, tokenizer) =
        unsafe { (bytes(checkpoint, checkpoint_length), bytes(tokenizer, tokenizer_length)) };
    let Ok(artifact) = crate::convert::convert(checkpoint, tokenizer) else {
        return std::ptr::null_mut();
    };
    let pointer = alloc(artifact.len());
    if pointer.is_null() {
        return pointer;
    }
    // SAFETY: `alloc` reserved as many bytes.
    unsafe { bytes_mut(pointer, artifact.len()) }.copy_from_slice(&artifact);
    RESULT_LEN.store(artifact.len(), Ordering::Relaxed);
    pointer
}

/// The length of the artifact the last [`convert`] made; zero if it failed.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub extern "C" fn result_len() -> usize {
    RESULT_LEN.load(Ordering::Relaxed)
}
