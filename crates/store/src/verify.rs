//! `verify-model`: a model's directory checked again without the network.

use crate::digest::for_each_block;
use crate::io::{Disk, Mode};
use crate::pack::{Run, TRUNK_FILE, Trunk, source_digest};
use crate::pull::Manifest;
use crate::safetensors::{Dtype, Index, TensorRef};
use crate::{Error, Result};
use sha2::{Digest as _, Sha256};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

/// What to check besides headers and digests of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Look at every weight: values that are not finite, groups with a NaN scale.
    pub deep: bool,
    /// Threads for decoding a packed trunk.
    pub threads: usize,
}

/// What kind of thing was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// A file's size and SHA-256 against the manifest.
    File,
    /// The headers of all shards.
    Headers,
    /// Names, types and shapes against the model's configuration.
    Tensors,
    /// A run of a packed trunk.
    Packed,
    /// The values of a tensor.
    Values,
}

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// Its kind.
    pub area: Area,
    /// File, run or tensor.
    pub what: String,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// `None` if it is right.
    pub problem: Option<String>,
}

/// The result of all checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct VerifyReport {
    /// Every check in order.
    pub checks: Vec<Check>,
    /// Tensors of the checkpoint.
    pub tensors: usize,
    /// Shards that the index file names and that are not here (a partial set).
    pub absent: Vec<String>,
    /// Whether digests of the files were known.
    pub manifest: bool,
    /// Tensors of which every value was looked at.
    pub deep: usize,
    /// Findings of a deep look that are not errors: `(tensor, what, how many)`.
    pub findings: Vec<(String, &'static str, u64)>,
}

impl VerifyReport {
    /// What is wrong.
    pub fn problems(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|c| c.problem.is_some())
    }
}

/// Checks a model's directory: sizes and SHA-256 of everything in the manifest, all headers,
/// every run of a packed trunk. Problems are collected, not returned at the first.
/// `progress(done, of)` hears the bytes looked at and those to look at.
///
/// # Errors
/// Only if the directory cannot be looked at at all.
pub fn verify_model(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    options: VerifyOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let manifest = Manifest::read(&**disk, dir)?;
    let files = manifest.iter().flat_map(|m| &m.files).map(|f| f.size).sum::<u64>();
    let packed = std::fs::metadata(dir.join(TRUNK_FILE)).map_or(0, |m| m.len());
    let (done, of) = (Cell::new(0), Cell::new(files.saturating_add(packed)));
    let mut progress = |bytes: u64| {
        done.set(done.get() + bytes);
        progress(done.get(), of.get().max(done.get()));
    };
    if let Some(manifest) = manifest {
        report.manifest = true;
        for file in &manifest.files {
            let path = dir.join(&file.path);
            let mut sha = Sha256::new();
            let read = for_each_block(&**disk, &path, |block| {
                sha.update(block);
                progress(block.len() as u64);
            });
            let got: String = sha.finalize().iter().map(|b| format!("{b:02x}")).collect();
            let problem = match read {
                Err(e) => Some(e.to_string()),
                Ok(size) if size != file.size => {
                    Some(format!("expected {} bytes, got {size}", file.size))
                }
                Ok(_) if got != file.sha256 => {
                    Some(format!("expected SHA-256 {}, got {got}: pull it again", file.sha256))
                }
                Ok(_) => None,
            };
            let what = file.path.clone();
            report.checks.push(Check { area: Area::File, what, bytes: file.size, problem });
        }
    }
    let index = match Index::open_partial(disk, dir) {
        Ok(index) => index,
        Err(e) => {
            report.checks.push(headers(Some(e.to_string())));
            return Ok(report);
        }
    };
    report.tensors = index.len();
    report.absent = index.absent().to_vec();
    report.checks.push(headers(None));
    trunk(&**disk, dir, &index, options.threads.max(1), &mut report, &mut progress);
    if options.deep {
        of.set(of.get() + index.iter().map(|t| t.len).sum::<u64>());
        for t in index.iter() {
            deep(&index, &t, &mut report, &mut progress);
            report.deep += 1;
        }
    }
    Ok(report)
}

fn headers(problem: Option<String>) -> Check {
    Check { area: Area::Headers, what: "headers of all shards".to_owned(), bytes: 0, problem }
}

