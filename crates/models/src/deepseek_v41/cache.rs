//! Cached rows in the packed form the model rounds them to. Packing is lossless because every
//! cached value *is* a code times its scale: a row is rounded once, when it is packed, and
//! whoever reads it unpacks the same bf16 values.
//!
//! | rows | codes | scales | bytes of 512 (128) values |
//! |---|---|---|---|
//! | window, draft rings | e4m3 | e8m0 for 32 | 528 |
//! | compressed keys-and-values | e2m1 pairs | e4m3 for 16 | 288 |
//! | index keys | e2m1 pairs | e8m0 for 32 | (68) |

use numerics::{Error, Matrix, NanScale, Weights, e8m0, fp4, fp8, quantize};

/// How rows are rounded and packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// e4m3 codes, one power-of-two scale for 32 values.
    Fp8,
    /// Two e2m1 codes a byte (low nibble first), one e4m3 scale for 16 values.
    Fp4E4m3,
    /// Two e2m1 codes a byte (low nibble first), one power-of-two scale for 32 values.
    Fp4E8m0,
}

impl Packing {
    fn block(self) -> usize {
        match self {
            Packing::Fp8 | Packing::Fp4E8m0 => quantize::BLOCK,
            Packing::Fp4E4m3 => quantize::SMALL_BLOCK,
        }
    }

    /// Bytes of codes and of scales in a row of `width` values.
    pub fn row_bytes(self, width: usize) -> (usize, usize) {
        let codes = if self == Packing::Fp8 { width } else { width / 2 };
        (codes, width / self.block())
    }

    /// The scale code of a block whose largest magnitude is `amax`, and its value.
    fn scale(self, amax: f32) -> (u8, f32) {
        let power = |x| e8m0::ceil(x).map_or((e8m0::NAN, f32::NAN), |s| (s, e8m0::decode(s)));
        match self {
            Packing::Fp8 => power(amax.max(1e-4) / fp8::MAX),
            Packing::Fp4E8m0 => power(amax.max(fp4::MAX * f32::MIN_POSITIVE) / fp4::MAX),
            Packing::Fp4E4m3 => {
                let code = fp8::encode(amax.max(fp4::MAX / 512.0) / fp4::MAX);
                (code, fp8::decode(code))
            }
        }
    }
}

/// Packed rows of one width, growing at the end or overwritten in place (a ring).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    packing: Packing,
    width: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Rows {
    /// No rows of `width` values (a multiple of 32).
    pub fn new(packing: Packing, width: usize) -> Rows {
        Rows { packing, width, codes: Vec::new(), scales: Vec::new() }
    }

    /// Rows from their packed bytes; `None` unless both hold the same whole number of rows.
    pub fn from_bytes(packing: Packing, width: usize, codes: &[u8], scales: &[u8]) -> Option<Rows> {
        let (c, s) = packing.row_bytes(width);
        let whole = codes.len().is_multiple_of(c) && scales.len().is_multiple_of(s);
        (whole && codes.len() / c == scales.len() / s).then(|| Rows {
            packing,
            width,
            codes: codes.to_vec(),
            scales: scales.to_vec(),
        })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.codes.len() / self.packing.row_bytes(self.width).0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// The packed codes of all rows.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scale codes of all rows.
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// Rounds and packs `row` behind the others.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn push(&mut self, row: &[f32]) -> Result<(), Error> {
        assert_eq!(row.len(), self.width, "one row");
        for (b, block) in row.chunks_exact(self.packing.block()).enumerate() {
            if let Some(i) = block.iter().position(|v| !v.is_finite()) {
                return Err(Error::Nan { index: b * block.len() + i });
            }
            let amax = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let (code, scale) = self.packing.scale(amax);
            self.scales.push(code);
            let e2m1 = |v: f32| fp4::encode(v / scale).unwrap_or(0);
            match self.packing {
                Packing::Fp8 => self.codes.extend(block.iter().map(|v| fp8::encode(v / scale))),
                _ => self.codes.extend(block.chunks_exact(2).map(|p| e2m1(p[0]) | e2m1(p[1]) << 4)),
            }
        }
        Ok(())
    }

    /// Copies row `from` of `other` behind the others, or over row `slot` if there is one.
    pub fn copy_row(&mut self, other: &Rows, from: usize, slot: usize) {
        let (c, s) = self.packing.row_bytes(self.width);
        let codes = &other.codes[from * c..(from + 1) * c];
        let scales = &other.scales[from * s..(from + 1) * s];
        if slot < self.len() {
            self.codes[slot * c..(slot + 1) * c].copy_from_slice(codes);
            self.scales[slot * s..(slot + 1) * s].copy_from_slice(scales);
        } else {
            assert_eq!(slot, self.len(), "rows are filled without gaps");
            grow(&mut self.codes, c);
            grow(&mut self.scales, s);
            self.codes.extend_from_slice(codes);
            self.scales.extend_from_slice(scales);
        }
    }

    /// Appends the values of row `row` to `out`.
    pub fn unpack(&self, row: usize, out: &mut Vec<f32>) {
        let (c, s) = self.packing.row_bytes(self.width);
        let codes = &self.codes[row * c..(row + 1) * c];
        let scales = &self.scales[row * s..(row + 1) * s];
        let block = c / s;
        for (codes, &scale) in codes.chunks_exact(block).zip(scales) {
            match self.packing {
                Packing::Fp8 => {
                    let scale = e8m0::decode(scale);
                    out.extend(codes.iter().map(|&code| fp8::decode(code) * scale));
                }
                Packing::Fp4E4m3 => unpack_fp4(codes, fp8::decode(scale), out),
                Packing::Fp4E8m0 => unpack_fp4(codes, e8m0::decode(scale), out),
            }
        }
    }

    /// The rows as a matrix to multiply with, still packed; `None` when there are none or the
    /// packing has no such matrix ([`Packing::Fp4E4m3`]).
    pub fn matrix(&self) -> Option<Matrix<'_>> {
        let weights = match self.packing {
            Packing::Fp8 => Weights::Fp8 {
                codes: &self.codes,
                scales: &self.scales,
                block_rows: 1,
                block_cols: quantize::BLOCK,
            },
            Packing::Fp4E8m0 => {
                Weights::Mxfp4 { packed: &self.codes, scales: &self.scales, nan: NanScale::Refuse }
            }
            Packing::Fp4E4m3 => return None,
        };
        Matrix::new(self.len(), self.width, weights).ok()
    }
}

