//! An allocator that counts, for tests that promise a bound on memory.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Use as `#[global_allocator] static ALLOC: Counting = Counting::new();` in a test binary.
pub struct Counting {
    now: AtomicUsize,
    peak: AtomicUsize,
    calls: AtomicUsize,
}

impl Counting {
    /// An allocator that has counted nothing.
    #[expect(clippy::new_without_default, reason = "made in a static, where only const works")]
    pub const fn new() -> Self {
        Counting { now: AtomicUsize::new(0), peak: AtomicUsize::new(0), calls: AtomicUsize::new(0) }
    }

    /// Bytes allocated now.
    pub fn now(&self) -> usize {
        self.now.load(Relaxed)
    }

    /// Most bytes allocated at once since the last [`Counting::reset`].
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Allocations since the last [`Counting::reset`].
    pub fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    /// Starts a new measurement: the peak is what is allocated now.
    pub fn reset(&self) {
        self.peak.store(self.now(), Relaxed);
        self.calls.store(0, Relaxed);
    }

    fn grew(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(now, Relaxed);
        self.calls.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to the system allocator; counting touches only
// atomics and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those `System.alloc` asks for.
        let p = unsafe { System.alloc(layout) };
        if !p.is_null() {
            self.grew(layout.size());
        }
        p
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above. Passed on so that untouched zero pages stay untouched.
        let p = unsafe { System.alloc_zeroed(layout) };
        if !p.is_null() {
            self.grew(layout.size());
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) };
        self.now.fetch_sub(layout.size(), Relaxed);
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        let p = unsafe { System.realloc(p, layout, new_size) };
        if !p.is_null() {
            self.now.fetch_sub(layout.size(), Relaxed);
            self.grew(new_size);
        }
        p
    }
}
