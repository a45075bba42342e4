//! Working memory of the kernels, kept by each thread so that no product allocates once the
//! largest shape was seen. Its size is bounded by the caller: positions are taken in groups.
#![allow(unsafe_code)]

use std::cell::RefCell;

/// A cache line: vectors loaded from the start of a buffer never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f64; 8]);

thread_local! {
    /// Buffers not in use. More than one exists only while uses are nested.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` elements of arbitrary content, aligned to 64 bytes.
pub(crate) fn with<R>(len: usize, f: impl FnOnce(&mut [f64]) -> R) -> R {
    let mut buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    let lines = len.div_ceil(8);
    if buffer.len() < lines {
        buffer.resize(lines, Line([0.0; 8]));
    }
    // SAFETY: `Line` is `repr(C)`, eight f64 without padding, and `lines * 8 >= len`.
    let slice = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<f64>(), len) };
    let result = f(slice);
    FREE.with_borrow_mut(|free| free.push(buffer));
    result
}
