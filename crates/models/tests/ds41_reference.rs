//! The attention reference and its helpers against the golden data of an independent
//! implementation.

mod ds41_common;

use ds41_common::{bytes, check, check_ints, floats, json};
use models::compare::Tolerance;
use models::deepseek_v41::check::{CheckError, check_op};
use models::deepseek_v41::reference as r;
use models::machine::{DType, Piece, Snapshot};
use models::tensor_file::TensorFile;

const CASES: [&str; 6] = [
    "seedlike",
    "short_then_wrap",
    "exact_window",
    "two_windows",
    "one_group_window1",
    "single_token",
];

/// Catches every plausible mistake listed in the reference's docs: all intermediates of prefill
/// and decode through one ring, in six shapes.
#[test]
fn attention_all_cases_all_intermediates() {
    for case in CASES {
        let bytes = bytes(&format!("attn0/{case}.safetensors"));
        let file = TensorFile::parse(&bytes).unwrap();
        let steps = file.names().filter(|n| n.ends_with(".x")).count();
        let reports = check_op("attn0", &file).unwrap();
        assert_eq!(reports.len(), steps * 10, "{case}: every intermediate of every step");
        for report in reports {
            assert!(report.passed(), "{case}: {report}");
        }
    }
}

/// Catches a check that cannot fail: one value of one result is changed by three bf16 steps of
/// the largest value, and one index.
#[test]
fn check_op_finds_a_wrong_value_and_says_where() {
    let original = bytes("attn0/seedlike.safetensors");
    let file = TensorFile::parse(&original).unwrap();
    for (name, element) in [("step1.o", 70), ("step2.idx", 3), ("step0.ring", 200)] {
        let tensor = file.get(name).unwrap();
        let at = tensor.bytes.as_ptr() as usize - original.as_ptr() as usize;
        let size = tensor.bytes.len() / tensor.shape.iter().product::<usize>();
        let mut edited = original.clone();
        edited[at + element * size + size - 1] ^= 0x40;
        let reports = check_op("attn0", &TensorFile::parse(&edited).unwrap()).unwrap();
        let failed: Vec<_> = reports.iter().filter(|r| !r.passed()).collect();
        assert_eq!(failed.len(), 1, "{name}");
        assert_eq!(failed[0].name, name);
        let place = failed[0].first_outside.as_ref().unwrap();
        let flat = place.index.iter().zip(&tensor.shape).fold(0, |i, (at, size)| i * size + at);
        assert_eq!(flat, element, "{name}");
        assert!(failed[0].to_string().contains("outside, the first at"), "{}", failed[0]);
    }
}

/// Catches an operation that reads its file wrongly or cannot fail: every helper on golden inputs
/// passes, and fails with its first input changed.
#[test]
fn every_helper_can_be_checked_from_a_file() {
    let sources = ["attn0/exact_window", "ops/act_quant", "ops/rope", "ops/linear"];
    let bytes = sources.map(|s| bytes(&format!("{s}.safetensors")));
    let files = [0, 1, 2, 3].map(|i| TensorFile::parse(&bytes[i]).unwrap());
    // Operation, golden file, (name in the file for the check, golden name), metadata.
    type Case =
        (&'static str, usize, Vec<(&'static str, &'static str)>, Vec<(&'static str, &'static str)>);
    let cases: [Case; 5] = [
        (
            "sparse_attn",
            0,
            vec![
                ("q", "step1.q"),
                ("kv", "step1.kv_rows"),
                ("sink", "w.attn_sink"),
                ("idx", "step1.idx"),
                ("o", "step1.o"),
            ],
            vec![],
        ),
        ("act_quant", 1, vec![("x", "fp8.x"), ("y", "fp8.qdq")], vec![]),
        (
            "apply_rotary",
            2,
            vec![("x", "apply.x"), ("pos", "apply.pos"), ("y", "apply.y")],
            vec![("rope_dim", "16"), ("rope_theta", "10000"), ("inverse", "false")],
        ),
        (
            "rms_norm",
            3,
            vec![("x", "rms.x"), ("w", "rms.w"), ("y", "rms.y")],
            vec![("eps", "1e-20")],
        ),
        ("linear_bf16", 3, vec![("x", "fp8.x"), ("w", "fp8.dequant"), ("y", "fp8.y_bf16")], vec![]),
    ];
    for (op, file, tensors, meta) in cases {
        let mut w = Snapshot::default();
        w.meta.extend(meta.iter().map(|(k, v)| (k.to_string(), v.to_string())));
        for (name, golden) in &tensors {
            let t = files[file].get(golden).unwrap();
            let (dtype, bytes) = match DType::from_name(&t.dtype) {
                Some(dtype) => (dtype, t.bytes.to_vec()),
                // Indices and positions here are small and not negative: bytes will do.
                None => {
                    let small = files[file].integers(golden).unwrap().1;
                    (DType::U8, small.iter().map(|&v| u8::try_from(v).unwrap()).collect())
                }
            };
            let shape = t.shape.clone();
            w.pieces.push(Piece { name: name.to_string(), dtype, shape, bytes: bytes.into() });
        }
        let passed = |w: &Snapshot<'_>| {
            let bytes = w.write();
            check_op(op, &TensorFile::parse(&bytes).unwrap()).unwrap().iter().all(|r| r.passed())
        };
        assert!(passed(&w), "{op}");
        // The sign of the first rows' values.
        w.pieces[0].bytes.to_mut().iter_mut().skip(1).step_by(2).take(64).for_each(|b| *b ^= 0x80);
        assert!(!passed(&w), "{op} with another input");
        w.pieces.pop();
        let bytes = w.write();
        assert!(
            check_op(op, &TensorFile::parse(&bytes).unwrap()).is_err(),
            "{op} without a result"
        );
    }
}

