//! Every backend of this machine gives the bits of the scalar definition: all formats, ragged
//! shapes, numbers of positions and threads.

mod common;

use common::{KINDS, Kind, Rng, Stored, assert_bits};
use numerics::{Backend, Kernels, Matrix, kda};

fn matmul(k: &Kernels, m: &Matrix, x: &[f32], t: usize) -> Vec<f32> {
    // Poisoned, so that an element left out shows.
    let mut out = vec![f32::from_bits(0xdead_beef); t * m.rows()];
    k.matmul(m, x, t, &mut out);
    out
}

fn transposed(k: &Kernels, m: &Matrix, x: &[f32], t: usize) -> Vec<f32> {
    let mut out = vec![f32::from_bits(0xdead_beef); t * m.cols()];
    k.matmul_transposed(m, x, t, &mut out);
    out
}

/// Both products of `m` on every backend and number of threads, against the definition.
fn check(m: &Matrix, x: &[f32], y: &[f32], t: usize, threads: &[usize], what: &str) {
    let scalar = Kernels::new(Backend::scalar(), 1);
    let want = matmul(&scalar, m, x, t);
    let want_transposed = transposed(&scalar, m, y, t);
    for backend in Backend::supported() {
        for &n in threads {
            let k = Kernels::new(backend, n);
            let what = format!("{what}, {t} positions, {k:?}");
            assert_bits(&matmul(&k, m, x, t), &want, &what);
            assert_bits(&transposed(&k, m, y, t), &want_transposed, &format!("transposed {what}"));
        }
    }
}

/// A backend that the processor advertises must be listed: a detection that fails silently would
/// make every test here compare the definition with itself.
#[test]
fn expected_backends_are_there() {
    let names: Vec<_> = Backend::supported().iter().map(|b| b.name()).collect();
    assert_eq!(names[0], "scalar");
    assert_eq!(Backend::detect().name(), *names.last().expect("scalar at least"));
    if cfg!(target_arch = "aarch64") {
        assert!(names.contains(&"neon"), "{names:?}");
    }
    if cfg!(all(target_arch = "wasm32", target_feature = "simd128")) {
        assert!(names.contains(&"simd128"), "{names:?}");
    }
    // Linux says what the processor has without our asking it the way the library does.
    if let (true, Ok(info)) =
        (cfg!(target_arch = "x86_64"), std::fs::read_to_string("/proc/cpuinfo"))
    {
        let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
        let has = |f: &str| flags.split_whitespace().any(|g| g == f);
        assert_eq!(names.contains(&"avx2"), has("avx2") && has("fma"), "{names:?}");
        let avx512 = has("avx2") && has("fma") && has("avx512f");
        assert_eq!(names.contains(&"avx512"), avx512, "{names:?}");
    }
}

/// Catches a tail handled wrongly: columns around every multiple of 16, 32 and the panel width,
/// rows around the tile and panel heights.
#[test]
fn ragged_shapes() {
    let mut rng = Rng(1);
    for kind in KINDS {
        for cols in [1, 2, 15, 16, 17, 30, 31, 32, 33, 34, 48, 63, 64, 66, 290, 510, 512, 514, 546]
        {
            for rows in [1, 2, 3, 5, 6, 7, 13] {
                if kind == Kind::Mxfp4 && cols % 2 != 0 {
                    continue;
                }
                let s = Stored::ordinary(kind, rows, cols, &mut rng);
                for t in [1, 2, 5] {
                    let (x, y) = (rng.units(t * cols), rng.units(t * rows));
                    check(&s.matrix(), &x, &y, t, &[1], &format!("{kind:?} [{rows}, {cols}]"));
                }
            }
        }
    }
}

/// Catches a tile of positions or a group of them put together wrongly.
#[test]
fn every_number_of_positions() {
    let mut rng = Rng(2);
    for kind in KINDS {
        let (rows, cols) = (14, 1090);
        let s = Stored::ordinary(kind, rows, cols, &mut rng);
        for t in (1..=17).chain([63, 64, 65, 66, 129]) {
            let (x, y) = (rng.units(t * cols), rng.units(t * rows));
            check(&s.matrix(), &x, &y, t, &[1], &format!("{kind:?} [{rows}, {cols}]"));
        }
    }
}

