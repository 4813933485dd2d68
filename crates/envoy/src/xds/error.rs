//! Why an answer of a control plane is refused, and why a stream to one ends.

use std::{io, path::PathBuf};

use tidegate_service::rules::RulesError;

use super::{
    count::{MAX_DEPTH, MAX_DESCRIPTORS, MAX_VALUES},
    messages::TYPE,
};

/// Why the resources of an answer are refused. The control plane gets the reason, and the former
/// rules stay in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// It is of another type than the configuration of a rate limit service.
    #[error("a resource has the type {0}, and this server asks for {TYPE} alone")]
    Type(String),
    #[error("a resource nests deeper than {MAX_DEPTH} messages")]
    TooDeep,
    #[error(
        "more than {MAX_DESCRIPTORS} descriptors; leave out `value`, so that one rule limits each value separately"
    )]
    TooManyDescriptors,
    #[error("more than {MAX_VALUES} values in metadata and names to replace")]
    TooManyValues,
    #[error("a resource cannot be decoded: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error(transparent)]
    Rules(#[from] RulesError),
}

/// Why a stream from a control plane ended, or did not begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("it ended the stream")]
    Ended,
    #[error("a header field of the address is not valid")]
    Header,
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}", causes(.0))]
    Connect(#[from] tonic::transport::Error),
    #[error("{}: {}", .0.code(), .0.message())]
    Answer(#[from] tonic::Status),
}

/// An error with all its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
