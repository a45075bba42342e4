//! Number formats: exhaustive tables against independent definitions, and the golden roundings
//! of `../shared/goldens/ds41/ops` when they are there.

#![allow(clippy::disallowed_methods, clippy::print_stderr)] // powi only builds exact powers of two

use numerics::{bf16, e8m0, fp4, fp8, quantize};

/// Nearest representable value by search, ties to the even code: the definition of RNE.
fn nearest(x: f64, values: impl Iterator<Item = (u8, f64)>) -> u8 {
    let mut best: Option<(u8, f64)> = None;
    for (code, v) in values {
        let d = (v - x).abs();
        best = match best {
            Some((c, bd)) if bd < d || (bd == d && c % 2 == 0) => Some((c, bd)),
            _ => Some((code, d)),
        };
    }
    best.expect("some value").0
}

fn e4m3_value(code: u8) -> f64 {
    let (e, m) = ((code >> 3 & 15) as i32, (code & 7) as f64);
    let v = if e == 0 { m / 8.0 * 2f64.powi(-6) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
    if code & 0x80 != 0 { -v } else { v }
}

/// Catches a wrong bias, a swapped field or an infinity where E4M3 "fn" has a value.
#[test]
fn e4m3_decodes_all_codes() {
    for code in 0..=255u8 {
        match code & 0x7f {
            0x7f => assert!(fp8::decode(code).is_nan()),
            _ => {
                assert_eq!(fp8::decode(code) as f64, e4m3_value(code), "code {code:#x}");
                assert_eq!(fp8::decode(code).is_sign_negative(), code >= 0x80);
                assert_eq!(fp8::encode(fp8::decode(code)), code, "round trip of {code:#x}");
            }
        }
    }
    assert_eq!(fp8::decode(0x7e), fp8::MAX);
}

/// Catches rounding away from even, at midpoints of normal and subnormal steps and one ulp beside.
#[test]
fn e4m3_rounds_to_nearest_even() {
    for code in 0..0x7eu8 {
        let (a, b) = (e4m3_value(code), e4m3_value(code + 1));
        let mid = ((a + b) / 2.0) as f32;
        assert_eq!(mid as f64, (a + b) / 2.0, "a midpoint is exact in f32");
        for x in [mid, mid.next_up(), mid.next_down(), a as f32, (a as f32).next_up()] {
            let want = nearest(x as f64, (0..0x7f).map(|c| (c, e4m3_value(c))));
            assert_eq!(fp8::encode(x), want, "{x}");
            assert_eq!(fp8::encode(-x), want | 0x80, "{}", -x);
        }
    }
    for x in [448.0, 448.1, 464.0, 1e9, f32::INFINITY] {
        assert_eq!((fp8::encode(x), fp8::encode(-x)), (0x7e, 0xfe), "{x} saturates");
    }
    assert_eq!((fp8::encode(0.0), fp8::encode(-0.0)), (0, 0x80));
    assert_eq!(fp8::encode(f32::NAN), 0x7f);
    assert_eq!(fp8::encode(f32::from_bits(1)), 0, "a subnormal f32 is no step");
}

/// Catches a wrong tie at each of the seven midpoints, and a NaN that becomes a number.
#[test]
fn e2m1_rounds_to_nearest_even() {
    for code in 0..16u8 {
        assert_eq!(fp4::encode(fp4::decode(code)), Some(code));
    }
    for code in 0..7u8 {
        let mid = (fp4::decode(code) + fp4::decode(code + 1)) / 2.0;
        for x in [mid, mid.next_up(), mid.next_down()] {
            let want = nearest(x as f64, (0..8).map(|c| (c, fp4::decode(c) as f64)));
            assert_eq!(fp4::encode(x), Some(want), "{x}");
            assert_eq!(fp4::encode(-x), Some(want | 8), "{}", -x);
        }
    }
    assert_eq!(fp4::encode(f32::INFINITY), Some(7));
    assert_eq!(fp4::encode(f32::NAN), None);
    assert!(fp4::round(f32::NAN).is_nan());
}

/// Every upper half of an `f32` with the lower halves around the tie: catches double rounding,
/// a lost sticky bit, overflow that stays finite and a NaN that becomes infinite.
#[test]
fn bf16_rounds_to_nearest_even() {
    for high in 0..=0xffffu16 {
        let exact = bf16::widen(high);
        assert_eq!(exact.to_bits(), (high as u32) << 16);
        if exact.is_nan() {
            assert_eq!(bf16::narrow(exact), 0x7fc0);
            continue;
        }
        assert_eq!(bf16::narrow(exact), high);
        if exact.is_infinite() {
            continue;
        }
        let at = |low: u32| f32::from_bits((high as u32) << 16 | low);
        for low in [1, 0x7fff] {
            assert_eq!(bf16::narrow(at(low)), high, "{high:#x} {low:#x}");
        }
        for low in [0x8001, 0xffff] {
            assert_eq!(bf16::narrow(at(low)), high + 1, "{high:#x} {low:#x}");
        }
        assert_eq!(bf16::narrow(at(0x8000)), high + (high & 1), "tie at {high:#x}");
    }
    assert_eq!(bf16::round(f32::MAX), f32::INFINITY);
}

/// Catches an exponent off by one and a subnormal scale flushed to zero.
#[test]
fn e8m0_is_a_power_of_two() {
    for b in 0..255u8 {
        assert_eq!(e8m0::decode64(b), 2f64.powi(b as i32 - 127));
        assert_eq!(e8m0::decode(b) as f64, e8m0::decode64(b));
        assert_eq!(e8m0::ceil(e8m0::decode(b)), Some(b), "a power is its own ceiling");
        assert_eq!(e8m0::ceil(e8m0::decode(b).next_up()), (b < 254).then_some(b + 1));
    }
    assert!(e8m0::decode(255).is_nan() && e8m0::decode64(255).is_nan());
    for x in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX] {
        assert_eq!(e8m0::ceil(x), None, "{x}");
    }
    assert_eq!(e8m0::ceil(f32::from_bits(1)), Some(0));
}

