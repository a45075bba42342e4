//! A round of decoding: one backbone step, and as many tokens as it confirms. Models that can
//! draft tokens verify the drafts in that step; for others a round is one token.

/// What the caller does with a position's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The next token, by whatever rule.
    pub token: u32,
    /// Whether nothing is to follow it (end of text, enough tokens).
    pub last: bool,
}

/// One round of speculative decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The tokens that follow, at least one; exactly those that decoding one by one would give.
    pub tokens: Vec<u32>,
    /// Drafts that were verified; `tokens.len() - 1` of them were right.
    pub drafted: usize,
}

/// Drafts verified and accepted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// Rounds.
    pub rounds: u64,
    /// Drafts verified.
    pub drafted: u64,
    /// Drafts that were the token chosen.
    pub accepted: u64,
}

impl Acceptance {
    /// Counts a round.
    pub fn add(&mut self, round: &Round) {
        self.rounds += 1;
        self.drafted += round.drafted as u64;
        self.accepted += round.tokens.len() as u64 - 1;
    }

    /// Share of the verified drafts that were right; `None` before the first.
    pub fn rate(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }
}
