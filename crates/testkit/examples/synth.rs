//! Writes a synthetic checkpoint: `synth PRESET DIR [SEED] [SHARD_MB]`, with the presets of
//! `testkit::k3` (`tiny`, `bench8g`).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| match args.get(i) {
        None => Some(default),
        Some(text) => text.parse().ok(),
    };
    let shape = args.first().and_then(|name| testkit::k3::Shape::by_name(name));
    let (Some(shape), Some(dir), Some(seed), Some(shard)) =
        (shape, args.get(1), number(2, 1), number(3, 1000))
    else {
        eprintln!("usage: synth tiny|bench8g DIR [SEED] [SHARD_MB]");
        return ExitCode::from(2);
    };
    let checkpoint = shape.checkpoint(seed);
    let start = std::time::Instant::now();
    if let Err(e) = checkpoint.write(dir.as_ref(), shard as usize * 1_000_000) {
        eprintln!("{dir}: {e}");
        return ExitCode::FAILURE;
    }
    let gb = checkpoint.bytes() as f64 / 1e9;
    println!("{dir}: {gb:.3} GB in {:.1} s", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}
