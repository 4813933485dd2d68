//! The system's limit on open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything but client connections: listeners, files, the store, the control
/// plane.
const BESIDE: u64 = 512;

/// Whether the process may open as many files as its connections need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenFiles {
    /// The limit was high enough, or was raised.
    Enough,
    /// The limit could not be raised far enough.
    TooFew {
        /// How many files the process may open.
        allowed: u64,
        /// How many it may need.
        needed: u64,
    },
}

/// The number of connections that each of `listeners` can have with `allowed` open files, at least 64.
pub fn connections_within(allowed: u64, listeners: usize) -> u32 {
    let each = allowed.saturating_sub(BESIDE) / (listeners.max(1) as u64);
    u32::try_from(each).unwrap_or(u32::MAX).max(64)
}

/// Raises the process's limit on open files, as far as the system allows, to the number that
/// `connections` on each of `listeners` need.
pub fn raise_open_files(max_connections: usize, listeners: usize) -> OpenFiles {
    let needed = (max_connections as u64)
        .saturating_mul(listeners as u64)
        .saturating_add(BESIDE);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let enough = |allowed: Option<u64>| allowed.is_none_or(|allowed| allowed >= needed);
    if enough(current) {
        return OpenFiles::Enough;
    }
    // With the necessary privilege, the hard limit is raised, too.
    let both = Rlimit {
        current: Some(needed),
        maximum: maximum.map(|maximum| maximum.max(needed)),
    };
    if setrlimit(Resource::Nofile, both).is_ok() {
        return OpenFiles::Enough;
    }
    // If this fails, the limit stays as it was, and the result says so.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    let allowed = getrlimit(Resource::Nofile).current;
    match allowed {
        Some(allowed) if !enough(Some(allowed)) => OpenFiles::TooFew { allowed, needed },
        _ => OpenFiles::Enough,
    }
}
