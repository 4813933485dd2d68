//! What is wrong with a file, and what to do about it.

use std::fmt;

/// One thing that is wrong in a file: where, what, and the mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    line: Option<usize>,
    what: String,
    mend: Option<String>,
}

impl Problem {
    /// A problem of one line, counted from 1.
    #[must_use]
    pub fn at(line: usize, what: impl Into<String>) -> Self {
        Self { line: Some(line), what: what.into(), mend: None }
    }

    /// A problem of the file as a whole.
    #[must_use]
    pub fn overall(what: impl Into<String>) -> Self {
        Self { line: None, what: what.into(), mend: None }
    }

    /// The same, with what to do about it.
    #[must_use]
    pub fn mend(mut self, mend: impl Into<String>) -> Self {
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
