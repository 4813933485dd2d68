//! Why there are no findings.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use tidegate_sim::{SuggestError, TrialError, input::InputError, workload::SyntheticError};

/// Why a simulation failed.
#[derive(Debug)]
pub enum SimulateError {
    /// The log cannot be read.
    Input(InputError),
    /// No such traffic can be made.
    Synthetic(SyntheticError),
    /// Made-up traffic has no such keys.
    SyntheticBy,
    /// A limit does not suit an algorithm.
    Trial(TrialError),
    /// A limit is to be suggested and nobody says in what window.
    NoWindow,
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
            Self::Trial(error) => write!(f, "{error}; or leave it out of --algorithm"),
            Self::NoWindow => {
                f.write_str("say for what window a limit is to be suggested, as in --window 1m")
            }
            Self::Suggest(error) => error.fmt(f),
            Self::Report(path, error) => write!(f, "cannot write the report {}: {error}", path.display()),
            Self::Output(error) => write!(f, "cannot write to standard output: {error}"),
        }
    }
}

impl std::error::Error for SimulateError {}

macro_rules! from {
    ($($error:ty => $variant:ident),*) => {$(
        impl From<$error> for SimulateError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}
from!(InputError => Input, SyntheticError => Synthetic, TrialError => Trial, SuggestError => Suggest);
