//! The errors of a simulation.

use std::{io, path::PathBuf};

use tidegate_core::{PolicyError, Quota, fair::FairError};
use tidegate_server::{rules::RulesError, trace::RecordingError};
use tidegate_sim::{
    SuggestError, TrialError,
    input::{ByError, InputError},
    workload::SyntheticError,
};

use crate::client::ClientError;

/// Why a simulation failed.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The log cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The parameters of the synthetic traffic are invalid.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// Nothing says whose `X-Forwarded-For` counts.
    #[error(
        "`forwarded` as a key needs --trusted-proxies, such as 10.0.0.0/8: clients can write anything into X-Forwarded-For"
    )]
    NoProxies,
    /// The system does not let the program react to Ctrl-C.
    #[error("cannot react to Ctrl-C: {0}")]
    Signal(#[source] io::Error),
    /// Only one log can be followed.
    #[error("--follow reads one log; give one file, or - for standard input")]
    FollowOne,
    /// A packed log grows in blocks.
    #[error(
        "{0} is packed, and --follow reads plain lines: pipe the unpacked text, as in zcat FILE | tidegate simulate - --follow …"
    )]
    FollowPacked(String),
    /// A trace does not grow.
    #[error("{0} is a trace of a server, and --follow is for logs: leave --follow out")]
    FollowTrace(String),
    /// Nothing asks for what is given.
    #[error(
        "--trusted-proxies is for the key `forwarded`, which no limit has here: add --by forwarded, or leave it out"
    )]
    NoForwarded,
    /// A page is printed in place of the JSON.
    #[error(
        "--report - prints the page in place of the findings: give it a file, or leave --format out"
    )]
    PageAsFindings,
    /// Synthetic traffic has no such keys.
    #[error("synthetic traffic has only sources: use --by ip (one key per source) or --by global")]
    SyntheticBy,
    /// A limit does not suit an algorithm.
    #[error("{0}; or leave it out of --algorithm")]
    Trial(#[from] TrialError),
    /// A limit that tenants share does not suit its algorithm.
    #[error("{algorithm} with {quota}: {error}; or leave it out of --algorithm")]
    SharedPolicy {
        /// The algorithm.
        algorithm: String,
        /// The limit.
        quota: Quota,
        /// The reason.
        #[source]
        error: PolicyError,
    },
    /// Tenants cannot share a limit.
    #[error(transparent)]
    Shares(#[from] FairError),
    /// The rules file is invalid.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The server gives no trace.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The trace cannot be read.
    #[error("{source_name}: {error}")]
    Trace {
        /// Where it is from.
        source_name: String,
        /// The reason.
        #[source]
        error: RecordingError,
    },
    /// The trace has no requests.
    #[error("{0} has no requests yet: wait until keys that are traced have asked")]
    EmptyTrace(String),
    /// Traces have no fields.
    #[error(
        "--charge, --took, --stamped, --exclude, --from and --to are for logs; `tidegate record --seconds N` takes a part of a trace"
    )]
    TraceFilter,
    /// The requests of a trace have their keys and times already.
    #[error(
        "--by, --format-in, --time-field, --spread, --zone and --trusted-proxies are for logs: the keys of a trace are those that \
         were asked"
    )]
    TraceReading,
    /// A trace is replayed alone.
    #[error(
        "{} is a trace of a server, which is replayed alone: give no other file",
        _0
    )]
    TraceAmongFiles(String),
    /// A trace has only some of the tenants.
    #[error("--shares is for logs: a trace has only some of the keys that share a limit")]
    SharesOfTrace,
    /// A suggestion counts requests.
    #[error(
        "the trace has requests with a cost above 1, and --suggest counts requests: try limits with --limit or --rules"
    )]
    SuggestCosts,
    /// The sum of the costs exceeds 64 bits.
    #[error(
        "the costs of the trace add up to more than 18446744073709551615: simulate a part of it"
    )]
    CostsTooHigh,
    /// The report would replace what is read.
    #[error("--report would overwrite {}, which the simulation reads: give it another name", _0.display())]
    Overwrites(PathBuf),
    /// A page is requested for a trace with rules.
    #[error("--report is for logs, and for traces with --limit; with --rules use --format json")]
    TraceReport,
    /// No limit of the rules file can be replayed.
    #[error("no limit of {} can be replayed: `concurrency` limits what is in flight, and a log does not say when a request ended", _0.display())]
    NothingToReplay(PathBuf),
    /// A limit's `match` or `by` is invalid for logs.
    #[error("limit `{limit}`: {error}")]
    RuleField {
        /// The limit.
        limit: String,
        /// The reason.
        #[source]
        error: ByError,
    },
    /// No limit can be suggested.
    #[error(transparent)]
    Suggest(#[from] SuggestError),
    /// The page cannot be written.
    #[error("cannot write the report {path}: {1}", path = _0.display())]
    Report(PathBuf, #[source] io::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}