/// Rows that a cache gets room for at a time, or an eighth of what it has if that is more: a
/// long context would otherwise hold twice what it needs.
pub(super) const GROWTH: usize = 64;

/// Makes room before a row of `row` bytes is appended to a full vector.
fn grow(bytes: &mut Vec<u8>, row: usize) {
    if bytes.len() + row > bytes.capacity() {
        bytes.reserve_exact((bytes.len() / 8).max(GROWTH * row));
    }
}

/// A scale times all sixteen codes, then one lookup a value.
fn unpack_fp4(codes: &[u8], scale: f32, out: &mut Vec<f32>) {
    let values = fp4::VALUES.map(|v| v * scale);
    for &pair in codes {
        out.extend([values[usize::from(pair & 15)], values[usize::from(pair >> 4)]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches packing that does not give the values the model rounds to: another scale than the
    /// rounding's, swapped nibbles, a lost sign, e4m3 scales below its normal range.
    #[test]
    fn unpacked_rows_equal_the_round_trip() {
        let mut x = 0x9E37_79B9u32;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits((x & 0x8000_0000) | (0x3800_0000 + (x >> 6 & 0x0AFF_FFFF)))
        };
        for round in 0..200 {
            let small = if round % 3 == 0 { 1e-4 } else { 1.0 };
            let row: Vec<f32> = (0..64).map(|_| numerics::bf16::round(next() * small)).collect();
            type RoundTrip = fn(&mut [f32]) -> Result<(), Error>;
            let cases: [(Packing, RoundTrip); 3] = [
                (Packing::Fp8, quantize::fp8_round_trip),
                (Packing::Fp4E4m3, quantize::fp4_e4m3_round_trip),
                (Packing::Fp4E8m0, quantize::fp4_round_trip),
            ];
            for (packing, round_trip) in cases {
                let mut rows = Rows::new(packing, 64);
                rows.push(&row).unwrap();
                let mut unpacked = Vec::new();
                rows.unpack(0, &mut unpacked);
                let mut expected = row.clone();
                round_trip(&mut expected).unwrap();
                assert_eq!(unpacked, expected, "{packing:?}");
            }
        }
    }

    /// Catches a cache larger than the format: 890 bytes a token follow from these.
    #[test]
    fn released_row_sizes() {
        let bytes = |p: Packing, w| p.row_bytes(w).0 + p.row_bytes(w).1;
        assert_eq!(bytes(Packing::Fp8, 512), 528);
        assert_eq!(bytes(Packing::Fp4E4m3, 512), 288);
        assert_eq!(bytes(Packing::Fp4E8m0, 128), 68);
    }

    /// Catches a NaN that would be stored as a number.
    #[test]
    fn refuses_what_is_not_finite() {
        for packing in [Packing::Fp8, Packing::Fp4E4m3, Packing::Fp4E8m0] {
            let mut row = vec![1.0; 32];
            row[17] = f32::NAN;
            assert!(Rows::new(packing, 32).push(&row).is_err());
        }
    }
}
