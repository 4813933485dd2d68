//! The files of a source that is one file, or all files of a directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{Problem, RulesError};

/// The deepest directory below that of the source.
const MAX_DEPTH: usize = 8;

/// The files at a path, sorted by name.
///
/// # Errors
/// When the directory cannot be read or has no such file.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, RulesError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    search(path, 0, &mut files)?;
    if files.is_empty() {
        let problem = Problem::overall("the directory has no file")
            .mend("check the directory; names that begin with a dot are left out");
        return Err(RulesError::invalid(Some(path), problem));
    }
    files.sort();
    Ok(files)
}

/// Adds the files of a directory and of those below it.
fn search(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), RulesError> {
    let read = |source| RulesError::Read {
        path: directory.to_owned(),
        source,
    };
    if depth > MAX_DEPTH {
        let problem = Problem::overall(format!(
            "the directories nest deeper than {MAX_DEPTH} levels"
        ));
        let problem = problem.mend("does a symbolic link lead back to a directory above it?");
        return Err(RulesError::invalid(Some(directory), problem));
    }
    for entry in fs::read_dir(directory)
        .map_err(read)?
        .collect::<io::Result<Vec<_>>>()
        .map_err(read)?
    {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if path.is_dir() {
            search(&path, depth + 1, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}
