//! A file that is looked at every now and then.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};

use super::{RuleSource, RuleUpdate, SourceError};

/// The largest rules file that is read.
const MAX_BYTES: u64 = 16 << 20;

type Parse = Box<dyn Fn(&str) -> Result<RuleUpdate, SourceError> + Send>;

/// Rules in a file. Its content is compared, not its date, so that it does not matter how it is replaced: written
/// over, renamed over, or behind a symbolic link that is turned, as in a Kubernetes `ConfigMap`. A change is loaded when
/// two looks agree on it: a file that somebody is still writing is not taken for a shorter one. A file that is not
/// there, or empty for the moment, is an error, and the rules from before go on.
pub struct FileSource {
    path: PathBuf,
    parse: Parse,
    pause: Duration,
    /// What was loaded.
    loaded: Option<String>,
    /// What the last look saw, if it was something else.
    seen: Option<String>,
}

impl FileSource {
    /// A file in a format of one's own.
    pub fn new(
        path: impl Into<PathBuf>,
        parse: impl Fn(&str) -> Result<RuleUpdate, SourceError> + Send + 'static,
    ) -> Self {
        Self {
            path: path.into(),
            parse: Box::new(parse),
            pause: Duration::from_secs(1),
            loaded: None,
            seen: None,
        }
    }

    /// A file of one kind of rules as JSON, in Sentinel's field names: see [`sentinel`](super::sentinel).
    #[cfg(feature = "json")]
    pub fn sentinel(path: impl Into<PathBuf>, kind: super::sentinel::Kind) -> Self {
        Self::new(path, move |text| super::sentinel::parse(kind, text))
    }

    /// A file of all rules as YAML, which may be that of `tidegate serve`: see [`yaml`](super::yaml).
    #[cfg(feature = "yaml")]
    pub fn yaml(path: impl Into<PathBuf>) -> Self {
        Self::new(path, |text| super::yaml::parse(text).map(RuleUpdate::from))
    }

    /// The same file, looked at in this interval instead of each second.
    #[must_use]
    pub fn every(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        File::open(&self.path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(io::Error::other("the file is larger than 16 MiB"));
        }
        if text.trim().is_empty() {
            return Err(io::Error::other("the file is empty; to have no rules, write [] or {}"));
        }
        Ok(text)
    }
}

impl RuleSource for FileSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError> {
        let text = self.read().map_err(SourceError::Read)?;
        if self.loaded.as_ref() == Some(&text) {
            self.seen = None;
            return Ok(None);
        }
        let is_settled = self.loaded.is_none() || self.seen.as_ref() == Some(&text);
        if !is_settled {
            self.seen = Some(text);
            return Ok(None);
        }
        let update = (self.parse)(&text)?;
        self.loaded = Some(text);
        self.seen = None;
        Ok(Some(update))
    }

    fn pause(&self) -> Duration {
        self.pause
    }
}
