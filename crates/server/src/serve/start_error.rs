//! Why a server does not start.

use std::{io, path::PathBuf};

use tidegate_limiter::BuildError;
use tidegate_listen::{security::Exposed, tls::TlsError};
use tidegate_redis::StoreError;
use tidegate_service::{flow::PushError, rules::RulesError};

use tidegate_service::files::LockError;

use crate::serve::{options::Options, state_file::StatePathError};

/// Why a server does not start. The message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// All protocols are off.
    #[error(
        "all listeners are off: give --http, --resp, --grpc, --spoe or --sentinel-token an address"
    )]
    NothingToServe,
    /// The rules were rejected.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A file or a directory with rules cannot be read.
    #[error("--{option}: {source}")]
    RulesFile {
        /// The option that names it.
        option: &'static str,
        /// Why it cannot be read.
        source: RulesError,
    },
    /// The rules that were pushed to programs cannot be read.
    #[error("--flow-rules: {0}")]
    FlowRules(#[from] PushError),
    /// A listener's address cannot be bound.
    #[error(
        "cannot listen on {address} (--{option}): {source}; {}",
        mend(source, address)
    )]
    Listen {
        /// The option with the address.
        option: &'static str,
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The certificates are invalid.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The audit file cannot be appended to.
    #[error("--audit {}: cannot append to it: {source}", path.display())]
    Audit {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The ledger of usage cannot be written.
    #[error("--usage {}: cannot write there: {source}; give each server a directory that it may write", path.display())]
    Usage {
        /// The directory.
        path: PathBuf,
        /// Why the directory cannot be used.
        source: LockError,
    },
    /// The access file was rejected.
    #[error("--access: {0}")]
    Access(#[source] RulesError),
    /// Other machines can reach a listener that is not protected.
    #[error(transparent)]
    Exposed(#[from] Exposed),
    /// An option for the store is invalid.
    #[error(transparent)]
    Store(#[from] StoreOptionError),
    /// The state cannot be kept in its file.
    #[error("--state: the state cannot be kept in {}: {source}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Why it cannot be used.
        source: StatePathError,
    },
    /// The system refuses threads or descriptors for the RESP listener.
    #[error(
        "the RESP listener cannot run: {0}; lower --resp-threads, or raise the system's limits"
    )]
    Threads(#[source] io::Error),
    /// gRPC is configured, but the program was built without it.
    #[error(
        "this program was built without gRPC (the crate's feature `grpc`): remove --grpc, --envoy-xds, --envoy-statsd and \
         --envoy-metric-names"
    )]
    NoGrpc,
    /// Sentinel is configured, but the program was built without it.
    #[error(
        "this program was built without Sentinel (the crate's feature `sentinel`): remove --sentinel-token, --sentinel-rules and \
         --sentinel-dashboard"
    )]
    NoSentinel,
    /// The memory for the keys of `CL.THROTTLE` cannot be reserved.
    #[error("CL.THROTTLE: {0}")]
    Throttle(#[source] BuildError),
}

impl StartError {
    /// Why rules cannot be loaded. A file that cannot be read is named with its option.
    pub(crate) fn of_rules(error: RulesError, options: &Options) -> Self {
        let RulesError::Read { path, .. } = &error else {
            return Self::Rules(error);
        };
        let named = [
            ("rules", &options.rules),
            ("envoy-config", &options.envoy_config),
            ("sentinel-rules", &options.sentinel_rules),
        ];
        let is_in =
            |named: &Option<PathBuf>| named.as_ref().is_some_and(|named| path.starts_with(named));
        match named.into_iter().find(|(_, named)| is_in(named)) {
            Some((option, _)) => Self::RulesFile {
                option,
                source: error,
            },
            None => Self::Rules(error),
        }
    }
}

/// Which option for the store is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOptionError {
    /// The prefix of the store's keys.
    #[error(
        "--store-prefix is `{0}`; it must have 1 to 64 bytes, and must not contain `:`, `{{` or `}}`"
    )]
    Prefix(String),
    /// The deadline of a decision.
    #[error("--store-deadline must be above 0 and at most 5s")]
    Deadline,
    /// The address of the store.
    #[error("--store: {0}")]
    Address(#[source] StoreError),
}

fn mend(error: &io::Error, address: &str) -> &'static str {
    let is_socket = address.starts_with("unix:");
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program uses the address: stop it, or choose another (port 0 takes any free port)"
        }
        io::ErrorKind::PermissionDenied if is_socket => {
            "let the server write in the directory of the socket, or choose another path"
        }
        io::ErrorKind::PermissionDenied => "choose a port above 1023, or grant the permission",
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: use 127.0.0.1 for local clients, 0.0.0.0 for all"
        }
        io::ErrorKind::AlreadyExists => "remove the file, or choose another path",
        io::ErrorKind::NotFound => "make the directory of the socket, or choose another path",
        _ if is_socket => "choose a path of at most 107 bytes, as in unix:/run/tidegate/http.sock",
        _ => "give a host and a port, as in 127.0.0.1:8080, or `off`",
    }
}
