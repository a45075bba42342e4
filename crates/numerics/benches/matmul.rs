//! Throughput of `matmul` in GB/s of weight bytes (packed, scales included) per position: formats,
//! in cache and from memory, numbers of positions, backends. One thread. Criterion measures; a
//! table at the end puts the same run's best times side by side as ratios to the scalar definition
//! and to one position.
//!
//! Times are those the thread was running (where the system tells), so that a busy machine spoils
//! them less.
#![allow(clippy::print_stdout)]

use criterion::{BenchmarkId, Criterion};
use numerics::{Backend, Kernels, Matrix, NanScale, Weights};
use std::cell::LazyCell;
use std::hint::black_box;
use std::time::Duration;

const COLS: usize = 3584;
const POSITIONS: [usize; 3] = [1, 8, 32];
/// Weight bytes that stay in the second- or third-level cache, and that cannot.
const SIZES: [(&str, usize); 2] = [("cache", 2 << 20), ("memory", 96 << 20)];

struct Stored {
    name: &'static str,
    rows: usize,
    bytes: Vec<u8>,
    scales: Vec<u8>,
}

impl Stored {
    fn new(name: &'static str, size: usize) -> Stored {
        let (row, scales) = match name {
            "f32" => (4 * COLS, 0),
            "bf16" => (2 * COLS, 0),
            "fp8" => (COLS, COLS / 32 / 32),
            "mxfp4" => (COLS / 2, COLS / 32),
            _ => unreachable!("a format of this bench"),
        };
        let rows = (size / (row + scales)).next_multiple_of(32);
        let mut seed = 1u64;
        let mut word = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed ^ seed >> 32).to_le_bytes()
        };
        let mut bytes: Vec<u8> = (0..rows * row / 8).flat_map(|_| word()).collect();
        // Exponents around that of one, so that no sum leaves the ordinary range.
        match name {
            "f32" => bytes.chunks_exact_mut(4).for_each(|b| b[3] = 0x3f | b[3] & 0x80),
            "bf16" => bytes.chunks_exact_mut(2).for_each(|b| b[1] = 0x3f | b[1] & 0x80),
            "fp8" => bytes.iter_mut().for_each(|b| *b &= 0xbf),
            _ => (),
        }
        let groups = if name == "fp8" { rows / 32 * (COLS / 32) } else { rows * scales };
        Stored { name, rows, bytes, scales: vec![127; groups] }
    }

    fn matrix(&self) -> Matrix<'_> {
        let (bytes, scales) = (&self.bytes[..], &self.scales[..]);
        let weights = match self.name {
            "f32" => Weights::F32(bytes),
            "bf16" => Weights::Bf16(bytes),
            "fp8" => Weights::Fp8 { codes: bytes, scales, block_rows: 32, block_cols: 32 },
            _ => Weights::Mxfp4 { packed: bytes, scales, nan: NanScale::ZeroGroup },
        };
        Matrix::new(self.rows, COLS, weights).expect("a matrix")
    }
}

/// Time this thread has been running.
fn thread_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// One line of the table: GB/s of weight bytes times positions.
struct Line {
    place: &'static str,
    format: &'static str,
    backend: &'static str,
    positions: usize,
    rate: f64,
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(300))
        .sample_size(10)
        .configure_from_args();
    let mut lines: Vec<Line> = Vec::new();
    for (place, size) in SIZES {
        for format in ["bf16", "mxfp4", "fp8", "f32"] {
            // Made when first measured: a filter may leave it out.
            let stored = LazyCell::new(|| Stored::new(format, size));
            for backend in Backend::supported() {
                for t in POSITIONS {
                    measure(&mut criterion, &mut lines, (place, format), &stored, backend, t);
                }
            }
        }
    }
    print_table(&lines);
    criterion.final_summary();
}

fn measure(
    criterion: &mut Criterion,
    lines: &mut Vec<Line>,
    (place, format): (&'static str, &'static str),
    stored: &LazyCell<Stored, impl FnOnce() -> Stored>,
    backend: Backend,
    t: usize,
) {
    let k = Kernels::new(backend, 1);
    let x: Vec<f32> = (0..t * COLS).map(|i| (i % 17) as f32 * 0.125 - 1.0).collect();
    let mut best = None;
    let mut group = criterion.benchmark_group(format!("{place}/{format}"));
    group.bench_function(BenchmarkId::new(backend.name(), t), |b| {
        let whole = stored.matrix();
        // The definition is bound by arithmetic wherever the weights lie: a part is enough.
        let m = if backend == Backend::scalar() { whole.row_range(0..32) } else { whole };
        let bytes = (stored.bytes.len() + stored.scales.len()) * m.rows() / stored.rows;
        let mut out = vec![0f32; t * m.rows()];
        b.iter_custom(|n| {
            let mut total = Duration::ZERO;
            for _ in 0..n {
                let start = thread_time();
                k.matmul(black_box(&m), black_box(&x), t, &mut out);
                let one = thread_time() - start;
                black_box(&mut out);
                let rate = (bytes * t) as f64 / one.as_secs_f64() / 1e9;
                best = Some(rate.max(best.unwrap_or(0.0)));
                total += one;
            }
            total
        })
    });
    group.finish();
    if let Some(rate) = best {
        lines.push(Line { place, format, backend: backend.name(), positions: t, rate });
    }
}

fn print_table(lines: &[Line]) {
    println!("\nGB/s of weight bytes times positions, best of the run, one thread, {COLS} columns");
    println!(
        "{:8} {:6} {:8} {:>3} {:>8} {:>10} {:>14}",
        "weights", "format", "backend", "T", "GB/s", "x scalar", "x one position"
    );
    for l in lines {
        let find = |backend: &str, t: usize| {
            let of = |o: &&Line| o.place == l.place && o.format == l.format;
            let found = lines.iter().filter(of).find(|o| o.backend == backend && o.positions == t);
            found.map_or(f64::NAN, |o| o.rate)
        };
        println!(
            "{:8} {:6} {:8} {:>3} {:>8.2} {:>10.1} {:>14.2}",
            l.place,
            l.format,
            l.backend,
            l.positions,
            l.rate,
            l.rate / find("scalar", l.positions),
            l.rate / find(l.backend, 1)
        );
    }
}
