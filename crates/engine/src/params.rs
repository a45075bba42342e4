//! What a run is asked to do, checked before any work: prompt, length, temperature, seed.
//! Not the arithmetic of sampling, which is `fixed::sampler`.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// The longest prompt of the fixed core, in bytes.
pub const MAX_PROMPT_BYTES: usize = 1024;
/// How many tokens a run makes when nobody says: fewer if the context has less room.
pub const DEFAULT_MAX_TOKENS: u32 = 256;
/// Digits after the point a temperature may have; keeps the exact conversion inside 128 bits.
pub const MAX_TEMPERATURE_DECIMALS: usize = 30;

/// A temperature with 16 fractional bits, 0 (greedy) to 16.
///
/// Text becomes a temperature without any floating point: the decimal is read as the exact
/// rational it spells, multiplied by 65,536 and rounded to the nearest integer, halves up. So
/// `0.8` is 52,429 (52,428.8 rounded) everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Temperature(u32);

impl Temperature {
    /// 16.0, the core's largest.
    pub const MAX: Self = Self(16 << 16);

    /// From a Q16 value; `None` above 16.
    pub fn from_q16(q16: u32) -> Option<Self> {
        (q16 <= Self::MAX.0).then_some(Self(q16))
    }

    /// The value with 16 fractional bits.
    pub fn q16(self) -> u32 {
        self.0
    }
}

impl FromStr for Temperature {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |why: &str| {
            Err(Error::Refused(format!(
                "temperature {text:?} {why}; give a decimal number from 0 to 16, such as 0.8"
            )))
        };
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if (whole.is_empty() && decimals.is_empty()) || !digits(whole) || !digits(decimals) {
            return refuse("is not a plain decimal number");
        }
        if decimals.len() > MAX_TEMPERATURE_DECIMALS {
            return refuse("has more than 30 decimals");
        }
        let whole = whole.trim_start_matches('0');
        if whole.len() > 2 {
            return refuse("is above 16");
        }
        // Both fit: the numerator is below 10^32 * 2^17 < 2^124.
        let scale = 10u128.pow(decimals.len() as u32);
        let read = |part: &str| part.bytes().fold(0u128, |n, b| n * 10 + u128::from(b - b'0'));
        let numerator = read(whole) * scale + read(decimals);
        if numerator > 16 * scale {
            return refuse("is above 16");
        }
        Ok(Self(((numerator * (2 << 16) + scale) / (2 * scale)) as u32))
    }
}

impl fmt::Display for Temperature {
    /// The value to six decimals, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millionths = (u64::from(self.0) * 1_000_000 + (1 << 15)) >> 16;
        let text = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Everything that, with the model, decides the output of a run to the bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// At most [`MAX_PROMPT_BYTES`] bytes of UTF-8 without a zero byte.
    pub prompt: String,
    /// The most tokens to make, 1 to the context length.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: Temperature,
    /// The generator's first state; 0 stands for the constant of the specification.
    pub seed: u64,
}

/// Turns prompt bytes into text, or says which byte is wrong.
pub fn prompt_from_bytes(bytes: Vec<u8>) -> Result<String, Error> {
    let prompt = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::Refused(format!("the prompt is not UTF-8: byte {at} does not belong there"))
    })?;
    if prompt.len() > MAX_PROMPT_BYTES {
        return Err(Error::Refused(format!(
            "the prompt has {} bytes, the exact core takes at most {MAX_PROMPT_BYTES}; shorten it",
            prompt.len()
        )));
    }
    match prompt.bytes().position(|b| b == 0) {
        Some(at) => Err(Error::Refused(format!("the prompt has a zero byte, at byte {at}"))),
        None => Ok(prompt),
    }
}

#[cfg(test)]
mod tests {
    use super::{Temperature, prompt_from_bytes};

    fn q16(text: &str) -> Option<u32> {
        text.parse::<Temperature>().ok().map(Temperature::q16)
    }

    /// A float in between would give 0.8 * 65536 = 52428.80000000000x; ties and long decimals
    /// are where rounding twice shows.
    #[test]
    fn decimals_convert_exactly() {
        for (text, want) in [
            ("0", 0),
            ("1", 65_536),
            ("0.8", 52_429),
            (".5", 32_768),
            ("1.", 65_536),
            ("0016", 1_048_576),
            ("16.000", 1_048_576),
            // Half of a unit, 2^-17, goes up; anything below it goes down.
            ("0.00000762939453125", 1),
            ("0.000007629394531249999999999999", 0),
            ("0.00000762939453124", 0),
            // 1 - 2^-17 rounds up to one.
            ("0.99999237060546875", 65_536),
            ("0.99999237060546874", 65_535),
        ] {
            assert_eq!(q16(text), Some(want), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            ".",
            "-1",
            "-0",
            "+1",
            "1e0",
            "0x1",
            "NaN",
            "inf",
            "1,5",
            " 1",
            "1 ",
            "1.2.3",
            "17",
            "16.000000000000000000000000000001",
            "99999999999999999999999999999999999999999999",
            "0.0000000000000000000000000000001",
        ] {
            assert_eq!(q16(text), None, "{text:?}");
        }
    }

    #[test]
    fn shown_for_people() {
        for (text, shown) in
            [("0.8", "0.800003"), ("1", "1"), ("0", "0"), ("16", "16"), ("0.5", "0.5")]
        {
            assert_eq!(text.parse::<Temperature>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn prompts_are_checked() {
        assert_eq!(prompt_from_bytes(vec![b'a'; 1024]).unwrap().len(), 1024);
        for (bytes, says) in [
            (vec![b'a'; 1025], "1025 bytes"),
            (b"a\xffb".to_vec(), "byte 1 "),
            (b"ab\0".to_vec(), "zero byte, at byte 2"),
        ] {
            let message = prompt_from_bytes(bytes).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
