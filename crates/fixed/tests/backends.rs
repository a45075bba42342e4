//! Every backend of this machine against the definition, bit for bit. `cargo xtask avx512` runs the
//! same tests on an emulated processor, without an operating system.
#![cfg(feature = "std")]

use fixed::arith::words::{I32, I64};
use fixed::arith::{Backend, Input, Overflow, Rows, Scratch, plain};
use std::vec::Vec;

/// The tests for a machine without a test harness.
pub const ALL: &[(&str, fn())] = &[
    ("products_of_every_width_equal_the_definition", products_of_every_width_equal_the_definition),
    (
        "products_at_the_edges_of_the_digits_equal_the_definition",
        products_at_the_edges_of_the_digits_equal_the_definition,
    ),
    ("products_of_extreme_values_do_not_overflow", products_of_extreme_values_do_not_overflow),
    ("every_byte_value_is_unsigned", every_byte_value_is_unsigned),
    ("a_prepared_input_forgets_the_one_before", a_prepared_input_forgets_the_one_before),
    ("attention_equals_the_definition", attention_equals_the_definition),
    (
        "probabilities_at_whole_quotients_equal_the_definition",
        probabilities_at_whole_quotients_equal_the_definition,
    ),
    ("normalisation_equals_the_definition", normalisation_equals_the_definition),
];

/// splitmix64: enough randomness for tests, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A signed value of at most `bits` bits besides the sign.
    fn signed(&mut self, bits: u32) -> i64 {
        (self.next() as i64) >> (63 - bits)
    }
}

struct Matrix {
    scales: Vec<[u8; 4]>,
    weights: Vec<u8>,
    cols: usize,
}

impl Matrix {
    fn new(rows: usize, cols: usize, mut byte: impl FnMut() -> u8) -> Matrix {
        let scales =
            (0..rows as u32).map(|r| (u32::MAX / 7).wrapping_mul(r).wrapping_add(1).to_le_bytes());
        Matrix {
            scales: scales.collect(),
            weights: (0..rows * cols).map(|_| byte()).collect(),
            cols,
        }
    }

    fn rows(&self) -> Rows<'_> {
        Rows { scales: &self.scales, weights: &self.weights, cols: self.cols }
    }
}

fn words(values: impl IntoIterator<Item = i64>) -> Vec<I64> {
    values.into_iter().map(I64::new).collect()
}

/// All backends on one product; the reference is written out here once more, without any trick.
fn check_product(matrix: &Matrix, x: &[I64], what: &str) {
    let expected: Vec<i64> = matrix
        .rows()
        .each()
        .map(|(weights, scale)| {
            let dot = weights.iter().zip(x).fold(0i64, |acc, (&byte, x)| {
                acc.wrapping_add((byte as i64 - 128).wrapping_mul(x.get()))
            });
            dot.wrapping_mul(u32::from_le_bytes(scale) as i64) >> 24
        })
        .collect();
    let mut scratch = Scratch::default();
    for backend in Backend::supported() {
        let mut out = vec![I64::new(-1); expected.len()];
        backend.matvec(&mut scratch, matrix.rows(), x, &mut out);
        let got: Vec<i64> = out.iter().map(|y| y.get()).collect();
        assert_eq!(got, expected, "{} on {what}", backend.name());
        let mut cache = vec![I32::new(-1); expected.len()];
        let result = backend.matvec_cache(&mut scratch, matrix.rows(), x, &mut cache);
        if expected.iter().all(|&y| i32::try_from(y).is_ok()) {
            assert_eq!(result, Ok(()));
            assert!(cache.iter().zip(&expected).all(|(got, &y)| got.get() as i64 == y));
        } else {
            assert_eq!(result, Err(Overflow), "{} on {what}", backend.name());
        }
    }
}

/// Catches wrong tails: widths around every register and block size, rows that do not fill a group.
#[cfg_attr(test, test)]
fn products_of_every_width_equal_the_definition() {
    let mut random = Random(1);
    for cols in (1..=200).chain([255, 256, 257, 511, 512, 513, 544, 1023, 1024, 1025, 1500]) {
        let matrix = Matrix::new(1 + cols % 7, cols, || random.next() as u8);
        let mut random = Random(cols as u64);
        for bits in [3, 14, 15, 17, 22, 29, 30, 31, 40, 46, 54, 62, 63] {
            let x = words((0..cols).map(|_| random.signed(bits)));
            check_product(&matrix, &x, &format!("{cols} columns of {bits} bits"));
        }
    }
}

