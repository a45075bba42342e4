//! Progress bars on standard error, only when it is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `len` steps of `what`; invisible when `quiet` or when nobody watches.
pub fn bar(len: u64, what: &'static str, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:>12} [{bar:32}] {pos}/{len} {eta_precise}")
        .expect("a constant template")
        .progress_chars("=> ");
    ProgressBar::new(len).with_style(style).with_message(what)
}
