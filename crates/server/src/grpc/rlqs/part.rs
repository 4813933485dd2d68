//! One Envoy's part of one limit's key: what it has been told it may admit, and what was charged for that.
//!
//! The bound. Envoy's bucket of `share` tokens starts full and fills by `share` a second. So for the rest of the second in which
//! it gets its first share it may admit up to twice as much, and that is charged: whoever is granted `n` begins with a share of
//! `n / 2`. From then on each second costs one share, and what the Envoy admits from its first token on never exceeds what was
//! charged from then on. What is left in the bucket at the end of a second was charged in that second and may be admitted in
//! the next. So in any window all Envoys together admit at most the limit, and beyond it at most what was left in their
//! buckets when it began: one second's shares.
//!
//! An Envoy whose stream is lost goes on until its assignment ends. It goes on being charged, and the others get nothing that it
//! may still need. Only who takes the rest of the limit otherwise, by calls or through another server, may bring it over: by what
//! the lost Envoys spend in the rest of their time.

use tidegate_core::Nanos;

use super::terms::Terms;

const SECOND: Nanos = Nanos::from_secs(1);
/// After so many reports in a row without a request the Envoy is told to forget the bucket.
const QUIET_REPORTS: u32 = 2;

/// What is known of one Envoy's bucket.
#[derive(Debug)]
pub(super) struct Part {
    /// Requests a second, as last measured; `None` before that.
    load: Option<u64>,
    /// Reported, over a time too short to tell a load.
    unmeasured: u64,
    measured_at: Nanos,
    quiet: u32,
    /// Tokens a second that it was told it has.
    share: u64,
    /// When the last assignment ends.
    until: Nanos,
    /// Charged, and not reported as used: at least what it may still admit.
    paid: u64,
    /// How much of that was charged in this window of the limit, and so can be given back.
    paid_here: u64,
    window: u64,
    is_lost: bool,
}

impl Part {
    pub fn new(now: Nanos) -> Self {
        Self {
            load: None,
            unmeasured: 0,
            measured_at: now,
            quiet: 0,
            share: 0,
            until: Nanos::ZERO,
            paid: 0,
            paid_here: 0,
            window: 0,
            is_lost: false,
        }
    }

    /// Takes in what was admitted and denied since the last report. What was admitted beyond what is paid for, as without an
    /// assignment, is returned: it is to be charged.
    pub fn report(&mut self, admitted: u64, denied: u64, now: Nanos) -> u64 {
        self.unmeasured = self.unmeasured.saturating_add(admitted).saturating_add(denied);
        // By this clock: what Envoy says of the time is cut to whole seconds.
        let span = now.saturating_since(self.measured_at);
        if span >= SECOND {
            let load = u128::from(self.unmeasured) * u128::from(SECOND.get()) / u128::from(span.get());
            self.load = Some(u64::try_from(load).unwrap_or(u64::MAX));
            self.quiet = if self.unmeasured == 0 { self.quiet + 1 } else { 0 };
            (self.unmeasured, self.measured_at) = (0, now);
        }
        let owed = admitted.saturating_sub(self.paid);
        self.paid = self.paid.saturating_sub(admitted);
        self.paid_here = self.paid_here.saturating_sub(admitted).min(self.paid);
        owed
    }

    /// What was paid beyond what it may still admit, after a report. What belongs to this window can be given back, and is
    /// returned; the rest is forgotten.
    pub fn surplus(&mut self) -> u64 {
        // A full bucket, and what it gets in this second.
        let keep = self.share.saturating_mul(2);
        let back = self.paid.saturating_sub(keep).min(self.paid_here);
        self.paid = self.paid.min(keep);
        self.paid_here = self.paid_here.saturating_sub(back).min(self.paid);
        back
    }

    /// Whether nothing has come from there for so long that it should be forgotten.
    pub fn is_quiet(&self) -> bool {
        self.quiet >= QUIET_REPORTS
    }

