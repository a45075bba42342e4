//! Nothing here calls the platform's libm for a function that platforms round differently: this
//! test program's own imported symbols say so. (The lint `disallowed_methods` forbids the calls in
//! our code; this looks at what was linked, dependencies included.)
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use numerics::elementary;
use object::{Object, ObjectSymbol};
use std::hint::black_box;

/// Functions of `math.h` whose results differ between libraries. (`sqrt`, `fma`, `floor` and their
/// like are exact everywhere.)
const INEXACT: [&str; 25] = [
    "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos",
    "sincos", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "hypot", "tgamma", "lgamma",
];

/// Names of all symbols, imported or linked in.
fn symbols() -> Vec<String> {
    let path = std::env::current_exe().expect("this program");
    let bytes = std::fs::read(path).expect("this program's file");
    let file = object::File::parse(&*bytes).expect("an object file");
    let all = file.dynamic_symbols().chain(file.symbols());
    all.filter_map(|s| s.name().ok().map(str::to_owned)).collect()
}

#[test]
fn no_inexact_function_is_linked() {
    // Everything that could need one, so that it is linked.
    let x = black_box(0.5f32);
    let f = elementary::exp(x)
        + elementary::log(x)
        + elementary::log1p(x)
        + elementary::tanh(x)
        + elementary::sin(x)
        + elementary::cos(x)
        + elementary::pow(x, x)
        + elementary::softplus(x)
        + elementary::situ(x, x, x, x);
    let x = x as f64;
    let g = elementary::pow64(x, x) + elementary::exp64(x) + elementary::log64(x);
    assert!(black_box(f as f64 + g).is_finite());

    let names = symbols();
    for name in INEXACT {
        for suffix in ["", "f", "l"] {
            let symbol = format!("{name}{suffix}");
            assert!(!names.contains(&symbol), "{symbol} of the platform's libm is called");
        }
    }
    // The control: a call to libm made on purpose is seen (a tangent, which we have no use for).
    #[allow(clippy::disallowed_methods)]
    let tangent = black_box(black_box(0.5f64).tan());
    assert!(tangent > 0.5 && names.iter().any(|n| n == "tan"), "symbols are not listed");
}
