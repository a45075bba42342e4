//! One file a command: its arguments and the library call they become.

mod bench;
mod compare;
mod convert;
mod exact;
mod giant;
mod help;
mod inspect;
mod options;
mod quote;
mod resume;
mod run;
mod tokenize;
mod verify;

use clap::{Parser, Subcommand};

use crate::exit::Code;

/// Facit, the answer key: language models with the same bits on every machine.
#[derive(Parser)]
#[command(name = "facit", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Continue a prompt with a model
    Run(run::Args),
    /// Go on with a paused run
    Resume(resume::Args),
    /// Replay a receipt and name the first turn that differs
    Verify(verify::Args),
    /// Say how many turns and compute units a run takes
    Quote(quote::Args),
    /// Show what is in a model, a saved state or a receipt
    Inspect(inspect::Args),
    /// Compare the logits of two runs
    Compare(compare::Args),
    /// Show the token ids of a text
    Tokenize(tokenize::TokenizeArgs),
    /// Show the text of token ids
    Detokenize(tokenize::DetokenizeArgs),
    /// Convert a llama2.c checkpoint into a model
    Convert(convert::Args),
    /// Measure the exact core on this machine
    Bench(bench::Args),
    /// Explain a command or a topic (exit-codes)
    Help(help::Args),
}

/// Runs the command.
pub fn dispatch(command: Command) -> anyhow::Result<Code> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Resume(args) => resume::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Quote(args) => quote::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Tokenize(args) => tokenize::tokenize(args),
        Command::Detokenize(args) => tokenize::detokenize(args),
        Command::Convert(args) => convert::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Help(args) => help::run(args),
    }
}
