//! The state file: it keeps the use of every key across a restart.
//!
//! ```text
//! "TIDEGATE" │ version u32 │ written at u64 │ how many limits u32
//!   for each limit: name │ policy │ global u8 │ max keys u64 │ hash seeds 2 × u64 │ words u32 │ overridden keys
//!                   its entries: kind u8, then tag (of a record: its place) u64, then words
//! CRC-32 of the above u32
//! ```
//!
//! A server with a store saves only the number of servers that share the store, written as a limit
//! without entries.
//!
//! A quota that an operator gave a key is a section without entries, too. Its name holds all of it.
//!
//! What tenants of a limit have used is in two more sections. The entries of the first are keys (with
//! their shares), and by the number of their words: what all tenants have in common, of which
//! the tag is the number of places for notes; guarantees; and notes, of which the tag is the place. The
//! entries of the other are keys with their ceilings.
//!
//! Numbers are little-endian; texts are preceded by a length of 16 bits. Only keys with such a
//! quota are in the file by name. For all others it contains tags, and the hash seeds of the tags.
//! With the seeds one could construct colliding keys, so only the owner may read the file.
//!
//! A file is read twice: first to check every byte of it, and only then to restore from it. A file
//! that fails the check is renamed, never overwritten.

mod format;
mod place;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::{fs::File, io, path::Path};

use tidegate_core::Nanos;

pub use format::StateError;
pub(crate) use place::StateFile;
pub use place::StatePathError;
pub(crate) use read::{Headers, Restored, restore};
pub(crate) use write::write;

/// The server waits for times up to this far ahead: clocks are sometimes set back a little.
const AHEAD: Nanos = Nanos::from_secs(300);

/// How far ahead of the clock a file was written if its times cannot be right; otherwise zero. Then
/// one of the two clocks was wrong, and the server takes all units in the file as used now.
pub(crate) fn too_far_ahead(written_at: Nanos, now: Nanos) -> Nanos {
    let ahead = written_at.saturating_since(now);
    if ahead > AHEAD { ahead } else { Nanos::ZERO }
}

/// Reads and checks a state file without restoring anything; `None` if it does not exist.
///
/// # Errors
/// When it cannot be read or is damaged.
pub(crate) fn check(path: &Path) -> Result<Option<Headers>, StateError> {
    match File::open(path) {
        Ok(file) => read::headers(file).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StateError::Io(e)),
    }
}

/// Checks bytes as if they were a state file, and restores them into `service` if they pass. For
/// the fuzz target.
///
/// # Errors
/// When they are not a state file, or a damaged one.
#[doc(hidden)]
pub fn check_and_restore(
    bytes: &[u8],
    service: &tidegate_service::decide::service::Service,
    now: Nanos,
) -> Result<u64, StateError> {
    read::headers(bytes)?;
    read::restore_from(bytes, service, now).map(|restored| restored.states)
}
