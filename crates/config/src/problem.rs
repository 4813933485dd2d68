//! Problems in a file, and how to fix them.

use std::fmt;

/// One problem in a file: where it is, what is wrong, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    line: Option<usize>,
    what: String,
    mend: Option<String>,
}

impl Problem {
    /// Creates a problem of one line, counted from 1.
    pub fn at(line: usize, what: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            what: what.into(),
            mend: None,
        }
    }

    /// Creates a problem of the whole file.
    pub fn overall(what: impl Into<String>) -> Self {
        Self {
            line: None,
            what: what.into(),
            mend: None,
        }
    }

    /// Sets the advice on how to fix it.
    pub fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    /// Returns the line, counted from 1; `None` for a problem of the whole file.
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// Returns what is wrong.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns how to fix it.
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
