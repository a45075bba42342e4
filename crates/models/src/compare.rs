//! Element-wise comparison of a kernel's result with a reference, at the tolerance bf16 results
//! deserve: an error in bf16 steps that scales with the tensor's largest value, a histogram of
//! the distances in bf16 units in the last place, and the first places that differ.

use std::fmt;

/// How far a value may be from the wanted one: `relative * max|want| + absolute`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Factor of the largest wanted magnitude.
    pub relative: f32,
    /// Added to it.
    pub absolute: f32,
}

impl Tolerance {
    /// Two bf16 steps of the largest value: results rounded to bf16 once or twice.
    pub const BF16: Tolerance = Tolerance { relative: 2.0 / 256.0, absolute: 1e-6 };
    /// f32 mixes and weights.
    pub const F32: Tolerance = Tolerance { relative: 0.0, absolute: 1e-4 };
    /// Indices, codes, masks: no difference at all.
    pub const EXACT: Tolerance = Tolerance { relative: 0.0, absolute: 0.0 };
}

/// Upper ends of the histogram's bins, in bf16 units in the last place; one more bin is above.
pub const BINS: [u32; 6] = [0, 1, 2, 4, 8, 16];

/// One element.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its index along each dimension.
    pub index: Vec<usize>,
    /// The value compared.
    pub got: f32,
    /// The value wanted.
    pub want: f32,
}

/// The comparison of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the tensor.
    pub name: String,
    /// Shape wanted.
    pub shape: Vec<usize>,
    /// Number of values got, if it is not the number wanted (then nothing was compared).
    pub wrong_length: Option<usize>,
    /// The bound applied.
    pub bound: f32,
    /// Largest absolute difference.
    pub largest: f32,
    /// Elements outside the bound (a NaN against a number is).
    pub outside: usize,
    /// Elements by distance: bins of [`BINS`], then everything above.
    pub ulps: [usize; BINS.len() + 1],
    /// The first element that differs at all.
    pub first_difference: Option<Place>,
    /// The first element outside the bound.
    pub first_outside: Option<Place>,
}

impl Report {
    /// Whether every element is inside the bound.
    pub fn passed(&self) -> bool {
        self.wrong_length.is_none() && self.outside == 0
    }
}

/// Compares `got` with `want`, both row-major of `shape`.
pub fn compare(
    name: &str,
    shape: &[usize],
    got: &[f32],
    want: &[f32],
    tolerance: Tolerance,
) -> Report {
    let max = want.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()));
    let mut report = Report {
        name: name.to_owned(),
        shape: shape.to_vec(),
        wrong_length: (got.len() != want.len()).then_some(got.len()),
        bound: tolerance.relative * max + tolerance.absolute,
        largest: 0.0,
        outside: 0,
        ulps: [0; BINS.len() + 1],
        first_difference: None,
        first_outside: None,
    };
    if report.wrong_length.is_some() {
        return report;
    }
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let same =
            got.to_bits() == want.to_bits() || got == want || (got.is_nan() && want.is_nan());
        let distance = if same { 0 } else { bf16_distance(got, want) };
        let bin = BINS.iter().position(|&top| distance <= top).unwrap_or(BINS.len());
        report.ulps[bin] += 1;
        if same {
            continue;
        }
        let place = || Place { index: unravel(i, shape), got, want };
        report.first_difference.get_or_insert_with(place);
        let difference = (got - want).abs();
        // A comparison with a NaN is false, so a NaN lands outside.
        let inside = difference <= report.bound;
        if !inside {
            report.outside += 1;
            report.first_outside.get_or_insert_with(place);
        }
        report.largest =
            if difference.is_nan() { f32::INFINITY } else { report.largest.max(difference) };
    }
    report
}

/// How many bf16 numbers lie from one value to the other, both rounded to bf16 first.
pub fn bf16_distance(a: f32, b: f32) -> u32 {
    if a.is_nan() || b.is_nan() {
        return u32::MAX;
    }
    // Sign and magnitude to a line on which neighbours differ by one.
    let line = |x: f32| {
        let bits = i32::from(numerics::bf16::narrow(x));
        if bits & 0x8000 != 0 { -(bits & 0x7FFF) } else { bits }
    };
    line(a).abs_diff(line(b))
}

fn unravel(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (at, &size) in index.iter_mut().zip(shape).rev() {
        *at = i % size.max(1);
        i /= size.max(1);
    }
    index
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed() { "ok  " } else { "FAIL" };
        write!(f, "{verdict} {} {:?}", self.name, self.shape)?;
        if let Some(got) = self.wrong_length {
            let want: usize = self.shape.iter().product();
            return write!(f, ": {got} values where {want} are wanted");
        }
        write!(f, ": largest difference {:.3e} of {:.3e} allowed", self.largest, self.bound)?;
        write!(f, "\n     bf16 ulps: {} equal", self.ulps[0])?;
        for (bin, &count) in self.ulps.iter().enumerate().skip(1).filter(|(_, c)| **c > 0) {
            match BINS.get(bin) {
                Some(top) if BINS[bin - 1] + 1 == *top => write!(f, ", {count} by {top}")?,
                Some(top) => write!(f, ", {count} by {}-{top}", BINS[bin - 1] + 1)?,
                None => write!(f, ", {count} by more than {}", BINS[bin - 1])?,
            }
        }
        if let Some(p) = &self.first_difference {
            write!(
                f,
                "\n     first difference at {:?}: got {:e}, want {:e}",
                p.index, p.got, p.want
            )?;
        }
        if let Some(p) = &self.first_outside {
            write!(
                f,
                "\n     {} outside, the first at {:?}: got {:e}, want {:e}",
                self.outside, p.index, p.got, p.want
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches bins that are off by one and a first place that is not the first.
    #[test]
    fn distances_and_places() {
        let step = 1.0 / 128.0;
        let want = [1.0, 1.0, 1.0, -1.0, 0.0, f32::NAN];
        let got = [1.0, 1.0 + step, 1.0 + 3.0 * step, -1.0 - 20.0 * step, -0.0, f32::NAN];
        let r = compare("t", &[2, 3], &got, &want, Tolerance::BF16);
        assert_eq!(r.ulps, [3, 1, 0, 1, 0, 0, 1]);
        assert_eq!(r.first_difference.as_ref().unwrap().index, [0, 1]);
        assert_eq!((r.outside, r.first_outside.as_ref().unwrap().index.clone()), (2, vec![0, 2]));
        assert!(!r.passed());
    }

    /// Catches a comparison that lets NaN or a missing value pass.
    #[test]
    fn nan_and_wrong_lengths_fail() {
        assert!(!compare("t", &[1], &[f32::NAN], &[0.0], Tolerance::BF16).passed());
        assert!(!compare("t", &[1], &[0.0], &[f32::NAN], Tolerance::BF16).passed());
        assert!(!compare("t", &[2], &[0.0], &[0.0, 0.0], Tolerance::BF16).passed());
        assert!(compare("t", &[1], &[f32::INFINITY], &[f32::INFINITY], Tolerance::EXACT).passed());
        assert!(!compare("t", &[1], &[f32::INFINITY], &[1.0], Tolerance::BF16).passed());
    }
}
