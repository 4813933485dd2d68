//! The rules file as operators read and change it over HTTP.
//!
//! A change is written to a new file in the same directory, which then takes the file's name, so
//! that a reader finds one or the other, whole. The replaced text stays as `FILE.previous`. A
//! change names the version that it was made from, and is refused for another one.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt as _, fchown},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tidegate_core::Nanos;

use crate::{Keeping, Problem, RulesError, read_text};

/// Checks a text that is to replace the file, together with the other files that limits come from.
/// Returns the number of limits.
type Check = dyn Fn(&str, Keeping) -> Result<usize, RulesError> + Send + Sync;

/// The file behind a server's rules.
pub struct RulesFile {
    path: Option<PathBuf>,
    /// The text of the rules without a file.
    built_in: &'static str,
    check: Box<Check>,
    /// Whether it may be changed here (`--rules-writable`).
    is_writable: bool,
    /// One change at a time; who made the last one, and when.
    last: Mutex<Option<(String, Nanos)>>,
}

/// The file at one moment.
pub struct Text {
    pub text: String,
    /// Tells it from every other text.
    pub version: String,
}

/// Why a change was not written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("the rules file cannot be changed here: start the server with --rules-writable")]
    NotWritable,
    #[error("these are the built-in rules; start the server with --rules FILE --rules-writable")]
    BuiltIn,
    #[error("the file has changed since you read it: load it again, and repeat your change there")]
    Changed,
    #[error("the rules have mistakes")]
    Mistakes(Vec<Problem>),
    #[error("{0}")]
    Rejected(#[from] RulesError),
    #[error("{path}: {1}; the file is as it was", path = .0.display())]
    Io(PathBuf, #[source] io::Error),
}

impl RulesFile {
    /// The file at `path`. Without a path, the rules are `built_in`.
    pub fn new(
        path: Option<PathBuf>,
        built_in: &'static str,
        check: Box<Check>,
        is_writable: bool,
    ) -> Self {
        Self {
            path,
            built_in,
            check,
            is_writable,
            last: Mutex::default(),
        }
    }

    /// Where it is; `None` where the rules are built in, or come from Envoy's configuration alone.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether it may be changed here.
    pub fn is_writable(&self) -> bool {
        self.is_writable && self.path().is_some()
    }

    /// Who changed it here last, and when.
    pub fn last(&self) -> Option<(String, Nanos)> {
        self.last.lock().clone()
    }

    /// The file as it is now.
    ///
    /// # Errors
    /// When it cannot be read, is too large, or is not UTF-8.
    pub fn read(&self) -> Result<Text, RulesError> {
        let text = self
            .path()
            .map_or_else(|| Ok(self.built_in.to_owned()), read_text)?;
        Ok(Text {
            version: version(text.as_bytes()),
            text,
        })
    }

    /// The mistakes in a text that is to replace the file, or else the number of limits that the
    /// server would have.
    ///
    /// # Errors
    /// When the other files, which limits come from, too, cannot be read.
    pub fn check(
        &self,
        text: &str,
        keeping: Keeping,
    ) -> Result<Result<usize, Vec<Problem>>, RulesError> {
        match (self.check)(text, keeping) {
            Ok(limits) => Ok(Ok(limits)),
            Err(RulesError::Invalid { problems, .. }) => Ok(Err(problems)),
            Err(error) => Err(error),
        }
    }

    /// Puts a text in the file's place, if the file still has this version. The path of what it was
    /// before.
    ///
    /// # Errors
    /// See [`SaveError`]. The file is then as it was.
    pub fn save(
        &self,
        text: &str,
        version: &str,
        keeping: Keeping,
        (who, now): (&str, Nanos),
    ) -> Result<PathBuf, SaveError> {
        let path = self.path().ok_or(SaveError::BuiltIn)?;
        if !self.is_writable {
            return Err(SaveError::NotWritable);
        }
        let mut last = self.last.lock();
        if self.read()?.version != version {
            return Err(SaveError::Changed);
        }
        self.check(text, keeping)?.map_err(SaveError::Mistakes)?;
        // A link stays a link: what it leads to is changed.
        let path = path
            .canonicalize()
            .map_err(|error| SaveError::Io(path.to_owned(), error))?;
        let previous = path.with_added_extension("previous");
        let written = write(&path, &previous, text, || {
            Ok(self.read()?.version == version)
        });
        match written {
            Ok(true) => {
                *last = Some((who.to_owned(), now));
                Ok(previous)
            }
            Ok(false) => Err(SaveError::Changed),
            Err(error) => Err(SaveError::Io(path, error)),
        }
    }
}

/// Writes the text to a new file, keeps the old file, and puts the new one in its place, unless
/// `is_same` returns that the file has changed. One system call lies between that check and the new
/// name: an editor that saves in this moment has its text in the previous file.
fn write(
    path: &Path,
    previous: &Path,
    text: &str,
    is_same: impl FnOnce() -> Result<bool, RulesError>,
) -> io::Result<bool> {
    let new = path.with_added_extension("new");
    let placed = (|| {
        // A crash may have left the file of an earlier change.
        remove(&new)?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        let old = fs::metadata(path)?;
        keep_owner(&file, &old)?;
        file.set_permissions(old.permissions())?;
        file.sync_all()?;
        remove(previous)?;
        if fs::hard_link(path, previous).is_err() {
            // Not every file system has links.
            fs::copy(path, previous)?;
        }
        if !is_same().map_err(io::Error::other)? {
            return Ok(false);
        }
        fs::rename(&new, path)?;
        // The new name is safe once its directory is.
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
        Ok(true)
    })();
    if !matches!(placed, Ok(true)) {
        // It may not be there.
        let _ = fs::remove_file(&new);
    }
    placed
}

/// Gives the new file to the owner of the old one.
fn keep_owner(new: &File, old: &fs::Metadata) -> io::Result<()> {
    let there = new.metadata()?;
    let uid = (there.uid() != old.uid()).then_some(old.uid());
    let gid = (there.gid() != old.gid()).then_some(old.gid());
    fchown(new, uid, gid).map_err(|error| {
        let (uid, gid) = (old.uid(), old.gid());
        let what = format!(
            "the file belongs to user {uid} and group {gid}, and this server may not give a new file to them"
        );
        io::Error::new(error.kind(), format!("{what}: {error}"))
    })
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn version(text: &[u8]) -> String {
    let first = digest(&SHA256, text)
        .as_ref()
        .first_chunk()
        .map_or(0, |half| u128::from_be_bytes(*half));
    format!("{first:032x}")
}
