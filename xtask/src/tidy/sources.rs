//! Rules about source files: headers, lengths, unsafe code, leaked places, broken links.

use crate::shell;
use anyhow::Result;
use std::path::{Path, PathBuf};

/// Longest Rust file, in lines. Longer files are split by topic.
const MAX_LINES: usize = 650;

/// Folders whose files may hold `unsafe`: SIMD, I/O, and the foreign interfaces.
const UNSAFE_PLACES: &[&str] = &[
    "crates/fixed/src/arith/",
    "crates/fixed/src/exports.rs",
    "crates/fixed/tests/exports.rs",
    "crates/numerics/src/",
    "crates/store/src/",
    "crates/testkit/src/",
    "onchain/",
    "xtask/avx512/",
];

/// Strings that would tie the project to a workplace or a download host.
const PRIVATE: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("index.cra", "tes.io"),
    concat!("static.cra", "tes.io"),
    concat!("registry.np", "mjs.org"),
    concat!("deb.deb", "ian.org"),
    concat!("pypi.o", "rg"),
];

/// A tracked text file and its content.
pub struct Source {
    /// Path relative to the root.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Every tracked file that is UTF-8 text.
pub fn tracked(root: &Path) -> Result<Vec<Source>> {
    let list = shell::output("git", &["ls-files", "-z"])?;
    let paths = list.split('\0').filter(|p| !p.is_empty()).map(PathBuf::from);
    Ok(paths
        .filter_map(|p| {
            let text = std::fs::read_to_string(root.join(&p)).ok()?;
            Some(Source { path: p.to_string_lossy().into_owned(), text })
        })
        .collect())
}

/// Every Rust file opens with `//!` and stays short enough to read.
pub fn headers_and_lengths(files: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for f in files.iter().filter(|f| f.is_rust()) {
        let first = f.text.lines().find(|l| !l.trim().is_empty() && !l.starts_with("#!"));
        if !first.is_some_and(|l| l.starts_with("//!")) {
            broken.push(format!("{}: does not open with `//!` (what it is for)", f.path));
        }
        let lines = f.text.lines().count();
        if lines > MAX_LINES {
            broken.push(format!("{}: {lines} lines, at most {MAX_LINES}", f.path));
        }
    }
    broken
}

/// `unsafe` stays in the places reviewed for it.
pub fn unsafe_code(files: &[Source]) -> Vec<String> {
    let needle = concat!("allow(uns", "afe_code)");
    files
        .iter()
        .filter(|f| f.is_rust() && f.text.contains(needle))
        .filter(|f| !UNSAFE_PLACES.iter().any(|p| f.path.starts_with(p)))
        .map(|f| format!("{}: allows unsafe code outside the reviewed places", f.path))
        .collect()
}

/// No path of a developer's machine, no download host.
pub fn private_places(files: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for f in files.iter().filter(|f| !f.path.ends_with("Cargo.lock")) {
        for word in PRIVATE.iter().filter(|w| f.text.contains(**w)) {
            broken.push(format!("{}: names `{word}`", f.path));
        }
    }
    broken
}

/// Relative links of Markdown files lead somewhere.
pub fn links(files: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for f in files.iter().filter(|f| f.path.ends_with(".md")) {
        let folder = shell::root().join(&f.path).parent().expect("a file has a folder").to_owned();
        for target in f.text.split("](").skip(1).filter_map(|s| s.split(')').next()) {
            let target = target.split('#').next().unwrap_or("");
            let outside = target.is_empty() || target.contains("://") || target.contains(' ');
            if !outside && !folder.join(target).exists() {
                broken.push(format!("{}: link to missing `{target}`", f.path));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_file_without_a_header_or_too_long_is_named() {
        assert_eq!(headers_and_lengths(&[source("a.rs", "//! ok\nfn a() {}\n")]), [""; 0]);
        assert_eq!(headers_and_lengths(&[source("a.rs", "fn a() {}\n")]).len(), 1);
        let long = format!("//! long\n{}", "\n".repeat(MAX_LINES));
        assert_eq!(headers_and_lengths(&[source("a.rs", &long)]).len(), 1);
    }

    #[test]
    fn unsafe_code_outside_its_places_is_named() {
        let text = concat!("//! x\n#![allow(uns", "afe_code)]\n");
        assert_eq!(unsafe_code(&[source("crates/models/src/a.rs", text)]).len(), 1);
        assert!(unsafe_code(&[source("crates/store/src/a.rs", text)]).is_empty());
    }

    #[test]
    fn a_developers_path_is_named() {
        assert_eq!(private_places(&[source("a.md", concat!("see /wo", "rk/x"))]).len(), 1);
    }
}