/// Catches panics and silent acceptance on files that do not fit the operation.
#[test]
fn check_op_refuses_unfit_files() {
    let empty = Snapshot::default().write();
    let empty = TensorFile::parse(&empty).unwrap();
    assert!(matches!(check_op("attn9", &empty), Err(CheckError::Op(_))));
    for op in models::deepseek_v41::check::OPS {
        assert!(check_op(op, &empty).is_err(), "{op}");
    }
    let mut w = Snapshot::default();
    for (name, shape) in [("q", &[1, 1, 2][..]), ("kv", &[2, 2]), ("sink", &[1]), ("o", &[1, 1, 2])]
    {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()].into();
        let (name, shape) = (name.to_owned(), shape.to_vec());
        w.pieces.push(Piece { name, dtype: DType::F32, shape, bytes });
    }
    let two = vec![2].into();
    w.pieces.push(Piece { name: "idx".into(), dtype: DType::U8, shape: vec![1, 1], bytes: two });
    let outside = w.write();
    let error = check_op("sparse_attn", &TensorFile::parse(&outside).unwrap()).unwrap_err();
    assert!(error.to_string().contains("idx: 2 is outside"), "{error}");
    let bytes = bytes("attn0/seedlike.safetensors");
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(bytes[8..8 + header].to_vec()).unwrap();
    let edits = [
        ("\\\"window_size\\\": 8", "\\\"window_size\\\": 0"),
        ("\\\"rope_head_dim\\\": 8", "\\\"rope_head_dim\\\": 9"),
        ("[[0, 12]", "[[9, 12]"),
        ("[13, 1]]", "[13, 9]]"),
        ("\\\"n_heads\\\": 4", "\\\"n_heads\\\": 5"),
        ("[12, 1]", "[12, 2]"),
        ("\"10000.0\"", "\"1000x.0\""),
    ];
    for (from, to) in edits {
        let at = text.find(from).unwrap_or_else(|| panic!("{from}")) + 8;
        let mut edited = bytes.clone();
        edited[at..at + to.len()].copy_from_slice(to.as_bytes());
        assert!(check_op("attn0", &TensorFile::parse(&edited).unwrap()).is_err(), "{from}");
    }
}

/// Catches a window one row too long, a ring read in the wrong order, and an order that is wrong
/// only where the ring wraps.
#[test]
fn window_indices() {
    let cases = json("attn0/window_idx.json");
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() > 5);
    for case in cases {
        let size = |key: &str| case[key].as_u64().unwrap() as usize;
        let (idx, cols) = r::window_topk_idxs(size("window"), size("seqlen"), size("start_pos"));
        let want: Vec<i32> =
            case["idx"].as_array().unwrap().iter().map(|v| v.as_i64().unwrap() as i32).collect();
        assert_eq!((cols, idx), (size("cols"), want), "{case}");
    }
}

