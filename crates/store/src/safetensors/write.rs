//! Writing one safetensors file, atomically and without holding its data in memory.

use super::dtype::Dtype;
use super::header::{MAX_HEADER, MAX_RANK};
use crate::atomic::AtomicFile;
use crate::io::Disk;
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name, type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
}

impl TensorSpec {
    /// Size in bytes; `None` if that overflows.
    pub fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.dtype.size(), |n, &d| n.checked_mul(d))
    }

    /// Type and shape as text, for messages.
    pub fn describe(&self) -> String {
        format!("{} {:?}", self.dtype, self.shape)
    }
}

/// A file being written: the header first, then every tensor's bytes in order.
#[derive(Debug)]
pub struct Writer {
    file: AtomicFile,
    path: PathBuf,
    expected: u64,
    written: u64,
}

impl Writer {
    /// Writes the header. Tensors will lie in the order given, without gaps.
    pub fn create(
        disk: &Arc<dyn Disk>,
        path: &Path,
        tensors: &[TensorSpec],
        metadata: &[(&str, &str)],
    ) -> Result<Self> {
        let (header, expected) =
            header_text(tensors, metadata).map_err(|problem| Error::format(path, problem))?;
        let mut file = AtomicFile::create(disk, path)?;
        file.write(&(header.len() as u64).to_le_bytes())?;
        file.write(&header)?;
        Ok(Writer { file, path: path.to_owned(), expected, written: 0 })
    }

    /// Appends bytes of the tensors.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        self.file.write(bytes)
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// If not exactly the bytes of all tensors were written, besides errors of the disk.
    pub fn finish(self) -> Result<()> {
        if self.written != self.expected {
            let (got, expected) = (self.written, self.expected);
            let problem = format!("wrote {got} bytes of tensors, the header has {expected}");
            return Err(Error::format(&self.path, problem));
        }
        self.file.commit()
    }
}

/// The header, padded so that data begins at a multiple of 8, and the bytes that follow it.
fn header_text(
    tensors: &[TensorSpec],
    metadata: &[(&str, &str)],
) -> Result<(Vec<u8>, u64), String> {
    let mut names = std::collections::HashSet::new();
    let mut map = Vec::with_capacity(tensors.len() + 1);
    if !metadata.is_empty() {
        let pairs: serde_json::Map<_, _> =
            metadata.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
        map.push(("__metadata__", serde_json::Value::Object(pairs)));
    }
    let mut at = 0u64;
    for t in tensors {
        if t.name == "__metadata__" || !names.insert(&t.name) || t.shape.len() > MAX_RANK {
            return Err(format!("tensor {} cannot be written: name or rank", t.name));
        }
        let end = t.bytes().and_then(|n| at.checked_add(n));
        let end = end.ok_or_else(|| format!("tensor {} is too large", t.name))?;
        let entry = serde_json::json!({
            "dtype": t.dtype.name(), "shape": t.shape, "data_offsets": [at, end],
        });
        map.push((&t.name, entry));
        at = end;
    }
    // serde_json's own map would sort the keys; headers keep the order of the bytes.
    let mut text = vec![b'{'];
    for (i, (key, value)) in map.iter().enumerate() {
        if i > 0 {
            text.push(b',');
        }
        let key = serde_json::Value::from(*key);
        text.extend_from_slice(format!("{key}:{value}").as_bytes());
    }
    text.push(b'}');
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() as u64 > MAX_HEADER {
        return Err(format!("its header would be longer than {MAX_HEADER} bytes"));
    }
    Ok((text, at))
}

/// Writes a whole file from tensors in memory.
pub fn write(
    disk: &Arc<dyn Disk>,
    path: &Path,
    tensors: &[(TensorSpec, &[u8])],
    metadata: &[(&str, &str)],
) -> Result<()> {
    for (spec, bytes) in tensors {
        if spec.bytes() != Some(bytes.len() as u64) {
            return Err(Error::BufferLength {
                name: spec.name.clone(),
                expected: spec.bytes().unwrap_or(u64::MAX),
                got: bytes.len() as u64,
            });
        }
    }
    let specs: Vec<TensorSpec> = tensors.iter().map(|(s, _)| s.clone()).collect();
    let mut writer = Writer::create(disk, path, &specs, metadata)?;
    for (_, bytes) in tensors {
        writer.write(bytes)?;
    }
    writer.finish()
}
