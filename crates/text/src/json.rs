//! JSON as chat templates need it: members in written order, numbers as written, output as Python's
//! `json.dumps(..., ensure_ascii=False)` prints it. Not a serde format and not for hot paths.
//!
//! The usual crates fit badly here: prompts must show integers of any length and floats in
//! Python's spelling, in the caller's member order, and turning on the cargo features that keep
//! both would change number handling in every other crate of the workspace.

/// Deepest nesting of arrays and objects that [`parse`] accepts.
pub const MAX_DEPTH: usize = 128;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as it was written.
    Number(Box<str>),
    /// A string, unescaped.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object: members in order of first appearance. As in Python, the last value of a repeated key wins.
    Object(Vec<(String, Value)>),
}

/// Why and where text is not JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Error {
    /// Line number, from 1.
    pub line: usize,
    /// What was found or missing.
    pub what: String,
}

impl Value {
    /// The value of a member, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_object()?.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// The members, if this is an object.
    pub fn as_object(&self) -> Option<&[(String, Value)]> {
        if let Value::Object(members) = self { Some(members) } else { None }
    }

    /// The elements, if this is an array.
    pub fn as_array(&self) -> Option<&[Value]> {
        if let Value::Array(items) = self { Some(items) } else { None }
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(s) = self { Some(s) } else { None }
    }

    /// The value, if this is a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(b) = self { Some(*b) } else { None }
    }

    /// The value, if this is a whole number that fits.
    pub fn as_u32(&self) -> Option<u32> {
        if let Value::Number(n) = self { n.parse().ok() } else { None }
    }

    /// The type's name in JSON.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }
    }
}

/// Parses one JSON value that fills `text` (RFC 8259).
///
/// # Errors
/// Names the line. Nesting beyond [`MAX_DEPTH`], lone surrogates and floats beyond `f64` are errors too.
pub fn parse(text: &str) -> Result<Value, Error> {
    let mut p = Parser { text, at: 0, depth: 0 };
    p.space();
    let value = p.value()?;
    p.end()?;
    Ok(value)
}

