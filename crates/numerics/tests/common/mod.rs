//! Random matrices of every format, shared by the tests of this folder.
#![allow(dead_code)]

use numerics::{Matrix, NanScale, Weights};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// Uniform in -1..1 with a full mantissa.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
    /// Any finite float, from subnormals to the largest.
    pub fn finite(&mut self) -> f32 {
        loop {
            let f = f32::from_bits(self.next() as u32);
            if f.is_finite() {
                return f;
            }
        }
    }
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// Formats under test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Floats,
    F32,
    Bf16,
    Mxfp4,
    Fp8,
    /// fp8 with blocks of one row and 64 columns.
    Fp8Wide,
}

pub const KINDS: [Kind; 6] =
    [Kind::Floats, Kind::F32, Kind::Bf16, Kind::Mxfp4, Kind::Fp8, Kind::Fp8Wide];

/// The buffers of a matrix.
pub struct Stored {
    pub kind: Kind,
    pub rows: usize,
    pub cols: usize,
    pub floats: Vec<f32>,
    pub bytes: Vec<u8>,
    pub scales: Vec<u8>,
}

impl Stored {
    /// Ordinary weights: magnitudes around one, all codes of the narrow formats but NaN.
    pub fn ordinary(kind: Kind, rows: usize, cols: usize, rng: &mut Rng) -> Stored {
        let mut s = Stored::any(kind, rows, cols, rng);
        for b in &mut s.scales {
            *b = 120 + (*b % 12);
        }
        for f in &mut s.floats {
            *f = rng.unit();
        }
        match kind {
            Kind::F32 => {
                s.bytes = (0..rows * cols).flat_map(|_| rng.unit().to_le_bytes()).collect();
            }
            Kind::Bf16 => {
                let mut bf16 = || numerics::bf16::narrow(rng.unit()).to_le_bytes();
                s.bytes = (0..rows * cols).flat_map(|_| bf16()).collect();
            }
            Kind::Fp8 | Kind::Fp8Wide => {
                s.bytes.iter_mut().filter(|b| **b & 0x7f == 0x7f).for_each(|b| *b = 0x7e);
            }
            _ => (),
        }
        s
    }

    /// Any bit patterns: subnormals, infinities, NaN of every payload, every scale the format
    /// takes.
    pub fn any(kind: Kind, rows: usize, cols: usize, rng: &mut Rng) -> Stored {
        let n = rows * cols;
        let (floats, bytes, scales) = match kind {
            Kind::Floats => (n, 0, 0),
            Kind::F32 => (0, 4 * n, 0),
            Kind::Bf16 => (0, 2 * n, 0),
            Kind::Mxfp4 => (0, rows * (cols / 2), rows * cols.div_ceil(32)),
            Kind::Fp8 => (0, n, rows.div_ceil(32) * cols.div_ceil(32)),
            Kind::Fp8Wide => (0, n, rows * cols.div_ceil(64)),
        };
        let floats = (0..floats).map(|_| f32::from_bits(rng.next() as u32)).collect();
        let (bytes, mut scales) = (rng.bytes(bytes), rng.bytes(scales));
        if kind != Kind::Mxfp4 {
            scales.iter_mut().filter(|s| **s == 255).for_each(|s| *s = 254);
        }
        Stored { kind, rows, cols, floats, bytes, scales }
    }

    pub fn matrix(&self) -> Matrix<'_> {
        let (bytes, scales) = (&self.bytes[..], &self.scales[..]);
        let weights = match self.kind {
            Kind::Floats => Weights::Floats(&self.floats),
            Kind::F32 => Weights::F32(bytes),
            Kind::Bf16 => Weights::Bf16(bytes),
            Kind::Mxfp4 => Weights::Mxfp4 { packed: bytes, scales, nan: NanScale::ZeroGroup },
            Kind::Fp8 => Weights::Fp8 { codes: bytes, scales, block_rows: 32, block_cols: 32 },
            Kind::Fp8Wide => Weights::Fp8 { codes: bytes, scales, block_rows: 1, block_cols: 64 },
        };
        Matrix::new(self.rows, self.cols, weights).expect("buffers of the right size")
    }
}

/// Fails with the first element whose bits differ.
pub fn assert_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!(a.to_bits() == b.to_bits(), "{what}: element {i} is {a:e}, expected {b:e}");
    }
}
