//! How large the next piece should be.

use crate::Nanos;

/// What callers have asked for since the last piece was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    units: u64,
    since: Option<Nanos>,
}

/// A piece is at most this many times what was asked for while it was measured: few requests tell little of a rate.
const GROWTH: u128 = 8;

impl Demand {
    pub fn add(&mut self, units: u32) {
        self.units = self.units.saturating_add(units.into());
    }

    /// What would last for `target` at the rate since the last call; nothing at the first. Begins anew.
    ///
    /// A key that is asked for now and then gets nothing ahead: its requests are decided one by one.
    pub fn piece(&mut self, now: Nanos, target: Nanos) -> u32 {
        let units = u128::from(std::mem::take(&mut self.units));
        let Some(since) = self.since.replace(now) else { return 0 };
        let elapsed = u128::from(now.saturating_since(since).get().max(1));
        let lasting = units * u128::from(target.get()) / elapsed;
        u32::try_from(lasting.min(units * GROWTH)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Nanos = Nanos::from_millis(25);

    #[test]
    fn a_piece_lasts_for_the_target_at_the_rate_that_was_measured() {
        let mut demand = Demand::default();
        assert_eq!(demand.piece(Nanos::ZERO, TARGET), 0);
        demand.add(400);
        assert_eq!(demand.piece(Nanos::from_millis(10), TARGET), 1_000);
        demand.add(400);
        assert_eq!(demand.piece(Nanos::from_millis(110), TARGET), 100, "and shrinks with it");
    }

    #[test]
    fn what_is_rarely_asked_for_is_not_taken_ahead() {
        let mut demand = Demand::default();
        for second in 0..5 {
            demand.add(1);
            assert_eq!(demand.piece(Nanos::from_secs(second), TARGET), 0);
        }
    }

    #[test]
    fn a_few_requests_at_once_are_no_rate() {
        let mut demand = Demand::default();
        demand.piece(Nanos::ZERO, TARGET);
        demand.add(3);
        assert_eq!(demand.piece(Nanos::ZERO, TARGET), 24);
        demand.add(u32::MAX);
        demand.add(u32::MAX);
        assert_eq!(demand.piece(Nanos::ZERO, Nanos::MAX), u32::MAX);
    }
}
