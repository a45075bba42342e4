//! Lossless compression of bf16 weights.
//!
//! The exponents of a trained matrix crowd into a few values, while sign and mantissa are
//! noise. A value is split into its exponent and the byte [sign | 7 bits of mantissa]; the
//! byte is stored as it is, the exponent as a code of W = 2, 3 or 4 bits: its distance from
//! the base of a window of 2^W - 1 neighbouring exponents, or all ones for an *escape*, whose
//! exponent follows in full. W and base are chosen for every [`GROUP`] of values by counting.
//!
//! Entropy coding would save about 3 % more, but needs a serial decoder. Codes lie in bit
//! planes here, so decoding is shifts, masks and adds over 32 values at once, a fraction of a
//! nanosecond a value, and leaves the processor to the model. Measured numbers: benches/codec.rs.
//!
//! A group of n values: `[W][base][escapes: u16][planes][n sign/mantissa bytes][escapes]`.
//! Planes: for every 256 values W planes of 32 bytes; bit b of byte l belongs to value 32b+l.
//! W = 8: no planes, all exponents in full.
#![allow(unsafe_code)]

/// Values that share a window.
const GROUP: usize = 2048;
/// Values of one set of planes.
const SET: usize = 256;
/// Bytes of a plane of a set.
const PLANE: usize = SET / 8;
/// Marks a group whose exponents are stored in full.
const FULL: u8 = 8;

/// Why a block cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Exponent and sign/mantissa byte of a value.
fn split(value: [u8; 2]) -> (u8, u8) {
    let v = u16::from_le_bytes(value);
    ((v >> 7) as u8, ((v >> 8) as u8 & 0x80) | (v as u8 & 0x7f))
}

fn join(exponent: u8, rest: u8) -> [u8; 2] {
    let rest = u16::from(rest);
    ((rest & 0x80) << 8 | u16::from(exponent) << 7 | rest & 0x7f).to_le_bytes()
}

/// The cheapest code of a group: width and base.
fn choose(counts: &[u32; 256], n: usize) -> (u8, u8) {
    let mut best = (n, FULL, 0);
    for width in 2..=4u8 {
        let window = (1usize << width) - 1;
        let mut inside: u32 = counts[..window].iter().sum();
        for base in 0..=256 - window {
            if base > 0 {
                inside = inside + counts[base + window - 1] - counts[base - 1];
            }
            let planes = n.div_ceil(SET) * PLANE * usize::from(width);
            let cost = planes + n - inside as usize;
            if cost < best.0 {
                best = (cost, width, base as u8);
            }
        }
    }
    (best.1, best.2)
}

/// Appends the code of bf16 values (an even number of bytes) to `out`.
pub fn encode(raw: &[u8], out: &mut Vec<u8>) {
    debug_assert!(raw.len().is_multiple_of(2));
    for group in raw.chunks(2 * GROUP) {
        encode_group(group, out);
    }
}

fn encode_group(raw: &[u8], out: &mut Vec<u8>) {
    let n = raw.len() / 2;
    let (mut exponents, mut rest) = ([0; GROUP], [0; GROUP]);
    for ((&v, e), r) in raw.as_chunks::<2>().0.iter().zip(&mut exponents).zip(&mut rest) {
        (*e, *r) = split(v);
    }
    let (exponents, rest) = (&exponents[..n], &rest[..n]);
    let mut counts = [0u32; 256];
    for &e in exponents {
        counts[usize::from(e)] += 1;
    }
    let (width, base) = choose(&counts, n);
    let head = out.len();
    out.extend_from_slice(&[width, base, 0, 0]);
    if width == FULL {
        out.extend_from_slice(rest);
        out.extend_from_slice(exponents);
        return;
    }
    let escape = (1u8 << width) - 1;
    let mut escapes = Vec::new();
    for set in exponents.chunks(SET) {
        // Values past the end have code 0, which is no escape.
        let mut codes = [0; SET];
        for (code, &e) in codes.iter_mut().zip(set) {
            *code = e.wrapping_sub(base).min(escape);
        }
        let mut all = [u8::MAX; PLANE];
        for p in 0..width {
            let mut plane = [0; PLANE];
            for (bit, codes) in codes.as_chunks::<PLANE>().0.iter().enumerate() {
                for lane in 0..PLANE {
                    plane[lane] |= (codes[lane] >> p & 1) << bit;
                }
            }
            for lane in 0..PLANE {
                all[lane] &= plane[lane];
            }
            out.extend_from_slice(&plane);
        }
        each_set_bit(&all, |i| escapes.push(set[i]));
    }
    out.extend_from_slice(rest);
    out.extend_from_slice(&escapes);
    out[head + 2..head + 4].copy_from_slice(&(escapes.len() as u16).to_le_bytes());
}

