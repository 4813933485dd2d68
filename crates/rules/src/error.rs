//! Why rules are rejected.

use std::{
    io,
    path::{Path, PathBuf},
};

use tidegate_config::Problem;
use tidegate_core::PolicyError;
use tidegate_limiter::FairBuildError;

/// Why a rules file is rejected. If a file has a problem, none of it is used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The file cannot be read at all.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file was read but has problems.
    #[error("{}", each_problem(path.as_deref(), problems))]
    Invalid {
        /// The file; `None` for rules that are not from a file.
        path: Option<PathBuf>,
        /// All problems, in the order of the lines; at least one.
        problems: Vec<Problem>,
    },
    /// Some of several files that belong together were rejected.
    #[error("{}", each_error(errors))]
    Several {
        /// The error of each rejected file; at least one.
        errors: Vec<Self>,
    },
    /// The rules are valid, but there is not enough memory for a limit's states.
    #[error("limit `{limit}`: {source}")]
    Store {
        /// The limit.
        limit: String,
        /// The limiter's error.
        source: FairBuildError,
    },
}

impl RulesError {
    /// One problem of a file, or of rules that are not from a file.
    pub fn invalid(path: Option<&Path>, problem: Problem) -> Self {
        Self::Invalid {
            path: path.map(Path::to_owned),
            problems: vec![problem],
        }
    }

    /// Fails with the one error, or with several together.
    pub fn check(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several { errors }),
        }
    }

    /// A policy that proved to be invalid after its file was parsed.
    pub fn of_policy(limit: &str, error: &PolicyError) -> Self {
        Self::invalid(None, Problem::overall(format!("limit `{limit}`: {error}")))
    }

    /// All problems in the file, or in the first rejected one of several; empty if it could not be
    /// read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } | Self::Store { .. } => &[],
            Self::Invalid { problems, .. } => problems,
            Self::Several { errors } => errors.first().map_or(&[], Self::problems),
        }
    }
}

fn each_problem(path: Option<&Path>, problems: &[Problem]) -> String {
    let file = path.map_or("rules".to_owned(), |path| path.display().to_string());
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| format!("{file}: {problem}"))
        .collect();
    lines.join("\n")
}

fn each_error(errors: &[RulesError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
