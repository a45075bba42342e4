//! Stop strings in text as it is generated. Not stop ids: those are the tokenizer's.

use crate::error::Error;

/// Most stop strings.
pub const MAX_STRINGS: usize = 16;
/// Longest stop string, in bytes.
pub const MAX_BYTES: usize = 4096;

/// Finds the stop string that is complete first, of several complete at once the longest, and lets through
/// the text before it. Text that may be the beginning of one is held back; how the text is cut into
/// calls makes no difference. Linear in the text (Knuth, Morris and Pratt).
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    held: String,
    stopped: Option<usize>,
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `border[n]`: the longest proper prefix of the first `n + 1` bytes that is their suffix too.
    border: Vec<usize>,
    matched: usize,
}

impl StopStrings {
    /// A finder of these strings; none is fine.
    ///
    /// # Errors
    /// An empty string, one beyond [`MAX_BYTES`], or more than [`MAX_STRINGS`].
    pub fn new(strings: &[impl AsRef<str>]) -> Result<Self, Error> {
        if strings.len() > MAX_STRINGS {
            return Err(Error::Stop(format!("{} given, at most {MAX_STRINGS}", strings.len())));
        }
        let mut patterns = Vec::new();
        for string in strings.iter().map(|s| s.as_ref()) {
            if string.is_empty() || string.len() > MAX_BYTES {
                return Err(Error::Stop(format!(
                    "{string:.40?} is empty or beyond {MAX_BYTES} bytes"
                )));
            }
            patterns.push(Pattern::new(string.as_bytes()));
        }
        Ok(StopStrings { patterns, held: String::new(), stopped: None })
    }

    /// Takes more text and gives what is certain to come before any stop string. Nothing comes after one.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        let start = self.held.len();
        self.held.push_str(text);
        for at in start..self.held.len() {
            let byte = self.held.as_bytes()[at];
            let mut longest = None;
            for (i, pattern) in self.patterns.iter_mut().enumerate() {
                if pattern.step(byte) && longest.is_none_or(|(n, _)| pattern.bytes.len() > n) {
                    longest = Some((pattern.bytes.len(), i));
                }
            }
            if let Some((length, i)) = longest {
                self.stopped = Some(i);
                self.held.truncate(at + 1);
                self.held.truncate(at + 1 - length);
                return std::mem::take(&mut self.held);
            }
        }
        let kept = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        self.held.drain(..self.held.len() - kept).collect()
    }

    /// Which of the strings was found, by its place in the list.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Ends the text: what was held back after all was no stop string.
    pub fn finish(&mut self) -> String {
        self.patterns.iter_mut().for_each(|p| p.matched = 0);
        std::mem::take(&mut self.held)
    }
}

impl Pattern {
    fn new(bytes: &[u8]) -> Self {
        let mut border = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            let mut n: usize = border[i - 1];
            while n > 0 && bytes[n] != bytes[i] {
                n = border[n - 1];
            }
            border[i] = n + usize::from(bytes[n] == bytes[i]);
        }
        Pattern { bytes: bytes.to_vec(), border, matched: 0 }
    }

    /// Takes one byte; whether the string is now complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn holds_back_only_beginnings() {
        let mut stop = StopStrings::new(&["###", "END"]).unwrap();
        assert_eq!(stop.push("a#"), "a");
        assert_eq!(stop.push("#b"), "##b");
        assert_eq!(stop.push("EN"), "");
        assert_eq!(stop.push("TER END, more"), "ENTER ");
        assert_eq!(stop.stopped(), Some(1));
        assert_eq!(stop.push("x") + &stop.finish(), "");
        assert!(StopStrings::new(&[""]).is_err());
        assert!(StopStrings::new(&["x"; MAX_STRINGS + 1]).is_err());
        let mut none = StopStrings::new(&[] as &[&str]).unwrap();
        assert_eq!(none.push("all"), "all");
    }

    proptest! {
        /// However the text is cut, the outcome is that of searching the whole.
        #[test]
        fn equals_a_search_of_the_whole(
            text in "[abé]{0,30}", strings in prop::collection::vec("[abé]{1,4}", 0..4), cut in 1usize..5) {
            let ends = |s: &String| text.match_indices(s.as_str()).map(|(at, _)| at + s.len()).min();
            let first = (0..strings.len()).filter_map(|i| Some((ends(&strings[i])?, i))).min_by_key(|&(end, i)| {
                (end, std::cmp::Reverse(strings[i].len()), i)
            });
            let mut stop = StopStrings::new(&strings).unwrap();
            let letters: Vec<char> = text.chars().collect();
            let mut got: String = letters.chunks(cut).map(|c| stop.push(&c.iter().collect::<String>())).collect();
            got += &stop.finish();
            prop_assert_eq!(stop.stopped(), first.map(|(_, i)| i));
            let want = first.map_or(text.as_str(), |(end, i)| &text[..end - strings[i].len()]);
            prop_assert_eq!(got, want);
        }
    }
}
