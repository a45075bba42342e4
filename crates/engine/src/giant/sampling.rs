//! Choosing the next token from logits: greedy, or PCG32 with temperature, top-k and top-p.
//!
//! The choice depends on the logits, the parameters and the number of the draw alone. Logits
//! arrive checked (a model stops at one that is not finite), yet a NaN here is refused too,
//! never picked.

use numerics::elementary;

/// Why no token could be chosen or why the parameters were refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A logit that is not a number.
    #[error("the logit of token {token} is not a number: the output cannot be trusted")]
    NotANumber {
        /// Token id.
        token: usize,
    },
    /// Temperature outside `0..=100`.
    #[error("temperature {0} is outside 0 to 100")]
    Temperature(f32),
    /// Top-p outside `(0, 1]`.
    #[error("top-p {0} is outside 0 (exclusive) to 1")]
    TopP(f32),
    /// No logits at all.
    #[error("there are no logits to choose from")]
    Empty,
}

/// How to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy: the lowest index of the largest logit.
    pub temperature: f32,
    /// Keep this many of the most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Then keep the shortest prefix whose mass reaches this share.
    pub top_p: f32,
    /// Seed of the generator.
    pub seed: u64,
}

impl Sampling {
    /// Greedy decoding.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
    /// Temperature used when sampling is asked for without a number.
    pub const DEFAULT_TEMPERATURE: f32 = 1.0;
    /// Top-p used when sampling is asked for without a number.
    pub const DEFAULT_TOP_P: f32 = 0.95;

    /// As asked for: greedy unless anything is given, and what is not given by default.
    pub fn asked(
        temperature: Option<f32>,
        top_k: Option<usize>,
        top_p: Option<f32>,
        seed: Option<u64>,
    ) -> Sampling {
        let any = seed.is_some() || top_p.is_some() || top_k.is_some();
        let temperature =
            temperature.unwrap_or(if any { Sampling::DEFAULT_TEMPERATURE } else { 0.0 });
        Sampling {
            temperature,
            top_k: top_k.unwrap_or(0),
            top_p: top_p.unwrap_or(Sampling::DEFAULT_TOP_P),
            seed: seed.unwrap_or(0),
        }
    }