/// Catches a quantiser that turns a NaN or an infinity into an ordinary value.
#[test]
fn quantisers_refuse_what_is_not_finite() {
    type Quantiser = fn(&mut [f32]) -> Result<(), numerics::Error>;
    let all: [Quantiser; 3] =
        [quantize::fp8_round_trip, quantize::fp4_round_trip, quantize::fp4_e4m3_round_trip];
    for f in all {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1f32; 70];
            x[66] = bad;
            assert_eq!(f(&mut x), Err(numerics::Error::NotFinite { index: 66 }));
        }
        let mut zeros = vec![0f32; 33];
        f(&mut zeros).expect("zeros are finite");
        assert!(zeros.iter().all(|&z| z == 0.0));
    }
}

/// The tensors of a safetensors file: name to bytes.
fn read_safetensors(path: &std::path::Path) -> std::collections::HashMap<String, Vec<u8>> {
    let file = std::fs::read(path).expect("readable golden");
    let n = u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + n]).expect("json header");
    let data = &file[8 + n..];
    let tensors =
        header.as_object().expect("an object").iter().filter(|(k, _)| *k != "__metadata__");
    tensors
        .map(|(k, v)| {
            let at = |i: usize| v["data_offsets"][i].as_u64().expect("offset") as usize;
            (k.clone(), data[at(0)..at(1)].to_vec())
        })
        .collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4"))).collect()
}

fn bf16s(bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0f32; bytes.len() / 2];
    bf16::widen_all(bytes, &mut out);
    out
}

fn shared_ops() -> Option<std::path::PathBuf> {
    let dir =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/goldens/ds41/ops");
    if !dir.is_dir() {
        eprintln!("skipped: ../shared/goldens/ds41/ops is not there");
        return None;
    }
    Some(dir)
}

/// Our roundings equal an independent implementation's, including its edge inputs.
#[test]
fn golden_format_tables() {
    let Some(dir) = shared_ops() else { return };
    let g = read_safetensors(&dir.join("formats.safetensors"));
    let bits = g["bf16.y_bits"].chunks_exact(4);
    for (x, b) in floats(&g["bf16.x"]).into_iter().zip(bits) {
        let want = u32::from_le_bytes(b.try_into().expect("4"));
        assert_eq!(bf16::narrow(x) as u32, want & 0xffff, "bf16 of {x}");
    }
    for (code, v) in floats(&g["e4m3.decode"]).into_iter().enumerate() {
        if code & 0x7f != 0x7f {
            // (The table has no NaN: it holds a placeholder there.)
            assert_eq!(fp8::decode(code as u8).to_bits(), v.to_bits(), "e4m3 {code}");
        }
    }
    for (x, &code) in floats(&g["e4m3.enc_in"]).into_iter().zip(&g["e4m3.enc_code"]) {
        assert_eq!(fp8::encode(x), code, "e4m3 of {x}");
    }
    for (x, &code) in floats(&g["e2m1.enc_in"]).into_iter().zip(&g["e2m1.enc_code"]) {
        assert_eq!(fp4::encode(x), Some(code), "e2m1 of {x}");
    }
    for (x, &b) in floats(&g["pow2_ceil.x"]).into_iter().zip(&g["pow2_ceil.e8m0"]) {
        assert_eq!(e8m0::ceil(x), Some(b), "power of two above {x}");
    }
}

/// The three activation round trips equal an independent implementation's to the bit.
#[test]
fn golden_activation_round_trips() {
    let Some(dir) = shared_ops() else { return };
    let g = read_safetensors(&dir.join("act_quant.safetensors"));
    let check = |name: &str, f: &dyn Fn(&mut [f32]) -> Result<(), numerics::Error>| {
        let mut x = bf16s(&g[&format!("{name}.x")]);
        let want = bf16s(&g[&format!("{name}.qdq")]);
        for (row, want) in x.chunks_mut(128).zip(want.chunks(128)) {
            f(row).expect("finite goldens");
            for (i, (a, b)) in row.iter().zip(want).enumerate() {
                assert_eq!(a.to_bits(), b.to_bits(), "{name}, column {i}: {a} instead of {b}");
            }
        }
    };
    check("fp8", &|x| quantize::fp8_round_trip(x));
    check("fp4_e8m0_b32", &|x| quantize::fp4_round_trip(x));
    check("fp4_e4m3_b16", &|x| quantize::fp4_e4m3_round_trip(x));
}
