//! The `facit` binary: arguments in, one library call a command, an exit code out.
//! The work is done by the library crates; what people see is in `ui`.

mod commands;
mod exit;
mod signals;
mod ui;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    match commands::dispatch(cli.command) {
        Ok(code) => code.into(),
        Err(error) => {
            ui::error(&error);
            exit::Code::of(&error).into()
        }
    }
}
