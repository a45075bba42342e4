//! Elementary functions are correctly rounded: random inputs and limits against a 512-bit oracle.
//!
//! The ignored test takes every `f32` (long: run it in release mode). It compares with a result
//! computed in `f64`, whose error is far below 2^-22 of an `f32` ulp; inputs whose value is that
//! close to the middle between two floats go to the oracle.
#![allow(clippy::print_stderr)]

mod common;

use astro_float::{BigFloat, Consts, RoundingMode};
use common::Rng;
use numerics::elementary;

struct Function {
    name: &'static str,
    f32: fn(f32) -> f32,
    f64: fn(f64) -> f64,
    big: fn(&BigFloat, &mut Consts) -> BigFloat,
    /// The nearest float for |x| < 2^-30, where the series' next term is below half an ulp.
    tiny: fn(f32) -> Option<f32>,
    /// Inputs worth asking the 256-bit oracle for; others overflow, vanish or have no value.
    domain: fn(f32) -> bool,
}

/// Bits of the oracle: enough for the argument of a sine to be 2^128.
const BITS: usize = 512;
const RM: RoundingMode = RoundingMode::ToEven;

const FUNCTIONS: [Function; 6] = [
    Function {
        name: "exp",
        f32: elementary::exp,
        f64: pxfm::f_exp,
        big: |x, c| x.exp(BITS, RM, c),
        tiny: |_| Some(1.0),
        // The last float whose exponential is finite.
        domain: |x| (-104.0..=f32::from_bits(0x42b1_7217)).contains(&x),
    },
    Function {
        name: "log",
        f32: elementary::log,
        f64: pxfm::f_log,
        big: |x, c| x.ln(BITS, RM, c),
        tiny: |_| None,
        domain: |x| x > 0.0 && x < f32::INFINITY,
    },
    Function {
        name: "log1p",
        f32: elementary::log1p,
        f64: pxfm::f_log1p,
        big: |x, c| x.add(&BigFloat::from_f64(1.0, BITS), BITS, RM).ln(BITS, RM, c),
        tiny: Some,
        domain: |x| x > -1.0 && x < f32::INFINITY,
    },
    Function {
        name: "tanh",
        f32: elementary::tanh,
        f64: pxfm::f_tanh,
        big: |x, c| x.tanh(BITS, RM, c),
        tiny: Some,
        domain: f32::is_finite,
    },
    Function {
        name: "sin",
        f32: elementary::sin,
        f64: pxfm::f_sin,
        big: |x, c| x.sin(BITS, RM, c),
        tiny: Some,
        domain: f32::is_finite,
    },
    Function {
        name: "cos",
        f32: elementary::cos,
        f64: pxfm::f_cos,
        big: |x, c| x.cos(BITS, RM, c),
        tiny: |_| Some(1.0),
        domain: f32::is_finite,
    },
];

/// The number half-way to the next float above or below; exact in `f64`.
fn midpoint(y: f32, up: bool) -> f64 {
    let neighbour = if up { y.next_up() } else { y.next_down() };
    // What would follow the largest float is 2^128.
    let wide = |v: f32| match v.is_infinite() {
        true => f64::from_bits((1023 + 128) << 52).copysign(v as f64),
        false => v as f64,
    };
    (wide(y) + wide(neighbour)) / 2.0
}

/// Whether `y` is the float nearest to `f(x)`, asked of the oracle.
fn nearest(f: &Function, x: f32, y: f32, c: &mut Consts) -> bool {
    if y.is_nan() {
        return false;
    }
    if x == 0.0 {
        // Exact; the oracle has no signed zeros to speak of.
        return y == (f.f64)(x as f64) as f32;
    }
    let t = (f.big)(&BigFloat::from_f64(x as f64, BITS), c);
    let at_least = |m: f64| t.cmp(&BigFloat::from_f64(m, BITS)).is_some_and(|o| o >= 0);
    let above = y == f32::NEG_INFINITY || at_least(midpoint(y, false));
    let below = y == f32::INFINITY || !at_least(midpoint(y, true));
    above && below
}

/// Catches a wrong branch or a wrong reduction: random floats of every magnitude.
#[test]
fn random_inputs_are_correctly_rounded() {
    let (mut rng, mut c) = (Rng(9), Consts::new().expect("constants"));
    for f in &FUNCTIONS {
        for i in 0..3000 {
            // Any bits, and numbers of ordinary size, in turn.
            let x = if i % 2 == 0 { rng.finite() } else { rng.unit() * 16.0 };
            if !(f.domain)(x) {
                continue;
            }
            let y = (f.f32)(x);
            assert!(nearest(f, x, y, &mut c), "{}({x:e}) = {y:e} is not nearest", f.name);
        }
    }
}

/// The inputs whose value lies nearest to the middle between two floats: catches a function that is
/// off by one there, or that rounds them by the machine (with or without fused multiply-add).
#[test]
fn the_hardest_inputs() {
    let mut tried = 0;
    for line in include_str!("elementary_hard.txt").lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.split(' ');
        let name = words.next().expect("a function");
        let mut bits = || u32::from_str_radix(words.next().expect("bits"), 16).expect("hex");
        let (x, want) = (f32::from_bits(bits()), f32::from_bits(bits()));
        let f = FUNCTIONS.iter().find(|f| f.name == name).expect("one of the functions");
        let y = (f.f32)(x);
        assert_eq!(y.to_bits(), want.to_bits(), "{name}({x:e}) = {y:e} instead of {want:e}");
        tried += 1;
    }
    assert!(tried > 100, "only {tried} inputs");
}

