//! A rules file that is checked periodically.

use std::{io, path::PathBuf, time::Duration};

use tidegate_config::file::{Look, Watch, read};

use super::{RuleSource, RuleUpdate, SourceError};

/// The largest rules file that can be read.
const MAX_BYTES: u64 = 16 << 20;

/// The parser of the file's text.
type Parse = Box<dyn Fn(&str) -> Result<RuleUpdate, SourceError> + Send>;

/// Rules in a file. Changes are detected by content, not by modification time: see [`Watch`]. A
/// missing or empty file is an error, and the previous rules stay active.
pub struct FileSource {
    path: PathBuf,
    parse: Parse,
    pause: Duration,
    /// Set by the first check.
    watch: Option<Watch>,
    /// Whether the file has content that is not loaded yet, because it could not be read or parsed.
    is_owed: bool,
}

impl FileSource {
    /// A file in a custom format.
    pub fn new(
        path: impl Into<PathBuf>,
        parse: impl Fn(&str) -> Result<RuleUpdate, SourceError> + Send + 'static,
    ) -> Self {
        Self {
            path: path.into(),
            parse: Box::new(parse),
            pause: Duration::from_secs(1),
            watch: None,
            is_owed: true,
        }
    }

    /// A JSON file with one kind of rules, with Sentinel's field names: see
    /// [`sentinel`](super::sentinel).
    #[cfg(feature = "json")]
    pub fn sentinel(path: impl Into<PathBuf>, kind: super::sentinel::Kind) -> Self {
        Self::new(path, move |text| super::sentinel::parse(kind, text))
    }

    /// A YAML file with rules of all kinds, which may also be the file of `tidegate serve`: see
    /// [`yaml`](super::yaml).
    #[cfg(feature = "yaml")]
    pub fn yaml(path: impl Into<PathBuf>) -> Self {
        Self::new(path, |text| super::yaml::parse(text).map(RuleUpdate::from))
    }

    /// Sets the interval between checks. Default: one second.
    #[must_use]
    pub fn every(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    fn read(&self) -> io::Result<String> {
        let text = String::from_utf8(read(&self.path, MAX_BYTES)?)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8"))?;
        if text.trim().is_empty() {
            return Err(io::Error::other(
                "the file is empty; to have no rules, write [] or {}",
            ));
        }
        Ok(text)
    }
}

impl RuleSource for FileSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError> {
        let look = if let Some(watch) = &mut self.watch {
            watch.look()
        } else {
            let path = self.path.clone();
            self.watch = Some(Watch::new(move || Some(vec![path.clone()]), MAX_BYTES));
            Look::Changed
        };
        match look {
            Look::Unsettled => return Ok(None),
            Look::Same if !self.is_owed => return Ok(None),
            // Reading the file returns the reason why it is gone.
            Look::Same | Look::Changed | Look::Gone => self.is_owed = true,
        }
        let update = (self.parse)(&self.read().map_err(SourceError::Read)?)?;
        self.is_owed = false;
        Ok(Some(update))
    }

    fn pause(&self) -> Duration {
        self.pause
    }
}
