//! What both directions of the state file agree on.

use std::{fmt, io};

pub(super) const MAGIC: &[u8; 8] = b"TIDEGATE";
pub(super) const VERSION: u32 = 1;

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
#[derive(Debug)]
#[non_exhaustive]
pub enum StateError {
    /// The system cannot read or write it.
    Io(io::Error),
    /// It is something else.
    NotAState,
    /// It was written in another version of the format.
    Version(u32),
    /// It ends before its contents do, or goes on after them.
    Length,
    /// Its bytes are not those that were written.
    Checksum,
    /// Its checksum is right, but its contents make no sense: what.
    Contents(&'static str),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(e) => write!(f, "{e}"),
            Self::NotAState => f.write_str("the file is not a Tidegate state file"),
            Self::Version(found) => write!(
                f,
                "the file has format version {found}, and this is a server for version {VERSION}: was it written by a newer one?"
            ),
            Self::Length => f.write_str("the file is cut short, or has more than its contents"),
            Self::Checksum => f.write_str("the checksum does not match: the file was changed or damaged"),
            Self::Contents(what) => write!(f, "the file's contents make no sense: {what}"),
        }
    }
}

impl std::error::Error for StateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<io::Error> for StateError {
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::UnexpectedEof { Self::Length } else { Self::Io(e) }
    }
}
