//! Why there are no findings.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use tidegate_server::rules::RulesError;
use tidegate_sim::{
    SuggestError, TrialError,
    input::{ByError, InputError},
    workload::SyntheticError,
};

/// Why a simulation failed.
#[derive(Debug)]
pub enum SimulateError {
    /// The log cannot be read.
    Input(InputError),
    /// No such traffic can be made.
    Synthetic(SyntheticError),
    /// One log is followed at a time.
    FollowOne,
    /// Made-up traffic has no such keys.
    SyntheticBy,
    /// A limit does not suit an algorithm.
    Trial(TrialError),
    /// The rules file is not good.
    Rules(RulesError),
    /// No limit of the rules file can be replayed.
    NothingToReplay(PathBuf),
    /// A limit's `match` or `by` is nothing that a log has.
    RuleField {
        /// The limit.
        limit: String,
        /// What is wrong with it.
        error: ByError,
    },
    /// No limit can be suggested.
    Suggest(SuggestError),
    /// The page cannot be written.
    Report(PathBuf, io::Error),
    /// Standard output cannot be written.
    Output(io::Error),
}

impl SimulateError {
    pub fn report(path: &Path, error: io::Error) -> Self {
        Self::Report(path.to_owned(), error)
    }
}

impl fmt::Display for SimulateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) => error.fmt(f),
            Self::Synthetic(error) => error.fmt(f),
            Self::SyntheticBy => f.write_str(
                "made-up traffic has sources and nothing else: use --by ip (a source each) or --by global",
            ),
            Self::FollowOne => f.write_str("--follow reads one log; give one file, or - for standard input"),
            Self::Trial(error) => write!(f, "{error}; or leave it out of --algorithm"),
            Self::Rules(error) => error.fmt(f),
            Self::NothingToReplay(path) => write!(
                f,
                "no limit of {} can be replayed: `concurrency` limits what is in flight, and a log does not say when a \
                 request ended",
                path.display()
            ),
            Self::RuleField { limit, error } => write!(f, "limit `{limit}`: {error}"),
            Self::Suggest(error) => error.fmt(f),
            Self::Report(path, error) => write!(f, "cannot write the report {}: {error}", path.display()),
            Self::Output(error) => write!(f, "cannot write to standard output: {error}"),
        }
    }
}

impl std::error::Error for SimulateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Input(error) => Some(error),
            Self::Synthetic(error) => Some(error),
            Self::Trial(error) => Some(error),
            Self::Rules(error) => Some(error),
            Self::RuleField { error, .. } => Some(error),
            Self::Suggest(error) => Some(error),
            Self::Report(_, error) | Self::Output(error) => Some(error),
            Self::FollowOne | Self::SyntheticBy | Self::NothingToReplay(_) => None,
        }
    }
}

macro_rules! from {
    ($($error:ty => $variant:ident),*) => {$(
        impl From<$error> for SimulateError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}
from!(InputError => Input, SyntheticError => Synthetic, TrialError => Trial, SuggestError => Suggest, RulesError => Rules);
