//! Reading a file that somebody may replace by something else, and noticing when it changes.

use std::{
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// When it cannot be read, is no regular file (a FIFO would be waited for), or is larger
/// ([`FileTooLarge`](io::ErrorKind::FileTooLarge)).
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let what = format!("it is larger than {} MiB", max >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// What a [`Watch`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Look {
    /// The files are as they were when they were last taken for known.
    Same,
    /// They are other than they were, and may still be being written: look again.
    Unsettled,
    /// They have changed, and the look before this one saw them as they are now. Told once.
    Changed,
    /// Some of them cannot be read. They may be about to come back.
    Gone,
}

/// Files that are looked at from time to time.
///
/// Their content is compared, not their dates, so it does not matter how a file is replaced: written over, renamed over, or behind a
/// symbolic link that is turned, as in a Kubernetes `ConfigMap`. The system is not asked for events: they do not come from network
/// file systems, watch an inode rather than a name, and can run out.
pub struct Watch {
    list: Box<dyn Fn() -> Option<Vec<PathBuf>> + Send>,
    max: u64,
    hasher: RandomState,
    /// What was loaded, or refused, last.
    known: Option<Contents>,
    /// What the last look saw, if it was something else.
    seen: Option<Contents>,
}

/// The files by name, each with the hash of its content.
type Contents = Vec<(PathBuf, u64)>;

impl Watch {
    /// Watches the files that `list` names at each look (`None` when it cannot say), each of at most `max` bytes. The files are known
    /// as they are now: make a watch before you load them, so that no change in between is missed.
    pub fn new(list: impl Fn() -> Option<Vec<PathBuf>> + Send + 'static, max: u64) -> Self {
        let (list, hasher) = (Box::new(list), RandomState::new());
        let mut watch = Self { list, max, hasher, known: None, seen: None };
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

    /// Looks at the files. A change is told at the second of two looks that agree on it, so a file that somebody is still writing is not
    /// taken for a shorter one.
    pub fn look(&mut self) -> Look {
        let now = self.contents();
        if now.is_none() {
            self.seen = None;
            return Look::Gone;
        }
        if now == self.known {
            self.seen = None;
            return Look::Same;
        }
        if now == self.seen {
            self.seen = None;
            self.known = now;
            return Look::Changed;
        }
        self.seen = now;
        Look::Unsettled
    }

    /// Takes the files for known as they are, because they are about to be loaded anyway.
    pub fn catch_up(&mut self) {
        self.known = self.contents();
        self.seen = None;
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("known", &self.known).field("seen", &self.seen).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of the test's own.
    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tidegate-watch-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn watch(path: &Path) -> Watch {
        let path = path.to_owned();
        Watch::new(move || Some(vec![path.clone()]), 1 << 20)
    }

    /// A change is told at the second look, and not again.
    fn changes_once(watch: &mut Watch) {
        assert_eq!(watch.look(), Look::Unsettled, "it may still be being written");
        assert_eq!(watch.look(), Look::Changed);
        assert_eq!(watch.look(), Look::Same);
    }

    #[test]
    fn what_is_not_a_regular_file_or_too_large_is_not_read() {
        let directory = directory("read");
        assert!(read(&directory, 10).unwrap_err().to_string().contains("not a regular file"));
        let path = directory.join("file");
        assert_eq!(read(&path, 10).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(read(&path, 10).unwrap(), b"0123456789");
        assert_eq!(read(&path, 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn an_edit_in_place_and_a_rename_over_the_file_are_changes() {
        let directory = directory("rename");
        let path = directory.join("rules.yaml");
        fs::write(&path, "a").unwrap();
        let mut watch = watch(&path);
        assert_eq!((watch.look(), watch.look()), (Look::Same, Look::Same));
        // Of the same length, and perhaps within one tick of the file system's clock.
        fs::write(&path, "b").unwrap();
        changes_once(&mut watch);
        fs::write(directory.join("rules.yaml~"), "cc").unwrap();
        fs::rename(directory.join("rules.yaml~"), &path).unwrap();
        changes_once(&mut watch);
        // The same text again is no change.
        fs::write(&path, "cc").unwrap();
        assert_eq!(watch.look(), Look::Same);
    }

    #[cfg(unix)]
    #[test]
    fn a_config_map_that_swaps_its_data_directory_is_a_change() {
        use std::os::unix::fs::symlink;
        // rules.yaml -> ..data/rules.yaml, ..data -> ..first; the swap renames a new link over ..data.
        let directory = directory("configmap");
        for version in ["..first", "..second"] {
            fs::create_dir(directory.join(version)).unwrap();
            fs::write(directory.join(version).join("rules.yaml"), version).unwrap();
        }
        symlink("..first", directory.join("..data")).unwrap();
        symlink("..data/rules.yaml", directory.join("rules.yaml")).unwrap();
        let mut watch = watch(&directory.join("rules.yaml"));
        assert_eq!(watch.look(), Look::Same);
        symlink("..second", directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        changes_once(&mut watch);
    }

    #[test]
    fn a_file_that_is_gone_for_a_moment_is_no_change_until_it_is_back() {
        let path = directory("gone").join("rules.yaml");
        fs::write(&path, "a").unwrap();
        let mut watch = watch(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!((watch.look(), watch.look()), (Look::Gone, Look::Gone));
        fs::write(&path, "new").unwrap();
        changes_once(&mut watch);
    }

    #[test]
    fn a_file_that_is_still_being_written_is_left_alone() {
        let path = directory("growing").join("rules.yaml");
        fs::write(&path, "a").unwrap();
        let mut watch = watch(&path);
        for length in 2..5 {
            fs::write(&path, "x".repeat(length)).unwrap();
            assert_eq!(watch.look(), Look::Unsettled);
        }
        assert_eq!(watch.look(), Look::Changed);
    }

    #[test]
    fn a_file_that_comes_to_the_list_or_leaves_it_is_a_change() {
        let directory = directory("directory");
        fs::write(directory.join("a"), "a").unwrap();
        let its = directory.clone();
        let list = move || fs::read_dir(&its).ok()?.map(|entry| Some(entry.ok()?.path())).collect();
        let mut watch = Watch::new(list, 1 << 20);
        fs::write(directory.join("b"), "b").unwrap();
        changes_once(&mut watch);
        fs::remove_file(directory.join("a")).unwrap();
        changes_once(&mut watch);
    }
}
