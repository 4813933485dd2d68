//! Reads logs into a [`Trace`]: access logs, JSON lines, and requests per second; plain or packed.

mod access_log;
mod by;
mod error;
mod format;
mod json_lines;
mod line;
mod rates;
mod read;
mod tar;
mod timestamp;
mod unpack;

pub use access_log::AccessLine;
pub use by::{By, ByError, Field};
pub use error::{FailedLine, InputError, Unparsed};
pub use format::{Format, UnknownFormat};
pub use json_lines::TimeField;
pub use line::LineError;
pub use read::{Loaded, Options, Source, read};
pub use timestamp::{parse_access_log_time, parse_rfc3339, parse_unix, write_utc};
pub use unpack::unpack;

#[cfg(doc)]
use crate::workload::Trace;