/// Catches wrong rounding anywhere in the four formats: every code, and inputs on, just below
/// and just above every boundary.
#[test]
fn formats() {
    let bytes = bytes("ops/formats.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let ints = |name: &str| file.integers(name).unwrap().1;
    // The golden table has 0 for the two NaN codes.
    let number = |x: f32| if x.is_nan() { 0.0 } else { x };
    assert!(r::e4m3_to_f32(0x7F).is_nan() && r::e4m3_to_f32(0xFF).is_nan());
    let decoded: Vec<f32> = (0..=255).map(|c| number(r::e4m3_to_f32(c))).collect();
    check(&file, "e4m3.decode", &decoded, Tolerance::EXACT);
    let codes: Vec<u8> =
        floats(&file, "e4m3.enc_in").iter().map(|&x| r::f32_to_e4m3_rne(x)).collect();
    check_ints(&file, "e4m3.enc_code", &codes.iter().map(|&c| i64::from(c)).collect::<Vec<_>>());
    let values: Vec<f32> = codes.iter().map(|&c| r::e4m3_to_f32(c)).collect();
    check(&file, "e4m3.enc_value", &values, Tolerance::EXACT);

    let decoded: Vec<f32> = (0..16).map(r::e2m1_to_f32).collect();
    check(&file, "e2m1.decode", &decoded, Tolerance::EXACT);
    let codes: Vec<u8> =
        floats(&file, "e2m1.enc_in").iter().map(|&x| r::f32_to_e2m1_rne(x)).collect();
    check_ints(&file, "e2m1.enc_code", &codes.iter().map(|&c| i64::from(c)).collect::<Vec<_>>());

    let x = floats(&file, "bf16.x");
    for (x, bits) in x.iter().zip(ints("bf16.y_bits")) {
        let got = r::to_bf16_bits(*x);
        let same = i64::from(got) == bits & 0xFFFF
            || x.is_nan() && f32::from_bits(u32::from(got) << 16).is_nan();
        assert!(same, "{x:e}: got {got:#06x}, want {bits:#06x}");
    }

    let x = floats(&file, "pow2_ceil.x");
    let y: Vec<f32> = x.iter().map(|&x| r::pow2_ceil(x)).collect();
    check(&file, "pow2_ceil.y", &y, Tolerance::EXACT);
    let codes: Vec<i64> = y.iter().map(|&y| i64::from(r::f32_to_e8m0(y))).collect();
    check_ints(&file, "pow2_ceil.e8m0", &codes);
}

/// Catches a difference between the definitions here and the fast versions in `numerics`.
#[test]
fn formats_agree_with_numerics() {
    for code in 0..=255u8 {
        let (a, b) = (r::e4m3_to_f32(code), numerics::fp8::decode(code));
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "e4m3 {code}");
        let (a, b) = (r::e8m0_to_f32(code), numerics::e8m0::decode(code));
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "e8m0 {code}");
        assert_eq!(r::e2m1_to_f32(code & 15).to_bits(), numerics::fp4::decode(code).to_bits());
    }
    // Every upper half of an f32, and beside each the smallest and largest numbers that share it.
    for high in 0..=0xFFFFu32 {
        for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
            let x = f32::from_bits(high << 16 | low);
            if x.is_nan() {
                continue;
            }
            assert_eq!(r::to_bf16_bits(x), numerics::bf16::narrow(x), "{x:e}");
            assert_eq!(r::f32_to_e4m3_rne(x), numerics::fp8::encode(x), "{x:e}");
            assert_eq!(Some(r::f32_to_e2m1_rne(x)), numerics::fp4::encode(x), "{x:e}");
        }
    }
}

