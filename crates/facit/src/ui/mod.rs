//! What people see: results on standard output, everything else on standard error, decoration
//! only on a terminal. Nothing here computes.

mod out;
mod progress;
mod table;
pub mod units;

pub use out::Out;
pub use progress::{Live, bar, bytes_bar, live};
pub use table::Table;

use std::io::{IsTerminal as _, Write as _};

/// Prints an error with its causes.
pub fn error(error: &anyhow::Error) {
    let label = console::style("error:").for_stderr().red().bold();
    // Some errors say their cause themselves.
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    note(&format!("{label} {text}"));
}

/// Prints a line to standard error. That nobody reads it is no reason to stop.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether somebody watches both the text and the report.
pub fn interactive() -> bool {
    std::io::stdout().is_terminal() && std::io::stderr().is_terminal()
}

/// Dim on a terminal.
pub fn dim(text: &str) -> String {
    console::style(text).for_stderr().dim().to_string()
}

/// Bold on a terminal that shows standard output.
pub fn bold(text: &str) -> String {
    console::style(text).bold().to_string()
}
