//! Counter-based random numbers: value `i` of stream `key` is a function of both, so any part
//! of a tensor can be made on its own, in any order, on any thread, with the same bytes.

/// A hash of a stream and a counter (the finaliser of splitmix64).
#[inline(always)]
pub fn hash(key: u64, i: u64) -> u64 {
    let mut z = key.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream's key from a seed and a name.
pub fn key(seed: u64, name: &str) -> u64 {
    name.bytes().fold(hash(seed, 0), |k, b| hash(k, u64::from(b) + 1))
}

/// Uniform in `[0, 1)`.
#[inline(always)]
pub fn uniform(key: u64, i: u64) -> f32 {
    (hash(key, i) >> 40) as f32 / (1u64 << 24) as f32
}

/// Close to a standard normal: the sum of four 16-bit uniforms. Plain integer and exact f32
/// steps, so the same on every machine.
#[inline(always)]
pub fn normal(key: u64, i: u64) -> f32 {
    let h = hash(key, i);
    let sum = (h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48);
    (sum as f32 - 131_070.0) * (1.0 / 37_837.0)
}

/// A shuffle of `items` that depends only on `key`.
pub fn shuffle<T>(items: &mut [T], key: u64) {
    for i in (1..items.len()).rev() {
        let j = hash(key, i as u64) % (i as u64 + 1);
        items.swap(i, j as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let n = 100_000u64;
        let (mut sum, mut square) = (0.0, 0.0);
        for i in 0..n {
            let x = f64::from(normal(7, i));
            sum += x;
            square += x * x;
        }
        assert!((sum / n as f64).abs() < 0.02);
        assert!((square / n as f64 - 1.0).abs() < 0.02);
    }
}
