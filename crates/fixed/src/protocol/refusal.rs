//! Why the program refuses an instruction: one number, and one name, for every reason.
//!
//! A transaction that fails with the custom error *n* was refused for the reason of number *n*:
//! the program's own reasons count from 1, layouts' from [`PROBLEMS`], the core's from [`CORE`].

use super::Problem;
use crate::Error;
use core::fmt;

/// Added to a [`Problem`]'s number.
pub const PROBLEMS: u32 = 100;
/// Added to a core [`Error`]'s number.
pub const CORE: u32 = 200;

macro_rules! refusals {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// Why an instruction was refused. A refused instruction changes nothing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Refusal {
            $(#[doc = concat!($text, ".")] $name,)*
            /// Bytes of an account or the instruction do not fit their layout.
            Layout(Problem),
            /// The core refused.
            Core(Error),
        }

        impl Refusal {
            /// The program's own reasons, in the order of their numbers.
            pub const OWN: &[Refusal] = &[$(Refusal::$name),*];

            /// Stable number, never 0.
            pub const fn number(self) -> u32 {
                match self {
                    $(Refusal::$name => $number,)*
                    Refusal::Layout(problem) => PROBLEMS + problem.number(),
                    Refusal::Core(error) => CORE + error.number(),
                }
            }

            /// Stable name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Refusal::$name => stringify!($name),)*
                    Refusal::Layout(_) => "Layout",
                    Refusal::Core(error) => error.name(),
                }
            }
        }

        impl fmt::Display for Refusal {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Refusal::$name => f.write_str($text),)*
                    Refusal::Layout(problem) => problem.fmt(f),
                    Refusal::Core(error) => error.fmt(f),
                }
            }
        }
    };
}

refusals! {
    WrongAccountCount = 1, "the instruction takes another number of accounts";
    DuplicateAccount = 2, "the same account is given twice";
    MissingSignature = 3, "an account that must sign did not";
    NotWritable = 4, "an account that changes is not writable";
    WrongOwner = 5, "an account does not belong to the program (or is closed)";
    AlreadyInitialised = 6, "the account to initialise is in use";
    NotRentExempt = 7, "the account holds fewer lamports than its rent exemption";
    WrongAuthority = 8, "the signer is not the one who may do this";
    WrongConfigAddress = 9, "the configuration is at another address";
    WrongModel = 10, "the account belongs to another model";
    WrongSection = 11, "the account is not the one that holds this section";
    SectionOccupied = 12, "the section has an account already";
    WrongSectionLength = 13, "the account's length is not the section's";
    ModelSealed = 14, "the model is sealed";
    ModelNotSealed = 15, "the model is not sealed";
    SectionSealed = 16, "the section is sealed";
    SectionNotSealed = 17, "a section is not sealed";
    WrongDigest = 18, "the section's bytes have another digest";
    OutOfBounds = 19, "bytes beyond the section's end";
    RoyaltyTooHigh = 20, "the royalty is above the configuration's limit";
    RunsOpen = 21, "the model has open runs";
    RunNotOpen = 22, "the run is complete or failed";
    WrongTurn = 23, "the run has had another number of turns (a repeated transaction?)";
    InsufficientFunds = 24, "fewer lamports than the amount asked for";
    WrongSystemProgram = 25, "the account is not the system program";
    ModelTooLarge = 26, "the model has more or longer sections than accounts can hold";
    WrongConfiguration = 27, "section zero is another configuration's";
    TooManyLamports = 28, "an amount exceeds 64 bits";
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Refusal::Layout(problem)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Core(error)
    }
}

impl core::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a number given twice, left out, or running into the next group.
    #[test]
    fn own_numbers_count_from_one() {
        for (i, refusal) in Refusal::OWN.iter().enumerate() {
            assert_eq!(refusal.number() as usize, i + 1, "{}", refusal.name());
        }
        assert!(Refusal::OWN.len() < PROBLEMS as usize);
    }
}
