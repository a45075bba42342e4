//! Little-endian words inside a byte buffer: the vectors of a state, viewed where they lie.
//!
//! The state is defined to the byte, so its words are little endian on every machine; [`I64`] and
//! [`I32`] convert on access (for nothing on little-endian machines). They are *aligned* words, not
//! byte arrays, because the Solana virtual machine's compiler turns every unaligned load into eight
//! byte loads. Getting from bytes to aligned words needs the only unsafe code outside the SIMD files.
#![allow(unsafe_code)]

/// A little-endian `i64` at an address that is a multiple of eight.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct I64(i64);

/// A little-endian `i32` at an address that is a multiple of four.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct I32(i32);

impl I64 {
    /// The word that holds `value`.
    #[inline(always)]
    pub const fn new(value: i64) -> I64 {
        I64(value.to_le())
    }

    /// The value.
    #[inline(always)]
    pub const fn get(self) -> i64 {
        i64::from_le(self.0)
    }

    /// Replaces the value.
    #[inline(always)]
    pub const fn set(&mut self, value: i64) {
        self.0 = value.to_le();
    }
}

impl I32 {
    /// The word that holds `value`.
    #[inline(always)]
    pub const fn new(value: i32) -> I32 {
        I32(value.to_le())
    }

    /// The value.
    #[inline(always)]
    pub const fn get(self) -> i32 {
        i32::from_le(self.0)
    }

    /// Replaces the value.
    #[inline(always)]
    pub const fn set(&mut self, value: i32) {
        self.0 = value.to_le();
    }
}

impl core::fmt::Debug for I64 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.get().fmt(f)
    }
}

impl core::fmt::Debug for I32 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.get().fmt(f)
    }
}

macro_rules! views {
    ($shared:ident, $mutable:ident, $word:ty, $size:literal) => {
        #[doc = concat!("The bytes as words of ", $size, " bytes; `None` if their start is not aligned or their length no multiple.")]
        pub fn $shared(bytes: &[u8]) -> Option<&[$word]> {
            // SAFETY: every bit pattern is a value of the word, a transparent integer.
            let (before, words, after) = unsafe { bytes.align_to::<$word>() };
            (before.is_empty() && after.is_empty()).then_some(words)
        }

        #[doc = concat!("As [`", stringify!($shared), "`], to write to.")]
        pub fn $mutable(bytes: &mut [u8]) -> Option<&mut [$word]> {
            // SAFETY: every bit pattern is a value of the word and of its bytes.
            let (before, words, after) = unsafe { bytes.align_to_mut::<$word>() };
            (before.is_empty() && after.is_empty()).then_some(words)
        }
    };
}
views!(i64s, i64s_mut, I64, "8");
views!(i32s, i32s_mut, I32, "4");

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a view that depends on the machine's byte order, or accepts a crooked buffer.
    #[test]
    fn words_are_little_endian_and_aligned() {
        let mut home = [0u64; 3];
        // SAFETY: any bytes are valid in a u64.
        let bytes = unsafe { home.align_to_mut::<u8>() }.1;
        bytes[..8].copy_from_slice(&(-2i64).to_le_bytes());
        bytes[8..12].copy_from_slice(&7i32.to_le_bytes());
        assert_eq!(i64s(bytes).unwrap()[0].get(), -2);
        assert_eq!(i32s(&bytes[8..]).unwrap()[0].get(), 7);
        i64s_mut(bytes).unwrap()[1].set(0x0102_0304);
        assert_eq!(bytes[8..16], [4, 3, 2, 1, 0, 0, 0, 0]);
        assert!(i64s(&bytes[4..12]).is_none());
        assert!(i64s(&bytes[..12]).is_none());
        assert!(i32s(&bytes[2..6]).is_none());
    }
}
