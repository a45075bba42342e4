//! Progress bars on standard error, only when it is a terminal.

use engine::giant::Event;
use indicatif::{ProgressBar, ProgressStyle};

use super::units;

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

/// A bar of `total` bytes; invisible when `quiet` or when nobody watches.
pub fn bytes_bar(total: u64, what: &'static str, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let template = "{msg:>12} [{bar:32}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta_precise}";
    let style =
        ProgressStyle::with_template(template).expect("a constant template").progress_chars("=> ");
    ProgressBar::new(total).with_style(style).with_message(what)
}

/// A line that follows a generation: positions of the prefill, then tokens and what they cost.
pub struct Live {
    bar: ProgressBar,
    made: u64,
}

/// A live line; invisible when `quiet` or when nobody watches.
pub fn live(quiet: bool) -> Live {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    Live { bar, made: 0 }
}

impl Live {
    /// Shows what happened.
    pub fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Prefilled { done, of, spent } => self.bar.set_message(format!(
                "prompt {done}/{of}, {} read",
                units::bytes(spent.read.bytes())
            )),
            Event::Token { spent, .. } => {
                self.made += 1;
                self.bar.set_message(format!(
                    "token {}, {} a token, {} read",
                    self.made,
                    units::seconds(spent.time.as_secs_f64()),
                    units::bytes(spent.read.bytes())
                ));
            }
            Event::Logits(_) => (),
        }
        self.bar.tick();
    }

    /// Steps aside while `print` writes to the terminal.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Takes the line away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
