//! Costs in a log that are charged after the answer, and how long a request took.

use std::{str::FromStr, time::Duration};

use tidegate_core::MAX_LIMIT;

use super::{line::LineError, request::LogRequest};
use crate::workload::Field;

/// The field with the time that a request took, written as `request_time` (seconds), `duration:ms`
/// or `elapsed:us`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Took {
    field: Field,
    /// How many of its units are a second.
    in_second: u32,
}

/// A text names no field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("name the field, as in request_time (seconds), duration:ms, elapsed:us or latency:ns")]
pub struct TookError;

impl FromStr for Took {
    type Err = TookError;

    fn from_str(text: &str) -> Result<Self, TookError> {
        let (name, in_second) = match text.rsplit_once(':') {
            Some((name, "s")) => (name, 1),
            Some((name, "ms")) => (name, 1_000),
            Some((name, "us")) => (name, 1_000_000),
            Some((name, "ns")) => (name, 1_000_000_000),
            _ => (text, 1),
        };
        Ok(Self {
            field: Field::from_name(name).ok_or(TookError)?,
            in_second,
        })
    }
}

impl Took {
    /// The field.
    pub const fn field(&self) -> &Field {
        &self.field
    }

    /// How long a request took, in nanoseconds; `None` without the field.
    pub(super) fn of(&self, request: &impl LogRequest) -> Result<Option<u64>, LineError> {
        let Some(text) = text(request, &self.field) else {
            return Ok(None);
        };
        let seconds = text
            .parse::<f64>()
            .map(|number| number / f64::from(self.in_second));
        let span = seconds
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| LineError::NotTook(self.field.name().to_owned()))?;
        Ok(Some(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The cost of a request: nothing without the field, as of a request that failed.
pub(super) fn cost(request: &impl LogRequest, field: &Field) -> Result<Option<u64>, LineError> {
    let cost = text(request, field).map(|text| match text.parse() {
        Ok(cost @ 0..=MAX_LIMIT) => Ok(cost),
        _ => Err(LineError::NotCost(field.name().to_owned())),
    });
    cost.transpose()
}

/// The text of a field; `None` also for `-`.
fn text(request: &impl LogRequest, field: &Field) -> Option<String> {
    let text = String::from_utf8(request.field(field).ok()?.into_owned()).ok()?;
    (!text.is_empty() && text != "-").then_some(text)
}