/// Catches a split that loses or repeats rows.
#[test]
fn threads_do_not_change_bits() {
    let mut rng = Rng(3);
    for kind in [Kind::Bf16, Kind::Mxfp4, Kind::Fp8, Kind::Floats] {
        let (rows, cols) = (517, 2048);
        let s = Stored::ordinary(kind, rows, cols, &mut rng);
        for t in [1, 3] {
            let (x, y) = (rng.units(t * cols), rng.units(t * rows));
            check(&s.matrix(), &x, &y, t, &[1, 2, 3, 8], &format!("{kind:?} [{rows}, {cols}]"));
        }
    }
}

/// Any bits as weights and as inputs: subnormals are not flushed, infinities and NaN come through,
/// scales at both ends of their range neither overflow nor vanish before the sum.
#[test]
fn any_bit_patterns() {
    let mut rng = Rng(4);
    let mut seen = [0usize; 3];
    for kind in KINDS {
        for _ in 0..40 {
            let (rows, cols) = (7, 2 * (1 + rng.below(40)));
            let s = Stored::any(kind, rows, cols, &mut rng);
            for t in [1, 4, 6] {
                // Now and then an infinite or NaN input; otherwise any finite one.
                let mut any = |n: usize| -> Vec<f32> {
                    let wild = rng.below(4) == 0;
                    let pick = |rng: &mut Rng| match wild {
                        true => f32::from_bits(rng.next() as u32),
                        false => rng.finite(),
                    };
                    (0..n).map(|_| pick(&mut rng)).collect()
                };
                let (x, y) = (any(t * cols), any(t * rows));
                check(&s.matrix(), &x, &y, t, &[1], &format!("{kind:?} [{rows}, {cols}]"));
                for v in matmul(&Kernels::new(Backend::detect(), 1), &s.matrix(), &x, t) {
                    let class = v.is_nan() as usize * 2 + v.is_infinite() as usize;
                    seen[class] += 1;
                    assert!(!v.is_nan() || v.to_bits() == 0x7fc0_0000, "NaN is canonical");
                }
            }
        }
    }
    assert!(seen.iter().all(|&n| n > 100), "finite, infinite and NaN results all occur: {seen:?}");
}

/// Every code of every narrow format times every scale, one weight at a time.
#[test]
fn every_code_and_scale() {
    for kind in [Kind::Mxfp4, Kind::Fp8Wide] {
        let codes = if kind == Kind::Mxfp4 { 16 } else { 256 };
        let scales = if kind == Kind::Mxfp4 { 256 } else { 255 };
        // Row `s` has scale `s` in all groups; column `c` holds code `c`.
        let (rows, cols) = (scales, codes);
        let mut stored = Stored::any(kind, rows, cols, &mut Rng(5));
        let groups = stored.scales.len() / rows;
        for (i, s) in stored.scales.iter_mut().enumerate() {
            *s = (i / groups) as u8;
        }
        let per_row = stored.bytes.len() / rows;
        for (i, b) in stored.bytes.iter_mut().enumerate() {
            let c = i % per_row;
            *b = match kind {
                Kind::Mxfp4 => (2 * c) as u8 | ((2 * c + 1) as u8) << 4,
                // A NaN would reach every product of its row.
                _ if c & 0x7f == 0x7f => 0,
                _ => c as u8,
            };
        }
        let m = stored.matrix();
        let mut row = vec![0f64; cols];
        for backend in Backend::supported() {
            let k = Kernels::new(backend, 1);
            for c in 0..cols {
                let mut x = vec![0f32; cols];
                x[c] = 1.0;
                // One position and several take different paths; so do scales past what `f32`
                // holds.
                let (one, two) = (matmul(&k, &m, &x, 1), matmul(&k, &m, &x.repeat(2), 2));
                for r in 0..rows {
                    m.widen_row64(r, &mut row);
                    // (Adding zero: a sum is never -0.)
                    let want = row[c] as f32 + 0.0;
                    let what = format!("{kind:?} code {c} scale {r} on {}", backend.name());
                    assert_bits(&[one[r], two[r], two[rows + r]], &[want; 3], &what);
                }
            }
        }
    }
}

