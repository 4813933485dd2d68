//! The options for reading sources.

use tidegate_headers::Networks;

use super::{
    charge::Took, filter::Filter, format::Format, record::TimeField, request::Stamp,
    timestamp::Zone,
};
use crate::workload::{By, Field};

/// Options for reading sources.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format of the sources; `None` detects it.
    pub format: Option<Format>,
    /// The key of the limits; `None` means the client, or for requests per second one limit for
    /// all.
    pub by: Option<By>,
    /// The time field of JSON lines.
    pub time_field: TimeField,
    /// Whether requests of one key with the same time are spread evenly over the resolution of the
    /// times: over one second if times are whole seconds, as in requests per second. Otherwise they
    /// arrive at its start.
    pub spread: bool,
    /// The requests to leave out. Requests per second have no fields to filter by.
    pub filter: Filter,
    /// The field with a cost that is charged after the answer, a whole number: a request asks with
    /// a cost of 0. `None` takes a cost of 1.
    pub charge: Option<Field>,
    /// How long a request took; `None` takes the format's own field, if it has one.
    pub took: Option<Took>,
    /// The moment of a request that the time of its line is; `None` follows the format, and otherwise
    /// means the start.
    pub stamped: Option<Stamp>,
    /// The zone of times that state none.
    pub zone: Zone,
    /// The proxies whose `X-Forwarded-For` counts for the key `forwarded`.
    pub trusted: Networks,
}