/// Catches limits that are not what mathematics or IEEE 754 say.
#[test]
fn limits() {
    use elementary::*;
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    assert_eq!((exp(-inf), exp(inf), exp(0.0), exp(-200.0), exp(200.0)), (0.0, inf, 1.0, 0.0, inf));
    for x in [f32::from_bits(0x42b1_7218), 89.0, 128.0, f32::MAX] {
        assert_eq!((exp(x), exp(-x - 16.0)), (inf, 0.0), "{x}");
    }
    assert_eq!((log(0.0), log(1.0), log(inf)), (-inf, 0.0, inf));
    assert_eq!((log1p(-1.0), log1p(0.0), log1p(inf)), (-inf, 0.0, inf));
    assert_eq!((tanh(inf), tanh(-inf), tanh(20.0)), (1.0, -1.0, 1.0));
    assert_eq!((sin(0.0), cos(0.0)), (0.0, 1.0));
    for y in
        [log(-1.0), log1p(-2.0), sin(inf), cos(inf), exp(nan), log(nan), tanh(nan), pow(nan, 2.0)]
    {
        assert!(y.is_nan());
    }
    assert_eq!((sigmoid(0.0), sigmoid(-1000.0), sigmoid(1000.0)), (0.5, 0.0, 1.0));
    assert_eq!((silu(-1000.0), silu(0.0)), (-0.0, 0.0));
    assert_eq!((softplus(20.5), softplus(-200.0), softplus(0.0)), (20.5, 0.0, log(2.0)));
    assert_eq!(situ(1000.0, -1000.0, 4.0, 25.0), -100.0, "capped at 4 * 25");
}

/// `pow64`, rounded to `f32`, gives the rotation frequencies of the released models bit for bit;
/// so do `sin` and `cos` of their angles. Catches an `f32` power and an all-`f64` formula.
#[test]
fn rotation_tables_of_the_released_models() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/goldens/ds41/ops/rope_real.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: ../shared/goldens/ds41/ops/rope_real.json is not there");
        return;
    };
    let golden: serde_json::Value = serde_json::from_str(&text).expect("json");
    let mut frequencies = 0;
    for table in golden.as_object().expect("tables").values() {
        let bits = |v: &serde_json::Value| v.as_u64().expect("bits") as u32;
        let base = table["base"].as_f64().expect("base");
        if table["yarn"].is_null() {
            for (i, want) in table["freq_f32_bits"].as_array().expect("array").iter().enumerate() {
                let got = 1f32 / elementary::pow64(base, 2.0 * i as f64 / 64.0) as f32;
                assert_eq!(got.to_bits(), bits(want), "frequency {i} of base {base}");
                frequencies += 1;
            }
        }
        for row in 0..table["positions"].as_array().expect("array").len() {
            let at = |key: &str, i: usize| bits(&table[key][row][i]);
            for i in 0..32 {
                let angle = f32::from_bits(at("angle_f32_bits", i));
                // Torch's own sine and cosine are within an ulp, not correctly rounded.
                for (got, key) in [
                    (elementary::cos(angle), "cos_f32_bits"),
                    (elementary::sin(angle), "sin_f32_bits"),
                ] {
                    let want = f32::from_bits(at(key, i));
                    let near = [want, want.next_up(), want.next_down()];
                    assert!(near.contains(&got), "{key} of {angle}: {got:e} instead of {want:e}");
                }
            }
        }
    }
    assert_eq!(frequencies, 32);
}

/// Every `f32` of the domain; see the top of the file. Catches a result on the wrong side of a
/// close call, on the path this machine takes (with or without fused multiply-add).
#[test]
#[ignore = "long; cargo test --release -p facit-numerics --test elementary -- --ignored"]
fn exhaustive() {
    use rayon::prelude::*;
    for f in &FUNCTIONS {
        let hard: usize = (0..1u32 << 12)
            .into_par_iter()
            .map(|piece| {
                let mut c = Consts::new().expect("constants");
                let xs = (piece << 20..=piece << 20 | 0xf_ffff).filter(|&x| is_hard(f, x));
                xs.inspect(|&x| {
                    let (x, y) = (f32::from_bits(x), (f.f32)(f32::from_bits(x)));
                    assert!(nearest(f, x, y, &mut c), "{}({x:e}) = {y:e} is not nearest", f.name);
                })
                .count()
            })
            .sum();
        eprintln!("{}: correctly rounded, {hard} inputs asked of the oracle", f.name);
    }
}

/// Whether the float of bits `x` is a hard case; if not, its result must agree with `f64`.
fn is_hard(f: &Function, x: u32) -> bool {
    let x = f32::from_bits(x);
    if !(f.domain)(x) {
        return false;
    }
    let y = (f.f32)(x);
    if let (true, Some(tiny)) = (x.abs() < f32::from_bits((127 - 30) << 23), (f.tiny)(x)) {
        assert!(y == tiny, "{}({x:e}) = {y:e} instead of {tiny:e}", f.name);
        return false;
    }
    let wide = (f.f64)(x as f64);
    let rounded = wide as f32;
    let (below, above) = (midpoint(rounded, false), midpoint(rounded, true));
    let ulp = above - below;
    if (wide - below).min(above - wide) < ulp / (1u64 << 22) as f64 {
        return true;
    }
    assert!(y == rounded, "{}({x:e}) = {y:e} instead of {rounded:e}", f.name);
    false
}
