//! `cargo xtask tidy`: the house rules that no compiler lint knows.
//!
//! Each rule returns the places that break it; all are shown before the chore fails.

mod dependencies;
mod sources;

use crate::shell;
use anyhow::{Result, bail};

/// Runs all rules over the files git tracks.
pub fn run() -> Result<()> {
    let files = sources::tracked(&shell::root())?;
    let mut broken = Vec::new();
    broken.extend(sources::headers_and_lengths(&files));
    broken.extend(sources::unsafe_code(&files));
    broken.extend(sources::private_places(&files));
    broken.extend(sources::links(&files));
    broken.extend(dependencies::edges()?);
    broken.extend(dependencies::licences()?);
    for place in &broken {
        eprintln!("tidy: {place}");
    }
    if !broken.is_empty() {
        bail!("{} places break the house rules (see CONTRIBUTING.md)", broken.len());
    }
    println!("tidy: {} files, all house rules kept", files.len());
    Ok(())
}
