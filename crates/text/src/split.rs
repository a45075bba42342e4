//! Pre-tokenizers: cut text into the pieces that byte-pair merges may not cross. Not the merges.
//!
//! The originals are regular expressions with alternatives and look-ahead. These are scanners by hand that
//! give the same cuts: every character is looked at a bounded number of times, so the time is linear in
//! the text whatever it is, where a backtracking engine can go quadratic (long runs of blanks or capitals).

use crate::class::{self, HAN, LETTER, LOWER, MARK, NUMBER, SPACE, SYMBOL, UNCASED, UPPER};

/// Characters that the released K3 tokenizer encodes at once; longer text is cut here first.
const K3_MAX_CHARS: usize = 400_000;
/// Longest run of blank, or of non-blank, characters that it encodes at once.
const K3_MAX_RUN: usize = 25_000;

/// Which pre-tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Splitter {
    /// Kimi K3 (the pattern of its released tokenizer code).
    KimiK3,
    /// DeepSeek's chain of three splits (`pre_tokenizer` of its `tokenizer.json`).
    Deepseek,
}

impl Splitter {
    /// Calls `emit` with the pieces of `text` in order; together they are `text`.
    pub fn split<'t>(self, text: &'t str, emit: &mut impl FnMut(&'t str)) {
        match self {
            Splitter::KimiK3 => k3_slices(text, &mut |slice| split_k3(slice, emit)),
            Splitter::Deepseek => split_deepseek(text, emit),
        }
    }
}

/// The slices that the released K3 tokenizer encodes one by one.
fn k3_slices<'t>(text: &'t str, emit: &mut impl FnMut(&'t str)) {
    let (mut start, mut chars, mut run, mut run_blank) = (0, 0, 0, false);
    for (i, c) in text.char_indices() {
        let blank = python_blank(c);
        if chars == K3_MAX_CHARS {
            emit(&text[start..i]);
            (start, chars, run) = (i, 0, 0);
        }
        run = if run > 0 && blank == run_blank { run + 1 } else { 1 };
        run_blank = blank;
        if run > K3_MAX_RUN {
            emit(&text[start..i]);
            (start, run) = (i, 1);
        }
        // Counted from the last cut at K3_MAX_CHARS: cuts of long runs lie inside that chunk.
        chars += 1;
    }
    if start < text.len() {
        emit(&text[start..]);
    }
}

/// Python's `str.isspace`: White_Space and the four information separators.
fn python_blank(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Kimi K3's pre-tokenizer on one slice. The alternatives, in order:
/// `[\p{Han}]+`, a word that ends in lower case, a word that ends in upper case, `\p{N}{1,3}`,
/// ` ?[^\s\p{L}\p{N}]+[\r\n]*`, `\s*[\r\n]+`, `\s+(?!\S)`, `\s+`.
fn split_k3<'t>(text: &'t str, emit: &mut impl FnMut(&'t str)) {
    let scan = Scan::new(text);
    let mut at = 0;
    while let Some(here) = scan.at(at) {
        let end = if here.is(HAN) {
            scan.run(at, |c| c.is(HAN))
        } else if let Some(end) = scan.k3_word(at, here) {
            scan.contraction(end)
        } else if here.is(NUMBER) {
            scan.number(at)
        } else if let Some(end) = scan.symbols(at, here, |c| !c.is(SPACE | LETTER | NUMBER)) {
            end
        } else {
            scan.blanks(at)
        };
        emit(&text[at..end]);
        at = end;
    }
}

/// DeepSeek's chain: numbers of up to three digits are cut out first, runs of common CJK characters from
/// what is between them, and the last pattern works inside each of these pieces, whose end is its end of text.
fn split_deepseek<'t>(text: &'t str, emit: &mut impl FnMut(&'t str)) {
    let scan = Scan::new(text);
    let mut at = 0;
    while let Some(here) = scan.at(at) {
        let end = if here.is(NUMBER) {
            let end = scan.number(at);
            emit(&text[at..end]);
            end
        } else {
            let cjk = deepseek_cjk(here.char);
            let end = scan.run(at, |c| !c.is(NUMBER) && deepseek_cjk(c.char) == cjk);
            split_deepseek_words(&text[at..end], emit);
            end
        };
        at = end;
    }
}

/// `[一-龥぀-ゟ゠-ヿ]`
fn deepseek_cjk(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}')
}

