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

/// `1.23 MB`, powers of ten; whole bytes below 1,000.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = 0;
    // What would print as 1000.00 is one of the next unit.
    while value >= 999.995 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// `0.12 s`, `3.4 ms`.
pub fn seconds(s: f64) -> String {
    if s < 0.1 { format!("{:.1} ms", s * 1000.0) } else { format!("{s:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::{bytes, count};

    #[test]
    fn groups_and_units() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999, 1000, 999_994, 999_996, 1_234_567, u64::MAX].map(bytes),
            ["0 B", "999 B", "1.00 kB", "999.99 kB", "1.00 MB", "1.23 MB", "18.45 EB"]
        );
    }
}
