//! Definitions for both reading and writing the state file.

use std::io;

pub(super) const MAGIC: &[u8; 8] = b"TIDEGATE";
pub(super) const VERSION: u32 = 1;

/// The only section of a server whose limits are in a store: the number of servers that share it,
/// in place of a limit's number of keys. No limit has such a name.
pub(super) const NODES: &str = ":nodes";

/// How a section begins that holds a quota by an operator: then its limit, the quota and the key,
/// with blanks between them. Where a limit says how many keys it may have, it says until when. No
/// limit's name has a blank.
pub(super) const OVERRIDE: &str = ":override ";
/// How a section begins that holds a reservation as JSON. Where a limit says how many keys it may
/// have, it says when it is due.
pub(super) const RESERVATION: &str = ":reservation ";
/// How the sections begin that hold what the tenants of a limit have used, and what of their
/// ceilings: then the limit's name. Servers of before skip them.
pub(super) const TENANTS: &str = ":tenants ";
pub(super) const CEILINGS: &str = ":ceilings ";

/// The first byte of an entry.
pub(super) const END: u8 = 0;
pub(super) const KEY: u8 = 1;
/// Shared debts from earlier versions: read and ignored.
pub(super) const SHARED_DEBT: u8 = 2;
pub(super) const OWN: u8 = 3;
pub(super) const BLOCKED: u8 = 4;
pub(super) const RECORD: u8 = 5;

/// The widest state: a log of a million entries, with its head.
pub(super) const MOST_WORDS: u32 = 1_000_001;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The system cannot read or write it.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// It is not a state file.
    #[error("the file is not a Tidegate state file")]
    NotAState,
    /// It has another version of the format.
    #[error(
        "the file has format version {0}, but this server supports version {VERSION}; a newer server may have written it"
    )]
    Version(u32),
    /// It ends before its contents do, or has more bytes after them.
    #[error("the file is truncated or has trailing bytes")]
    Length,
    /// Its bytes have changed since they were written.
    #[error("the checksum does not match: the file was modified or damaged")]
    Checksum,
    /// The checksum is right, but the contents are invalid.
    #[error("the file's contents are invalid: {0}")]
    Contents(&'static str),
}

impl From<io::Error> for StateError {
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::UnexpectedEof {
            Self::Length
        } else {
            Self::Io(e)
        }
    }
}
