//! BLAKE3 digests of files and buffers, as 32 bytes written in hex.

use crate::io::{Disk, Mode, read_exact_at};
use crate::{Error, Result};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A BLAKE3 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Digest of a buffer.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// Digest of a whole file, read front to back.
    pub fn of_file(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let mut hasher = blake3::Hasher::new();
        for_each_block(disk, path, |block| {
            hasher.update(block);
        })?;
        Ok(Digest(*hasher.finalize().as_bytes()))
    }
}

/// Bytes read at once when a whole file is hashed.
const HASH_BLOCK: usize = 4 << 20;

/// Calls `f` with the whole content of a file, block by block.
pub(crate) fn for_each_block(
    disk: &dyn Disk,
    path: &Path,
    mut f: impl FnMut(&[u8]),
) -> Result<u64> {
    let file = disk.open(path, Mode::Read).map_err(|e| Error::io("open", path, e))?;
    let size = file.size().map_err(|e| Error::io("measure", path, e))?;
    let mut block = vec![0; HASH_BLOCK.min(usize::try_from(size).unwrap_or(HASH_BLOCK))];
    let mut at = 0;
    while at < size {
        let n = block.len().min(usize::try_from(size - at).unwrap_or(usize::MAX));
        read_exact_at(&*file, &mut block[..n], at).map_err(|e| Error::io("read", path, e))?;
        f(&block[..n]);
        at += n as u64;
    }
    Ok(size)
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        let problem = || format!("a digest is 64 hex digits, got {s:?}");
        if s.len() != 64 || !s.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(problem());
        }
        let mut bytes = [0; 32];
        for (i, b) in bytes.iter_mut().enumerate() {
            *b = u8::from_str_radix(&s[2 * i..2 * i + 2], 16).map_err(|_| problem())?;
        }
        Ok(Digest(bytes))
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_bad_hex_is_refused() {
        let d = Digest::of(b"abc");
        assert_eq!(d.to_string().parse(), Ok(d));
        assert!("00".parse::<Digest>().is_err());
        assert!("é".repeat(32).parse::<Digest>().is_err());
        assert!(("+1".to_owned() + &"0".repeat(62)).parse::<Digest>().is_err());
    }
}
