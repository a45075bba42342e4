//! What a stretch of a run cost: the prefill, or the decoding of new tokens.

use engine::giant::{Counters, Spent};
use serde::Serialize;

use crate::ui::units;

/// Counts of one stretch.
#[derive(Clone, Copy, Default)]
pub struct Phase {
    /// Tokens processed (prefill) or made (decode).
    pub tokens: usize,
    /// Wall time.
    pub seconds: f64,
    /// What was read.
    pub read: Counters,
}

/// The same for machines, with what follows from it.
#[derive(Serialize)]
pub struct PhaseReport {
    tokens: usize,
    seconds: f64,
    seconds_per_token: Option<f64>,
    bytes_per_token: Option<u64>,
    expert_hit_rate: Option<f64>,
    disk_bytes_per_second: Option<f64>,
    wait_share: Option<f64>,
    read: Counters,
}

impl Phase {
    /// Adds a step that processed or made so many tokens.
    pub fn add(&mut self, tokens: usize, spent: &Spent) {
        self.tokens += tokens;
        self.seconds += spent.time.as_secs_f64();
        self.read.add(&spent.read);
    }

    /// Wall time of a token.
    pub fn seconds_per_token(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.seconds / self.tokens as f64)
    }

    fn bytes_per_token(&self) -> Option<u64> {
        self.read.bytes().checked_div(self.tokens as u64)
    }

    /// Share of the time in which nothing was computed because the disk was reading.
    fn wait_share(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.read.wait_seconds / self.seconds)
    }

    /// For machines.
    pub fn report(&self) -> PhaseReport {
        PhaseReport {
            tokens: self.tokens,
            seconds: self.seconds,
            seconds_per_token: self.seconds_per_token(),
            bytes_per_token: self.bytes_per_token(),
            expert_hit_rate: self.read.hit_rate(),
            disk_bytes_per_second: self.read.disk_rate(),
            wait_share: self.wait_share(),
            read: self.read,
        }
    }

    /// What was read, for people; `None` if nothing was.
    pub fn tell(&self, name: &str) -> Option<String> {
        if self.read.bytes() == 0 {
            return None;
        }
        let (read, n) = (&self.read, self.tokens.max(1) as u64);
        let hits = read
            .hit_rate()
            .map_or(String::new(), |h| format!("; {:.1} % of experts were in memory", 100.0 * h));
        let rate = read
            .disk_rate()
            .map_or(String::new(), |r| format!("; disk at {}/s", units::bytes(r as u64)));
        Some(format!(
            "{name} read {} a token: layers and head {}, experts {}, rows {}{hits}{rate}; {:.0} % \
             of the time waited for it",
            units::bytes(read.bytes() / n),
            units::bytes(read.trunk_bytes / n),
            units::bytes(read.expert_bytes / n),
            units::bytes(read.other_bytes / n),
            100.0 * self.wait_share().unwrap_or(0.0),
        ))
    }
}
