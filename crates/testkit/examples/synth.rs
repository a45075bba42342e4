//! Writes a synthetic checkpoint: `synth PRESET DIR [SEED] [SHARD_MB]`, with the presets of
//! `testkit::k3` (`tiny`, `bench8g`) and, after `deepseek-`, of `testkit::deepseek_v41`
//! (`deepseek-tiny`, `deepseek-bench5g`).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| match args.get(i) {
        None => Some(default),
        Some(text) => text.parse().ok(),
    };
    let (Some(name), Some(dir), Some(seed), Some(shard)) =
        (args.first(), args.get(1), number(2, 1), number(3, 1000))
    else {
        return usage();
    };
    let shard = shard as usize * 1_000_000;
    let start = std::time::Instant::now();
    let deepseek = name.strip_prefix("deepseek-").and_then(testkit::deepseek_v41::preset);
    let (checkpoint, written) = if let Some(config) = deepseek {
        let checkpoint = testkit::deepseek_v41::checkpoint(&config, seed);
        let written = testkit::deepseek_v41::write(&checkpoint, dir.as_ref(), shard);
        (checkpoint, written)
    } else if let Some(shape) = testkit::k3::Shape::by_name(name) {
        let checkpoint = shape.checkpoint(seed);
        let written = checkpoint.write(dir.as_ref(), shard);
        (checkpoint, written)
    } else {
        return usage();
    };
    if let Err(e) = written {
        eprintln!("{dir}: {e}");
        return ExitCode::FAILURE;
    }
    let gb = checkpoint.bytes() as f64 / 1e9;
    println!("{dir}: {gb:.3} GB in {:.1} s", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: synth tiny|bench8g|deepseek-tiny|deepseek-bench5g DIR [SEED] [SHARD_MB]");
    ExitCode::from(2)
}
