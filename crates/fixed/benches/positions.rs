//! Positions a second of whole runs: every backend of this machine on one thread and on two, beside
//! the plain path, for the built-in model, stories260K if it is at hand and random weights in the
//! shape of stories15M.
//!
//! `cargo bench -p facit-fixed --features std`. Criterion's figures come one way after another; the
//! table at the end takes all ways in turn, round after round, and gives each its fastest round.
//! On Linux it also has the caller's processor time, which says more on a busy machine; with two
//! threads that is about half the work.
#![expect(clippy::print_stdout, reason = "a bench reports")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fixed::arith::Backend;
use fixed::run::{Model, Options, Until};
use fixed::{Artifact, StateInfo, init_state, state_size};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use testkit::fixed_models;

/// What every run continues.
const PROMPT: &[u8] = b"Once upon a time";
/// Rounds of the table.
const ROUNDS: usize = 8;

/// A model and the tokens a run of it generates: some seconds' worth on the plain path at most.
fn models() -> Vec<(&'static str, Vec<u8>, u32)> {
    let mut models = vec![("facit-tales", fixed_models::facit_tales().artifact(), 128)];
    match fixed_models::model("stories260K") {
        Some(model) => models.push(("stories260K", model.artifact(), 256)),
        None => testkit::skipped("stories260K"),
    }
    match fixed_models::rand15m() {
        Some(model) => models.push(("random-15M", model.artifact(), 32)),
        None => testkit::skipped("random-15M"),
    }
    models
}

fn ways() -> impl Iterator<Item = Options> {
    Backend::supported().flat_map(|backend| {
        [1, 2].map(|threads| Options { backend, threads, ..Options::default() })
    })
}

/// A run behind its prompt's tokens, where whole positions begin.
fn start(model: &Model<'_>, max_tokens: u32) -> Vec<u8> {
    let config = model.artifact().metadata.config;
    let mut state = vec![0; state_size(config, PROMPT.len(), max_tokens).expect("a small run")];
    init_state(config, &mut state, PROMPT, max_tokens, 0, 0).expect("a small run");
    while StateInfo::read(&state).expect("a state").phase < fixed::planner::phase::EMBEDDING {
        go_on(model, &mut state, Options::default(), Until::Turns(1));
    }
    state
}

fn go_on(model: &Model<'_>, state: &mut [u8], options: Options, until: Until) {
    model.run(state, options, until, &mut |_| ControlFlow::Continue(())).expect("a valid run");
}

/// What a whole run took: by the clock, and of the calling thread's processor time if known.
struct Took {
    clock: Duration,
    processor: Option<Duration>,
}

/// The calling thread's processor time, where the system tells.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

/// A whole run and the state it leaves.
fn whole_run(model: &Model<'_>, start: &[u8], options: Options) -> (Took, Vec<u8>) {
    let mut state = start.to_vec();
    let (began, processor) = (Instant::now(), processor_time());
    go_on(model, &mut state, options, Until::Complete);
    let processor = processor_time().zip(processor).map(|(end, start)| end - start);
    (Took { clock: began.elapsed(), processor }, state)
}

fn bench(c: &mut Criterion) {
    for (name, bytes, max_tokens) in models() {
        let model = Model::new(Artifact::new(&bytes).expect("an artifact"));
        let start = start(&model, max_tokens);
        let (_, end) = whole_run(&model, &start, Options::default());
        let positions = StateInfo::read(&end).expect("a state").position as u64 + 1;

        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(positions)).sample_size(10);
        group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
        for options in ways() {
            let id = BenchmarkId::new(options.backend.name(), options.threads);
            group.bench_function(id, |b| {
                b.iter_custom(|runs| {
                    (0..runs).map(|_| whole_run(&model, &start, options).0.clock).sum()
                });
            });
        }
        group.finish();
        table(name, &model, &start, &end, positions);
    }
}

/// All ways in turn, each at its fastest.
fn table(name: &str, model: &Model<'_>, start: &[u8], end: &[u8], positions: u64) {
    let mut best = vec![[None, None]; ways().count()];
    for _ in 0..ROUNDS {
        for (options, best) in ways().zip(&mut best) {
            let (took, state) = whole_run(model, start, options);
            assert!(state == end, "{} leaves another state", options.backend.name());
            for (best, took) in best.iter_mut().zip([Some(took.clock), took.processor]) {
                *best = [*best, took].into_iter().flatten().min();
            }
        }
    }
    println!("{name}, {positions} positions, positions a second and ratio to plain by the clock,");
    println!("  and of the caller's processor time:");
    for (options, times) in ways().zip(&best) {
        print!("  {:12} {} threads", options.backend.name(), options.threads);
        for (time, plain) in times.iter().zip(&best[0]) {
            if let (Some(time), Some(plain)) = (time, plain) {
                let (time, plain): (Duration, Duration) = (*time, *plain);
                let speed = positions as f64 / time.as_secs_f64();
                print!(" {speed:9.1} {:6.2}x", plain.as_secs_f64() / time.as_secs_f64());
            }
        }
        println!();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
