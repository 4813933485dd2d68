//! The location of the state: a regular file that no other server uses.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use tidegate_service::files::{self, Lock, LockError, directory, holder, kind};

/// Why the state cannot be kept at a path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatePathError {
    /// The path is not a regular file.
    #[error("it is {0}; --state needs a regular file")]
    NotAFile(&'static str),
    /// A server did not write the file.
    #[error(
        "the file exists, but is not a Tidegate state file; choose another path, or move the file away"
    )]
    NotAState,
    /// Another server keeps its state there.
    #[error("{} keeps its state there; give each server a different file", holder(*.by))]
    Locked {
        /// The process id of the other server, if it could be read.
        by: Option<u32>,
    },
    /// The system refuses access.
    #[error("{0}; choose a file in a directory that the server may write")]
    Io(#[from] io::Error),
}

impl From<LockError> for StatePathError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Locked { by } => Self::Locked { by },
            LockError::Io(error) => Self::Io(error),
            other => Self::Io(io::Error::other(other)),
        }
    }
}

/// A server's state file, locked until this is dropped.
#[derive(Debug)]
pub(crate) struct StateFile {
    /// The file itself, after all symlinks.
    pub path: PathBuf,
    _lock: Lock,
}

impl StateFile {
    /// Resolves the path, which need not exist yet, and locks the file.
    ///
    /// # Errors
    /// When the path is not a regular file, another server has locked it, or the directory is not
    /// writable.
    pub fn open(path: &Path) -> Result<Self, StatePathError> {
        let path = behind_symlinks(path)?;
        let lock = Lock::take(beside(&path, ".lock"))?;
        let file = Self { path, _lock: lock };
        // Check before the server starts whether the state can be written.
        drop(file.create_new()?);
        fs::remove_file(file.new_path())?;
        Ok(file)
    }

    /// The path of the file that will replace this one.
    fn new_path(&self) -> PathBuf {
        beside(&self.path, ".new")
    }

    /// Creates an empty file that can replace this one. A file left behind by a crash is removed.
    pub fn create_new(&self) -> io::Result<File> {
        files::create_new(&self.new_path())
    }

    /// Replaces the file with the new one.
    ///
    /// # Errors
    /// When the system refuses, or the path is no longer a regular file.
    pub fn replace(&self) -> io::Result<()> {
        files::replace(&self.path, &self.new_path())
    }

    /// Removes the new file without using it.
    pub fn discard_new(&self) {
        // It may not exist.
        let _ = fs::remove_file(self.new_path());
    }

    /// Renames an unusable file to `FILE.damaged-1` (or `-2`, …), so that it is kept but not in the
    /// way.
    ///
    /// # Errors
    /// When the system refuses to rename it.
    pub fn set_aside(&self) -> io::Result<PathBuf> {
        for number in 1_u32.. {
            let aside = self.path.with_added_extension(format!("damaged-{number}"));
            if !aside.try_exists()? {
                fs::rename(&self.path, &aside)?;
                return Ok(aside);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// The path after all symlinks. The file itself need not exist.
fn behind_symlinks(path: &Path) -> Result<PathBuf, StatePathError> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() => return Ok(fs::canonicalize(path)?),
        Ok(there) => return Err(StatePathError::NotAFile(kind(&there))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e.into()),
    }
    // The file does not exist yet: follow the symlinks to its name.
    let mut path = path.to_owned();
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&path) else {
            let Some(name) = path.file_name() else {
                return Err(StatePathError::NotAFile("a directory"));
            };
            return Ok(fs::canonicalize(directory(&path))?.join(name));
        };
        // An absolute target replaces the directory.
        path = directory(&path).join(target);
    }
    Err(io::Error::other("too many symlinks").into())
}

/// `.NAME` with a suffix, in the same directory.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(ending);
    path.with_file_name(name)
}
