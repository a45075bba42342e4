//! The exit codes, in one place: what they mean and which error gives which.

use std::io;
use std::process::ExitCode;

/// Every way the program can end. Scripts may rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    Mismatch = 3,
    Unsound = 4,
    DoesNotFit = 5,
    Model = 6,
    Disk = 7,
    Network = 8,
    Interrupted = 130,
    Terminated = 143,
}

impl Code {
    pub const ALL: [Self; 11] = [
        Self::Ok,
        Self::Failed,
        Self::Usage,
        Self::Mismatch,
        Self::Unsound,
        Self::DoesNotFit,
        Self::Model,
        Self::Disk,
        Self::Network,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// The line `facit help exit-codes` prints.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "done, or paused as asked",
            Self::Failed => "an error while running",
            Self::Usage => "wrong usage, or a request that is refused",
            Self::Mismatch => "verification failed: something is not what it was recorded to be",
            Self::Unsound => "the output is unsound: the model's numbers left their range",
            Self::DoesNotFit => "it does not fit in memory or on the disk",
            Self::Model => "a model, state or receipt is missing or damaged",
            Self::Disk => "a file or the output could not be written or read",
            Self::Network => "the network failed",
            Self::Interrupted => "stopped by SIGINT (Ctrl-C), cleanly",
            Self::Terminated => "stopped by SIGTERM, cleanly",
        }
    }

    /// The code for an error, by the first cause in its chain that has one.
    pub fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(Self::of_cause).unwrap_or(Self::Failed)
    }

    fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Self> {
        if let Some(error) = cause.downcast_ref::<engine::Error>() {
            return Some(Self::of_engine(error));
        }
        if cause.is::<Usage>() {
            return Some(Self::Usage);
        }
        cause.is::<Stdout>().then_some(Self::Disk)
    }

    pub fn of_engine(error: &engine::Error) -> Self {
        use engine::Error;
        match error {
            Error::Refused(_) => Self::Usage,
            Error::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::PermissionDenied => Self::Model,
                _ => Self::Disk,
            },
            Error::Write { .. } => Self::Disk,
            Error::Corrupt { .. } => Self::Model,
            Error::Mismatch { .. } | Error::TurnDiffers { .. } => Self::Mismatch,
            Error::DoesNotFit { .. } => Self::DoesNotFit,
            Error::Unsound | Error::Sampling(_) => Self::Unsound,
            Error::Step(error) => Self::of_step(error),
            Error::Snapshot(error) => Self::of_snapshot(error),
            Error::Store(error) => Self::of_store(error.kind()),
            Error::Text(_) => Self::Usage,
            _ => Self::Failed,
        }
    }

    fn of_store(kind: store::Kind) -> Self {
        match kind {
            store::Kind::ModelFile => Self::Model,
            store::Kind::Disk => Self::Disk,
            store::Kind::DoesNotFit => Self::DoesNotFit,
            store::Kind::Refused => Self::Usage,
            store::Kind::Network => Self::Network,
        }
    }

    fn of_snapshot(error: &models::machine::SnapshotError) -> Self {
        use models::machine::SnapshotError;
        match error {
            SnapshotError::Damaged(_) => Self::Model,
            SnapshotError::Differs { .. } => Self::Mismatch,
            SnapshotError::Context { .. } => Self::Usage,
            SnapshotError::State(error) => Self::of_step(error),
        }
    }

    fn of_step(error: &models::machine::StepError) -> Self {
        use models::machine::StepError;
        match error {
            StepError::NonFinite { .. } | StepError::Logit { .. } => Self::Unsound,
            StepError::Empty | StepError::Token { .. } | StepError::Context { .. } => Self::Usage,
            StepError::Memory { .. } => Self::DoesNotFit,
            StepError::State { .. } => Self::Mismatch,
            StepError::NanScale { .. } | StepError::Bytes { .. } => Self::Model,
            _ => Self::Failed,
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// A request the command line refuses, with what to do instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Standard output could not be written, for another reason than a reader who left.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct Stdout(pub io::Error);
