//! `facit help [COMMAND|exit-codes]`.

use clap::CommandFactory as _;

use crate::exit::{Code, Usage};
use crate::ui::{Out, Table};

/// Explain a command or a topic (exit-codes)
#[derive(clap::Args)]
pub struct Args {
    /// A command, or `exit-codes`
    topic: Option<String>,
}

pub fn run(args: Args) -> anyhow::Result<Code> {
    let mut cli = super::Cli::command();
    let mut out = Out::default();
    match args.topic.as_deref() {
        None => out.line(&cli.render_long_help().to_string())?,
        Some("exit-codes") => out.line(&exit_codes())?,
        Some(topic) => {
            // Building gives subcommands their full names for the usage line.
            cli.build();
            let Some(command) = cli.find_subcommand_mut(topic) else {
                return Err(Usage(format!(
                    "no command or topic {topic:?}; `facit help` lists the commands, and there is the topic exit-codes"
                ))
                .into());
            };
            out.line(&command.render_long_help().to_string())?;
        }
    }
    Ok(Code::Ok)
}

fn exit_codes() -> String {
    let mut table = Table::new([">code", "meaning"]);
    for code in Code::ALL {
        table.row([(code as u8).to_string(), code.meaning().into()]);
    }
    table.to_string()
}
