//! The state file: what every key has used, across a restart.
//!
//! ```text
//! "TIDEGATE" │ version u32 │ written at u64 │ how many limits u32
//!   for each limit: name │ policy │ global u8 │ max keys u64 │ hash seeds 2 × u64 │ words u32 │ overridden keys
//!                   its entries: kind u8, then tag (or cell) u64, then words
//! CRC-32 of all that u32
//! ```
//!
//! Numbers are little-endian; texts have a length of 16 bits before them. Keys are not in it, only their tags, and the
//! seeds that make tags of keys: whoever reads the file could make keys that meet, so it is written for its owner alone.
//!
//! A file is read twice: once to check every byte of it, and only then to restore from it. What does not check is set
//! aside, never overwritten.

mod format;
mod read;
mod write;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

pub use format::StateError;
pub(crate) use read::{Headers, restore};
pub(crate) use write::{try_place, write};

/// Reads and checks a state file without restoring anything; `None` where there is none.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub(crate) fn check(path: &Path) -> Result<Option<Headers>, StateError> {
    match File::open(path) {
        Ok(file) => read::headers(file).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StateError::Io(e)),
    }
}

/// Renames a file that cannot be used to `FILE.damaged-1` (or `-2`, …), so that it is neither lost nor in the way.
///
/// # Errors
/// When the system refuses to rename it.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    for number in 1_u32.. {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".damaged-{number}"));
        let aside = PathBuf::from(aside);
        if !aside.try_exists()? {
            fs::rename(path, &aside)?;
            return Ok(aside);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
