//! Working memory of the kernels, kept by each thread so that no product allocates once the
//! largest shape was seen. Its size is bounded by the caller: positions are taken in groups.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// A cache line: vectors loaded from the start of a buffer never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f64; 8]);

thread_local! {
    /// Buffers not in use. More than one exists only while uses are nested.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// `len` elements of arbitrary content, aligned to 64 bytes; given back when dropped.
///
/// (Not a function that takes a closure: the compiler would not compile the closure for the
/// instruction set of the kernel it stands in.)
pub(crate) struct Scratch {
    lines: Vec<Line>,
    len: usize,
}

impl Scratch {
    pub(crate) fn new(len: usize) -> Scratch {
        let mut lines = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        if lines.len() < len.div_ceil(8) {
            lines.resize(len.div_ceil(8), Line([0.0; 8]));
        }
        Scratch { lines, len }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // A thread that is ending has no list any more.
        let _ = FREE.try_with(|free| free.borrow_mut().push(lines));
    }
}

impl Deref for Scratch {
    type Target = [f64];
    #[inline(always)]
    fn deref(&self) -> &[f64] {
        // SAFETY: `Line` is `repr(C)`, eight f64 without padding, and `lines` holds `len` of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<f64>(), self.len) }
    }
}

impl DerefMut for Scratch {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f64] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast::<f64>(), self.len) }
    }
}
