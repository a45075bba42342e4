//! The safetensors format in memory: for saved states ([`crate::machine::Snapshot`]) and for
//! golden data. Whole files only, as bytes; reading a checkpoint from disk piece by piece is
//! `store`'s business.
//!
//! A parsed file cannot be wrong: every tensor's range is inside the data, has exactly the
//! bytes its shape asks for, and the ranges cover the data without gap or overlap.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Longest header accepted, bytes (the format's own limit).
pub const MAX_HEADER: usize = 100_000_000;

/// Why bytes are not a usable tensor file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorFileError {
    /// The file as a whole is damaged.
    #[error("not a safetensors file: {0}")]
    File(String),
    /// One tensor's entry is wrong.
    #[error("tensor {name}: {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A tensor or metadata entry that should be there.
    #[error("{0} is missing")]
    Missing(String),
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// Element type by the format's name, e.g. `BF16`.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Little-endian values, row-major.
    pub bytes: &'a [u8],
}

/// A parsed file that borrows its bytes.
#[derive(Clone, Debug, Default)]
pub struct TensorFile<'a> {
    tensors: BTreeMap<String, Tensor<'a>>,
    /// Names in order of storage.
    order: Vec<String>,
    metadata: BTreeMap<String, String>,
}

/// Bytes an element of a safetensors type has.
fn element_size(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 1,
        "U16" | "I16" | "F16" | "BF16" => 2,
        "U32" | "I32" | "F32" => 4,
        "U64" | "I64" | "F64" => 8,
        _ => return None,
    })
}

impl<'a> TensorFile<'a> {
    /// Parses the bytes of a whole file.
    ///
    /// # Errors
    /// If anything about the header or a tensor's range is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<TensorFile<'a>, TensorFileError> {
        let file = |what: &str| TensorFileError::File(what.to_owned());
        let length = bytes.first_chunk().ok_or_else(|| file("shorter than 8 bytes"))?;
        let length = u64::from_le_bytes(*length);
        let length = usize::try_from(length).ok().filter(|l| *l <= MAX_HEADER);
        let length = length.ok_or_else(|| file("the header is longer than 100 MB"))?;
        let header = bytes.get(8..8 + length).ok_or_else(|| file("cut off inside the header"))?;
        let data = &bytes[8 + length..];
        let header: Map<String, Value> =
            serde_json::from_slice(header).map_err(|e| TensorFileError::File(e.to_string()))?;
        let mut out = TensorFile::default();
        let mut ranges = Vec::with_capacity(header.len());
        for (name, entry) in header {
            if name == "__metadata__" {
                out.metadata = serde_json::from_value(entry)
                    .map_err(|_| file("__metadata__ is not a map of strings"))?;
                continue;
            }
            let wrong = |what: String| TensorFileError::Tensor { name: name.clone(), what };
            let (tensor, range) = tensor(&entry, data).map_err(wrong)?;
            ranges.push((range, name.clone()));
            out.tensors.insert(name, tensor);
        }
        ranges.sort_unstable();
        // The first must begin at 0, each next where the one before ended, the last at the end.
        let end = ranges.iter().try_fold(0, |at, ((from, to), _)| (*from == at).then_some(*to));
        out.order = ranges.into_iter().map(|(_, name)| name).collect();
        match end {
            Some(end) if end == data.len() => Ok(out),
            Some(_) => Err(file("data beyond the last tensor")),
            None => Err(file("tensors overlap or leave a gap")),
        }
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, name: &str) -> Result<&Tensor<'a>, TensorFileError> {
        self.tensors.get(name).ok_or_else(|| TensorFileError::Missing(format!("tensor {name}")))
    }

    /// The tensors in order of storage.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor<'a>)> {
        self.order.iter().map(|name| (name.as_str(), &self.tensors[name]))
    }

    /// All metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Whether there is a tensor called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A metadata entry.
    ///
    /// # Errors
    /// If there is none.
    pub fn meta(&self, key: &str) -> Result<&str, TensorFileError> {
        let value = self.metadata.get(key).map(String::as_str);
        value.ok_or_else(|| TensorFileError::Missing(format!("metadata {key}")))
    }

    /// Values of a BF16 or F32 tensor as f32, with its shape.
    ///
    /// # Errors
    /// If it is missing or of another type.
    pub fn floats(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), TensorFileError> {
        let t = self.get(name)?;
        let values = match t.dtype.as_str() {
            "F32" => t
                .bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            "BF16" => {
                let mut values = vec![0.0; t.bytes.len() / 2];
                numerics::bf16::widen_all(t.bytes, &mut values);
                values
            }
            other => return Err(self.type_error(name, other, "BF16 or F32")),
        };
        Ok((t.shape.clone(), values))
    }

    /// Values of an integer or boolean tensor as i64, with its shape.
    ///
    /// # Errors
    /// If it is missing or of another type.
    pub fn integers(&self, name: &str) -> Result<(Vec<usize>, Vec<i64>), TensorFileError> {
        let t = self.get(name)?;
        let values = match t.dtype.as_str() {
            "I64" => t
                .bytes
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")))
                .collect(),
            "I32" => t
                .bytes
                .chunks_exact(4)
                .map(|b| i64::from(i32::from_le_bytes(b.try_into().expect("4 bytes"))))
                .collect(),
            "U32" => t
                .bytes
                .chunks_exact(4)
                .map(|b| i64::from(u32::from_le_bytes(b.try_into().expect("4 bytes"))))
                .collect(),
            "U8" | "BOOL" => t.bytes.iter().map(|&b| i64::from(b)).collect(),
            other => return Err(self.type_error(name, other, "I64, I32, U32, U8 or BOOL")),
        };
        Ok((t.shape.clone(), values))
    }

    fn type_error(&self, name: &str, got: &str, expected: &str) -> TensorFileError {
        let what = format!("expected {expected}, got {got}");
        TensorFileError::Tensor { name: name.to_owned(), what }
    }
}