    /// Refuses parameters out of range.
    ///
    /// # Errors
    /// [`SamplingError::Temperature`], [`SamplingError::TopP`]; NaN is out of range.
    pub fn check(&self) -> Result<(), SamplingError> {
        if !(0.0..=100.0).contains(&self.temperature) {
            return Err(SamplingError::Temperature(self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(SamplingError::TopP(self.top_p));
        }
        Ok(())
    }
}

/// Chooses tokens for one sequence; one stream of random numbers an assistant turn.
#[derive(Clone, Debug)]
pub struct Sampler {
    how: Sampling,
    random: Pcg32,
    /// Reused from draw to draw: no allocation a token.
    ranked: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler for assistant turn `turn` (0 for a plain completion).
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub fn new(how: Sampling, turn: u64) -> Result<Sampler, SamplingError> {
        how.check()?;
        Ok(Sampler { how, random: Pcg32::for_turn(how.seed, turn), ranked: Vec::new() })
    }

    /// The next token id.
    ///
    /// # Errors
    /// [`SamplingError::NotANumber`] or [`SamplingError::Empty`].
    pub fn choose(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        if let Some(token) = logits.iter().position(|l| l.is_nan()) {
            return Err(SamplingError::NotANumber { token });
        }
        let (best, max) = argmax(logits).ok_or(SamplingError::Empty)?;
        if self.how.temperature == 0.0 {
            return Ok(best);
        }
        let t = f64::from(self.how.temperature);
        let weight = |l: f32| elementary::exp(((f64::from(l) - f64::from(max)) / t) as f32);
        self.ranked.clear();
        self.ranked.extend(logits.iter().zip(0u32..).map(|(&l, id)| (weight(l), id)));
        let by_weight = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        self.ranked.sort_unstable_by(by_weight);
        if self.how.top_k > 0 {
            self.ranked.truncate(self.how.top_k);
        }
        let total: f64 = self.ranked.iter().map(|r| f64::from(r.0)).sum();
        let kept = prefix_reaching(&self.ranked, f64::from(self.how.top_p) * total);
        let mass: f64 = kept.iter().map(|r| f64::from(r.0)).sum();
        let draw = self.random.uniform() * mass;
        let mut sum = 0.0;
        for &(w, id) in kept {
            sum += f64::from(w);
            if draw < sum {
                return Ok(id);
            }
        }
        // Rounding can leave the draw at the very end of the mass.
        Ok(kept.last().expect("the largest logit is always kept").1)
    }
}

/// Lowest index of the largest value, and the value.
fn argmax(logits: &[f32]) -> Option<(u32, f32)> {
    let mut best = (0u32, *logits.first()?);
    for (&l, id) in logits.iter().zip(0u32..) {
        if l > best.1 {
            best = (id, l);
        }
    }
    Some(best)
}

/// The shortest prefix whose weights sum to at least `mass` (all of it, if rounding keeps the sum
/// below).
fn prefix_reaching(ranked: &[(f32, u32)], mass: f64) -> &[(f32, u32)] {
    let mut sum = 0.0;
    for (i, r) in ranked.iter().enumerate() {
        sum += f64::from(r.0);
        if sum >= mass {
            return &ranked[..=i];
        }
    }
    ranked
}

/// PCG-XSH-RR 64/32 (O'Neill 2014), seeded through splitmix64.
#[derive(Clone, Debug)]
struct Pcg32 {
    state: u64,
    inc: u64,
}

impl Pcg32 {
    const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

    fn for_turn(seed: u64, turn: u64) -> Pcg32 {
        let mut x = seed ^ turn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let start = splitmix64(&mut x);
        let sequence = splitmix64(&mut x);
        Pcg32::new(start, sequence)
    }

    fn new(start: u64, sequence: u64) -> Pcg32 {
        let mut random = Pcg32 { state: 0, inc: sequence << 1 | 1 };
        random.next();
        random.state = random.state.wrapping_add(start);
        random.next();
        random
    }

    fn next(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(Self::MULTIPLIER).wrapping_add(self.inc);
        let xorshifted = (((old >> 18) ^ old) >> 27) as u32;
        xorshifted.rotate_right((old >> 59) as u32)
    }

    /// In `[0, 1)`, 53 bits from two draws.
    fn uniform(&mut self) -> f64 {
        let a = u64::from(self.next());
        let b = u64::from(self.next());
        ((a << 21) ^ (b & 0x1f_ffff)) as f64 / (1u64 << 53) as f64
    }
}

fn splitmix64(x: &mut u64) -> u64 {
    *x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator of the reference implementation's demo: seed 42, sequence 54.
    #[test]
    fn the_generator_is_pcg32() {
        let mut r = Pcg32::new(42, 54);
        let got: Vec<u32> = (0..6).map(|_| r.next()).collect();
        let want = [0xa15c_02b7, 0x7b47_f409, 0xba1d_3330, 0x83d2_f293, 0xbfa4_784b, 0xcbed_606e];
        assert_eq!(got, want);
    }

    #[test]
    fn splitmix_starts_as_published() {
        let mut x = 1_234_567;
        assert_eq!(splitmix64(&mut x), 6_457_827_717_110_365_317);
    }

    #[test]
    fn greedy_takes_the_lowest_index_of_equal_maxima() {
        let mut s = Sampler::new(Sampling::GREEDY, 0).unwrap();
        assert_eq!(s.choose(&[1.0, 3.0, 3.0, -1.0]), Ok(1));
        assert_eq!(s.choose(&[f32::NEG_INFINITY; 3]), Ok(0));
    }

    #[test]
    fn a_nan_is_an_error_and_never_a_pick() {
        for t in [0.0, 1.0] {
            let mut s = Sampler::new(Sampling { temperature: t, ..Sampling::GREEDY }, 0).unwrap();
            let got = s.choose(&[0.0, f32::NAN, 9.0]);
            assert_eq!(got, Err(SamplingError::NotANumber { token: 1 }));
            assert_eq!(s.choose(&[]), Err(SamplingError::Empty));
        }
    }

    #[test]
    fn a_tiny_top_p_or_top_k_of_one_is_greedy() {
        for how in [
            Sampling { temperature: 2.0, top_k: 0, top_p: 1e-6, seed: 7 },
            Sampling { temperature: 2.0, top_k: 1, top_p: 1.0, seed: 7 },
        ] {
            let mut s = Sampler::new(how, 3).unwrap();
            for _ in 0..100 {
                assert_eq!(s.choose(&[0.1, 0.2, 0.15]), Ok(1));
            }
        }
    }

    #[test]
    fn draws_follow_the_weights() {
        let how = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 1 };
        let mut s = Sampler::new(how, 0).unwrap();
        // Weights 1 : 3.
        let logits = [0.0, 1.098_612_3];
        let ones = (0..40_000).filter(|_| s.choose(&logits) == Ok(1)).count();
        assert!((29_500..30_500).contains(&ones), "{ones} of 40000, expected about 30000");
    }

    #[test]
    fn turns_have_their_own_streams() {
        let how = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 1 };
        let logits = [0.0; 64];
        let run = |turn| {
            let mut s = Sampler::new(how, turn).unwrap();
            (0..8).map(|_| s.choose(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(0), run(0));
        assert_ne!(run(0), run(1));
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        for t in [-0.1, f32::NAN, 101.0] {
            assert!(Sampling { temperature: t, ..Sampling::GREEDY }.check().is_err());
        }
        for p in [0.0, 1.1, f32::NAN] {
            assert!(Sampling { top_p: p, ..Sampling::GREEDY }.check().is_err());
        }
    }
}