    /// The stream has ended. The Envoy goes on with its assignment.
    pub fn lose(&mut self) {
        self.is_lost = true;
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether it may admit nothing more, and nobody will tell.
    pub fn is_over(&self, now: Nanos) -> bool {
        self.is_lost && (self.share == 0 || now >= self.until)
    }

    /// Tokens a second that it goes on spending.
    pub fn share(&self) -> u64 {
        self.share
    }

    /// Whether its next bucket starts full: it has none.
    fn is_fresh(&self, now: Nanos) -> bool {
        self.share == 0 || now >= self.until
    }

    /// What it should be charged for a second, one of so many Envoys.
    pub fn wants(&self, terms: &Terms, envoys: u64, now: Nanos) -> u64 {
        let share = match self.load {
            None => terms.unknown(envoys),
            // Room to grow.
            Some(load) => load.saturating_add(load / 4).saturating_add(1).max(terms.floor(envoys)),
        };
        // No more in a second than Envoy can be told.
        let share = share.min(u32::MAX.into());
        if self.is_fresh(now) { share.saturating_mul(2) } else { share }
    }

    /// It was charged so much for this second: the tokens a second that it gets, 0 for none.
    pub fn assign(&mut self, granted: u64, window: u64, now: Nanos) -> u64 {
        self.share = match granted {
            // No second token before the next second is paid for.
            1 => 1,
            granted if self.is_fresh(now) => granted / 2,
            granted => granted,
        };
        self.pay(granted, window);
        self.share
    }

    /// Its assignment ends after so many seconds.
    pub fn lasts(&mut self, seconds: u64, now: Nanos) {
        self.until = now.saturating_add(Nanos::new(SECOND.get().saturating_mul(seconds)));
    }

    /// What it may spend after this second, where nobody can tell it otherwise.
    pub fn later(&self, now: Nanos) -> u64 {
        let rest = self.until.saturating_since(now.saturating_add(SECOND)).get();
        self.share.saturating_mul(rest.div_ceil(SECOND.get()))
    }

    /// It was charged so much and nothing changes for it.
    pub fn pay(&mut self, granted: u64, window: u64) {
        if window != self.window {
            (self.window, self.paid_here) = (window, 0);
        }
        self.paid = self.paid.saturating_add(granted);
        self.paid_here = self.paid_here.saturating_add(granted);
    }

    /// The limit has changed, or its window has: nothing goes back to what was.
    pub fn keep_all(&mut self) {
        self.paid_here = 0;
    }

    /// Begins a window.
    pub fn enter(&mut self, window: u64) {
        self.pay(0, window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_secs(1_700_000_000);
    const HOUR: Terms = Terms { limit: 1_000, window: 3_600, gives_back: true };

    fn after(seconds: u64) -> Nanos {
        START.saturating_add(Nanos::from_secs(seconds))
    }

    #[test]
    fn a_first_bucket_is_charged_for_what_it_holds_and_what_it_gets() {
        let mut part = Part::new(START);
        assert_eq!(part.wants(&HOUR, 1, START), 100, "a twentieth for a second, and a full bucket");
        assert_eq!(part.assign(100, 0, START), 50);
        part.lasts(5, START);
        assert_eq!(part.wants(&HOUR, 1, after(1)), 50);
        assert_eq!(part.assign(50, 0, after(1)), 50, "the bucket that it has goes on");
        part.lasts(5, after(1));
        // Without word from us the assignment ends, and the next bucket is full again.
        assert_eq!(part.wants(&HOUR, 1, after(6)), 100);
    }

    #[test]
    fn what_was_not_used_goes_back_but_for_what_may_still_be_admitted() {
        let mut part = Part::new(START);
        part.assign(100, 7, START);
        part.lasts(5, START);
        for second in 1..5 {
            part.assign(50, 7, after(second));
            part.lasts(5, after(second));
        }
        assert_eq!(part.report(20, 0, after(5)), 0);
        assert_eq!(part.surplus(), 180, "of 300 it used 20, and has 100 in hand");
        assert_eq!(part.surplus(), 0);
        assert_eq!(part.report(130, 0, after(6)), 30, "what was not paid for is owed");
        assert_eq!(part.wants(&HOUR, 1, after(6)), 163, "130 a second and some room");
    }

    #[test]
    fn nothing_goes_back_to_a_window_that_it_was_not_taken_from() {
        let mut part = Part::new(START);
        part.assign(100, 7, START);
        part.lasts(5, START);
        part.assign(50, 8, after(1));
        part.enter(9);
        assert_eq!(part.report(0, 0, after(5)), 0);
        assert_eq!(part.surplus(), 0);
    }

    #[test]
    fn a_report_tells_the_load_and_two_without_requests_that_there_is_none() {
        let second = Terms { limit: 1_000, window: 1, gives_back: false };
        let mut part = Part::new(START);
        part.report(1, 0, START);
        assert_eq!(part.wants(&second, 2, START), 2 * u64::from(u32::MAX), "all that there is");
        part.assign(1_000, 0, START);
        part.lasts(5, START);
        part.report(299, 700, after(5));
        assert_eq!(part.wants(&second, 2, after(4)), 251, "200 a second and some room");
        assert_eq!(part.wants(&second, 1, after(4)), 500, "half of its own part in any case");
        part.report(0, 0, after(10));
        assert!(!part.is_quiet());
        part.report(0, 0, after(15));
        assert!(part.is_quiet());
        part.report(0, 1, after(20));
        assert!(!part.is_quiet());
    }

    #[test]
    fn a_lost_stream_keeps_its_share_as_long_as_its_envoy_does() {
        let mut part = Part::new(START);
        part.assign(8, 0, START);
        part.lasts(5, START);
        part.lose();
        assert_eq!((part.later(START), part.later(after(3)), part.later(after(4))), (16, 4, 0));
        assert!(!part.is_over(after(4)) && part.is_over(after(5)));
        let mut without = Part::new(START);
        without.lose();
        assert!(without.is_over(START), "it has nothing to keep");
    }
}
