//! A pull parser for the JSON of headers and index files: no tree, no recursion, no
//! allocation but one reusable buffer for strings with escapes.
//!
//! Strict where it matters (no trailing commas, no raw control characters, valid UTF-8);
//! numbers are unsigned 64-bit integers, the only ones the format has.

use std::str;

/// Nesting allowed in values that are skipped.
const MAX_DEPTH: usize = 64;

/// Position in a text, and what was expected there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub at: usize,
    pub expected: &'static str,
}

pub(super) type Parsed<T> = Result<T, Problem>;

/// A part of a string without escapes: UTF-8 without control characters.
fn plain(part: &[u8], at: usize) -> Parsed<&str> {
    // Not `any`: without the early exit this is a few vector instructions.
    if part.iter().fold(false, |found, &b| found | (b < 0x20)) {
        return Err(Problem { at, expected: "a string without control characters" });
    }
    str::from_utf8(part).or(Err(Problem { at, expected: "valid UTF-8" }))
}

pub(super) struct Cursor<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> Cursor<'t> {
    pub fn new(text: &'t [u8]) -> Self {
        Cursor { text, at: 0 }
    }

    fn problem<T>(&self, expected: &'static str) -> Parsed<T> {
        Err(Problem { at: self.at, expected })
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    /// Next byte after white space, not consumed.
    pub fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.text.get(self.at).copied()
    }

    /// Consumes one given byte.
    pub fn expect(&mut self, byte: u8, expected: &'static str) -> Parsed<()> {
        if self.peek() != Some(byte) {
            return self.problem(expected);
        }
        self.at += 1;
        Ok(())
    }

    /// Calls `member` for every element of an array or object whose opening byte is next.
    pub fn members<E: From<Problem>>(
        &mut self,
        open: u8,
        close: u8,
        mut member: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect(open, if open == b'{' { "an object" } else { "an array" })?;
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            member(self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b) if b == close => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Ok(self.problem("a comma or the closing bracket")?),
            }
        }
    }

    /// A key and its colon.
    pub fn key<'s>(&mut self, scratch: &'s mut String) -> Parsed<&'s str>
    where
        't: 's,
    {
        let key = self.string(scratch)?;
        self.expect(b':', "a colon")?;
        Ok(key)
    }

    /// A string: a slice of the text, or `scratch` if it has escapes.
    pub fn string<'s>(&mut self, scratch: &'s mut String) -> Parsed<&'s str>
    where
        't: 's,
    {
        self.expect(b'"', "a string")?;
        let text = self.text;
        let start = self.at;
        let Some(len) = memchr::memchr2(b'"', b'\\', &text[start..]) else {
            self.at = text.len();
            return self.problem("the end of a string");
        };
        self.at = start + len;
        if text[self.at] == b'\\' {
            return self.escaped(start, scratch);
        }
        self.at += 1;
        plain(&text[start..start + len], start)
    }

    /// The rest of a string that has at least one escape.
    #[cold]
    fn escaped<'s>(&mut self, start: usize, scratch: &'s mut String) -> Parsed<&'s str> {
        scratch.clear();
        let mut from = start;
        loop {
            let Some(len) = memchr::memchr2(b'"', b'\\', &self.text[from..]) else {
                self.at = self.text.len();
                return self.problem("the end of a string");
            };
            self.at = from + len;
            let stop = self.text[self.at];
            scratch.push_str(plain(&self.text[from..self.at], from)?);
            self.at += 1;
            if stop == b'"' {
                return Ok(scratch);
            }
            scratch.push(self.escape()?);
            from = self.at;
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Parsed<char> {
        let Some(&b) = self.text.get(self.at) else { return self.problem("an escape") };
        self.at += 1;
        Ok(match b {
            b'"' | b'\\' | b'/' => char::from(b),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = self.hex4()?;
                let code = if (0xd800..0xdc00).contains(&high) {
                    if self.text.get(self.at..self.at + 2) != Some(b"\\u") {
                        return self.problem("the second half of a surrogate pair");
                    }
                    self.at += 2;
                    let low = self.hex4()?;
                    if !(0xdc00..0xe000).contains(&low) {
                        return self.problem("the second half of a surrogate pair");
                    }
                    0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
                } else {
                    high
                };
                match char::from_u32(code) {
                    Some(c) => c,
                    None => return self.problem("a Unicode character"),
                }
            }
            _ => return self.problem("an escape"),
        })
    }

    fn hex4(&mut self) -> Parsed<u32> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = self.text.get(self.at).and_then(|&b| char::from(b).to_digit(16));
            let Some(digit) = digit else { return self.problem("four hex digits") };
            value = value * 16 + digit;
            self.at += 1;
        }
        Ok(value)
    }

    /// An unsigned integer without sign, fraction, exponent or leading zero.
    pub fn integer(&mut self) -> Parsed<u64> {
        self.skip_space();
        let start = self.at;
        let mut value = 0u64;
        while let Some(b @ b'0'..=b'9') = self.text.get(self.at) {
            let next = value.checked_mul(10).and_then(|v| v.checked_add(u64::from(b - b'0')));
            let Some(next) = next else { return self.problem("an integer below 2^64") };
            value = next;
            self.at += 1;
        }
        let leading_zero = self.at > start + 1 && self.text[start] == b'0';
        let continued = matches!(self.text.get(self.at), Some(b'.' | b'e' | b'E'));
        if self.at == start || leading_zero || continued {
            return self.problem("an unsigned integer");
        }
        Ok(value)
    }

    /// Skips any value.
    pub fn skip_value(&mut self) -> Parsed<()> {
        let mut depth = 0;
        let mut scratch = String::new();
        loop {
            match self.peek() {
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                    if depth > MAX_DEPTH {
                        return self.problem("less nesting");
                    }
                }
                Some(b'}' | b']') if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                Some(b'"') => {
                    self.string(&mut scratch)?;
                }
                Some(b',' | b':') if depth > 0 => self.at += 1,
                Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
                    while let Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') =
                        self.text.get(self.at)
                    {
                        self.at += 1;
                    }
                }
                _ => return self.problem("a value"),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Only white space may be left.
    pub fn end(&mut self) -> Parsed<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.problem("the end"),
        }
    }
}
