//! What is wrong with a rules file, and what to do about it.

use std::{fmt, io, path::PathBuf};

use tidegate_core::PolicyError;
use tidegate_limiter::BuildError;

/// One thing that is wrong in a rules file: where, what, and the mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    line: Option<usize>,
    what: String,
    mend: Option<String>,
}

impl Problem {
    pub(super) fn at(line: usize, what: impl Into<String>) -> Self {
        Self { line: Some(line), what: what.into(), mend: None }
    }

    /// A problem of the file as a whole.
    pub(super) fn overall(what: impl Into<String>) -> Self {
        Self { line: None, what: what.into(), mend: None }
    }

    pub(super) fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    /// Which line, counted from 1; `None` where the problem is the file as a whole.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// What is wrong.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to do about it.
    #[must_use]
    pub fn mending(&self) -> Option<&str> {
        self.mend.as_deref()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.what)?;
        match &self.mend {
            Some(mend) => write!(f, "; {mend}"),
            None => Ok(()),
        }
    }
}

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
    /// The rules make sense, but there is no memory for a limit's states.
    Store {
        /// Which limit.
        limit: String,
        /// What is missing.
        source: BuildError,
    },
}

impl RulesError {
    /// A policy that turned out to make no sense after its file was read.
    pub(crate) fn of_policy(limit: &str, error: &PolicyError) -> Self {
        Self::Invalid { path: None, problems: vec![Problem::overall(format!("limit `{limit}`: {error}"))] }
    }

    /// Everything that is wrong inside the file; empty when it could not be read.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } | Self::Store { .. } => &[],
            Self::Invalid { problems, .. } => problems,
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
            Self::Store { limit, source } => write!(f, "limit `{limit}`: {source}"),
        }
    }
}

impl std::error::Error for RulesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Invalid { .. } => None,
            Self::Store { source, .. } => Some(source),
        }
    }
}

/// The candidate that `word` was most likely meant to be: at most two letters (a third of a short word) away.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(64).map(|c| c.to_ascii_lowercase()).collect();
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 2.min(candidate.chars().count().div_ceil(3)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's edit distance, one row at a time; two neighbours that changed places are one edit.
fn distance(word: &[char], candidate: &str) -> usize {
    let candidate: Vec<char> = candidate.chars().map(|c| c.to_ascii_lowercase()).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=candidate.len()).collect();
    for (i, a) in word.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, b) in candidate.iter().enumerate() {
            let mut best = (row[j] + usize::from(a != b)).min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && *a == candidate[j - 1] && word[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[candidate.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_what_was_meant() {
        let options = ["burst", "slots", "max_wait", "first_hit", "closed"];
        assert_eq!(nearest("burts", options), Some("burst"));
        assert_eq!(nearest("first-hit", options), Some("first_hit"));
        assert_eq!(nearest("maxwait", options), Some("max_wait"));
        assert_eq!(nearest("Slot", options), Some("slots"));
        assert_eq!(nearest("colour", options), None);
        assert_eq!(nearest("", options), None);
    }
}
