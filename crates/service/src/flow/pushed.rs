//! The rules that operators pushed, by application. With a directory they survive a restart: each
//! is a file, replaced atomically.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tidegate_flow::sources::yaml;

use super::{Rules, is_name};
use crate::digest::{digest_of, hex};

/// Applications that may have rules.
const MAX_APPS: usize = 256;
/// The longest file that is read.
const MAX_BYTES: u64 = 64 * 1024;
/// The characters that are not escaped in a file's name.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

#[derive(Debug, Default)]
pub struct Pushed {
    directory: Option<PathBuf>,
    rules: Mutex<BTreeMap<String, Rules>>,
}

/// Why rules are not pushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The application's name cannot be used.
    #[error("`app` must have 1 to {max} bytes, and no control characters", max = super::MAX_NAME)]
    Name,
    /// The rules have mistakes.
    #[error("{0}")]
    Rules(String),
    /// The rules have changed since the operator read them.
    #[error(
        "the rules of `{0}` have changed since you read them: load them again, and repeat your change there"
    )]
    Changed(String),
    /// Too many applications have rules.
    #[error("{MAX_APPS} applications have rules already")]
    TooMany,
    /// A file cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file has rules with mistakes.
    #[error("{path}: {why}", path = path.display())]
    Stored {
        /// The file.
        path: PathBuf,
        /// The mistakes.
        why: String,
    },
}

impl Pushed {
    /// Reads the rules of a directory, which is made if there is none.
    pub fn open(directory: Option<&Path>) -> Result<Self, PushError> {
        let Some(directory) = directory else {
            return Ok(Self::default());
        };
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| PushError::File { path, error }
        };
        if directory.is_file() {
            let file = io::Error::other("it is a file; name a directory");
            return Err(at(directory)(file));
        }
        fs::create_dir_all(directory).map_err(at(directory))?;
        let mut rules = BTreeMap::new();
        for entry in fs::read_dir(directory).map_err(at(directory))? {
            let path = entry.map_err(at(directory))?.path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let stem = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default();
            let app = percent_decode_str(stem).decode_utf8_lossy().into_owned();
            let length = fs::metadata(&path).map_err(at(&path))?.len();
            let wrong = |why: String| PushError::Stored {
                path: path.clone(),
                why,
            };
            if !is_name(&app) || length > MAX_BYTES || rules.len() >= MAX_APPS {
                return Err(wrong(format!(
                    "not the rules of an application, or too long, or more than {MAX_APPS}"
                )));
            }
            let text = fs::read_to_string(&path).map_err(at(&path))?;
            yaml::parse(&text).map_err(|error| wrong(error.to_string()))?;
            rules.insert(
                app,
                Rules {
                    version: version(&text),
                    text,
                },
            );
        }
        Ok(Self {
            directory: Some(directory.to_owned()),
            rules: Mutex::new(rules),
        })
    }

    /// The rules of an application, unless this is their version.
    pub fn newer(&self, app: &str, has: Option<&str>) -> Option<Rules> {
        let rules = self.rules.lock();
        rules
            .get(app)
            .filter(|known| has != Some(&*known.version))
            .cloned()
    }

    /// The version and the text of an application's rules.
    pub fn get(&self, app: &str) -> Option<Rules> {
        self.newer(app, None)
    }

    /// The applications that have rules.
    pub fn apps(&self) -> Vec<String> {
        self.rules.lock().keys().cloned().collect()
    }

    /// Gives an application these rules, and returns their version. May block: it writes a file.
    ///
    /// `was` is the version that the text was made from, and empty if there was none.
    pub fn push(&self, app: &str, text: &str, was: Option<&str>) -> Result<String, PushError> {
        if !is_name(app) {
            return Err(PushError::Name);
        }
        yaml::parse(text).map_err(|error| PushError::Rules(error.to_string()))?;
        // Held while the file is written, so that the file and the memory have the same of two
        // pushes.
        let mut rules = self.rules.lock();
        let known = rules.get(app).map_or("", |known| &known.version);
        if was.is_some_and(|was| was != known) {
            return Err(PushError::Changed(app.to_owned()));
        }
        if !rules.contains_key(app) && rules.len() >= MAX_APPS {
            return Err(PushError::TooMany);
        }
        if let Some(directory) = &self.directory {
            let path = directory.join(format!("{}.yaml", utf8_percent_encode(app, NAME)));
            replace(&path, text).map_err(|error| PushError::File { path, error })?;
        }
        let version = version(text);
        rules.insert(
            app.to_owned(),
            Rules {
                version: version.clone(),
                text: text.to_owned(),
            },
        );
        Ok(version)
    }
}

/// Rules of the same text have the same version, also after a restart.
fn version(text: &str) -> String {
    hex(&digest_of(text.as_bytes())[..8])
}

/// Replaces a file. The old one is kept as `….yaml.previous`.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if path.exists() {
        fs::copy(path, path.with_extension("yaml.previous"))?;
    }
    tidegate_config::file::replace(path, text.as_bytes())
}