/// Catches a wrong scale (floor, ceiling, block size) and rounding after instead of before the
/// scale is taken out; codes and scales exactly.
#[test]
fn activation_rounding() {
    let bytes = bytes("ops/act_quant.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let x = floats(&file, "fp8.x");
    let mut codes = Vec::new();
    let mut scales = Vec::new();
    for block in x.chunks(r::FP8_BLOCK) {
        let scale = r::fp8_scale(block);
        scales.push(i64::from(r::f32_to_e8m0(scale)));
        codes.extend(block.iter().map(|v| i64::from(r::f32_to_e4m3_rne(v / scale))));
    }
    check_ints(&file, "fp8.code", &codes);
    check_ints(&file, "fp8.scale", &scales);
    type RoundTrip = fn(&mut [f32]);
    let round_trips: [(&str, RoundTrip); 3] = [
        ("fp8", r::act_quant_inplace),
        ("fp4_e8m0_b32", r::fp4_e8m0_inplace),
        ("fp4_e4m3_b16", r::fp4_e4m3_inplace),
    ];
    for (name, round_trip) in round_trips {
        let mut x = floats(&file, &format!("{name}.x"));
        round_trip(&mut x);
        check(&file, &format!("{name}.qdq"), &x, Tolerance::EXACT);
    }
}

/// Catches a norm with the wrong mean or order, and NaN for a row of zeros.
#[test]
fn rms_norm() {
    let bytes = bytes("ops/linear.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    let w = floats(&file, "rms.w");
    for name in ["rms", "rms_zero_row"] {
        let y = r::rms_norm(&floats(&file, &format!("{name}.x")), &w, 1e-20);
        check(&file, &format!("{name}.y"), &y, Tolerance::BF16);
    }
}

/// Catches tables with or without YaRN where the other belongs, halves instead of adjacent
/// pairs, and an inverse that is not one.
#[test]
fn rope_tables_and_rotation() {
    let bytes = bytes("ops/rope.safetensors");
    let file = TensorFile::parse(&bytes).unwrap();
    for name in ["small_plain", "small_yarn", "another_yarn"] {
        let (shape, cos) = file.floats(&format!("{name}.cos")).unwrap();
        let (positions, dim) = (shape[0], 2 * shape[1]);
        assert_eq!(cos.len(), positions * dim / 2);
        let (base, yarn) = match name {
            "small_plain" => (10000.0, None),
            "small_yarn" => (160000.0, Some(yarn(32, 4.0))),
            _ => (40000.0, Some(yarn(32, 2.0))),
        };
        let table = r::table(&r::rope_freqs(dim, base, yarn.as_ref()), positions);
        let (cos, sin): (Vec<f32>, Vec<f32>) = table.into_iter().unzip();
        check(&file, &format!("{name}.cos"), &cos, Tolerance::F32);
        check(&file, &format!("{name}.sin"), &sin, Tolerance::F32);
    }
    let (shape, x) = file.floats("apply.x").unwrap();
    let pos = file.integers("apply.pos").unwrap().1;
    let row_pos: Vec<usize> =
        pos.iter().flat_map(|&p| std::iter::repeat_n(p as usize, shape[1])).collect();
    for (name, rotations) in [("y", &[false][..]), ("y_inverse", &[true]), ("back", &[false, true])]
    {
        let mut y = x.clone();
        for &inverse in rotations {
            r::apply_rotary(&mut y, 32, 16, &row_pos, &r::freqs_cis(16, 64, 10000.0), inverse);
        }
        check(&file, &format!("apply.{name}"), &y, Tolerance::BF16);
    }
}

fn yarn(original: u32, factor: f32) -> r::Yarn {
    r::Yarn { original, factor, beta_fast: 32.0, beta_slow: 1.0 }
}

/// Catches frequencies off by one unit in the last place (0.06 rad at a million positions) and
/// angles rounded elsewhere: bits of frequency and angle up to position 1,048,575. The golden
/// cosines and sines are one library's, not correctly rounded everywhere: ours may be its
/// neighbour (and a few are).
#[test]
fn rope_real_dimensions_to_the_bit() {
    let golden = json("ops/rope_real.json");
    let (mut values, mut neighbours) = (0, 0);
    for (name, base, yarn) in [
        ("window_theta10000", 10000.0, None),
        ("compress_theta160000_yarn16", 160000.0, Some(yarn(65536, 16.0))),
    ] {
        let g = &golden[name];
        let bits = |v: &serde_json::Value| -> Vec<u32> {
            v.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
        };
        if let Some(yarn) = &yarn {
            assert_eq!(yarn.ramp(64, base), (15.0, 25.0));
        }
        let freqs = r::rope_freqs(64, base, yarn.as_ref());
        let got: Vec<u32> = freqs.iter().map(|f| f.to_bits()).collect();
        assert_eq!(got, bits(&g["freq_f32_bits"]), "{name} frequencies");
        let positions = bits(&g["positions"]);
        assert_eq!(positions.last(), Some(&1_048_575));
        for (i, &p) in positions.iter().enumerate() {
            let angles: Vec<u32> = freqs.iter().map(|f| (p as f32 * f).to_bits()).collect();
            assert_eq!(angles, bits(&g["angle_f32_bits"][i]), "{name} angles at {p}");
            for (k, &f) in freqs.iter().enumerate() {
                let (cos, sin) = r::cos_sin(p, f);
                for (got, want) in [(cos, &g["cos_f32_bits"]), (sin, &g["sin_f32_bits"])] {
                    let want = want[i][k].as_u64().unwrap() as u32;
                    values += 1;
                    neighbours += usize::from(got.to_bits() != want);
                    assert!(got.to_bits().abs_diff(want) <= 1, "{name} pair {k} at {p}");
                }
            }
        }
    }
    assert!(neighbours * 50 < values, "{neighbours} of {values} differ");
}
