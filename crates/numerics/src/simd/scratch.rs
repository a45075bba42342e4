//! Working memory of the kernels, kept by each thread so that no product allocates once the
//! largest shape was seen. Its size is bounded by the caller: positions are taken in groups.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A cache line: vectors loaded from the start of a buffer never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f64; 8]);

thread_local! {
    /// Buffers not in use. More than one exists only while uses are nested.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// `f32` and `f64`.
///
/// # Safety
/// Any bytes are a value of the type, and its alignment divides 64.
pub(crate) unsafe trait Float: Copy {}
// SAFETY: as said.
unsafe impl Float for f32 {}
// SAFETY: as said.
unsafe impl Float for f64 {}

/// `len` elements of arbitrary content, aligned to 64 bytes; given back when dropped.
///
/// (Not a function that takes a closure: the compiler would not compile the closure for the
/// instruction set of the kernel it stands in.)
pub(crate) struct Scratch<T> {
    lines: Vec<Line>,
    len: usize,
    float: PhantomData<T>,
}

impl<T: Float> Scratch<T> {
    pub(crate) fn new(len: usize) -> Self {
        let mut lines = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        let count = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if lines.len() < count {
            lines.resize(count, Line([0.0; 8]));
        }
        Scratch { lines, len, float: PhantomData }
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // A thread that is ending has no list any more.
        let _ = FREE.try_with(|free| free.borrow_mut().push(lines));
    }
}

impl<T: Float> Deref for Scratch<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `Line` is initialised bytes without padding, and `lines` holds `len` floats.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<T>(), self.len) }
    }
}

impl<T: Float> DerefMut for Scratch<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast::<T>(), self.len) }
    }
}