/// Parses one JSON object that fills `text`; each member comes with its value as it was written.
///
/// # Errors
/// As [`parse`]; anything but an object is an error.
pub fn parse_members(text: &str) -> Result<Vec<(String, Value, &str)>, Error> {
    let mut p = Parser { text, at: 0, depth: 0 };
    p.space();
    if p.peek() != Some(b'{') {
        return Err(p.error("expected an object"));
    }
    let members = p.members()?;
    p.end()?;
    Ok(members)
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn error(&self, what: impl Into<String>) -> Error {
        let line = 1 + self.text.as_bytes()[..self.at].iter().filter(|&&b| b == b'\n').count();
        Error { line, what: what.into() }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes `byte` and the space after it, if it is next.
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.at += 1;
            self.space();
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), Error> {
        if self.take(byte) { Ok(()) } else { Err(self.unexpected(&format!("`{}`", byte as char))) }
    }

    fn unexpected(&self, wanted: &str) -> Error {
        match self.text[self.at..].chars().next() {
            Some(c) => self.error(format!("expected {wanted}, found {c:?}")),
            None => self.error(format!("expected {wanted}, found the end")),
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        self.space();
        if self.at == self.text.len() { Ok(()) } else { Err(self.unexpected("the end")) }
    }

    fn value(&mut self) -> Result<Value, Error> {
        match self.peek() {
            Some(b'{') => {
                Ok(Value::Object(self.members()?.into_iter().map(|(k, v, _)| (k, v)).collect()))
            }
            Some(b'[') => self.array().map(Value::Array),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number().map(Value::Number),
            _ => {
                for (word, value) in [
                    ("null", Value::Null),
                    ("true", Value::Bool(true)),
                    ("false", Value::Bool(false)),
                ] {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(self.unexpected("a value"))
            }
        }
    }

    fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH}")));
        }
        Ok(())
    }

    fn array(&mut self) -> Result<Vec<Value>, Error> {
        self.enter()?;
        self.expect(b'[')?;
        let mut items = Vec::new();
        if self.peek() != Some(b']') {
            loop {
                items.push(self.value()?);
                self.space();
                if !self.take(b',') {
                    break;
                }
            }
        }
        self.close(b']')?;
        Ok(items)
    }

    fn members(&mut self) -> Result<Vec<(String, Value, &'t str)>, Error> {
        self.enter()?;
        self.expect(b'{')?;
        let mut members = Vec::new();
        if self.peek() != Some(b'}') {
            loop {
                let key = self.string()?;
                self.space();
                self.expect(b':')?;
                let start = self.at;
                let value = self.value()?;
                members.push((key, value, &self.text[start..self.at]));
                self.space();
                if !self.take(b',') {
                    break;
                }
            }
        }
        self.close(b'}')?;
        Ok(last_value_wins(members))
    }

    /// The closing bracket, without the space after it: a member's written value ends here.
    fn close(&mut self, byte: u8) -> Result<(), Error> {
        if self.peek() != Some(byte) {
            return Err(self.unexpected(&format!("`,` or `{}`", byte as char)));
        }
        self.at += 1;
        self.depth -= 1;
        Ok(())
    }

    fn string(&mut self) -> Result<String, Error> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a string"));
        }
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.bytes().position(|b| b == b'"' || b == b'\\' || b < 0x20);
            let Some(plain) = plain else {
                return Err(self.error("a string is not closed"));
            };
            out.push_str(&rest[..plain]);
            self.at += plain;
            match rest.as_bytes()[plain] {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => out.push(self.escape()?),
                _ => return Err(self.error("a control character in a string must be escaped")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        self.at += 1;
        let c = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => c as char,
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err(self.unexpected("an escape")),
        };
        self.at += 1;
        Ok(c)
    }

    fn unicode_escape(&mut self) -> Result<char, Error> {
        let first = self.hex4()?;
        let code = if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
            self.at += 1;
            let second = self.hex4()?;
            if !(0xdc00..0xe000).contains(&second) {
                return Err(self.error("a surrogate without its partner"));
            }
            0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
        } else {
            first
        };
        char::from_u32(code).ok_or_else(|| self.error("a surrogate without its partner"))
    }

    /// `u` and four hex digits.
    fn hex4(&mut self) -> Result<u32, Error> {
        let digits = self
            .text
            .get(self.at + 1..self.at + 5)
            .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
        self.at += if code.is_some() { 5 } else { 0 };
        code.ok_or_else(|| self.error("\\u needs four hex digits"))
    }

    fn number(&mut self) -> Result<Box<str>, Error> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let zero = self.peek() == Some(b'0');
        let whole = self.digits()?;
        if zero && whole > 1 {
            return Err(self.error("a number may not begin with 0"));
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        if is_float(text) && !text.parse::<f64>().is_ok_and(f64::is_finite) {
            return Err(self.error(format!("{text} is beyond the range of a double")));
        }
        Ok(text.into())
    }

    fn digits(&mut self) -> Result<usize, Error> {
        let n = self.text.as_bytes()[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if n == 0 {
            return Err(self.unexpected("a digit"));
        }
        self.at += n;
        Ok(n)
    }
}

/// Python's dict: a repeated key keeps its first place and its last value.
fn last_value_wins<V>(members: Vec<(String, Value, V)>) -> Vec<(String, Value, V)> {
    // Keys come from requests: the standard hasher, which nobody can aim collisions at.
    let mut place = std::collections::HashMap::new();
    let mut out: Vec<(String, Value, V)> = Vec::with_capacity(members.len());
    for member in members {
        match place.get(&member.0) {
            Some(&i) => out[i] = member,
            None => {
                place.insert(member.0.clone(), out.len());
                out.push(member);
            }
        }
    }
    out
}

/// As Python's `json.dumps(value, ensure_ascii=False)`: `", "` and `": "` between items.
pub fn dumps(value: &Value) -> String {
    let mut out = String::new();
    write(value, &Style { item: ", ", key: ": ", sorted: false }, &mut out);
    out
}

