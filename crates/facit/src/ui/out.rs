//! Standard output that survives its reader.

use std::io::{self, Write as _};

use crate::exit::Stdout;

/// Standard output, flushed after every write so that text streams. A reader who leaves (a closed
/// pipe) is not an error: what follows goes nowhere, and [`Out::closed`] says so.
#[derive(Default)]
pub struct Out {
    closed: bool,
}

impl Out {
    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if self.closed || bytes.is_empty() {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            Err(e) => Err(Stdout(e).into()),
        }
    }

    /// Writes a line.
    pub fn line(&mut self, line: &str) -> anyhow::Result<()> {
        self.bytes(format!("{line}\n").as_bytes())
    }

    /// Writes a value as one JSON document.
    pub fn json(&mut self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        self.line(&serde_json::to_string_pretty(value)?)
    }

    /// Whether the reader left.
    pub fn closed(&self) -> bool {
        self.closed
    }
}
