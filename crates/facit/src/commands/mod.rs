//! One file a command: its arguments and the library call they become.

mod batch;
mod bench;
mod cache_sim;
mod chat;
mod check_op;
mod compare;
mod completion;
mod convert;
mod doctor;
mod exact;
mod giant;
mod given;
mod help;
mod inspect;
mod options;
mod pack;
mod plan;
mod pull;
mod quote;
mod resume;
mod run;
mod tokenize;
mod verify;
mod verify_model;

use clap::{Parser, Subcommand};

use crate::exit::Code;

/// Facit, the answer key: language models with the same bits on every machine.
#[derive(Parser)]
#[command(name = "facit", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What each is for is said once, at its arguments.
#[derive(Subcommand)]
pub enum Command {
    Run(Box<run::Args>),
    Chat(Box<chat::Args>),
    Resume(resume::Args),
    Verify(verify::Args),
    Quote(quote::Args),
    Inspect(inspect::Args),
    Compare(compare::Args),
    CheckOp(check_op::Args),
    Tokenize(tokenize::TokenizeArgs),
    Detokenize(tokenize::DetokenizeArgs),
    Convert(convert::Args),
    Batch(batch::Args),
    Plan(plan::Args),
    Pack(pack::Args),
    CacheSim(cache_sim::Args),
    Doctor(doctor::Args),
    Pull(pull::Args),
    VerifyModel(verify_model::Args),
    Bench(bench::Args),
    Help(help::Args),
}

/// Runs the command.
pub fn dispatch(command: Command) -> anyhow::Result<Code> {
    match command {
        Command::Run(args) => run::run(*args),
        Command::Chat(args) => chat::run(*args),
        Command::Resume(args) => resume::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Quote(args) => quote::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::CheckOp(args) => check_op::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Tokenize(args) => tokenize::tokenize(args),
        Command::Detokenize(args) => tokenize::detokenize(args),
        Command::Convert(args) => convert::run(args),
        Command::Batch(args) => batch::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Pack(args) => pack::run(args),
        Command::CacheSim(args) => cache_sim::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Pull(args) => pull::run(args),
        Command::VerifyModel(args) => verify_model::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Help(args) => help::run(args),
    }
}