/// The last split: ``[ASCII punctuation][A-Za-z]+``, `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`,
/// ` ?[\p{P}\p{S}]+[\r\n]*`, `\s*[\r\n]+`, `\s+(?!\S)`, `\s+`. What none of them takes stays together as a piece.
fn split_deepseek_words<'t>(text: &'t str, emit: &mut impl FnMut(&'t str)) {
    let scan = Scan::new(text);
    let (mut at, mut gap) = (0, 0);
    while let Some(here) = scan.at(at) {
        let end = if let Some(end) = scan.deepseek_word(at, here) {
            end
        } else if let Some(end) = scan.symbols(at, here, |c| c.is(SYMBOL)) {
            end
        } else if here.is(SPACE) {
            scan.blanks(at)
        } else {
            at = here.next;
            continue;
        };
        if gap < at {
            emit(&text[gap..at]);
        }
        emit(&text[at..end]);
        (at, gap) = (end, end);
    }
    if gap < text.len() {
        emit(&text[gap..]);
    }
}

/// A character of the text, its classes, and where the next one begins.
#[derive(Clone, Copy)]
struct Here {
    char: char,
    class: u8,
    next: usize,
}

impl Here {
    fn is(self, classes: u8) -> bool {
        self.class & classes != 0
    }

    fn newline(self) -> bool {
        matches!(self.char, '\r' | '\n')
    }
}

struct Scan<'t> {
    text: &'t str,
    table: &'static [u8; 0x11_0000],
}

impl<'t> Scan<'t> {
    fn new(text: &'t str) -> Self {
        Scan { text, table: class::table() }
    }

    /// The character at a byte offset, which is a boundary; `None` at the end.
    #[inline]
    fn at(&self, at: usize) -> Option<Here> {
        let byte = *self.text.as_bytes().get(at)?;
        let char = if byte < 0x80 { byte as char } else { self.text[at..].chars().next()? };
        Some(Here { char, class: self.table[char as usize], next: at + char.len_utf8() })
    }

    /// The end of the longest run from `at` whose characters all are `wanted`.
    #[inline]
    fn run(&self, mut at: usize, wanted: impl Fn(Here) -> bool) -> usize {
        while let Some(here) = self.at(at).filter(|&c| wanted(c)) {
            at = here.next;
        }
        at
    }

    /// `\p{N}{1,3}`
    fn number(&self, mut at: usize) -> usize {
        for _ in 0..3 {
            match self.at(at).filter(|c| c.is(NUMBER)) {
                Some(c) => at = c.next,
                None => break,
            }
        }
        at
    }

