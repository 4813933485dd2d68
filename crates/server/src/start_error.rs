//! Why a server does not start.

use std::{fmt, io, path::PathBuf};

use crate::{rules::RulesError, state_file::StatePathError};

/// Why a server does not start. The message says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// All protocols are off.
    NothingToServe,
    /// The rules cannot be used.
    Rules(RulesError),
    /// A listener's address cannot be had.
    Listen {
        /// Which option asked for it.
        option: &'static str,
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The store cannot be used as it was asked for.
    Store(String),
    /// The state file has no place.
    State {
        /// Which file.
        path: PathBuf,
        /// What is in the way.
        source: StatePathError,
    },
    /// The threads, or the memory of `CL.THROTTLE`'s keys, cannot be had.
    Resources(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToServe => {
                f.write_str("all listeners are off: give --http, --resp or --grpc an address")
            }
            Self::Rules(e) => e.fmt(f),
            Self::Listen { option, address, source } => {
                write!(f, "cannot listen on {address} (--{option}): {source}; ")?;
                f.write_str(match source.kind() {
                    io::ErrorKind::AddrInUse => {
                        "another program has the address: stop it, or choose another (port 0 takes any free one)"
                    }
                    io::ErrorKind::PermissionDenied => "choose a port above 1023, or grant the permission",
                    io::ErrorKind::AddrNotAvailable => {
                        "this machine does not have that address: 127.0.0.1 is for local clients, 0.0.0.0 for all"
                    }
                    _ => "an address is a host and a port, as in 127.0.0.1:8080; `off` for none",
                })
            }
            Self::State { path, source } => {
                write!(f, "the state cannot be kept in {}: {source}", path.display())
            }
            Self::Store(what) | Self::Resources(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rules(e) => Some(e),
            Self::Listen { source, .. } => Some(source),
            Self::State { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<RulesError> for StartError {
    fn from(e: RulesError) -> Self {
        Self::Rules(e)
    }
}
