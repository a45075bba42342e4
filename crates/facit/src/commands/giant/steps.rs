//! What every step cost, one JSON object a line, written as it happens so that it can be watched.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use engine::giant::{Counters, Event, Spent};
use serde::Serialize;

/// A file of lines.
pub struct Steps {
    file: File,
    path: PathBuf,
    tokens: usize,
    positions: usize,
}

#[derive(Serialize)]
struct Line {
    step: &'static str,
    /// Positions of the prompt done, or tokens made.
    done: usize,
    /// Positions or tokens of this step.
    positions: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_id: Option<u32>,
    seconds: f64,
    expert_hit_rate: Option<f64>,
    disk_bytes_per_second: Option<f64>,
    read: Counters,
    peak_resident_bytes: u64,
}

impl Steps {
    /// Begins the file.
    pub fn create(path: &Path) -> Result<Self, engine::Error> {
        let failed = |source| engine::Error::Write { path: path.to_owned(), source };
        let file = File::create(path).map_err(failed)?;
        Ok(Steps { file, path: path.to_owned(), tokens: 0, positions: 0 })
    }

    /// Writes a line, if the event is a step's.
    pub fn hear(&mut self, event: &Event<'_>) -> Result<(), engine::Error> {
        let line = match event {
            Event::Prefilled { done, spent, .. } => {
                let positions = done - std::mem::replace(&mut self.positions, *done);
                line("prefill", *done, positions, None, spent)
            }
            Event::Token { id, spent } => {
                self.tokens += 1;
                line("token", self.tokens, 1, Some(*id), spent)
            }
            Event::Logits(_) => return Ok(()),
        };
        let failed = |source| engine::Error::Write { path: self.path.clone(), source };
        let mut text = serde_json::to_string(&line).map_err(|e| failed(e.into()))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(failed)
    }
}

fn line(
    step: &'static str,
    done: usize,
    positions: usize,
    token_id: Option<u32>,
    spent: &Spent,
) -> Line {
    Line {
        step,
        done,
        positions,
        token_id,
        seconds: spent.time.as_secs_f64(),
        expert_hit_rate: spent.read.hit_rate(),
        disk_bytes_per_second: spent.read.disk_rate(),
        read: spent.read,
        peak_resident_bytes: store::memory::peak_resident(),
    }
}