/// A header entry and the range of its bytes in `data`.
fn tensor<'a>(entry: &Value, data: &'a [u8]) -> Result<(Tensor<'a>, (usize, usize)), String> {
    let sizes = |key: &str| -> Option<Vec<usize>> {
        let list = entry.get(key)?.as_array()?.iter();
        list.map(|v| v.as_u64().and_then(|v| usize::try_from(v).ok())).collect()
    };
    let dtype = entry.get("dtype").and_then(Value::as_str).ok_or("no dtype")?;
    let size = element_size(dtype).ok_or_else(|| format!("unknown dtype {dtype:?}"))?;
    let shape = sizes("shape").ok_or("no shape, or not a list of sizes")?;
    let offsets = sizes("data_offsets").ok_or("no data_offsets")?;
    let &[from, to] = offsets.as_slice() else {
        return Err("data_offsets is not a pair".to_owned());
    };
    let bytes = data.get(from..to).ok_or("its data is outside the file")?;
    let expected = shape.iter().try_fold(size, |n, d| n.checked_mul(*d));
    if expected != Some(bytes.len()) {
        return Err(format!("{dtype} {shape:?} does not fit {} bytes", bytes.len()));
    }
    Ok((Tensor { dtype: dtype.to_owned(), shape, bytes }, (from, to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{DType, Piece, Snapshot};

    fn sample() -> Vec<u8> {
        let mut w = Snapshot::default();
        w.meta.insert("kind".into(), "sample".into());
        w.pieces.push(Piece::f32s("a".into(), &[2], &[1.0, -2.5]));
        let bytes = vec![1, 2, 3].into();
        w.pieces.push(Piece { name: "b".into(), dtype: DType::U8, shape: vec![3, 1], bytes });
        w.write()
    }

    /// Catches a writer whose files do not read back, and metadata that gets lost.
    #[test]
    fn round_trip() {
        let bytes = sample();
        let file = TensorFile::parse(&bytes).unwrap();
        assert_eq!(file.floats("a").unwrap(), (vec![2], vec![1.0, -2.5]));
        assert_eq!(file.integers("b").unwrap(), (vec![3, 1], vec![1, 2, 3]));
        assert_eq!(file.meta("kind").unwrap(), "sample");
        assert!(matches!(file.get("c"), Err(TensorFileError::Missing(_))));
        assert!(matches!(file.floats("b"), Err(TensorFileError::Tensor { .. })));
    }

    /// Catches a parser that trusts offsets: every truncation and every header edit that makes
    /// the entries contradict the data must be refused.
    #[test]
    fn damaged_files_are_refused() {
        let bytes = sample();
        for cut in 0..bytes.len() {
            assert!(TensorFile::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(TensorFile::parse(&longer).is_err(), "trailing data");
        let edits =
            [("[0,8]", "[0,7]"), ("[8,11]", "[5,8]"), ("\"F32\"", "\"F99\""), ("[3,1]", "[3,2]")];
        let text = String::from_utf8_lossy(&bytes[8..bytes.len() - 11]).into_owned();
        for (from, to) in edits {
            assert!(text.contains(from), "{text}");
            let header = text.replace(from, to);
            let mut edited = (header.len() as u64).to_le_bytes().to_vec();
            edited.extend(header.as_bytes());
            edited.extend(&bytes[bytes.len() - 11..]);
            assert!(TensorFile::parse(&edited).is_err(), "{from} -> {to}");
        }
        let huge = u64::MAX.to_le_bytes();
        assert!(TensorFile::parse(&huge).is_err(), "absurd header length");
    }
}