/// Calls `f` with the number of every value whose bit is set in a plane: the order in which
/// escapes are stored.
#[inline(always)]
fn each_set_bit(plane: &[u8; PLANE], mut f: impl FnMut(usize)) {
    for (word, bytes) in plane.as_chunks::<8>().0.iter().enumerate() {
        let mut mask = u64::from_le_bytes(*bytes);
        while mask != 0 {
            let at = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            f(at % 8 * PLANE + word * 8 + at / 8);
        }
    }
}

/// Decodes a block into `out`, which must have the length of what was encoded.
pub fn decode(code: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
    {
        // SAFETY: the processor has these features, just asked.
        return unsafe { decode_avx2(code, out) };
    }
    decode_any(code, out)
}

/// The same code compiled for 32-byte vectors: one plane is one register.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn decode_avx2(code: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    decode_any(code, out)
}

#[inline(always)]
fn decode_any(mut code: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    for group in out.chunks_mut(2 * GROUP) {
        code = decode_group(code, group)?;
    }
    if code.is_empty() { Ok(()) } else { Err(Corrupt) }
}

/// Decodes one group and returns what follows it.
#[inline(always)]
fn decode_group<'c>(code: &'c [u8], out: &mut [u8]) -> Result<&'c [u8], Corrupt> {
    let n = out.len() / 2;
    let (&[width, base, e0, e1], code) = code.split_first_chunk::<4>().ok_or(Corrupt)?;
    let escapes = usize::from(u16::from_le_bytes([e0, e1]));
    match width {
        2 => decode_planes::<2>(code, base, escapes, out),
        3 => decode_planes::<3>(code, base, escapes, out),
        4 => decode_planes::<4>(code, base, escapes, out),
        FULL => {
            let (rest, code) = code.split_at_checked(n).ok_or(Corrupt)?;
            let (exponents, code) = code.split_at_checked(n).ok_or(Corrupt)?;
            for ((out, &e), &r) in out.as_chunks_mut::<2>().0.iter_mut().zip(exponents).zip(rest) {
                *out = join(e, r);
            }
            Ok(code)
        }
        _ => Err(Corrupt),
    }
}

#[inline(always)]
fn decode_planes<'c, const W: usize>(
    code: &'c [u8],
    base: u8,
    escapes: usize,
    out: &mut [u8],
) -> Result<&'c [u8], Corrupt> {
    let n = out.len() / 2;
    let (planes, code) = code.split_at_checked(n.div_ceil(SET) * PLANE * W).ok_or(Corrupt)?;
    let (rest, code) = code.split_at_checked(n).ok_or(Corrupt)?;
    let (escapes, code) = code.split_at_checked(escapes).ok_or(Corrupt)?;
    let mut escapes = escapes.iter();
    let sets = out.chunks_mut(2 * SET).zip(rest.chunks(SET));
    for ((out, rest), planes) in sets.zip(planes.as_chunks::<PLANE>().0.chunks_exact(W)) {
        let planes: &[[u8; PLANE]; W] = planes.try_into().map_err(|_| Corrupt)?;
        if let (Ok(out), Ok(rest)) = (out.try_into(), rest.try_into()) {
            decode_set(planes, base, rest, out);
        } else {
            // The last, shorter set.
            let (mut all, mut padded) = ([0; 2 * SET], [0; SET]);
            padded[..rest.len()].copy_from_slice(rest);
            decode_set(planes, base, &padded, &mut all);
            out.copy_from_slice(&all[..out.len()]);
        }
        patch(planes, rest, out, &mut escapes)?;
    }
    if escapes.next().is_none() { Ok(code) } else { Err(Corrupt) }
}

