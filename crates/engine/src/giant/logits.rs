//! Files of logits, and how two of them differ.
//!
//! Three forms are read: safetensors with an F32 tensor `logits` (what a run writes), raw
//! little-endian f32, and JSON with `logits_bits` (u32 patterns) or `logits` (numbers).

use std::collections::BTreeMap;
use std::path::Path;

use models::machine::{DType, Piece, Snapshot};
use serde::Serialize;

use crate::{Error, files};

/// Largest file of logits that is read.
pub const MAX_BYTES: u64 = 4 << 30;
/// Entries whose overlap is reported.
const TOP: usize = 10;

/// Logits of some positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// Entries a position; the whole length if the file does not say.
    pub vocab: usize,
    /// `[position, vocab]`.
    pub values: Vec<f32>,
}

impl Logits {
    /// The bytes of a safetensors file; `meta` says what they are logits of.
    pub fn to_safetensors(&self, meta: BTreeMap<String, String>) -> Vec<u8> {
        let shape = [self.values.len() / self.vocab.max(1), self.vocab];
        let pieces = vec![Piece::f32s("logits".into(), &shape, &self.values)];
        Snapshot { meta, pieces }.write()
    }

    /// Reads any of the three forms.
    ///
    /// # Errors
    /// A file that is none of them, is empty, or is above [`MAX_BYTES`].
    pub fn read(path: &Path) -> Result<Logits, Error> {
        let bytes = files::read(path, MAX_BYTES)?;
        let what = path.display().to_string();
        Self::parse(&bytes).map_err(|why| Error::Corrupt { what, why })
    }

    fn parse(bytes: &[u8]) -> Result<Logits, String> {
        let logits = match bytes {
            [] => return Err("an empty file".into()),
            [b'{', ..] => Self::from_json(bytes)?,
            [.., _] if bytes.get(8) == Some(&b'{') => Self::from_safetensors(bytes)?,
            _ if bytes.len().is_multiple_of(4) => {
                let values: Vec<f32> =
                    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                Logits { vocab: values.len(), values }
            }
            _ => {
                return Err(
                    "neither safetensors, JSON nor raw f32 (its length is no multiple of 4)".into(),
                );
            }
        };
        if logits.values.is_empty() || logits.vocab == 0 {
            return Err("it holds no logits".into());
        }
        Ok(logits)
    }

    fn from_safetensors(bytes: &[u8]) -> Result<Logits, String> {
        let snapshot = Snapshot::read(bytes).map_err(|e| e.to_string())?;
        let piece = snapshot.pieces.iter().find(|p| p.name == "logits" && p.dtype == DType::F32);
        let piece = piece.ok_or("it has no F32 tensor named logits")?;
        let vocab = piece.shape.last().copied().unwrap_or(0);
        let values = piece.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        Ok(Logits { vocab, values })
    }

    fn from_json(bytes: &[u8]) -> Result<Logits, String> {
        #[derive(serde::Deserialize)]
        struct File {
            logits_bits: Option<Vec<u32>>,
            logits: Option<Vec<f32>>,
        }
        let file: File = serde_json::from_slice(bytes).map_err(|e| format!("JSON: {e}"))?;
        let values = match (file.logits_bits, file.logits) {
            (Some(bits), _) => bits.into_iter().map(f32::from_bits).collect(),
            (None, Some(values)) => values,
            (None, None) => return Err("JSON without logits_bits or logits".into()),
        };
        Ok(Logits { vocab: values.len(), values })
    }
}

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every bit equal.
    Identical,
    /// Within the tolerance, and every position has the same argmax.
    Close,
    /// Outside the tolerance, another argmax, or not finite.
    Different,
}

/// How `a` differs from the reference `b`.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Positions compared.
    pub positions: usize,
    /// Entries a position.
    pub vocab: usize,
    /// Largest absolute difference.
    pub max_difference: f64,
    /// The same over the largest magnitude of `b`.
    pub relative: f64,
    /// The bound on `relative`.
    pub tolerance: f64,
    /// Mean absolute difference.
    pub mean_difference: f64,
    /// Pearson's correlation; 1 for identical logits.
    pub correlation: f64,
    /// Positions whose argmax is the same.
    pub same_argmax: usize,
    /// Argmax of the last position in `a` and in `b`.
    pub argmax: [usize; 2],
    /// Of the ten largest logits of the last position, how many are in both.
    pub top_10_overlap: usize,
    /// The first entry whose bits differ: position, token, value in `a`, value in `b`.
    pub first_difference: Option<(usize, usize, f32, f32)>,
    /// Entries that are not finite in either.
    pub not_finite: usize,
    /// The outcome.
    pub verdict: Verdict,
}

