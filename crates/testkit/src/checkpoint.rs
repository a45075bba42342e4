//! A synthetic checkpoint: tensors described by name, type, shape and how to fill them, made
//! in memory for small tests or streamed into safetensors shards of any size.
//!
//! Every byte is a function of the seed, the tensor's name and the place, so a checkpoint of
//! 8 GB is written with a few megabytes of memory, on all cores, always the same.

use crate::random;
use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How a tensor is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Normal, with a scale that varies from row to row by `0.6..1.4` around this one (rows are
    /// the first dimension): the exponent statistics of trained weights.
    Normal(f32),
    /// A constant plus a normal of the second number's scale.
    Around(f32, f32),
    /// Uniform between the two.
    Uniform(f32, f32),
    /// Uniform bytes: packed E2M1 pairs.
    Bytes,
    /// E8M0 scales around this byte: `-1..=1` by chance.
    Scales(u8),
}

/// One tensor of a synthetic checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// Safetensors type name: `F32`, `BF16`, `U8`, `I8`, `F8_E4M3`, `F8_E8M0`.
    pub dtype: &'static str,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Contents.
    pub fill: Fill,
}

impl Tensor {
    /// A tensor.
    pub fn new(name: impl Into<String>, dtype: &'static str, shape: &[usize], fill: Fill) -> Self {
        Tensor { name: name.into(), dtype, shape: shape.to_vec(), fill }
    }

    fn size(&self) -> usize {
        match self.dtype {
            "F32" => 4,
            "BF16" => 2,
            _ => 1,
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.size()
    }

    /// Writes the bytes of elements `first..` into `out` (a whole number of elements).
    pub fn fill(&self, seed: u64, first: usize, out: &mut [u8]) {
        let key = random::key(seed, &self.name);
        let cols = self.shape.iter().skip(1).product::<usize>().max(1);
        match (self.dtype, self.fill) {
            (dtype, Fill::Bytes) => {
                fill_bytes(key, first, out);
                if dtype == "F8_E4M3" {
                    // All but the two NaN codes.
                    out.iter_mut().filter(|b| **b & 0x7F == 0x7F).for_each(|b| *b &= 0x80);
                }
            }
            (_, Fill::Scales(mid)) => {
                for (i, b) in out.iter_mut().enumerate() {
                    *b = mid - 1 + (random::hash(key, (first + i) as u64) % 3) as u8;
                }
            }
            ("BF16", fill) => {
                floats(key, fill, cols, first, out.len() / 2, |i, x| {
                    let bits = x.to_bits();
                    let round = 0x7fff + (bits >> 16 & 1);
                    let half = ((bits + round) >> 16) as u16;
                    out[2 * i..2 * i + 2].copy_from_slice(&half.to_le_bytes());
                });
            }
            ("F32", fill) => {
                floats(key, fill, cols, first, out.len() / 4, |i, x| {
                    out[4 * i..4 * i + 4].copy_from_slice(&x.to_le_bytes());
                });
            }
            (dtype, fill) => panic!("{}: {dtype} cannot be filled with {fill:?}", self.name),
        }
    }
}

/// Eight bytes a hash; `first` may lie inside a group of eight.
fn fill_bytes(key: u64, first: usize, out: &mut [u8]) {
    let head = (8 - first % 8) % 8;
    for i in 0..head.min(out.len()) {
        let at = first + i;
        out[i] = (random::hash(key, at as u64 / 8) >> (8 * (at % 8))) as u8;
    }
    let start = head.min(out.len());
    for (i, group) in out[start..].chunks_mut(8).enumerate() {
        let h = random::hash(key, ((first + start) / 8 + i) as u64).to_le_bytes();
        group.copy_from_slice(&h[..group.len()]);
    }
}

#[inline(always)]
fn floats(
    key: u64,
    fill: Fill,
    cols: usize,
    first: usize,
    len: usize,
    mut put: impl FnMut(usize, f32),
) {
    let mut i = 0;
    while i < len {
        // One row, or what of it is asked for: its scale is the same.
        let (row, col) = ((first + i) / cols, (first + i) % cols);
        let run = (cols - col).min(len - i);
        let (mid, spread, flat) = match fill {
            Fill::Normal(s) => (0.0, s * (0.6 + 0.8 * random::uniform(!key, row as u64)), false),
            Fill::Around(mid, s) => (mid, s, false),
            Fill::Uniform(a, b) => (a, b - a, true),
            Fill::Bytes | Fill::Scales(_) => unreachable!("handled by the caller"),
        };
        for j in i..i + run {
            let at = (first + j) as u64;
            let x = if flat { random::uniform(key, at) } else { random::normal(key, at) };
            put(j, mid + spread * x);
        }
        i += run;
    }
}

/// A checkpoint: runs of tensors that lie together (a layer's always-active weights, one
/// expert); a run is never split between shards.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Decides every byte.
    pub seed: u64,
    /// Contents of `config.json`.
    pub config: String,
    /// Tensors in order of storage.
    pub runs: Vec<Vec<Tensor>>,
}