/// All values of a set, escapes with a meaningless exponent. Plain code: the compiler turns
/// the inner loop into vector instructions.
#[inline(always)]
fn decode_set<const W: usize>(
    planes: &[[u8; PLANE]; W],
    base: u8,
    rest: &[u8; SET],
    out: &mut [u8; 2 * SET],
) {
    for bit in 0..8 {
        let rest = &rest[PLANE * bit..][..PLANE];
        let out = &mut out[2 * PLANE * bit..][..2 * PLANE];
        for lane in 0..PLANE {
            let mut code = 0;
            for (p, plane) in planes.iter().enumerate() {
                code |= (plane[lane] >> bit & 1) << p;
            }
            let value = join(base.wrapping_add(code), rest[lane]);
            out[2 * lane] = value[0];
            out[2 * lane + 1] = value[1];
        }
    }
}

/// Puts the exponents of a set's escapes in.
#[inline(always)]
fn patch<const W: usize>(
    planes: &[[u8; PLANE]; W],
    rest: &[u8],
    out: &mut [u8],
    escapes: &mut std::slice::Iter<'_, u8>,
) -> Result<(), Corrupt> {
    let mut all = [u8::MAX; PLANE];
    for plane in planes {
        for lane in 0..PLANE {
            all[lane] &= plane[lane];
        }
    }
    let mut result = Ok(());
    each_set_bit(&all, |i| match (rest.get(i), escapes.next()) {
        (Some(&rest), Some(&exponent)) => {
            out[2 * i..2 * i + 2].copy_from_slice(&join(exponent, rest));
        }
        _ => result = Err(Corrupt),
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(raw: &[u8]) {
        let mut code = Vec::new();
        encode(raw, &mut code);
        for decode in [decode, decode_any] {
            let mut out = vec![0xaa; raw.len()];
            assert_eq!(decode(&code, &mut out), Ok(()));
            assert!(out == raw);
        }
    }

    /// All 65,536 values, in an order that puts every exponent next to every other.
    #[test]
    fn every_value_survives() {
        let all: Vec<u8> =
            (0..=u16::MAX).flat_map(|i| i.wrapping_mul(40_503).to_le_bytes()).collect();
        round_trip(&all);
    }

    #[test]
    fn every_length_and_width_survives() {
        // Few exponents (W = 2), some (3, 4), all (full).
        for spread in [2, 6, 14, 256] {
            for n in (0..600).chain([2047, 2048, 2049, 4096, 5000]) {
                let mut x = 1u32;
                let raw: Vec<u8> = (0..n)
                    .flat_map(|_| {
                        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let exponent = (x >> 8) % spread + if spread < 256 { 240 } else { 0 };
                        join(exponent as u8, (x >> 24) as u8)
                    })
                    .collect();
                round_trip(&raw);
            }
        }
    }

    /// Damaged code gives an error or other values, never a panic.
    #[test]
    fn damage_never_panics() {
        let raw: Vec<u8> =
            (0..3000u32).flat_map(|i| join((120 + i * i % 9) as u8, i as u8)).collect();
        let mut code = Vec::new();
        encode(&raw, &mut code);
        let mut out = vec![0; raw.len()];
        let mut refused = 0;
        for at in 0..code.len() {
            let mut bad = code.clone();
            bad[at] ^= 1 << (at % 8);
            refused += usize::from(decode(&bad, &mut out).is_err());
            assert_eq!(decode(&code[..at], &mut out), Err(Corrupt));
        }
        assert!(refused > 0);
        code.push(0);
        assert_eq!(decode(&code, &mut out), Err(Corrupt));
    }
}
