//! The constants of the engram hashes: one odd multiplier for each place of an n-gram and one
//! prime modulus for each hash head, fixed by the configuration.
//!
//! The released model's values are hard-coded; a test derives them again. For any other
//! configuration (tiny and synthetic checkpoints) they are derived here by the same rules.

use crate::deepseek_v41::config::{ConfigError, EngramConfig};

/// Multipliers of the released model, `[layer 1 | layer 14, place]`. They exceed 2^53, so they
/// must never pass through a JSON number.
pub const RELEASED_MULTIPLIERS: [[i64; 4]; 2] = [
    [76632096046245, 4839876093313, 35959672319349, 73987337458391],
    [67716810739261, 51510806800915, 30921347202721, 82619226485591],
];

/// Primes of the released model, `[layer 1 | layer 14, order - 2, head]`.
pub const RELEASED_PRIMES: [[[u64; 8]; 3]; 2] = [
    [
        [16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183],
        [16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321],
        [16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463],
    ],
    [
        [16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627],
        [16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769],
        [16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889],
    ],
];

/// Seed of a layer's multipliers is this times the layer number.
const SEED_STEP: u32 = 10007;

/// Hash constants of one engram layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerHash {
    /// One for each place of an n-gram, the current token first.
    pub multipliers: Vec<i64>,
    /// Moduli, `[order, head]` flattened.
    pub primes: Vec<u64>,
    /// First row of each head, the running sum of the primes.
    pub offsets: Vec<u64>,
}

/// The constants of every engram layer.
///
/// # Errors
/// If the configuration's table sizes are not the sums of its primes, or the multipliers'
/// range is too small for the generator.
pub fn derive(e: &EngramConfig) -> Result<Vec<LayerHash>, ConfigError> {
    let released = is_released(e);
    let mut prime = e.first_prime;
    let mut layers = Vec::with_capacity(e.layers.len());
    for (i, &layer) in e.layers.iter().enumerate() {
        let (multipliers, primes) = if released {
            (RELEASED_MULTIPLIERS[i].to_vec(), RELEASED_PRIMES[i].concat())
        } else {
            (multipliers(layer, e)?, next_primes(&mut prime, e.lookups()))
        };
        let mut offsets = Vec::with_capacity(primes.len());
        let mut rows = 0u64;
        for p in &primes {
            offsets.push(rows);
            rows += p;
        }
        if rows != e.rows[i] {
            return Err(ConfigError::Value {
                field: "engram_num_embeddings",
                got: format!("{} for layer {layer}", e.rows[i]),
                expected: format!("{rows}, the sum of the layer's primes"),
            });
        }
        layers.push(LayerHash { multipliers, primes, offsets });
    }
    Ok(layers)
}

fn is_released(e: &EngramConfig) -> bool {
    e.layers == [1, 14]
        && e.first_prime == 16_000_000
        && e.compressed_vocab == 99092
        && (e.max_ngram, e.heads) == (4, 8)
}

/// `2v + 1` for `v` drawn below `((2^63-1) / compressed_vocab) / 2`, one for each place: the
/// product with any compressed id then stays below 2^63.
pub fn multipliers(layer: usize, e: &EngramConfig) -> Result<Vec<i64>, ConfigError> {
    let range = i64::MAX as u64 / e.compressed_vocab as u64 / 2;
    let seed = u32::try_from(layer).ok().and_then(|l| l.checked_mul(SEED_STEP));
    // Below 2^32 the generator would draw 32-bit numbers, another sequence.
    let (Some(seed), true) = (seed, range > 1 << 32) else {
        return Err(ConfigError::Value {
            field: "engram_compressed_vocab_size",
            got: e.compressed_vocab.to_string(),
            expected: "a size that leaves the hash multipliers more than 32 bits".to_owned(),
        });
    };
    let mut rng = Pcg64::from_seed(seed);
    Ok((0..e.max_ngram).map(|_| (2 * rng.below(range) + 1) as i64).collect())
}

/// The `count` primes from `*from` on; `*from` becomes the number after the last.
pub fn next_primes(from: &mut u64, count: usize) -> Vec<u64> {
    let mut primes = Vec::with_capacity(count);
    while primes.len() < count {
        if is_prime(*from) {
            primes.push(*from);
        }
        *from += 1;
    }
    primes
}

fn is_prime(n: u64) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

/// The PCG64 generator behind numpy's `default_rng(seed)`, as far as it is needed here: seeding
/// from one 32-bit integer and bounded 64-bit integers.
struct Pcg64 {
    state: u128,
    increment: u128,
}

impl Pcg64 {
    const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

    fn from_seed(seed: u32) -> Self {
        let words = seed_words(seed);
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let mut rng = Pcg64 { state: 0, increment: wide(words[2], words[3]) << 1 | 1 };
        rng.step();
        rng.state = rng.state.wrapping_add(wide(words[0], words[1]));
        rng.step();
        rng
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(Self::MULTIPLIER).wrapping_add(self.increment);
    }

    fn next(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// A uniform number below `range` (Lemire's multiplication, rejecting the uneven part).
    fn below(&mut self, range: u64) -> u64 {
        let reject = range.wrapping_neg() % range;
        loop {
            let product = u128::from(self.next()) * u128::from(range);
            if product as u64 >= reject {
                return (product >> 64) as u64;
            }
        }
    }
}

/// numpy's `SeedSequence(seed).generate_state(4, uint64)` for a seed of one word.
fn seed_words(seed: u32) -> [u64; 4] {
    let mut constant = 0x43B0_D7E5u32;
    let mut hash = |value: u32| {
        let mut v = value ^ constant;
        constant = constant.wrapping_mul(0x931E_8875);
        v = v.wrapping_mul(constant);
        v ^ v >> 16
    };
    let mut pool = [seed, 0, 0, 0].map(&mut hash);
    for source in 0..4 {
        for target in 0..4 {
            if source != target {
                let mixed = pool[target]
                    .wrapping_mul(0xCA01_F9DD)
                    .wrapping_sub(hash(pool[source]).wrapping_mul(0x4973_F715));
                pool[target] = mixed ^ mixed >> 16;
            }
        }
    }
    let mut constant = 0x8B51_F9DDu32;
    let mut words = [0u64; 4];
    for i in 0..8 {
        let mut v = pool[i % 4] ^ constant;
        constant = constant.wrapping_mul(0x58F3_8DED);
        v = v.wrapping_mul(constant);
        v ^= v >> 16;
        words[i / 2] |= u64::from(v) << (32 * (i % 2));
    }
    words
}