/// A NaN code makes its row NaN, wherever it stands, and no other row.
#[test]
fn a_nan_weight_is_not_lost() {
    let (rows, cols) = (5, 70);
    for backend in Backend::supported() {
        let k = Kernels::new(backend, 1);
        for c in 0..cols {
            for code in [0x7f, 0xff] {
                let mut s = Stored::ordinary(Kind::Fp8, rows, cols, &mut Rng(7));
                s.bytes[2 * cols + c] = code;
                for t in [1, 3] {
                    let out = matmul(&k, &s.matrix(), &vec![1.0; t * cols], t);
                    for (i, v) in out.iter().enumerate() {
                        assert_eq!(v.is_nan(), i % rows == 2, "column {c}, row {}", i % rows);
                    }
                }
            }
        }
    }
}

/// The recurrence on every backend, for widths around the number of columns taken at once.
#[test]
fn kda_steps() {
    let mut rng = Rng(8);
    for (dk, dv) in [(1, 1), (3, 7), (16, 64), (128, 128), (5, 8), (4, 200), (2, 79)] {
        let state = rng.units(dk * dv);
        let (q, k, alpha) = (rng.units(dk), rng.units(dk), rng.units(dk));
        let (v, beta) = (rng.units(dv), rng.unit());
        let run = |backend: Option<Backend>| {
            let (mut s, mut o) = (state.clone(), vec![0f32; dv]);
            for _ in 0..3 {
                let (state, out) = (&mut s[..], &mut o[..]);
                match backend {
                    None => kda::step(state, &q, &k, &v, &alpha, beta, out),
                    Some(b) => Kernels::new(b, 1).kda_step(kda::Step {
                        state,
                        q: &q,
                        k: &k,
                        v: &v,
                        alpha: &alpha,
                        beta,
                        out,
                    }),
                }
            }
            [s, o].concat()
        };
        let want = run(None);
        for backend in Backend::supported() {
            let what = format!("KDA [{dk}, {dv}] on {}", backend.name());
            assert_bits(&run(Some(backend)), &want, &what);
        }
    }
}

/// A cut matrix multiplies like the rows of the whole, also when the cut is inside a scale block.
#[test]
fn row_ranges_and_strides() {
    let mut rng = Rng(6);
    let (rows, cols) = (70, 96);
    let x = rng.units(cols);
    for kind in KINDS {
        let s = Stored::ordinary(kind, rows, cols, &mut rng);
        let m = s.matrix();
        for backend in Backend::supported() {
            let k = Kernels::new(backend, 1);
            let whole = matmul(&k, &m, &x, 1);
            for range in [0..1, 5..38, 32..64, 69..70] {
                let part = matmul(&k, &m.row_range(range.clone()), &x, 1);
                assert_bits(&part, &whole[range.clone()], &format!("{kind:?} rows {range:?}"));
                // A cut of a cut.
                let cut = m.row_range(3..70).row_range(1..20);
                assert_bits(&matmul(&k, &cut, &x, 1), &whole[4..23], "a cut of a cut");
            }
        }
    }
    let values = rng.units(20 * 50);
    let m = Matrix::strided(&values, 20, 37, 50).expect("37 of 50");
    let (x, y) = (rng.units(3 * 37), rng.units(3 * 20));
    check(&m, &x, &y, 3, &[1], "strided");
    let got = matmul(&Kernels::new(Backend::detect(), 1), &m, &x, 3);
    // Called through a pointer: inlined, it becomes s390x's MDEB, which qemu 7.2 computes wrongly.
    let dot: fn(&[f32], &[f32]) -> f32 = std::hint::black_box(numerics::dot);
    for t in 0..3 {
        for r in 0..20 {
            let want = dot(&x[t * 37..][..37], &values[r * 50..][..37]);
            assert_eq!(got[t * 20 + r].to_bits(), want.to_bits());
        }
    }
}
