//! Positions a second of the exact core, every arithmetic beside the plain one in the same rounds,
//! and the proof that all of them leave the same state. Not a test: it measures this machine, now.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use fixed::format::{Config, Matrices};
use serde::Serialize;

use crate::artifact::{Artifact, Model};
use crate::{Backend, Digest, Error, Params, Session};

/// The length of the run that is measured; its prompt is empty, which every vocabulary can spell.
const TOKENS: u32 = 48;
/// Dim, hidden, layers, heads, key/value heads, vocabulary and context of stories15M.
const SHAPE_15M: [u32; 7] = [288, 768, 6, 6, 6, 32_000, 256];
/// Seed of the random weights.
const SEED: u64 = 15;

/// One way to run one model.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// The model's name.
    pub model: String,
    /// The arithmetic.
    pub backend: &'static str,
    /// Threads.
    pub threads: usize,
    /// Positions of one run.
    pub positions: u32,
    /// How often it ran.
    pub runs: u32,
    /// The fastest run.
    pub seconds: f64,
    /// Positions over seconds of the fastest run.
    pub positions_per_second: f64,
    /// To the plain arithmetic on one thread.
    pub ratio: f64,
}

/// Measures `model` on every supported backend with 1 and up to `threads` threads, in rounds over
/// all of them until each had about `each` of time. `progress` is called after every run.
///
/// # Errors
/// [`Error::Mismatch`] when two ways leave different states, which would be a bug; those of a run.
pub fn measure(
    model: Model<'_>,
    threads: usize,
    each: Duration,
    progress: &mut dyn FnMut(),
) -> Result<Vec<Measurement>, Error> {
    let mut ways: Vec<(Backend, usize)> = vec![(Backend::plain(), 1)];
    for backend in Backend::supported() {
        let counts = [1, 2, threads].into_iter().filter(|n| *n <= threads.max(1));
        ways.extend(counts.map(|n| (backend, n)));
    }
    let mut seen = Vec::new();
    ways.retain(|(backend, n)| {
        let new = !seen.contains(&(backend.name(), *n));
        seen.push((backend.name(), *n));
        new
    });
    let mut best = vec![Duration::MAX; ways.len()];
    let (mut runs, mut positions, mut state) = (0, 0, None);
    let started = Instant::now();
    while runs == 0 || started.elapsed() < each * ways.len() as u32 {
        for ((backend, threads), best) in ways.iter().zip(&mut best) {
            let (time, position, digest) = one(model, *backend, *threads)?;
            *best = time.min(*best);
            positions = position;
            let expected = *state.get_or_insert(digest);
            if digest != expected {
                let what = format!("state left by {} on {threads} threads", backend.name());
                return Err(Error::mismatch(what, expected, digest));
            }
            progress();
        }
        runs += 1;
    }
    let speed = |time: &Duration| f64::from(positions) / time.as_secs_f64();
    Ok(ways
        .iter()
        .zip(&best)
        .map(|((backend, threads), time)| Measurement {
            model: model.name().into(),
            backend: backend.name(),
            threads: *threads,
            positions,
            runs,
            seconds: time.as_secs_f64(),
            positions_per_second: speed(time),
            ratio: speed(time) / speed(&best[0]),
        })
        .collect())
}

/// One run: its time, its positions and its last state.
fn one(
    model: Model<'_>,
    backend: Backend,
    threads: usize,
) -> Result<(Duration, u32, Digest), Error> {
    let params = Params {
        prompt: String::new(),
        max_tokens: TOKENS.min(model.config().seq() as u32 / 2).max(1),
        temperature: crate::Temperature::default(),
        seed: 0,
    };
    let mut session = Session::new(model, &params)?.on(backend, threads);
    let started = Instant::now();
    session.run(None, &mut |_| ControlFlow::Continue(()))?;
    let time = started.elapsed();
    Ok((time, session.info().position + 1, Digest::of(session.state())))
}

/// A model of stories15M's shape with random weights: what it says is noise, what it costs is real.
///
/// # Errors
/// None that this machine's memory does not cause.
pub fn random_15m() -> Result<Artifact, Error> {
    let refuse = |why: String| Error::corrupt("the random model", why);
    let config = Config::new(SHAPE_15M).map_err(|e| refuse(e.to_string()))?;
    let bytes = fixed::convert::convert(&random_checkpoint(&config), &tokenizer(config.vocab()))
        .map_err(|e| refuse(e.why))?;
    Artifact::from_bytes("random-15M".into(), bytes)
}

/// Uniform weights of about a real model's spread; norms of one.
fn random_checkpoint(config: &Config) -> Vec<u8> {
    let matrices: u64 =
        Matrices::new(*config).map(|m| u64::from(m.rows) * u64::from(m.columns)).sum();
    let embedding = config.vocab() * config.dim();
    let (norms, dim) = (config.layers() * config.dim(), config.dim());
    let attention = config.layers() * (2 * dim * dim + 2 * config.kv_dim() * dim);
    let rest = matrices as usize - embedding - attention;
    let mut random = SEED;
    let mut weight = || {
        // xorshift64*
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        let bits = random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40;
        (bits as f32 / (1 << 23) as f32 - 1.0) / 16.0
    };
    let mut out = config.to_bytes().to_vec();
    let mut put = |count: usize, value: &mut dyn FnMut() -> f32| {
        (0..count).for_each(|_| out.extend_from_slice(&value().to_le_bytes()));
    };
    put(embedding, &mut weight);
    put(norms, &mut || 1.0);
    put(attention, &mut weight);
    put(norms, &mut || 1.0);
    put(rest, &mut weight);
    put(dim + config.seq() * config.head_size(), &mut || 1.0);
    out
}

/// Three control tokens, 256 bytes, the printable characters, then numbered words.
fn tokenizer(vocab: usize) -> Vec<u8> {
    let mut out = 16u32.to_le_bytes().to_vec();
    for id in 0..vocab {
        let text = match id {
            0 => "<unk>".into(),
            1 => "\n<s>\n".into(),
            2 => "\n</s>\n".into(),
            3..259 => format!("<0x{:02X}>", id - 3),
            259..354 => char::from(b' ' + (id - 259) as u8).to_string(),
            _ => format!("w{id:05}"),
        };
        out.extend_from_slice(&(-(id as f32)).to_le_bytes());
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The proof inside the measurement must be able to fail: it compares real states.
    #[test]
    fn measures_every_backend_once_and_names_plain_first() {
        let artifact = Artifact::builtin();
        let rows = measure(artifact.model(), 2, Duration::ZERO, &mut || ()).unwrap();
        let ways: Vec<_> = rows.iter().map(|row| (row.backend, row.threads)).collect();
        let mut expected = vec![("plain", 1)];
        for backend in Backend::supported() {
            expected.extend([1, 2].map(|n| (backend.name(), n)));
        }
        expected.dedup();
        assert_eq!(ways, expected);
        assert_eq!(rows[0].ratio, 1.0);
        assert!(rows.iter().all(|row| row.positions == rows[0].positions && row.positions > 40));
    }

    #[test]
    fn the_random_model_has_the_shape_and_the_length_of_stories15m() {
        let artifact = random_15m().unwrap();
        let lens: Vec<_> = (1..3).map(|i| artifact.model().metadata().section_len(i)).collect();
        assert_eq!(lens, [10_435_328, 4_952_064]);
    }
}
