//! Noticing that a rules file has changed.
//!
//! The file is looked at again and again, instead of asking the system for events: events do not come from network file
//! systems, watch an inode rather than a name (so an editor's rename and a `ConfigMap`'s symlink need a watch on every
//! directory on the way), and can run out. A look is one `stat` a second, and sees all of these changes.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::envoy::load::files;

/// What tells one content of a name from another: where the name leads after all symlinks, and that file's identity and
/// times. The change time alone cannot be set back by whoever writes the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fingerprint {
    leads_to: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    fn of(path: &Path) -> io::Result<Self> {
        let leads_to = fs::canonicalize(path)?;
        let file = fs::metadata(&leads_to)?;
        Ok(Self {
            leads_to,
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

/// Files, and all files of directories; `None` when some of them are gone.
fn look(paths: &[PathBuf]) -> Option<Vec<Fingerprint>> {
    let files = paths.iter().map(|path| files(path).ok()).collect::<Option<Vec<_>>>()?;
    files.iter().flatten().map(|path| Fingerprint::of(path).ok()).collect()
}

/// Files that are looked at from time to time.
#[derive(Debug)]
pub(crate) struct Watch {
    paths: Vec<PathBuf>,
    /// What was loaded, or refused, last.
    known: Option<Vec<Fingerprint>>,
    /// What was there at the last look, if it was something else.
    seen: Option<Vec<Fingerprint>>,
}

impl Watch {
    /// Begins with the files as they are: made before they are loaded, so no change between is missed.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let known = look(&paths);
        Self { paths, known, seen: None }
    }

    /// Whether the file has changed, and then rested since the last look: a file that is still being written is left
    /// alone. Tells each change once. A file that is gone is no change; its name may be about to come back.
    pub fn has_changed(&mut self) -> bool {
        let now = look(&self.paths);
        if now.is_none() || now == self.known {
            self.seen = None;
            return false;
        }
        if now == self.seen {
            self.seen = None;
            self.known = now;
            return true;
        }
        self.seen = now;
        false
    }

    /// Takes the file as known, however it looks: it is about to be loaded anyway. Always true, as a look that found a
    /// change would be.
    pub fn catch_up(&mut self) -> bool {
        self.known = look(&self.paths);
        self.seen = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tidegate-watch-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// A change is told at the second look, and not again.
    fn changes_once(watch: &mut Watch) {
        assert!(!watch.has_changed(), "it may still be being written");
        assert!(watch.has_changed());
        assert!(!watch.has_changed());
    }

    #[test]
    fn a_file_that_stays_as_it_is_has_not_changed() {
        let path = directory("same").join("rules.yaml");
        fs::write(&path, "a").unwrap();
        let mut watch = Watch::new(vec![path]);
        assert!(!watch.has_changed() && !watch.has_changed());
    }

    #[test]
    fn an_edit_in_place_and_a_rename_over_the_file_are_changes() {
        let directory = directory("rename");
        let path = directory.join("rules.yaml");
        fs::write(&path, "a").unwrap();
        let mut watch = Watch::new(vec![path.clone()]);
        fs::write(&path, "bb").unwrap();
        changes_once(&mut watch);
        fs::write(directory.join("rules.yaml~"), "cc").unwrap();
        fs::rename(directory.join("rules.yaml~"), &path).unwrap();
        changes_once(&mut watch);
    }

    #[test]
    fn a_config_map_that_swaps_its_data_directory_is_a_change() {
        // rules.yaml -> ..data/rules.yaml, ..data -> ..first; the swap renames a new link over ..data.
        let directory = directory("configmap");
        for version in ["..first", "..second"] {
            fs::create_dir(directory.join(version)).unwrap();
            fs::write(directory.join(version).join("rules.yaml"), version).unwrap();
        }
        symlink("..first", directory.join("..data")).unwrap();
        symlink("..data/rules.yaml", directory.join("rules.yaml")).unwrap();
        let mut watch = Watch::new(vec![directory.join("rules.yaml")]);
        assert!(!watch.has_changed());
        symlink("..second", directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        changes_once(&mut watch);
    }

    #[test]
    fn a_file_that_is_gone_for_a_moment_is_no_change_until_it_is_back() {
        let path = directory("gone").join("rules.yaml");
        fs::write(&path, "a").unwrap();
        let mut watch = Watch::new(vec![path.clone()]);
        fs::remove_file(&path).unwrap();
        assert!(!watch.has_changed() && !watch.has_changed());
        fs::write(&path, "new").unwrap();
        changes_once(&mut watch);
    }

    #[test]
    fn a_file_that_is_still_being_written_is_left_alone() {
        let path = directory("growing").join("rules.yaml");
        fs::write(&path, "a").unwrap();
        let mut watch = Watch::new(vec![path.clone()]);
        for length in 2..5 {
            fs::write(&path, "x".repeat(length)).unwrap();
            assert!(!watch.has_changed());
        }
        assert!(watch.has_changed());
    }

    #[test]
    fn a_file_that_comes_to_a_directory_or_leaves_it_is_a_change() {
        let directory = directory("directory");
        fs::write(directory.join("a.yaml"), "a").unwrap();
        let mut watch = Watch::new(vec![directory.clone()]);
        fs::write(directory.join("notes.txt"), "nothing to do with it").unwrap();
        assert!(!watch.has_changed() && !watch.has_changed());
        fs::write(directory.join("b.yaml"), "b").unwrap();
        changes_once(&mut watch);
        fs::remove_file(directory.join("a.yaml")).unwrap();
        changes_once(&mut watch);
    }
}