fn trunk(
    disk: &dyn Disk,
    dir: &Path,
    index: &Index,
    threads: usize,
    report: &mut VerifyReport,
    progress: &mut impl FnMut(u64),
) {
    let path = dir.join(TRUNK_FILE);
    let opened = Trunk::open(disk, &path, index.digest()).and_then(|t| {
        let open = |_| disk.open(&path, Mode::Read).map_err(|e| Error::io("open", &path, e));
        let file = t.as_ref().map(open).transpose()?;
        Ok(t.zip(file))
    });
    match opened {
        Ok(None) => {}
        Ok(Some((trunk, file))) => {
            let mut head_rows = 0;
            for run in &trunk.runs {
                let verified = trunk
                    .verify_run(&*file, run, threads)
                    .and_then(|()| same_as_shards(index, &trunk, run, &mut head_rows));
                // File and run are named by what was checked.
                let problem = verified.err().map(|e| match e {
                    Error::Format { problem, .. } => match problem.split_once(": ") {
                        Some((what, rest)) if what == run.what => rest.to_owned(),
                        _ => problem,
                    },
                    other => other.to_string(),
                });
                progress(run.stored);
                let what = format!("{TRUNK_FILE}: {}", run.what);
                let area = Area::Packed;
                report.checks.push(Check { area, what, bytes: run.stored, problem });
            }
        }
        Err(e) => {
            let what = TRUNK_FILE.to_owned();
            let problem = Some(e.to_string());
            report.checks.push(Check { area: Area::Packed, what, bytes: 0, problem });
        }
    }
}

/// Compares a run with the shards it was packed from, unless some are not here. `head_rows` are
/// those of the head's pieces so far.
fn same_as_shards(index: &Index, trunk: &Trunk, run: &Run, head_rows: &mut u64) -> Result<()> {
    let matrix = &run.tensors.first().map(|t| &t.spec);
    let mut from = 0;
    if let Some(spec) = matrix.filter(|_| run.is_head()) {
        let rows = spec.shape.first().copied().unwrap_or(0);
        from = spec.bytes().unwrap_or(0) / rows.max(1) * *head_rows;
        *head_rows += rows;
    }
    if run.tensors.iter().any(|t| index.get(&t.spec.name).is_none()) {
        return Ok(());
    }
    match source_digest(index, run, from)? == run.digest {
        true => Ok(()),
        false => Err(trunk.other(&run.what)),
    }
}

/// Bytes of a tensor looked at together; a multiple of every element's size.
const DEEP_BLOCK: u64 = 4 << 20;

/// Counts what cannot be right (not finite) or is worth knowing (groups that become zero: a NaN
/// scale is meant so where scales are plain bytes, as in Kimi K3, and damage where they have
/// their own type, as in DeepSeek-V4.1).
fn deep(
    index: &Index,
    t: &TensorRef<'_>,
    report: &mut VerifyReport,
    progress: &mut impl FnMut(u64),
) {
    let zeroes = t.dtype == Dtype::U8 && t.name.ends_with("_scale");
    let count: fn(&[u8]) -> u64 = match t.dtype {
        Dtype::Bf16 => |b| count(b.as_chunks::<2>().0, |v| (v >> 7) & 0xff == 0xff),
        Dtype::F16 => |b| count(b.as_chunks::<2>().0, |v| (v >> 10) & 0x1f == 0x1f),
        Dtype::F32 => |b| {
            let exponent = |v: &&[u8; 4]| (u32::from_le_bytes(**v) >> 23) & 0xff == 0xff;
            b.as_chunks::<4>().0.iter().filter(exponent).count() as u64
        },
        Dtype::F8E4M3 => |b| b.iter().filter(|&&v| v & 0x7f == 0x7f).count() as u64,
        Dtype::F8E8M0 => |b| b.iter().filter(|&&v| v == 255).count() as u64,
        Dtype::U8 if zeroes => |b| b.iter().filter(|&&v| v == 255).count() as u64,
        _ => return,
    };
    let (mut found, mut at) = (0, 0);
    let mut problem = None;
    while at < t.len && problem.is_none() {
        let mut block = vec![0; DEEP_BLOCK.min(t.len - at) as usize];
        match index.read_range(t, at, &mut block) {
            Ok(()) => found += count(&block),
            Err(e) => problem = Some(e.to_string()),
        }
        at += block.len() as u64;
        progress(block.len() as u64);
    }
    if found > 0 && zeroes {
        report.findings.push((t.name.to_owned(), "groups with a NaN scale count as zero", found));
    } else if found > 0 {
        problem = Some(format!("values that are not finite: {found}"));
    }
    if problem.is_some() {
        let what = format!("tensor {}", t.name);
        report.checks.push(Check { area: Area::Values, what, bytes: t.len, problem });
    }
}

fn count(values: &[[u8; 2]], bad: impl Fn(u16) -> bool) -> u64 {
    values.iter().filter(|v| bad(u16::from_le_bytes(**v))).count() as u64
}