/// Compares `a` with the reference `b`.
///
/// # Errors
/// Logits of different lengths.
pub fn compare(a: &Logits, b: &Logits, tolerance: f64) -> Result<Comparison, Error> {
    if a.values.len() != b.values.len() {
        return Err(Error::Refused(format!(
            "the files hold {} and {} logits: only equal numbers can be compared",
            a.values.len(),
            b.values.len()
        )));
    }
    let vocab = a.vocab.min(b.vocab);
    let pairs = || a.values.iter().zip(&b.values).map(|(&x, &y)| (f64::from(x), f64::from(y)));
    let n = a.values.len();
    let max_difference = pairs().map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    let largest = pairs().map(|(_, y)| y.abs()).fold(0.0, f64::max);
    let relative = if max_difference == 0.0 { 0.0 } else { max_difference / largest };
    let first = a.values.iter().zip(&b.values).position(|(x, y)| x.to_bits() != y.to_bits());
    let rows = || a.values.chunks(vocab).zip(b.values.chunks(vocab));
    let same_argmax = rows().filter(|(x, y)| top(x, 1) == top(y, 1)).count();
    let (last_a, last_b) = rows().next_back().expect("never empty");
    let (top_a, top_b) = (top(last_a, TOP), top(last_b, TOP));
    let not_finite = pairs().filter(|(x, y)| !x.is_finite() || !y.is_finite()).count();
    let positions = n / vocab;
    let close = relative <= tolerance && not_finite == 0 && same_argmax == positions;
    Ok(Comparison {
        positions,
        vocab,
        max_difference,
        relative,
        tolerance,
        mean_difference: pairs().map(|(x, y)| (x - y).abs()).sum::<f64>() / n as f64,
        correlation: if first.is_none() { 1.0 } else { correlation(pairs, n as f64) },
        same_argmax,
        argmax: [top_a[0], top_b[0]],
        top_10_overlap: top_a.iter().filter(|i| top_b.contains(i)).count(),
        first_difference: first.map(|i| (i / vocab, i % vocab, a.values[i], b.values[i])),
        not_finite,
        verdict: match (first, close) {
            (None, _) if not_finite == 0 => Verdict::Identical,
            (_, true) => Verdict::Close,
            _ => Verdict::Different,
        },
    })
}

/// Indices of the `n` largest, ties to the lower index.
fn top(row: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    let by_value = |i: &usize, j: &usize| row[*j].total_cmp(&row[*i]).then(i.cmp(j));
    let n = n.min(row.len());
    if n < row.len() {
        order.select_nth_unstable_by(n - 1, by_value);
        order.truncate(n);
    }
    order.sort_by(by_value);
    order
}

fn correlation<I: Iterator<Item = (f64, f64)>>(pairs: impl Fn() -> I, n: f64) -> f64 {
    let mean = |sum: f64| sum / n;
    let (ma, mb) = (mean(pairs().map(|p| p.0).sum()), mean(pairs().map(|p| p.1).sum()));
    let sum = |f: &dyn Fn(f64, f64) -> f64| pairs().map(|(x, y)| f(x - ma, y - mb)).sum::<f64>();
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f32]) -> Logits {
        Logits { vocab: values.len(), values: values.to_vec() }
    }

    #[test]
    fn verdicts_follow_bits_tolerance_and_argmax() {
        let a = row(&[1.0, 2.0, 3.0]);
        assert_eq!(compare(&a, &a, 0.0).unwrap().verdict, Verdict::Identical);
        let near = compare(&row(&[1.0, 2.0, 3.0001]), &a, 1e-3).unwrap();
        assert_eq!(
            (near.verdict, near.first_difference),
            (Verdict::Close, Some((0, 2, 3.0001, 3.0)))
        );
        assert_eq!(
            compare(&row(&[1.0, 2.0, 3.0001]), &a, 1e-6).unwrap().verdict,
            Verdict::Different
        );
        // Within the tolerance, but another token would be chosen.
        let tie = compare(&row(&[1.0, 3.0001, 3.0]), &row(&[1.0, 3.0, 3.0001]), 1e-3).unwrap();
        assert_eq!(tie.verdict, Verdict::Different);
        let nan = row(&[f32::NAN, 2.0, 3.0]);
        assert_eq!(compare(&nan, &nan, 1.0).unwrap().verdict, Verdict::Different);
        assert!(compare(&a, &row(&[1.0]), 1.0).is_err());
    }

    #[test]
    fn every_form_is_read_and_nonsense_refused() {
        let a = Logits { vocab: 2, values: vec![1.0, -2.0, 0.5, 4.0] };
        assert_eq!(Logits::parse(&a.to_safetensors(BTreeMap::new())).unwrap(), a);
        let raw: Vec<u8> = a.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(Logits::parse(&raw).unwrap().values, a.values);
        let json = br#"{"logits_bits": [1065353216]}"#;
        assert_eq!(Logits::parse(json).unwrap().values, [1.0]);
        for bad in [&b""[..], b"abc", b"{}", b"{\"logits\": []}", b"{\"logits\": 3}"] {
            assert!(Logits::parse(bad).is_err());
        }
    }
}
