//! Decides how large the next allotment should be, from recent demand.

use crate::Nanos;

/// The recent demand of callers: in the span that began at `since`, and in the span before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    units: u64,
    since: Option<Nanos>,
    /// `None` before the first span has ended.
    before: Option<u64>,
    usual: Usual,
}

/// The use in a slack, as a moving average over the last [`MEMORY`] slacks.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    /// In thousandths.
    mean: u64,
    /// Units since the last look.
    units: u64,
    looked: Option<Nanos>,
    /// How long no units were used.
    idle: Nanos,
    paused: bool,
}

const MEMORY: u128 = 4;
/// The most units that are taken for a whole slack: a key with more requests needs few round trips
/// in any case.
const SMALL: u64 = 64;

impl Usual {
    fn look(&mut self, now: Nanos, slack: Nanos) {
        let elapsed = u128::from(now.saturating_since(*self.looked.get_or_insert(now)).get());
        if elapsed == 0 {
            return;
        }
        let all = MEMORY * u128::from(slack.get().max(1));
        let (mean, units) = (u128::from(self.mean), 1_000 * u128::from(self.units));
        let seen = units * all / MEMORY / elapsed.max(all);
        let mean = seen + mean * (all - elapsed.min(all)) / all;
        let idle = if self.units > 0 {
            0
        } else {
            elapsed + u128::from(self.idle.get())
        };
        self.idle = Nanos::new(u64::try_from(idle).unwrap_or(u64::MAX));
        self.paused = self.idle.get() >= slack.get().saturating_mul(2);
        (self.mean, self.units, self.looked) =
            (u64::try_from(mean).unwrap_or(u64::MAX), 0, Some(now));
    }

    /// The units that suffice for a slack nearly always, if requests come independently; 0 if fewer
    /// than one comes in a slack, or none came in the last two.
    fn for_a_slack(&self) -> u32 {
        let mean = self.mean.min(1_000 * SMALL);
        let deviation = (1_000 * mean).isqrt();
        if mean < 1_000 || self.paused {
            0
        } else {
            (mean + 2 * deviation).div_ceil(1_000) as u32
        }
    }
}

/// The maximum ratio of the first allotment to the demand during its measurement: a few requests
/// say little about a rate.
const GROWTH: u128 = 8;
/// The length of a span in durations of an allotment: a few requests at the same moment are not a
/// rate.
const SPAN: u128 = 4;

impl Demand {
    pub fn add(&mut self, units: u64) {
        self.units = self.units.saturating_add(units);
        self.usual.units = self.usual.units.saturating_add(units);
        self.usual.paused &= units == 0;
    }

    /// Updates the usual use. Call it about every quarter of the slack.
    pub fn look(&mut self, now: Nanos, slack: Nanos) {
        self.usual.look(now, slack);
    }

    /// The number of units that a key with few but steady requests needs for a whole slack; 0 for a
    /// rarely used key.
    pub fn for_a_slack(&self) -> u32 {
        self.usual.for_a_slack()
    }

    /// The number of units that would last for `target` at the recent rate; 0 at the first call.
    ///
    /// A rarely used key therefore takes nothing ahead: its requests are decided one by one.
    /// `steady`: demand counts only if it came in both spans.
    pub fn allotment(&mut self, now: Nanos, target: Nanos, steady: bool) -> u32 {
        let units = u128::from(self.units);
        let Some(since) = self.since else {
            self.begin(now, None);
            return 0;
        };
        let target = u128::from(target.get());
        let span = (target * SPAN).max(1);
        let elapsed = u128::from(now.saturating_since(since).get().max(1));
        let in_a_span = match self.before {
            _ if elapsed >= span => units * span / elapsed,
            Some(before) => u128::from(before) * (span - elapsed) / span + units,
            None => (units * span / elapsed).min(units * GROWTH * SPAN),
        };
        let before = self.before.map_or(in_a_span, u128::from);
        if elapsed >= span {
            self.begin(now, Some(u64::try_from(in_a_span).unwrap_or(u64::MAX)));
        }
        let counted_on = if steady {
            in_a_span.min(before)
        } else {
            in_a_span
        };
        u32::try_from(counted_on / SPAN).unwrap_or(u32::MAX)
    }

    fn begin(&mut self, now: Nanos, before: Option<u64>) {
        (self.units, self.since, self.before) = (0, Some(now), before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Nanos = Nanos::from_millis(25);

    /// A demand whose first span has ended with `units`.
    fn after_a_span_of(units: u64) -> Demand {
        let mut demand = Demand::default();
        demand.allotment(Nanos::ZERO, TARGET, false);
        demand.add(units);
        demand.allotment(Nanos::from_millis(100), TARGET, false);
        demand
    }

    #[test]
    fn an_allotment_lasts_for_the_target_at_the_rate_of_late() {
        let mut demand = Demand::default();
        assert_eq!(demand.allotment(Nanos::ZERO, TARGET, false), 0);
        demand.add(400);
        assert_eq!(
            demand.allotment(Nanos::from_millis(10), TARGET, false),
            1_000
        );
        demand.add(3_600);
        assert_eq!(
            demand.allotment(Nanos::from_millis(100), TARGET, false),
            1_000
        );
        demand.add(2_000);
        assert_eq!(
            demand.allotment(Nanos::from_millis(150), TARGET, false),
            1_000
        );
        assert_eq!(
            demand.allotment(Nanos::from_millis(175), TARGET, false),
            750,
            "and shrinks with it"
        );
        assert_eq!(
            demand.allotment(Nanos::from_millis(400), TARGET, false),
            166
        );
        assert_eq!(demand.allotment(Nanos::from_millis(500), TARGET, false), 0);
    }

    #[test]
    fn rarely_used_keys_get_no_allotment() {
        let mut demand = Demand::default();
        for second in 0..5 {
            demand.add(1);
            assert_eq!(demand.allotment(Nanos::from_secs(second), TARGET, false), 0);
        }
    }

    #[test]
    fn a_few_requests_at_once_are_no_rate() {
        let mut demand = Demand::default();
        demand.allotment(Nanos::ZERO, TARGET, false);
        demand.add(3);
        assert_eq!(
            demand.allotment(Nanos::ZERO, TARGET, false),
            24,
            "of a rate nothing is known yet"
        );
        let mut demand = after_a_span_of(0);
        demand.add(3);
        assert_eq!(
            demand.allotment(Nanos::from_millis(101), TARGET, false),
            0,
            "nobody asked before"
        );
        demand.add(u32::MAX.into());
        demand.add(u32::MAX.into());
        assert_eq!(demand.allotment(Nanos::ZERO, Nanos::MAX, false), 1 << 31);
    }

    #[test]
    fn a_burst_after_a_pause_does_not_raise_the_expected_rate() {
        let mut burst = after_a_span_of(0);
        burst.add(1_000);
        assert_eq!(burst.allotment(Nanos::from_millis(101), TARGET, true), 0);
        let mut steady = after_a_span_of(800);
        steady.add(800);
        assert_eq!(steady.allotment(Nanos::from_millis(200), TARGET, true), 200);
    }
}
