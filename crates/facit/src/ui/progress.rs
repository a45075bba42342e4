//! Progress bars on standard error, only when it is a terminal.

use engine::giant::{Counters, Event};
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
    made: usize,
    of: usize,
    /// Of the decoding so far.
    seconds: f64,
    read: Counters,
}

/// A live line for `of` tokens at most; invisible when `quiet` or when nobody watches.
pub fn live(of: usize, quiet: bool) -> Live {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    Live { bar, made: 0, of, seconds: 0.0, read: Counters::default() }
}

impl Live {
    /// Shows what happened.
    pub fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Prefilled { done, of, spent } => {
                let read = spent.read.bytes();
                self.bar.set_message(format!("prompt {done}/{of}{}", said("read", read)));
            }
            Event::Token { spent, .. } => {
                self.made += 1;
                self.seconds += spent.time.as_secs_f64();
                self.read.add(&spent.read);
                self.bar.set_message(self.line());
            }
            Event::Logits(_) => (),
        }
        self.bar.tick();
    }

    /// Token, seconds a token, bytes read, hit rate, time left.
    fn line(&self) -> String {
        // The first token came with the prefill.
        let each = self.seconds / (self.made - 1).max(1) as f64;
        let hits = self.read.hit_rate().filter(|_| self.read.bytes() > 0);
        let hits = hits.map_or(String::new(), |h| format!(", {:.0} % hits", 100.0 * h));
        let left = std::time::Duration::from_secs_f64(each * (self.of - self.made) as f64);
        format!(
            "token {}/{}, {} a token{}{hits}, at most {} left",
            self.made,
            self.of,
            units::seconds(each),
            said("read", self.read.bytes()),
            indicatif::HumanDuration(left),
        )
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

/// `, 1.23 GB read`, or nothing of nothing.
fn said(what: &str, bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(", {} {what}", units::bytes(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::{Counters, Event, live};
    use engine::giant::Spent;

    /// Catches a line that counts the first token's time or divides by no token.
    #[test]
    fn the_line_says_what_a_token_costs_and_what_is_left() {
        let mut live = live(4, true);
        live.show(&Event::Token { id: 1, spent: Spent::default() });
        assert_eq!(live.line(), "token 1/4, 0.0 ms a token, at most 0 seconds left");
        let read = Counters {
            trunk_bytes: 2_000,
            expert_requests: 4,
            expert_hits: 1,
            ..Counters::default()
        };
        let spent = Spent { time: std::time::Duration::from_secs(3), read };
        live.show(&Event::Token { id: 1, spent });
        let line = live.line();
        assert_eq!(
            line,
            "token 2/4, 3.00 s a token, 2.00 kB read, 25 % hits, at most 6 seconds left"
        );
    }
}