    /// ` ?S+[\r\n]*` for a class S without blanks.
    fn symbols(&self, at: usize, here: Here, symbol: impl Fn(Here) -> bool) -> Option<usize> {
        let start = if here.char == ' ' { here.next } else { at };
        let end = self.run(start, symbol);
        (end > start).then(|| self.run(end, Here::newline))
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+` at a blank: up to the last newline of the run of blanks if it has one,
    /// else all of it at the end of the text, else all but the last blank, which may begin a word.
    fn blanks(&self, at: usize) -> usize {
        let (mut end, mut last, mut after_newline) = (at, at, None);
        while let Some(here) = self.at(end).filter(|c| c.is(SPACE)) {
            last = end;
            end = here.next;
            if here.newline() {
                after_newline = Some(end);
            }
        }
        match after_newline {
            Some(newline) => newline,
            None if end < self.text.len() && last > at => last,
            None => end,
        }
    }

    /// `[^\r\n\p{L}\p{N}]?U*L+` or else `[^\r\n\p{L}\p{N}]?U+L*`, Han excluded from the letters, with
    /// U = upper, uncased and marks, L = lower, uncased and marks. The order of tries is the regex engine's:
    /// the optional first character taken, then not taken.
    fn k3_word(&self, at: usize, here: Here) -> Option<usize> {
        let skips_first = !here.newline() && !here.is(LETTER | NUMBER);
        let after_first = skips_first.then_some(here.next);
        after_first
            .and_then(|start| self.k3_lower_word(start))
            .or_else(|| self.k3_lower_word(at))
            .or_else(|| after_first.and_then(|start| self.k3_upper_word(start)))
            .or_else(|| self.k3_upper_word(at))
    }

    /// `U*L+`. U and L share the uncased letters and marks: if no lower case follows the run of U, the
    /// engine gives back characters of the run until one of them can be the L.
    fn k3_lower_word(&self, start: usize) -> Option<usize> {
        let (mut at, mut after_shared) = (start, None);
        while let Some(c) = self.at(at).filter(|c| c.is(UPPER | UNCASED | MARK) && !c.is(HAN)) {
            at = c.next;
            if c.is(UNCASED | MARK) {
                after_shared = Some(at);
            }
        }
        let end = self.run(at, |c| c.is(LOWER | UNCASED | MARK) && !c.is(HAN));
        if end > at { Some(end) } else { after_shared }
    }

    /// `U+L*` where `U*L+` failed: the run of U holds only upper case and no L follows.
    fn k3_upper_word(&self, start: usize) -> Option<usize> {
        let end = self.run(start, |c| c.is(UPPER));
        (end > start).then_some(end)
    }

    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`; ignoring case, `s` is also the long s.
    fn contraction(&self, at: usize) -> usize {
        let mut next = self.text[at..].chars();
        if next.next() != Some('\'') {
            return at;
        }
        let first = next.next().map(|c| c.to_ascii_lowercase());
        let second = next.next().map(|c| c.to_ascii_lowercase());
        match (first, second) {
            (Some('s' | 't' | 'm' | 'd'), _) => at + 2,
            (Some('ſ'), _) => at + 1 + 'ſ'.len_utf8(),
            (Some('r' | 'v'), Some('e')) | (Some('l'), Some('l')) => at + 3,
            _ => at,
        }
    }

    /// ``[ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+``
    fn deepseek_word(&self, at: usize, here: Here) -> Option<usize> {
        if here.char.is_ascii_punctuation() {
            let end = self.run(here.next, |c| c.char.is_ascii_alphabetic());
            if end > here.next {
                return Some(end);
            }
        }
        if !here.newline() && !here.is(LETTER | SYMBOL) {
            let end = self.run(here.next, |c| c.is(LETTER | MARK));
            if end > here.next {
                return Some(end);
            }
        }
        let end = self.run(at, |c| c.is(LETTER | MARK));
        (end > at).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::OnceLock;

    fn pieces(splitter: Splitter, text: &str) -> Vec<&str> {
        let mut out = Vec::new();
        splitter.split(text, &mut |piece| out.push(piece));
        out
    }

    /// The released pattern, for a backtracking engine.
    fn k3_oracle(text: &str) -> Vec<&str> {
        static REGEX: OnceLock<fancy_regex::Regex> = OnceLock::new();
        let regex = REGEX.get_or_init(|| {
            let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]";
            let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]";
            let (first, tail) = (r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?");
            let words = format!("{first}{upper}*{lower}+{tail}|{first}{upper}+{lower}*{tail}");
            let rest = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
            fancy_regex::Regex::new(&format!(r"[\p{{Han}}]+|{words}|{rest}")).unwrap()
        });
        regex.find_iter(text).map(|found| found.unwrap().as_str()).collect()
    }

    /// The three splits one after the other, each inside the pieces of the one before.
    fn deepseek_oracle(text: &str) -> Vec<&str> {
        static CHAIN: OnceLock<Vec<fancy_regex::Regex>> = OnceLock::new();
        let chain = CHAIN.get_or_init(|| {
            crate::tokenizer_json::SPLITS.map(|s| fancy_regex::Regex::new(s).unwrap()).into()
        });
        let mut pieces = vec![text];
        for regex in chain {
            pieces = pieces.into_iter().flat_map(|piece| isolate(regex, piece)).collect();
        }
        pieces
    }

    fn isolate<'t>(regex: &fancy_regex::Regex, text: &'t str) -> Vec<&'t str> {
        let (mut out, mut at) = (Vec::new(), 0);
        for found in regex.find_iter(text) {
            let found = found.unwrap();
            out.extend([&text[at..found.start()], found.as_str()]);
            at = found.end();
        }
        out.push(&text[at..]);
        out.retain(|piece| !piece.is_empty());
        out
    }

    /// Characters of every class, and those on the borders between them.
    fn nasty() -> impl Strategy<Value = String> {
        let characters: Vec<char> =
            " \t\n\r\u{a0}\u{3000}\u{85}\u{2028}\u{1c}\u{0}abcstrevmldABCST\
            ǅǆǄſªʰ'’.,!-_<|>$+²½Ⅷ0123٣éÉ\u{301}\u{30a}\u{323}中文々〇〡⺀カ・かー한\u{200d}\u{ad}\
            \u{feff}😀👩\u{378}\u{16ff0}\u{10ffff}\u{3097}\u{309b}\u{30a0}龥龦"
                .chars()
                .collect();
        let one = prop_oneof![4 => prop::sample::select(characters), 1 => any::<char>()];
        prop::collection::vec(one, 0..40).prop_map(String::from_iter)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn k3_cuts_as_the_regex_does(text in nasty()) {
            prop_assert_eq!(pieces(Splitter::KimiK3, &text), k3_oracle(&text));
        }

        #[test]
        fn deepseek_cuts_as_the_chain_does(text in nasty()) {
            prop_assert_eq!(pieces(Splitter::Deepseek, &text), deepseek_oracle(&text));
        }
    }

    /// Against the original library on every code point: catches tables of another Unicode version.
    #[test]
    fn deepseek_cuts_around_every_code_point() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/text/deepseek/classes.json");
        let ranges: Vec<(u32, String)> =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut differ = Vec::new();
        for code in 0..=0x10ffff {
            let Some(c) = char::from_u32(code) else { continue };
            let probes = [format!("a{c}a"), format!("!{c}\n"), format!("  {c}  {c}1")];
            let cuts = probes.map(|probe| {
                let mut at = 0;
                let ends = pieces(Splitter::Deepseek, &probe).into_iter().map(|piece| {
                    at += piece.chars().count();
                    at
                });
                let total = probe.chars().count();
                ends.filter(|&end| end < total).map(|end| end.to_string()).collect::<String>()
            });
            let range = ranges.partition_point(|(first, _)| *first <= code) - 1;
            if cuts.join("|") != ranges[range].1 {
                differ.push(format!("U+{code:04X}"));
            }
        }
        assert!(
            differ.is_empty(),
            "{} differ: {:?}",
            differ.len(),
            &differ[..differ.len().min(40)]
        );
    }

    /// Long runs where a backtracking engine is quadratic; a scanner that looks back is noticed by the clock
    /// of the whole test run, here only the cuts are checked.
    #[test]
    fn long_runs_are_cut_in_one_pass() {
        let n = 300_000;
        for unit in ["a", "A", " ", "\n", "\u{301}", "'", "中", "1", "\u{200d}", "a ", "Aª", "!A"]
        {
            let text = unit.repeat(n);
            for splitter in [Splitter::KimiK3, Splitter::Deepseek] {
                assert_eq!(pieces(splitter, &text).concat(), text, "{unit:?}");
            }
        }
    }
}