/// Catches digits that miss a bound by one: every power of two and its neighbours, both signs.
#[cfg_attr(test, test)]
fn products_at_the_edges_of_the_digits_equal_the_definition() {
    let mut random = Random(2);
    for cols in [33, 64, 100] {
        let matrix = Matrix::new(5, cols, || random.next() as u8);
        for bit in 0..64 {
            for delta in [-1, 0, 1] {
                let edge = (1i64 << bit).wrapping_add(delta);
                for edge in [edge, edge.wrapping_neg()] {
                    check_product(&matrix, &words([edge].repeat(cols)), &format!("{edge}"));
                    // One large value among small ones decides the number of digits for all.
                    let x = words((0..cols as i64).map(|i| if i == 7 { edge } else { i - 20 }));
                    check_product(&matrix, &x, &format!("one {edge}"));
                }
            }
        }
    }
}

/// Catches 32-bit sums that overflow: the largest bytes times the largest digits of both signs, at
/// the widest matrix a configuration allows and beyond the parts rows are summed in.
#[cfg_attr(test, test)]
fn products_of_extreme_values_do_not_overflow() {
    let edges =
        [i64::MIN, i64::MAX, 0x7F7F_7F7F_7F7F_7F7F, -0x7F80_7F80_7F80_7F80, i32::MIN as i64];
    let digits16 = [-0x8000, 0x7FFF, -0x7FFF_8000, 0x3FFF_FFFF, -0x4000_0000];
    let digits8 = [-0x80, 0x7F, -0x8080, 0x7F_7F7F, -0x80_8080];
    for cols in [96, 512, 2048, 4096, 49_152, 131_072] {
        for byte in [0u8, 255] {
            let matrix = Matrix::new(3, cols, || byte);
            for value in edges.into_iter().chain(digits16).chain(digits8) {
                check_product(&matrix, &words([value].repeat(cols)), &format!("{cols} x {value}"));
            }
        }
    }
}

/// Catches a byte taken for signed: each byte value alone in its row.
#[cfg_attr(test, test)]
fn every_byte_value_is_unsigned() {
    let mut byte = 0u8;
    let matrix = Matrix::new(256, 64, || {
        byte = byte.wrapping_add(1);
        byte
    });
    check_product(&matrix, &words((0..64).map(|i| if i == 9 { 1 << 30 } else { 0 })), "bytes");
}

/// Catches an input that remembers a longer or larger one prepared before it.
#[cfg_attr(test, test)]
fn a_prepared_input_forgets_the_one_before() {
    let mut random = Random(3);
    for backend in Backend::supported() {
        let mut input = Input::default();
        for (cols, bits) in [(500, 63), (100, 10), (31, 60), (64, 20), (1, 63), (200, 35)] {
            let matrix = Matrix::new(6, cols, || random.next() as u8);
            let x = words((0..cols).map(|i| Random(i as u64).signed(bits)));
            let (mut expected, mut got) = (words([0; 6]), words([0; 6]));
            plain::matvec(matrix.rows(), &x, &mut expected);
            input.prepare(backend, &x);
            input.rows(matrix.rows(), &mut got);
            assert_eq!(got, expected, "{}: {cols} columns of {bits} bits", backend.name());
        }
    }
}

/// Catches attention shortcuts used where they are not exact, wrong ranges and lost remainders:
/// head sizes around the register sizes, values of every size, turns that stop at any unit.
#[cfg_attr(test, test)]
fn attention_equals_the_definition() {
    let mut random = Random(4);
    for (case, size) in
        [2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 36, 48, 64].repeat(6).iter().enumerate()
    {
        let (size, positions) = (*size, 1 + random.next() as usize % 70);
        let stride = size * (1 + case % 3);
        let bits = [10, 18, 30, 31, 32, 63][case % 6];
        let q = words((0..size).map(|_| random.signed(bits)));
        let cache: Vec<I32> =
            (0..positions * stride).map(|_| I32::new(random.next() as i32)).collect();
        let cut = random.next() as usize % (positions + 1);
        for backend in Backend::supported() {
            let (mut expected, mut got) = (words(vec![7; positions]), words(vec![7; positions]));
            let mut largest = [5, 5];
            for range in [0..cut, cut..positions] {
                largest[0] = plain::scores(
                    &q,
                    &cache,
                    stride,
                    5_931_641,
                    range.clone(),
                    &mut expected,
                    largest[0],
                );
                largest[1] =
                    backend.scores(&q, &cache, stride, 5_931_641, range, &mut got, largest[1]);
                assert_eq!(largest[0], largest[1], "{} size {size}", backend.name());
            }
            assert_eq!(got, expected, "{} scores of size {size}", backend.name());

            // Exponentials as execution makes them, and weights no execution makes.
            let bits = [31, 30, 24, 32, 40, 63][case % 6];
            let e = words((0..positions).map(|_| random.signed(bits)));
            let made: Vec<I64> = e.iter().map(|e| I64::new(e.get() & 0x7FFF_FFFF)).collect();
            let sum = made.iter().map(|e| e.get() as u64).sum();
            for (scores, total) in [
                (&made, sum),
                (&made, 1 << 30),
                (&made, 1 << 24),
                (&made, 1 << 47),
                (&made, 3),
                (&e, sum),
                (&e, 0),
                (&e, u64::MAX),
            ] {
                let (mut expected, mut got) = (scores.clone(), scores.clone());
                for range in [0..cut, cut..positions] {
                    plain::probabilities(total, range.clone(), &mut expected);
                    backend.probabilities(total, range, &mut got);
                }
                assert_eq!(got, expected, "{} of total {total}", backend.name());
            }

            let cut = random.next() as usize % (size + 1);
            for weights in [&made, &e] {
                let (mut expected, mut got) = (words(vec![7; size]), words(vec![7; size]));
                for range in [0..cut, cut..size] {
                    plain::weighted_values(weights, &cache, stride, range.clone(), &mut expected);
                    backend.weighted_values(weights, &cache, stride, range, &mut got);
                }
                let written_out: Vec<I64> = words((0..size).map(|e| {
                    let products = weights
                        .iter()
                        .enumerate()
                        .map(|(i, w)| w.get().wrapping_mul(cache[i * stride + e].get() as i64));
                    products.fold(0i64, |acc, p| acc.wrapping_add(p)) >> 24
                }));
                assert_eq!(expected, written_out);
                assert_eq!(got, expected, "{} values of size {size}", backend.name());
            }
        }
    }
}

