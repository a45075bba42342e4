//! All tensors of a checkpoint by name, in at most 130 bytes each.

use super::dtype::Dtype;
use super::header::{self, Header};
use super::shards::{self, WeightMap};
use super::table::{NameTable, ShapeTable};
use crate::io::{Disk, File, Mode, Real, read_exact_at};
use crate::{Digest, Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most tensors of a checkpoint.
pub const MAX_TENSORS: usize = super::table::MAX_IDS;

/// One file of a checkpoint.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    file: Arc<dyn File>,
    size: u64,
    /// Number of its first tensor.
    first: u32,
    metadata: Vec<(String, String)>,
}

impl Shard {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The open file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Its `__metadata__`, in the file's order.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }
}

/// Where a tensor lies and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRef<'i> {
    /// Its name.
    pub name: &'i str,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: &'i [u64],
    /// Number of its shard, see [`Index::shards`].
    pub shard: usize,
    /// Offset of its first byte in the shard's file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl TensorRef<'_> {
    /// Type and shape as text, for messages.
    pub fn describe(&self) -> String {
        format!("{} {:?}", self.dtype, self.shape)
    }
}

/// An index over the shards of a checkpoint. Tensors are numbered shard by shard in the
/// order of their bytes.
#[derive(Debug)]
pub struct Index {
    shards: Vec<Shard>,
    offsets: Vec<u64>,
    kinds: Vec<u32>,
    name_ends: Vec<u32>,
    names: String,
    shapes: ShapeTable,
    table: NameTable,
    absent: Vec<String>,
    digest: Digest,
}

impl Index {
    /// Opens a checkpoint: a directory with [`super::INDEX_FILE`], a directory with
    /// `*.safetensors` files, or a single file. Reads headers only and checks them in full.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_on(&Real::shared(), path)
    }

    /// Like [`Index::open`], on a given file system.
    pub fn open_on(disk: &Arc<dyn Disk>, path: &Path) -> Result<Self> {
        Self::open_with(disk, path, false)
    }

    /// A single file on a given file system.
    pub fn open_file(disk: &dyn Disk, path: &Path) -> Result<Self> {
        Builder::default().build(disk, &[path.to_owned()], false, None)
    }

    /// Like [`Index::open_on`], but shards that the index file names may be absent
    /// (a partial download); [`Index::absent`] lists them.
    pub fn open_partial(disk: &Arc<dyn Disk>, path: &Path) -> Result<Self> {
        Self::open_with(disk, path, true)
    }

    fn open_with(disk: &Arc<dyn Disk>, path: &Path, partial: bool) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|e| Error::io("open", path, e))?;
        if !meta.is_dir() {
            return Self::open_file(&**disk, path);
        }
        let map = WeightMap::open(&**disk, path)?;
        let names = match &map {
            Some(map) => map.shards.clone(),
            None => shards::list(path)?,
        };
        let paths: Vec<PathBuf> = names.iter().map(|n| path.join(n)).collect();
        Builder::default().build(&**disk, &paths, partial, map.as_ref())
    }

    /// The shards, in the order of their names.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Names of shards that [`Index::open_partial`] did not find.
    pub fn absent(&self) -> &[String] {
        &self.absent
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Digest of all shards' names, sizes and headers: any change of names, types, shapes or
    /// places changes it. It does not cover the weights themselves.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Bytes of memory the index holds, names included.
    pub fn memory(&self) -> usize {
        let shards: usize = self
            .shards
            .iter()
            .map(|s| {
                let meta: usize =
                    s.metadata.iter().map(|(k, v)| k.capacity() + v.capacity() + 48).sum();
                size_of::<Shard>() + s.path.as_os_str().len() + meta
            })
            .sum();
        self.offsets.capacity() * size_of::<u64>()
            + (self.kinds.capacity() + self.name_ends.capacity()) * size_of::<u32>()
            + self.names.capacity()
            + self.shapes.memory()
            + self.table.memory()
            + shards
    }

    fn name(&self, id: u32) -> &str {
        name_of(&self.names, &self.name_ends, id)
    }

    fn at(&self, id: u32) -> TensorRef<'_> {
        let kind = self.shapes.get(self.kinds[id as usize]);
        TensorRef {
            name: self.name(id),
            dtype: kind.dtype,
            shape: &kind.shape,
            shard: self.shards.partition_point(|s| s.first <= id) - 1,
            offset: self.offsets[id as usize],
            len: kind.bytes,
        }
    }

    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<TensorRef<'_>> {
        Some(self.at(self.table.find(name, |id| self.name(id))?))
    }

    /// The tensor of a name, or an error naming it.
    pub fn require(&self, name: &str) -> Result<TensorRef<'_>> {
        self.get(name).ok_or_else(|| Error::MissingTensor { name: name.to_owned() })
    }

    /// All tensors, shard by shard in the order of their bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TensorRef<'_>> {
        // At most MAX_TENSORS.
        (0..self.len() as u32).map(|id| self.at(id))
    }

    /// Reads a whole tensor into `buf`, which must have its length.
    pub fn read_into(&self, tensor: &TensorRef<'_>, buf: &mut [u8]) -> Result<()> {
        if buf.len() as u64 != tensor.len {
            return Err(Error::BufferLength {
                name: tensor.name.to_owned(),
                expected: tensor.len,
                got: buf.len() as u64,
            });
        }
        self.read_range(tensor, 0, buf)
    }

    /// Reads `buf.len()` bytes of a tensor from its byte `start` on: rows of a table.
    pub fn read_range(&self, tensor: &TensorRef<'_>, start: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        if start.checked_add(len).is_none_or(|end| end > tensor.len) {
            return Err(Error::BufferLength {
                name: tensor.name.to_owned(),
                expected: tensor.len.saturating_sub(start),
                got: len,
            });
        }
        let shard = &self.shards[tensor.shard];
        let offset = tensor.offset + start;
        read_exact_at(&*shard.file, buf, offset).map_err(|source| Error::Read {
            what: format!("tensor {}", tensor.name),
            path: shard.path.clone(),
            offset,
            len,
            source,
        })
    }

    /// Reads a whole tensor into new memory.
    pub fn read(&self, tensor: &TensorRef<'_>) -> Result<Vec<u8>> {
        let len = usize::try_from(tensor.len)
            .map_err(|_| Error::Memory { what: "a tensor", bytes: usize::MAX })?;
        let mut buf = Vec::new();
        buf.try_reserve_exact(len).map_err(|_| Error::Memory { what: "a tensor", bytes: len })?;
        buf.resize(len, 0);
        self.read_into(tensor, &mut buf)?;
        Ok(buf)
    }
}

