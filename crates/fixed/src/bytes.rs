//! Little-endian words in byte buffers. Everything the core stores is read and written through
//! these, so a big-endian machine makes the same bytes. No alignment is assumed.

/// Four bytes of a buffer, holding one little-endian `u32` or `i32`.
pub type Half = [u8; 4];

/// The `u32` at `offset`.
///
/// # Panics
/// If `offset + 4` is beyond the end.
#[inline]
pub fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*bytes[offset..].first_chunk().expect("four bytes at the offset"))
}

/// The `u64` at `offset`.
///
/// # Panics
/// If `offset + 8` is beyond the end.
#[inline]
pub fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(*bytes[offset..].first_chunk().expect("eight bytes at the offset"))
}

#[inline]
pub(crate) fn write_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

#[inline]
pub(crate) fn write_u64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

/// The next multiple of eight. `n` is far from the type's end in every caller.
#[inline]
pub(crate) const fn align8(n: u64) -> u64 {
    (n + 7) & !7
}

/// All whole 32-bit words of `bytes`.
#[inline]
pub(crate) fn halves(bytes: &[u8]) -> &[Half] {
    bytes.as_chunks().0
}