/// Catches a reciprocal that is off by one: quotients at and next to whole numbers.
#[cfg_attr(test, test)]
fn probabilities_at_whole_quotients_equal_the_definition() {
    let mut random = Random(5);
    for log in 24..48 {
        for total in
            [1u64 << log, (1 << log) + 1, (2 << log) - 1, random.next() >> (63 - log) | 1 << log]
        {
            let mut scores: Vec<i64> = vec![0, 1, (1 << 31) - 1, (1 << 30) - 1, 1 << 30];
            for _ in 0..40 {
                // e * 2^24 just below, at and above a multiple of the total.
                let quotient = random.next() % (1 << 24);
                let e = ((quotient as u128 * total as u128) >> 24) as i64;
                scores.extend([e - 1, e, e + 1].into_iter().filter(|e| (0..1 << 31).contains(e)));
            }
            let mut expected = words(scores);
            let start = expected.clone();
            plain::probabilities(total, 0..start.len(), &mut expected);
            for backend in Backend::supported() {
                let mut got = start.clone();
                backend.probabilities(total, 0..start.len(), &mut got);
                assert_eq!(got, expected, "{} total {total}", backend.name());
            }
        }
    }
}

/// Catches a root or a quotient that is off by one, and sums of squares that have to wrap.
#[cfg_attr(test, test)]
fn normalisation_equals_the_definition() {
    let mut random = Random(6);
    for (case, len) in [2, 3, 10, 64, 288, 1000].repeat(40).into_iter().enumerate() {
        let bits = [0, 4, 10, 18, 24, 31, 32, 40, 55, 63][case % 10];
        let x = words((0..len).map(|_| random.signed(bits)));
        let weights: Vec<[u8; 4]> =
            (0..len).map(|_| (random.next() as u32).to_le_bytes()).collect();
        let squares = x.iter().fold(0u64, |t, x| t.wrapping_add((x.get() as u64).wrapping_pow(2)));
        let root = (squares / len as u64 + 42_950).isqrt() as i64;
        let expected = words(
            x.iter()
                .zip(&weights)
                .map(|(x, w)| (x.get().wrapping_mul(i32::from_le_bytes(*w) as i64) / root) >> 8),
        );
        for backend in Backend::supported() {
            let (mut out, mut in_place) = (words(vec![1; len]), x.clone());
            backend.rms_norm(&x, &weights, &mut out);
            backend.rms_norm_in_place(&mut in_place, &weights);
            assert_eq!(out, expected, "{} of {len} values of {bits} bits", backend.name());
            assert_eq!(in_place, expected, "{} in place", backend.name());
        }
    }
}

/// Fails, rather than skips, where the processor has a backend's instructions and the backend is
/// not offered.
#[cfg(test)]
#[test]
#[allow(clippy::print_stdout)]
fn a_backend_the_processor_has_is_supported() {
    let names: Vec<_> = Backend::supported().map(Backend::name).collect();
    println!("supported: {names:?}, chosen: {}", Backend::detect().name());
    assert_eq!(names[0], "plain");
    assert_eq!(*names.last().unwrap(), Backend::detect().name());
    if cfg!(target_arch = "aarch64") {
        assert!(names.contains(&"neon"));
    }
    let Ok(info) = std::fs::read_to_string("/proc/cpuinfo") else { return };
    let Some(flags) = info.lines().find(|line| line.starts_with("flags")) else { return };
    let has = |flag| flags.split_whitespace().any(|f| f == flag);
    // qemu's user mode shows the host's file: ask only where the file is this processor's.
    if cfg!(target_arch = "x86_64") {
        assert_eq!(names.contains(&"avx2"), has("avx2"));
        let vnni = ["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"];
        assert_eq!(names.contains(&"avx512-vnni"), vnni.into_iter().all(has));
    }
}