fn name_of<'a>(names: &'a str, ends: &[u32], id: u32) -> &'a str {
    let start = if id == 0 { 0 } else { ends[id as usize - 1] };
    &names[start as usize..ends[id as usize] as usize]
}

/// Threads that read headers.
const HEADER_THREADS: usize = 8;

/// A shard's file and header; `None` for a shard that may be absent and is.
type Opened = Option<(Arc<dyn File>, u64, Header)>;

fn open_shard(disk: &dyn Disk, path: &Path, partial: bool) -> Result<Opened> {
    let file = match disk.open(path, Mode::Read) {
        Err(e) if partial && e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| Error::io("open", path, e))?,
    };
    let size = file.size().map_err(|e| Error::io("measure", path, e))?;
    let header = header::read(&*file, size).map_err(|e| Error::format(path, e.to_string()))?;
    Ok(Some((file, size, header)))
}

/// Opens shards on several threads; the result is in the order of `paths`.
fn open_shards(disk: &dyn Disk, paths: &[PathBuf], partial: bool) -> Vec<Result<Opened>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(HEADER_THREADS);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut mine = Vec::new();
        while let i = next.fetch_add(1, Ordering::Relaxed)
            && let Some(path) = paths.get(i)
        {
            mine.push((i, open_shard(disk, path, partial)));
        }
        mine
    };
    let mut all = std::thread::scope(|scope| {
        // Where the system gives no more threads, those that there are do it all.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads.min(paths.len())).map_while(spawn).collect();
        let mut all = work();
        for other in others {
            match other.join() {
                Ok(part) => all.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|&(i, _)| i);
    all.into_iter().map(|(_, opened)| opened).collect()
}

/// Collects shards into an index.
#[derive(Default)]
struct Builder {
    shards: Vec<Shard>,
    offsets: Vec<u64>,
    kinds: Vec<u32>,
    name_ends: Vec<u32>,
    names: String,
    shapes: ShapeTable,
    absent: Vec<String>,
    hasher: blake3::Hasher,
}

impl Builder {
    fn build(
        mut self,
        disk: &dyn Disk,
        paths: &[PathBuf],
        partial: bool,
        map: Option<&WeightMap>,
    ) -> Result<Index> {
        for (path, opened) in paths.iter().zip(open_shards(disk, paths, partial)) {
            self.add(path, opened?)?;
        }
        self.offsets.shrink_to_fit();
        self.kinds.shrink_to_fit();
        self.name_ends.shrink_to_fit();
        self.names.shrink_to_fit();
        let table = self.enter_names()?;
        let index = Index {
            shards: self.shards,
            offsets: self.offsets,
            kinds: self.kinds,
            name_ends: self.name_ends,
            names: self.names,
            shapes: self.shapes,
            table,
            absent: self.absent,
            digest: Digest(*self.hasher.finalize().as_bytes()),
        };
        if let Some(map) = map {
            agrees(&index, map)?;
        }
        Ok(index)
    }

    fn add(&mut self, path: &Path, opened: Opened) -> Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some((file, size, header)) = opened else {
            self.absent.push(name.into_owned());
            return Ok(());
        };
        self.hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        self.hasher.update(&size.to_le_bytes()).update(&header.digest.0);
        let first = self.offsets.len() as u32;
        self.append(&header).map_err(|problem| Error::format(path, problem))?;
        let metadata = header.metadata;
        self.shards.push(Shard { path: path.to_owned(), file, size, first, metadata });
        Ok(())
    }

    fn append(&mut self, header: &Header) -> Result<(), String> {
        if self.offsets.len() + header.entries.len() > MAX_TENSORS {
            return Err(format!("the checkpoint has more than {MAX_TENSORS} tensors"));
        }
        if self.names.len() + header.names.len() > u32::MAX as usize {
            return Err("the checkpoint's tensor names are longer than 4 GiB".to_owned());
        }
        let kinds: Vec<u32> = header.shapes.iter().map(|k| self.shapes.add(k)).collect();
        for entry in &header.entries {
            self.names.push_str(header.name(entry));
            self.name_ends.push(self.names.len() as u32);
            self.offsets.push(header.data_start + entry.begin);
            self.kinds.push(kinds[entry.kind as usize]);
        }
        Ok(())
    }

    fn enter_names(&self) -> Result<NameTable> {
        let mut table = NameTable::with_capacity(self.offsets.len());
        let name = |id| name_of(&self.names, &self.name_ends, id);
        for id in 0..self.offsets.len() as u32 {
            table.insert(id, name(id), name).map_err(|other| {
                let file = |id| &self.shards[self.shards.partition_point(|s| s.first <= id) - 1];
                let (here, there) = (file(id), file(other));
                let problem = if here.first == there.first {
                    format!("the tensor name {} occurs twice", name(id))
                } else {
                    format!("tensor {} is also in {}", name(id), there.path.display())
                };
                Error::format(&here.path, problem)
            })?;
        }
        Ok(table)
    }
}

/// The index file must name exactly the tensors that the shards have, each in its shard.
fn agrees(index: &Index, map: &WeightMap) -> Result<()> {
    // Shards were opened in the order of the map's sorted list, without the absent ones.
    let mut found = 0;
    let mut last = u32::MAX - 1;
    map.each(|tensor, shard| {
        // Files written by the usual tools list tensors in the order of their bytes.
        let next = last + 1;
        let in_order = (next as usize) < index.len() && index.name(next) == tensor;
        let id = if in_order { Some(next) } else { index.table.find(tensor, |id| index.name(id)) };
        let Some(id) = id else {
            if index.absent.iter().any(|a| a == shard) {
                return Ok(());
            }
            return Err(format!("tensor {tensor} should be in {shard}, but is in no shard"));
        };
        last = id;
        let at = index.shards.partition_point(|s| s.first <= id) - 1;
        let path = &index.shards[at].path;
        if path.file_name().is_none_or(|n| n != shard) {
            let path = path.display();
            return Err(format!("tensor {tensor} should be in {shard}, but is in {path}"));
        }
        found += 1;
        Ok(())
    })?;
    if found != index.len() {
        let problem =
            format!("it lists {found} of the shards' {} tensors (or one twice)", index.len());
        return Err(Error::format(&map.path, problem));
    }
    Ok(())
}