impl Checkpoint {
    /// All tensors in order of storage.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.runs.iter().flatten()
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.tensors().map(Tensor::bytes).sum()
    }

    /// Makes everything in memory, for small models.
    pub fn in_memory(&self) -> HashMap<String, (Tensor, Vec<u8>)> {
        let make = |t: &Tensor| {
            let mut bytes = vec![0; t.bytes()];
            t.fill(self.seed, 0, &mut bytes);
            (t.name.clone(), (t.clone(), bytes))
        };
        self.tensors().map(make).collect()
    }

    /// Writes `config.json`, shards of about `shard_bytes` and `model.safetensors.index.json`
    /// into `dir`, with two threads and a few megabytes of memory.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn write(&self, dir: &Path, shard_bytes: usize) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("config.json"), &self.config)?;
        let shards = self.shards(shard_bytes);
        let name = |i: usize| format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        self.write_index(dir, &shards, name)?;
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let work = || -> io::Result<()> {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(shard) = shards.get(i) else { return Ok(()) };
                    self.write_shard(&dir.join(name(i)), shard)?;
                }
            };
            let other = scope.spawn(work);
            work()?;
            other.join().expect("the other writer does not panic")
        })
    }

    /// The same as headers over holes: sparse files of the full length that take no room.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn write_headers(&self, dir: &Path, shard_bytes: usize) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("config.json"), &self.config)?;
        let shards = self.shards(shard_bytes);
        let name = |i: usize| format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        self.write_index(dir, &shards, name)?;
        for (i, shard) in shards.iter().enumerate() {
            let header = header(shard.iter().copied());
            let mut file = std::fs::File::create(dir.join(name(i)))?;
            file.write_all(&header)?;
            file.set_len((header.len() + shard.iter().map(|t| t.bytes()).sum::<usize>()) as u64)?;
        }
        Ok(())
    }

    /// Runs grouped into shards.
    fn shards(&self, shard_bytes: usize) -> Vec<Vec<&Tensor>> {
        let mut shards: Vec<Vec<&Tensor>> = vec![Vec::new()];
        let mut filled = 0;
        for run in &self.runs {
            let bytes: usize = run.iter().map(Tensor::bytes).sum();
            if filled > 0 && filled + bytes > shard_bytes {
                shards.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            if let Some(last) = shards.last_mut() {
                last.extend(run);
            }
        }
        shards
    }

    fn write_index(
        &self,
        dir: &Path,
        shards: &[Vec<&Tensor>],
        name: impl Fn(usize) -> String,
    ) -> io::Result<()> {
        let mut out =
            BufWriter::new(std::fs::File::create(dir.join("model.safetensors.index.json"))?);
        write!(out, "{{\"metadata\":{{\"total_size\":{}}},\"weight_map\":{{", self.bytes())?;
        let mut comma = "";
        for (i, shard) in shards.iter().enumerate() {
            for t in shard {
                write!(out, "{comma}\n\"{}\":\"{}\"", t.name, name(i))?;
                comma = ",";
            }
        }
        writeln!(out, "\n}}}}")?;
        out.into_inner()?.sync_data()
    }

    fn write_shard(&self, path: &Path, tensors: &[&Tensor]) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
        out.write_all(&header(tensors.iter().copied()))?;
        let mut block = vec![0; 1 << 20];
        for t in tensors {
            let (mut done, bytes) = (0, t.bytes());
            while done < bytes {
                let n = block.len().min(bytes - done);
                t.fill(self.seed, done / t.size(), &mut block[..n]);
                out.write_all(&block[..n])?;
                done += n;
            }
        }
        out.flush()
    }
}

/// The length and the JSON of a safetensors header for tensors that follow each other without
/// holes, padded with blanks to a multiple of eight bytes.
pub fn header<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Vec<u8> {
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0;
    for t in tensors {
        let end = at + t.bytes();
        json.push_str(&format!(
            ",\"{}\":{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{at},{end}]}}",
            t.name, t.dtype, t.shape
        ));
        at = end;
    }
    json.push('}');
    while json.len() % 8 != 0 {
        json.push(' ');
    }
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend(json.bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a tensor must be the same bytes as that part of the whole: streamed shards and
    /// in-memory models are compared with each other elsewhere.
    #[test]
    fn parts_equal_the_whole() {
        for (dtype, fill, size) in [
            ("BF16", Fill::Normal(0.1), 2),
            ("F32", Fill::Around(1.0, 0.1), 4),
            ("F32", Fill::Uniform(-1.0, 2.0), 4),
            ("U8", Fill::Bytes, 1),
            ("U8", Fill::Scales(120), 1),
        ] {
            let t = Tensor::new("t", dtype, &[7, 33], fill);
            let mut whole = vec![0; t.bytes()];
            t.fill(3, 0, &mut whole);
            for (first, len) in [(0, 5), (3, 40), (30, 8), (33, 33), (200, 31)] {
                let mut part = vec![0; len * size];
                t.fill(3, first, &mut part);
                assert_eq!(part, whole[first * size..(first + len) * size], "{dtype} {first}");
            }
            let mut other = vec![0; t.bytes()];
            t.fill(4, 0, &mut other);
            assert_ne!(whole, other, "the seed counts");
        }
    }
}
