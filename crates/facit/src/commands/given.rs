//! Which of a group's options were typed, by any value: one that says the default was asked for
//! too, and where the group does not apply, ignoring it would be a lie.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// A group of options, and the first of them on the command line.
pub struct Given<T> {
    pub options: T,
    /// Its long name without dashes.
    pub first: Option<String>,
}

impl<T: Args> FromArgMatches for Given<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        // From the group's own definition: no list beside it that a new option could miss.
        let group = T::augment_args(Command::new("group"));
        let typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let first = group.get_arguments().find(|arg| typed(arg.get_id().as_str()));
        let first = first.map(|arg| arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned());
        Ok(Self { options: T::from_arg_matches(matches)?, first })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<T: Args> Args for Given<T> {
    fn group_id() -> Option<clap::Id> {
        T::group_id()
    }

    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::super::giant::GiantOptions;
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        // Stands for the options that --ids excludes.
        #[arg(long)]
        text: Option<String>,
        #[arg(long)]
        prompt_file: Option<String>,
        #[command(flatten)]
        giant: Given<GiantOptions>,
    }

    /// Catches an option of model directories that the exact core would silently ignore, its
    /// default typed out included.
    #[test]
    fn every_option_typed_is_noticed() {
        assert_eq!(Cli::try_parse_from(["facit", "--text", "x"]).unwrap().giant.first, None);
        let group = GiantOptions::augment_args(Command::new("facit"));
        for arg in group.get_arguments() {
            let long = arg.get_long().unwrap();
            let default = arg.get_default_values().first();
            let value = default.map_or("1", |value| value.to_str().unwrap());
            let cli = Cli::try_parse_from(["facit", &format!("--{long}"), value]).unwrap();
            assert_eq!(cli.giant.first.as_deref(), Some(long));
        }
        assert!(group.get_arguments().count() > 10);
        Cli::command().debug_assert();
    }
}
