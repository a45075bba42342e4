//! A state as one safetensors file in memory: tensors and string metadata, written without
//! holes and read back with every claim of the header checked. Files are the host's business.

use super::DType;
use crate::tensor_file::TensorFile;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// One tensor of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Little-endian contents.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a> Piece<'a> {
    /// A tensor of f32 values, lent and not copied where the machine keeps them as files do.
    pub fn f32s(name: String, shape: &[usize], values: &'a [f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{name}: shape and length");
        let bytes = if cfg!(target_endian = "little") {
            Cow::Borrowed(bytemuck::cast_slice(values))
        } else {
            Cow::Owned(values.iter().flat_map(|v| v.to_le_bytes()).collect())
        };
        Piece { name, dtype: DType::F32, shape: shape.to_vec(), bytes }
    }
}

/// Tensors with metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot<'a> {
    /// Metadata: strings by name.
    pub meta: BTreeMap<String, String>,
    /// Tensors in order of storage.
    pub pieces: Vec<Piece<'a>>,
}

/// Why a saved state cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SnapshotError {
    /// Not a file this crate wrote, or cut or altered since.
    #[error("the saved state is damaged: {0}")]
    Damaged(String),
    /// A sound file, of something else.
    #[error("the saved state has another {what}: expected {expected}, got {got}")]
    Differs {
        /// Which property.
        what: &'static str,
        /// The model's.
        expected: String,
        /// The file's.
        got: String,
    },
    /// Longer than the context asked for.
    #[error("the saved state is {position} positions long and the context is {context}")]
    Context {
        /// Positions in the file.
        position: usize,
        /// Positions asked for.
        context: usize,
    },
    /// A state like it cannot be made: too long for the model, or too large for the memory.
    #[error(transparent)]
    State(#[from] super::StepError),
}

fn damaged<T>(text: impl Into<String>) -> Result<T, SnapshotError> {
    Err(SnapshotError::Damaged(text.into()))
}

impl<'a> Snapshot<'a> {
    /// The bytes of a safetensors file.
    pub fn write(&self) -> Vec<u8> {
        let mut out = self.header();
        out.reserve_exact(self.pieces.iter().map(|p| p.bytes.len()).sum());
        for piece in &self.pieces {
            out.extend_from_slice(&piece.bytes);
        }
        out
    }

    /// What comes before the pieces' bytes in the file.
    pub fn header(&self) -> Vec<u8> {
        let meta: Map<String, Value> =
            self.meta.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
        let mut header = Map::new();
        header.insert("__metadata__".into(), meta.into());
        let mut at = 0;
        for piece in &self.pieces {
            let end = at + piece.bytes.len();
            header.insert(
                piece.name.clone(),
                serde_json::json!({
                    "dtype": piece.dtype.name(), "shape": piece.shape, "data_offsets": [at, end],
                }),
            );
            at = end;
        }
        let mut json = Value::Object(header).to_string();
        json.extend(std::iter::repeat_n(' ', json.len().next_multiple_of(8) - json.len()));
        let mut out = (json.len() as u64).to_le_bytes().to_vec();
        out.extend(json.bytes());
        out
    }

    /// Reads what [`Snapshot::write`] wrote. Tensors borrow from `bytes`.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`] for anything but whole tensors of known types that fill the
    /// file without holes or overlaps.
    pub fn read(bytes: &'a [u8]) -> Result<Snapshot<'a>, SnapshotError> {
        let file = TensorFile::parse(bytes).map_err(|e| SnapshotError::Damaged(e.to_string()))?;
        let mut snapshot = Snapshot { meta: file.metadata().clone(), pieces: Vec::new() };
        for (name, t) in file.tensors() {
            let Some(dtype) = DType::from_name(&t.dtype) else {
                return damaged(format!("{name}: a state has no tensors of {}", t.dtype));
            };
            let (name, shape) = (name.to_owned(), t.shape.clone());
            snapshot.pieces.push(Piece { name, dtype, shape, bytes: t.bytes.into() });
        }
        Ok(snapshot)
    }

    /// Checks one metadata value.
    ///
    /// # Errors
    /// [`SnapshotError::Differs`] with both values.
    pub fn expect_meta(
        &self,
        key: &'static str,
        what: &'static str,
        expected: &str,
    ) -> Result<(), SnapshotError> {
        let got = self.meta.get(key).map_or("none", String::as_str);
        if got != expected {
            let (expected, got) = (expected.to_string(), got.to_string());
            return Err(SnapshotError::Differs { what, expected, got });
        }
        Ok(())
    }

    /// The tensor of a name, of exactly this type and shape.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`] if it is missing or otherwise.
    pub fn piece(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<&Piece<'a>, SnapshotError> {
        match self.pieces.iter().find(|p| p.name == name) {
            None => damaged(format!("{name} is missing")),
            Some(p) if p.dtype != dtype || p.shape != shape => damaged(format!(
                "{name}: expected {dtype} {shape:?}, got {} {:?}",
                p.dtype, p.shape
            )),
            Some(p) => Ok(p),
        }
    }

    /// Copies an f32 tensor of this shape into `out`.
    ///
    /// # Errors
    /// As [`Snapshot::piece`].
    pub fn read_f32s(
        &self,
        name: &str,
        shape: &[usize],
        out: &mut [f32],
    ) -> Result<(), SnapshotError> {
        let piece = self.piece(name, DType::F32, shape)?;
        assert_eq!(piece.bytes.len(), 4 * out.len(), "{name}: the destination has this shape");
        for (y, b) in out.iter_mut().zip(piece.bytes.chunks_exact(4)) {
            *y = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Snapshot<'static> {
        Snapshot {
            meta: BTreeMap::from([("a".to_string(), "b\"\\ü".to_string())]),
            pieces: vec![
                Piece::f32s("z".into(), &[2, 3], &[1.0, -0.0, f32::MIN_POSITIVE, 3.5, 0.1, 6.0]),
                Piece::f32s("a".into(), &[1, 0, 5], &[]),
                Piece::f32s("m".into(), &[2], &[7.0, 8.0]),
            ],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = sample().write();
        let back = Snapshot::read(&bytes).unwrap();
        assert_eq!(back.meta, sample().meta);
        for p in &sample().pieces {
            assert_eq!(back.piece(&p.name, p.dtype, &p.shape).unwrap().bytes, p.bytes);
        }
        assert!(back.piece("z", DType::F32, &[3, 2]).is_err());
        assert!(back.piece("y", DType::F32, &[2, 3]).is_err());
    }

    /// Cut anywhere, or with any bit of the header flipped, a file is refused or reads as other
    /// tensors; it never panics and never yields the same tensors with other bytes.
    #[test]
    fn damage_never_panics() {
        let bytes = sample().write();
        for n in 0..bytes.len() {
            assert!(Snapshot::read(&bytes[..n]).is_err(), "cut to {n}");
        }
        let data = bytes.len() - 32;
        for bit in 0..8 * data {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = Snapshot::read(&bad) {
                assert_ne!((&read.meta, &read.pieces), (&sample().meta, &sample().pieces));
            }
        }
        let mut long = bytes.clone();
        long.push(0);
        assert!(Snapshot::read(&long).is_err(), "a byte too many");
    }
}
