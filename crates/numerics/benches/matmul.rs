//! Throughput of `matmul`, one thread: formats, weights in cache and from memory, numbers of
//! positions, backends. A line gives GB/s of weight bytes (packed, scales included) times
//! positions; the same as a ratio to the scalar definition and to one position; and the
//! multiplications as a share of the fused multiply-adds this processor can do at all, measured in
//! the same run by a loop that touches registers only.
//!
//! `cargo bench -p facit-numerics [-- WORD...]` measures the lines whose `weights/format/backend/T`
//! contain every word. Times are those the thread was running (where the system tells), the best
//! of several, so that a busy machine spoils them less.
#![allow(clippy::print_stdout)]

use numerics::{Backend, Kernels, Matrix, NanScale, Weights};
use std::hint::black_box;
use std::time::{Duration, Instant};

const COLS: usize = 3584;
const POSITIONS: [usize; 5] = [1, 8, 16, 32, 64];
/// Weight bytes that stay in the second- or third-level cache, and that cannot.
const SIZES: [(&str, usize); 2] = [("cache", 2 << 20), ("memory", 96 << 20)];
/// Time to spend on a line, and calls to make at least.
const MEASURE: (Duration, usize) = (Duration::from_millis(250), 3);

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

/// The shortest time of `f`, by a clock that says how late it is.
fn best(clock: impl Fn() -> Duration, mut f: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    let mut total = Duration::ZERO;
    let mut calls = 0;
    while total < MEASURE.0 || calls < MEASURE.1 {
        let start = clock();
        f();
        let one = clock() - start;
        best = best.min(one);
        total += one;
        calls += 1;
    }
    best
}

/// One line of the table.
struct Line {
    place: &'static str,
    format: &'static str,
    backend: &'static str,
    positions: usize,
    /// GB/s of weight bytes times positions.
    rate: f64,
    /// Multiplications a second, in units of 10^9.
    products: f64,
}

fn main() {
    // cargo itself passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |name: &str| words.iter().all(|w| name.contains(w.as_str()));
    let mut lines: Vec<Line> = Vec::new();
    println!("weights, GB/s of weight bytes times positions, one thread, {COLS} columns");
    for (place, size) in SIZES {
        for format in ["bf16", "mxfp4", "fp8", "f32"] {
            let mut stored = None;
            for backend in Backend::supported() {
                // Measured anew each time: the clock of the processor is not always the same.
                for t in POSITIONS {
                    if wanted(&format!("{place}/{format}/{}/{t}", backend.name())) {
                        let stored = stored.get_or_insert_with(|| Stored::new(format, size));
                        lines.push(measure(place, stored, backend, t));
                        print_line(&lines, peak(backend));
                    }
                }
            }
        }
    }
    print_threads(&wanted);
}

fn measure(place: &'static str, stored: &Stored, backend: Backend, t: usize) -> Line {
    let k = Kernels::new(backend, 1);
    let x: Vec<f32> = (0..t * COLS).map(|i| (i % 17) as f32 * 0.125 - 1.0).collect();
    let whole = stored.matrix();
    // The definition is bound by arithmetic wherever the weights lie: a part is enough.
    let m = if backend == Backend::scalar() { whole.row_range(0..32) } else { whole };
    let mut out = vec![0f32; t * m.rows()];
    let time = best(thread_time, || {
        k.matmul(black_box(&m), black_box(&x), t, &mut out);
        black_box(&mut out);
    });
    let bytes = (stored.bytes.len() + stored.scales.len()) * m.rows() / stored.rows;
    let per_second = |n: usize| (n * t) as f64 / time.as_secs_f64() / 1e9;
    Line {
        place,
        format: stored.name,
        backend: backend.name(),
        positions: t,
        rate: per_second(bytes),
        products: per_second(m.rows() * COLS),
    }
}

/// Prints the last of `lines`; `peak` in 10^9 multiply-adds a second.
fn print_line(lines: &[Line], peak: Option<f64>) {
    let Some(l) = lines.last() else { return };
    if lines.len() == 1 {
        println!(
            "{:8} {:6} {:8} {:>3} {:>8} {:>10} {:>14} {:>10}",
            "weights", "format", "backend", "T", "GB/s", "x scalar", "x one position", "% of peak"
        );
    }
    let ratio = |backend: &str, t: usize| {
        let of = |o: &&Line| o.place == l.place && o.format == l.format;
        let found = lines.iter().filter(of).find(|o| o.backend == backend && o.positions == t);
        found.map_or("-".into(), |o| format!("{:.2}", l.rate / o.rate))
    };
    println!(
        "{:8} {:6} {:8} {:>3} {:>8.2} {:>10} {:>14} {:>10}",
        l.place,
        l.format,
        l.backend,
        l.positions,
        l.rate,
        ratio("scalar", l.positions),
        ratio(l.backend, 1),
        peak.map_or("-".into(), |p| format!("{:.0}", 100.0 * l.products / p))
    );
}

/// All threads of the machine against one, weights from memory.
fn print_threads(wanted: &dyn Fn(&str) -> bool) {
    let start = Instant::now();
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    let backend = Backend::detect();
    println!(
        "\n{:6} {:8} {:>3} {:>16} {:>12}",
        "format", "backend", "T", "GB/s, 1 thread", "all threads"
    );
    for format in ["bf16", "mxfp4", "fp8"] {
        for t in [1, 16] {
            if !wanted(&format!("threads/{format}/{}/{t}", backend.name())) {
                continue;
            }
            let stored = Stored::new(format, SIZES[1].1);
            let (m, x) = (stored.matrix(), vec![0.5f32; t * COLS]);
            let mut out = vec![0f32; t * m.rows()];
            let mut rate = |threads| {
                let k = Kernels::new(backend, threads);
                let time = best(|| start.elapsed(), || k.matmul(&m, &x, t, &mut out));
                ((stored.bytes.len() + stored.scales.len()) * t) as f64 / time.as_secs_f64() / 1e9
            };
            let (one, many) = (rate(1), rate(all));
            println!(
                "{format:6} {:8} {t:>3} {one:>16.2} {many:>12.2}  {:.2} times on {all} threads",
                backend.name(),
                many / one
            );
        }
    }
}

/// The most multiply-adds of `f64` the backend does in a second, in units of 10^9.
fn peak(backend: Backend) -> Option<f64> {
    const ROUNDS: usize = 1_000_000;
    let rate = || {
        let start = thread_time();
        let n = backend.multiply_adds(ROUNDS);
        n as f64 / (thread_time() - start).as_secs_f64() / 1e9
    };
    let best = (0..5).map(|_| rate()).fold(0.0, f64::max);
    (best > 0.0).then_some(best)
}
