//! Costs in a log that are charged after the answer.

use std::{str::FromStr, time::Duration};

use super::{line::LineError, request::LogRequest};
use crate::workload::Field;

/// The field with the cost of a request, which is charged after the answer, and the field with the
/// time that the answer took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The field with the cost: a whole number.
    pub cost: Field,
    /// How long the request took; `None` charges it at the time of the line.
    pub took: Option<Took>,
}

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
#[error("name the field, as in request_time (seconds), duration:ms or elapsed:us")]
pub struct TookError;

impl FromStr for Took {
    type Err = TookError;

    fn from_str(text: &str) -> Result<Self, TookError> {
        let (name, in_second) = match text.rsplit_once(':') {
            Some((name, "s")) => (name, 1),
            Some((name, "ms")) => (name, 1_000),
            Some((name, "us")) => (name, 1_000_000),
            _ => (text, 1),
        };
        Ok(Self {
            field: Field::from_name(name).ok_or(TookError)?,
            in_second,
        })
    }
}

impl Charge {
    /// When a request is charged, and how much: nothing without the field, as of a request that
    /// failed. Costs above 4294967295 count as that many.
    pub(super) fn of(&self, request: &impl LogRequest) -> Result<(u64, Option<u32>), LineError> {
        let cost = text(request, &self.cost).map(|text| match text.parse::<u64>() {
            Ok(cost) => Ok(cost.try_into().unwrap_or(u32::MAX)),
            Err(_) => Err(LineError::NotCost(self.cost.name().to_owned())),
        });
        let took = self
            .took
            .as_ref()
            .and_then(|took| Some((took, text(request, &took.field)?)));
        let took = match took {
            Some((took, text)) => {
                let seconds = text
                    .parse::<f64>()
                    .map(|number| number / f64::from(took.in_second));
                let span = seconds
                    .ok()
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                span.ok_or_else(|| LineError::NotTook(took.field.name().to_owned()))?
            }
            None => Duration::ZERO,
        };
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        Ok((
            request
                .time()
                .saturating_add(took)
                .min(tidegate_core::Nanos::MAX.get()),
            cost.transpose()?,
        ))
    }
}

/// The text of a field; `None` also for `-`.
fn text(request: &impl LogRequest, field: &Field) -> Option<String> {
    let text = String::from_utf8(request.field(field).ok()?.into_owned()).ok()?;
    (!text.is_empty() && text != "-").then_some(text)
}
