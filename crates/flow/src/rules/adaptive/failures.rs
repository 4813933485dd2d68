//! The effect of failing calls on a limit.

use super::CallWindow;

/// A limit that returned to its value and failed again within this number of windows stays low: the
/// failures come from the overload.
const AGAIN: u32 = 10;

/// Lowers the limit while at least a tenth of the calls fail, and returns it to its value when they
/// stop. The failures themselves show nothing about the service's capacity, so the value from
/// before them is the best known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Failures {
    /// The limit before the calls began to fail.
    before: Option<f64>,
    failing: bool,
    /// The number of windows since the limit returned to its value.
    since: Option<u32>,
}

impl Failures {
    /// Returns the next limit if failures decide it: `limit` times `backoff`, or the limit before
    /// the failures.
    pub(super) fn learn(&mut self, limit: f64, window: &CallWindow, backoff: f64) -> Option<f64> {
        if window.failed * 10 >= window.calls {
            if !self.failing {
                let again = self.since.is_some_and(|since| since < AGAIN);
                self.before = if again { None } else { Some(limit) };
            }
            self.failing = true;
            return Some(limit * backoff);
        }
        self.since = self.since.map(|since| since.saturating_add(1));
        self.failing = false;
        let before = self.before.take()?;
        self.since = Some(0);
        Some(before)
    }
}