/// As Python's `json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)`.
pub fn dumps_sorted(value: &Value) -> String {
    let mut out = String::new();
    write(value, &Style { item: ",", key: ":", sorted: true }, &mut out);
    out
}

struct Style {
    item: &'static str,
    key: &'static str,
    sorted: bool,
}

fn write(value: &Value, style: &Style, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => write_number(n, out),
        Value::String(s) => write_string(s, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { style.item } else { "" });
                write(item, style, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut order: Vec<&(String, Value)> = members.iter().collect();
            if style.sorted {
                // UTF-8 bytes sort as code points do, which is Python's order.
                order.sort_by(|a, b| a.0.cmp(&b.0));
            }
            out.push('{');
            for (i, (key, value)) in order.into_iter().enumerate() {
                out.push_str(if i > 0 { style.item } else { "" });
                write_string(key, out);
                out.push_str(style.key);
                write(value, style, out);
            }
            out.push('}');
        }
    }
}

/// A quoted string, escaped as Python does without `ensure_ascii`.
fn write_string(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The JSON text of a string.
pub fn quote(s: &str) -> String {
    let mut out = String::new();
    write_string(s, &mut out);
    out
}

fn is_float(number: &str) -> bool {
    number.contains(['.', 'e', 'E'])
}

/// Integers as written (Python's are unbounded), floats as Python's `repr`: the shortest digits
/// that read back, with an exponent below 1e-4 and from 1e16.
fn write_number(number: &str, out: &mut String) {
    let float = if is_float(number) { number.parse::<f64>().ok() } else { None };
    let Some(value) = float else {
        return out.push_str(if number == "-0" { "0" } else { number });
    };
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = format!("{value}");
        out.push_str(&fixed);
        out.push_str(if fixed.contains('.') { "" } else { ".0" });
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        out.push_str(&format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spellings taken from CPython's json module; naive Rust printing differs on most of them.
    #[test]
    fn prints_numbers_and_strings_as_python_does() {
        for (text, want) in [
            ("1e5", "100000.0"),
            ("1E16", "1e+16"),
            ("123456789012345.5", "123456789012345.5"),
            ("1e-4", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e300", "1.5e+300"),
            ("-0.0", "-0.0"),
            ("-0", "0"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("0.1", "0.1"),
            (r#""\u00e9\/\u0001\u007f\ud83d\ude00""#, "\"é/\\u0001\u{7f}😀\""),
            (r#"{"b":[1,2.50,"x"],"a":null,"b":{}}"#, r#"{"b": {}, "a": null}"#),
        ] {
            assert_eq!(dumps(&parse(text).unwrap()), want, "{text}");
        }
    }

    #[test]
    fn sorts_keys_at_every_depth() {
        let value = parse(r#"{"b":[{"z":1,"y":2}],"a":{"d":true,"c":"é"}}"#).unwrap();
        assert_eq!(dumps_sorted(&value), r#"{"a":{"c":"é","d":true},"b":[{"y":2,"z":1}]}"#);
    }

    #[test]
    fn keeps_the_written_value_of_each_member() {
        let members = parse_members(r#" { "a" : [1, 2 ] , "b":1e2 } "#).unwrap();
        assert_eq!(members[0].2, "[1, 2 ]");
        assert_eq!(members[1].2, "1e2");
        assert!(parse_members("[1]").is_err());
    }

    /// Accepting one of these would let a broken file or request through as something else.
    #[test]
    fn refuses_what_is_not_json() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "nul",
            "NaN",
            "Infinity",
            "'a'",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u+123\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "[1] 2",
            "{1:2}",
            "1e999",
            "{\"a\" 1}",
            "\"a",
            "\u{feff}1",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert_eq!(parse("[1,\n\n x]").unwrap_err().line, 3);
        assert!(parse(&"[".repeat(100_000)).unwrap_err().what.contains("deeper"));
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(parse(&deep).is_ok());
    }
}
