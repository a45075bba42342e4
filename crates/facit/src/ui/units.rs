//! Numbers for people: sizes with units, long counts in groups of three.

/// `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 thread`, `2 threads`.
pub fn plural(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A size, as the plans of the store write it: one report shows both.
pub use store::plan::size as bytes;

/// `0.12 s`, `3.4 ms`.
pub fn seconds(s: f64) -> String {
    if s < 0.1 { format!("{:.1} ms", s * 1000.0) } else { format!("{s:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::{count, plural};

    #[test]
    fn groups_and_plurals() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let tokens = [0, 1, 1000].map(|n| plural(n, "token"));
        assert_eq!(tokens, ["0 tokens", "1 token", "1,000 tokens"]);
    }
}
