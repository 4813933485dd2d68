//! Why rules cannot be used.

use std::{
    io,
    path::{Path, PathBuf},
};

use tidegate_config::Problem;
use tidegate_core::PolicyError;
use tidegate_limiter::OverrideError;

/// Why a rules file cannot be used. Nothing of a file with a problem is used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The file cannot be read at all.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file can be read, but not used.
    #[error("{}", each_problem(path.as_deref(), problems))]
    Invalid {
        /// Which file; `None` for rules that came from no file.
        path: Option<PathBuf>,
        /// Everything that is wrong with it, in the order of the lines; at least one.
        problems: Vec<Problem>,
    },
    /// Several files are read together, and some of them cannot be used.
    #[error("{}", each_error(errors))]
    Several {
        /// One for each such file; at least one.
        errors: Vec<Self>,
    },
    /// The rules make sense, but there is no memory for a limit's states.
    #[error("limit `{limit}`: {source}")]
    Store {
        /// Which limit.
        limit: String,
        /// What is missing.
        source: OverrideError,
    },
}

impl RulesError {
    /// A policy that turned out to make no sense after its file was read.
    pub(crate) fn of_policy(limit: &str, error: &PolicyError) -> Self {
        Self::Invalid { path: None, problems: vec![Problem::overall(format!("limit `{limit}`: {error}"))] }
    }

    /// Everything that is wrong inside the file (of several, the first that cannot be used); empty when it could not be
    /// read.
    #[must_use]
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
    let lines: Vec<String> = problems.iter().map(|problem| format!("{file}: {problem}")).collect();
    lines.join("\n")
}

fn each_error(errors: &[RulesError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
