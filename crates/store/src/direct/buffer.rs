//! Memory for direct reads: page-aligned, on huge pages where the system grants them.
#![allow(unsafe_code)]

use crate::{Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Size of a huge page on the machines that matter; buffers of at least this size begin on
/// such a boundary, so that the kernel pins 512 times fewer pages for each read.
const HUGE: usize = 2 << 20;

/// Zeroed memory outside the allocator's heap, given back to the system when dropped.
pub struct AlignedBuf {
    map: NonNull<u8>,
    map_len: usize,
    /// Where the buffer begins within the map.
    start: usize,
    len: usize,
}

// SAFETY: the map is owned by this value alone; shared references only read it.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Reserves `len` bytes, rounded up to whole pages. Memory is taken when first touched.
    ///
    /// # Errors
    /// [`Error::Memory`], naming `what`, if the system refuses.
    pub fn new(len: usize, what: &'static str) -> Result<Self> {
        let refused = || Error::Memory { what, bytes: len };
        let page = rustix::param::page_size().max(crate::io::DIRECT_ALIGN as usize);
        let len = len.max(1).checked_next_multiple_of(page).ok_or_else(refused)?;
        let slack = if len >= HUGE { HUGE } else { 0 };
        let map_len = len.checked_add(slack).ok_or_else(refused)?;
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice
        // aliases nothing.
        let map = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                map_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let map = map.ok().and_then(|p| NonNull::new(p.cast::<u8>())).ok_or_else(refused)?;
        let start = if slack == 0 { 0 } else { map.as_ptr().align_offset(HUGE) };
        let buf = AlignedBuf { map, map_len, start, len };
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // SAFETY: the range is this mapping's own; the advice changes no content. Being
            // refused is fine: the buffer then has small pages.
            let _ =
                unsafe { madvise(buf.map.as_ptr().add(start).cast(), len, Advice::LinuxHugepage) };
        }
        Ok(buf)
    }

    /// Address for the kernel to write to.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: start + len <= map_len by construction.
        unsafe { self.map.as_ptr().add(self.start) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is readable, initialised (anonymous memory is zero) and at
        // least start + len long; `&self` excludes writers.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` excludes everybody else.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_ptr().add(self.start), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no reference into it
        // can outlive its owner. A failure would only leak it.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_writable() {
        for (len, align) in [(1, 4096), (5000, 4096), (HUGE, HUGE), (3 * HUGE + 1, HUGE)] {
            let mut b = AlignedBuf::new(len, "a test").unwrap();
            assert!(b.len() >= len);
            assert_eq!(b.as_ptr() as usize % align, 0);
            assert!(b.iter().all(|&x| x == 0));
            b.fill(7);
            assert_eq!(b[len - 1], 7);
        }
        assert!(matches!(AlignedBuf::new(usize::MAX, "a test"), Err(Error::Memory { .. })));
    }
}
