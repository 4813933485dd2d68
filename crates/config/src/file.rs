//! Reads a file that another process may replace, and detects when it changes.

use std::{
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// If the file cannot be read, is not a regular file (reading a FIFO would block), or is larger
/// ([`FileTooLarge`](io::ErrorKind::FileTooLarge)).
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let what = format!("it is larger than {} MiB", max >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// Replaces a file, so that a crash leaves the old text or the new one. The new text is first in
/// `PATH.new`.
///
/// # Errors
/// If the system refuses. The file is then as it was.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = File::create(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The new name is safe once its directory is.
    let directory = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Appends to a file that was opened for appending: all bytes or none, as on a full disk. Processes
/// that append in this way take turns. A pipe gets the bytes as they are.
///
/// # Errors
/// If the system refuses. A regular file is then as it was.
pub fn append(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    if !file.metadata()?.is_file() {
        return file.write_all(bytes);
    }
    match file.lock() {
        Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
        // Without locks, the bytes of one write still stay together.
        _ => {}
    }
    let before = file.metadata()?.len();
    let written = file.write_all(bytes).or_else(|error| {
        file.set_len(before)?;
        Err(error)
    });
    // The lock ends with the file at the latest.
    let _ = file.unlock();
    written
}

/// The result of [`Watch::look`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Look {
    /// The files equal the last known contents.
    Same,
    /// The files differ, but a writer may not have finished. Look again.
    Unsettled,
    /// The files have changed, and the previous look saw the same contents. Each change is reported
    /// once.
    Changed,
    /// Some files cannot be read. They may reappear soon.
    Gone,
}

/// Detects changes of files by reading them periodically.
///
/// The watch compares contents, not modification times. It therefore does not matter how a file is
/// replaced: by writing over it, by renaming another file over it, or by switching a symbolic link,
/// as in a Kubernetes `ConfigMap`. The watch does not use file system events: network file systems
/// do not send them, they follow an inode rather than a name, and the system limits their number.
pub struct Watch {
    list: Box<dyn Fn() -> Option<Vec<PathBuf>> + Send>,
    max: u64,
    hasher: RandomState,
    /// The contents that were last loaded or rejected.
    known: Option<Contents>,
    /// The contents of the last look, if they differ.
    seen: Option<Contents>,
}

/// The files by name, each with a hash of its content.
type Contents = Vec<(PathBuf, u64)>;

impl Watch {
    /// Watches the files that `list` returns at each look (`None` if it cannot list them), each of
    /// at most `max` bytes. The current contents count as known, so create the watch before you
    /// load the files. Then no change in between is missed.
    pub fn new(list: impl Fn() -> Option<Vec<PathBuf>> + Send + 'static, max: u64) -> Self {
        let (list, hasher) = (Box::new(list), RandomState::new());
        let mut watch = Self {
            list,
            max,
            hasher,
            known: None,
            seen: None,
        };
        watch.catch_up();
        watch
    }

    fn contents(&self) -> Option<Contents> {
        let hash = |path: PathBuf| {
            let bytes = read(&path, self.max).ok()?;
            Some((path, self.hasher.hash_one(bytes)))
        };
        (self.list)()?.into_iter().map(hash).collect()
    }

    /// Reads the files. A change is reported once two consecutive looks see the same contents, so a
    /// file that is still being written is not taken for a shorter one.
    pub fn look(&mut self) -> Look {
        let (now, seen) = (self.contents(), self.seen.take());
        if now.is_none() {
            Look::Gone
        } else if now == self.known {
            Look::Same
        } else if now == seen {
            self.known = now;
            Look::Changed
        } else {
            self.seen = now;
            Look::Unsettled
        }
    }

    /// Marks the current contents as known, because the caller is about to load them anyway.
    pub fn catch_up(&mut self) {
        self.known = self.contents();
        self.seen = None;
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("known", &self.known)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
