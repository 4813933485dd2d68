//! Reads logs into a [`Trace`]: access logs, records of named fields, and requests per second;
//! plain or compressed.

mod access_log;
mod charge;
mod client;
mod columns;
mod envelope;
mod error;
mod filter;
mod format;
mod json;
mod line;
mod options;
mod proof;
mod rates;
mod read;
mod reading;
mod record;
mod refusal;
mod request;
mod target;
mod timestamp;
mod unpack;

pub use crate::workload::{By, ByError, Field};
pub use access_log::AccessLine;
pub use charge::{Took, TookError};
pub use error::{FailedLine, InputError, Unparsed};
pub use filter::{Condition, ConditionError, Filter, Moment, MomentError};
pub use format::{Format, UnknownFormat};
pub use line::LineError;
pub use options::Options;
pub use proof::{Proof, Sample};
pub use read::{
    Lines, Loaded, LoadedLimits, Opened, Selected, Selector, Source, read, read_limits, read_lines,
};
pub use record::TimeField;
pub use request::{Stamp, StampError};
pub use tidegate_headers::{NetworkError, Networks};
pub(crate) use timestamp::write_time;
pub use timestamp::{Zone, ZoneError, parse_access_log_time, parse_rfc3339, parse_unix, write_utc};
pub use unpack::{is_packed, unpack};

#[cfg(doc)]
use crate::workload::Trace;
