//! What both directions of the state file agree on.

use std::{io, time::Duration};

pub(super) const MAGIC: &[u8; 8] = b"TIDEGATE";
pub(super) const VERSION: u32 = 1;

/// The one section of a server whose limits are in a store: how many servers share it, where a limit says how many keys it
/// may have. No limit has such a name.
pub(super) const NODES: &str = ":nodes";

/// How an entry begins.
pub(super) const END: u8 = 0;
pub(super) const KEY: u8 = 1;
/// Shared debts of earlier versions: read, and not used.
pub(super) const SHARED_DEBT: u8 = 2;
pub(super) const OWN: u8 = 3;
pub(super) const BLOCKED: u8 = 4;
pub(super) const RECORD: u8 = 5;

/// The widest state: a log of a million entries, and its head.
pub(super) const MOST_WORDS: u32 = 1_000_001;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The system cannot read or write it.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// It is something else.
    #[error("the file is not a Tidegate state file")]
    NotAState,
    /// It was written in another version of the format.
    #[error(
        "the file has format version {0}, and this is a server for version {VERSION}: was it written by a newer one?"
    )]
    Version(u32),
    /// It ends before its contents do, or goes on after them.
    #[error("the file is cut short, or has more than its contents")]
    Length,
    /// Its bytes are not those that were written.
    #[error("the checksum does not match: the file was changed or damaged")]
    Checksum,
    /// It was written later than now.
    #[error("the file was written {} s in the future: is this machine's clock right?", by.as_secs())]
    Future {
        /// How much later.
        by: Duration,
    },
    /// Its checksum is right, but its contents make no sense: what.
    #[error("the file's contents make no sense: {0}")]
    Contents(&'static str),
}

impl From<io::Error> for StateError {
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::UnexpectedEof { Self::Length } else { Self::Io(e) }
    }
}
