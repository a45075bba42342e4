//! The same bits on every architecture: digests of results on random data. `cargo xtask arch` computes
//! them on aarch64 and on big-endian s390x, where comparing the backends with each other says little.

mod common;

use common::{KINDS, Rng, Stored};
use numerics::{Backend, Kernels, elementary, kda, quantize, rms_norm, softmax};

/// FNV-1a over the bits.
fn digest(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|v| v.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3))
}

/// Catches weights, scales or nibbles read in the machine's byte order, and sums in another order.
#[test]
fn products() {
    for backend in Backend::supported() {
        let (k, mut rng) = (Kernels::new(backend, 1), Rng(11));
        let got = KINDS.map(|kind| {
            let (rows, cols, t) = (13, 290, 3);
            let mut all = Vec::new();
            for s in [
                Stored::ordinary(kind, rows, cols, &mut rng),
                Stored::any(kind, rows, cols, &mut rng),
            ] {
                let (x, y) = (rng.units(t * cols), rng.units(t * rows));
                let (mut out, mut across) = (vec![0f32; t * rows], vec![0f32; t * cols]);
                k.matmul(&s.matrix(), &x, t, &mut out);
                k.matmul_transposed(&s.matrix(), &y, t, &mut across);
                all.extend(out.into_iter().chain(across));
            }
            digest(&all)
        });
        assert_eq!(got, PRODUCTS, "{KINDS:?} on {}", backend.name());
    }
}

/// By kind, as computed by the scalar definition on x86-64.
const PRODUCTS: [u64; 6] = [
    0x2cea_1b56_9cd7_3b04,
    0x3a74_24cf_17a1_e82d,
    0x7a3a_f2f9_fde3_cc02,
    0xe184_b855_dded_fac6,
    0x4a40_4b76_1b69_3caa,
    0xec9e_8aa9_8dfb_378b,
];

/// Catches a step of the recurrence that is fused on one machine and not on another.
#[test]
fn recurrence() {
    for backend in Backend::supported() {
        let mut rng = Rng(12);
        let (dk, dv) = (48, 79);
        let (mut state, mut out) = (rng.units(dk * dv), vec![0f32; dv]);
        for _ in 0..4 {
            let (q, k, alpha) = (rng.units(dk), rng.units(dk), rng.units(dk));
            let (v, beta) = (rng.units(dv), rng.unit());
            Kernels::new(backend, 1).kda_step(kda::Step {
                state: &mut state,
                q: &q,
                k: &k,
                v: &v,
                alpha: &alpha,
                beta,
                out: &mut out,
            });
        }
        let got = digest(&[state, out].concat());
        assert_eq!(got, RECURRENCE, "{got:#x} on {}", backend.name());
    }
}

const RECURRENCE: u64 = 0x20cf_c182_0d20_5883;

/// Catches a platform's library behind a function, and a reduction in another order.
#[test]
fn elements() {
    let x = Rng(13).units(1000);
    let (mut norm, mut shares) = (vec![0f32; x.len()], x.clone());
    rms_norm(&x, Some(&Rng(14).units(1000)), 1e-6, &mut norm);
    softmax(&mut shares);
    let [mut fp8, mut fp4, mut nv] = [x.clone(), x.clone(), x.clone()];
    quantize::fp8_round_trip(&mut fp8).expect("finite");
    quantize::fp4_round_trip(&mut fp4).expect("finite");
    quantize::fp4_e4m3_round_trip(&mut nv).expect("finite");
    let each = |f: fn(f32) -> f32| x.iter().map(|&x| f(8.0 * x)).collect::<Vec<f32>>();
    let functions: [fn(f32) -> f32; 7] = [
        elementary::exp,
        elementary::tanh,
        elementary::sin,
        elementary::cos,
        elementary::sigmoid,
        elementary::silu,
        elementary::softplus,
    ];
    let values = [vec![norm, shares, fp8, fp4, nv], functions.map(each).to_vec()].concat();
    let got: Vec<u64> = values.iter().map(|v| digest(v)).collect();
    assert_eq!(got, ELEMENTS, "norm, softmax, three formats, functions: {got:#x?}");
}

const ELEMENTS: [u64; 12] = [
    0xa789_30eb_3345_e0eb,
    0x6d78_4ff7_c6e5_1609,
    0x30ee_93c2_ba51_c1c2,
    0xf9ce_a9ca_545e_be68,
    0xe2d4_5ccb_6103_fb59,
    0x01df_d093_0bf7_6bba,
    0x275e_2681_f4b4_93aa,
    0x0a7d_eb3d_b6bf_1a3c,
    0xb667_d9d2_83a2_f5ad,
    0x27ee_417f_c4a1_d06c,
    0x9026_56da_de8e_5272,
    0x5f5e_5086_a40c_ddbb,
];
