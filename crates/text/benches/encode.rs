//! How fast one thread encodes text, in MB/s of processor time, and how the time grows with the length of a run of equal characters:
//! `cargo bench -p facit-text`. With FACIT_K3_TOKENIZER or FACIT_DEEPSEEK_TOKENIZER set to folders of the
//! released files those are measured, else the small vocabularies of the tests.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;
use text::{Tokenizer, TokenizerFiles};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let natural = std::fs::read_to_string(root.join("LICENSE-APACHE")).expect("the licence");
    let natural = natural.repeat(400);
    for (name, folder, variable) in [
        ("Kimi K3", "k3", "FACIT_K3_TOKENIZER"),
        ("DeepSeek-V4.1", "deepseek", "FACIT_DEEPSEEK_TOKENIZER"),
    ] {
        let folder = std::env::var_os(variable)
            .map_or_else(|| root.join("vectors/text").join(folder), PathBuf::from);
        let began = Instant::now();
        let tokenizer = open(&folder);
        let load = began.elapsed().as_secs_f64() * 1e3;
        println!("{name}: {} ids, read in {load:.1} ms", tokenizer.vocab_size());
        report(&tokenizer, "natural text", &natural);
        report(&tokenizer, "words without blanks", &natural.replace(char::is_whitespace, ""));
        for unit in ["a", "A", " ", "中"] {
            let half = report(&tokenizer, &format!("{unit:?} x 500,000"), &unit.repeat(500_000));
            let whole =
                report(&tokenizer, &format!("{unit:?} x 1,000,000"), &unit.repeat(1_000_000));
            println!("    twice the length takes {:.2} times as long", whole / half);
        }
    }
}

fn open(folder: &Path) -> Tokenizer {
    let read = |name| std::fs::read(folder.join(name)).ok();
    let (tiktoken, config, json) =
        (read("tiktoken.model"), read("tokenizer_config.json"), read("tokenizer.json"));
    let files = TokenizerFiles {
        tiktoken: tiktoken.as_deref(),
        config: config.as_deref(),
        tokenizer_json: json.as_deref(),
    };
    Tokenizer::from_files(&files).expect("a tokenizer")
}

/// Seconds this thread has been running, where Linux counts them; else by the clock since `began`.
fn seconds(began: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    nanoseconds.map_or_else(|| began.elapsed().as_secs_f64(), |n| n / 1e9)
}

/// Prints the best of five runs; gives its seconds.
fn report(tokenizer: &Tokenizer, what: &str, text: &str) -> f64 {
    let began = Instant::now();
    let time = |_| {
        let before = seconds(began);
        black_box(tokenizer.encode(black_box(text)));
        seconds(began) - before
    };
    let best = (0..5).map(time).fold(f64::INFINITY, f64::min);
    let megabytes = text.len() as f64 / 1e6;
    println!(
        "  {what:24} {:8.1} MB/s  ({megabytes:.1} MB in {:.1} ms)",
        megabytes / best,
        best * 1e3
    );
    best
}
