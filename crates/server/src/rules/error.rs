//! Why rules cannot be used.

use std::{fmt, io, path::PathBuf};

use tidegate_config::Problem;
use tidegate_core::PolicyError;
use tidegate_limiter::OverrideError;

/// Why a rules file cannot be used. Nothing of a file with a problem is used.
#[derive(Debug)]
#[non_exhaustive]
pub enum RulesError {
    /// The file cannot be read at all.
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file can be read, but not used.
    Invalid {
        /// Which file; `None` for rules that came from no file.
        path: Option<PathBuf>,
        /// Everything that is wrong with it, in the order of the lines; at least one.
        problems: Vec<Problem>,
    },
    /// Several files are read together, and some of them cannot be used.
    Several {
        /// One for each such file; at least one.
        errors: Vec<Self>,
    },
    /// The rules make sense, but there is no memory for a limit's states.
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

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => {
                write!(f, "cannot read {}: {source}; check the path and its permissions", path.display())
            }
            Self::Invalid { path, problems } => {
                for (at, problem) in problems.iter().enumerate() {
                    if at > 0 {
                        f.write_str("\n")?;
                    }
                    match path {
                        Some(path) => write!(f, "{}: {problem}", path.display())?,
                        None => write!(f, "rules: {problem}")?,
                    }
                }
                Ok(())
            }
            Self::Several { errors } => errors.iter().enumerate().try_for_each(|(at, error)| {
                if at > 0 {
                    f.write_str("\n")?;
                }
                write!(f, "{error}")
            }),
            Self::Store { limit, source } => write!(f, "limit `{limit}`: {source}"),
        }
    }
}

impl std::error::Error for RulesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Invalid { .. } => None,
            Self::Several { errors } => errors.first().and_then(|error| error.source()),
            Self::Store { source, .. } => Some(source),
        }
    }
}
