//! One Envoy's part of one key of a limit: its assignment, and what was charged for it.
//!
//! The bound. Envoy's bucket of `share` tokens starts full and refills by `share` per second. In
//! the second of its first share, an Envoy may therefore admit up to twice the share, and all of
//! that is charged: an Envoy that is granted `n` starts with a share of `n / 2`. From then on each
//! second costs one share, and the Envoy never admits more than was charged since its first token.
//! Tokens left in the bucket at the end of a second were charged in that second and may be used in
//! the next. So in any window, all Envoys together exceed the limit by at most the tokens in their
//! buckets at its beginning: one second's shares.
//!
//! An Envoy whose stream is lost continues until its assignment ends. It is charged for that time,
//! and the others get nothing that it may still need. Only clients that take the rest of the limit
//! in another way, by calls or through another server, can cause an excess: by what the lost Envoys
//! spend in their remaining time.

use tidegate_core::Nanos;

use super::terms::{Terms, Wants};

const SECOND: Nanos = Nanos::from_secs(1);
/// The number of consecutive reports without requests after which the server sends the Envoy to
/// abandon the bucket.
const QUIET_REPORTS: u32 = 2;

/// The state of one Envoy's bucket.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// The last measured requests per second; `None` before the first measurement.
    load: Option<u64>,
    /// Reported requests, over a time too short to measure the load.
    unmeasured: u64,
    measured_at: Nanos,
    quiet: u32,
    /// The tokens per second in its assignment.
    pub share: u64,
    /// When the last assignment ends.
    until: Nanos,
    /// Charged, and not reported as used: at least what it may still admit.
    paid: u64,
    /// How much of that was charged in the limit's current window, and can be given back.
    paid_here: u64,
    window: u64,
    /// The stream has ended. The Envoy continues with its assignment.
    pub is_lost: bool,
}

impl Part {
    pub fn new(now: Nanos) -> Self {
        Self {
            measured_at: now,
            ..Self::default()
        }
    }

    /// Takes in the requests since the last report. Returns the admitted requests that were not
    /// paid for, for instance those without an assignment: the caller must charge them.
    pub fn report(&mut self, admitted: u64, denied: u64, now: Nanos) -> u64 {
        self.unmeasured = self
            .unmeasured
            .saturating_add(admitted)
            .saturating_add(denied);
        // By this clock, because Envoy reports its time in whole seconds.
        let span = now.saturating_since(self.measured_at);
        if span >= SECOND {
            // To the nearest whole number, but some load is never none.
            let (requests, span) = (
                u128::from(self.unmeasured) * u128::from(SECOND.get()),
                u128::from(span.get()),
            );
            let load = u64::try_from((requests + span / 2) / span).unwrap_or(u64::MAX);
            self.load = Some(load.max(self.unmeasured.min(1)));
            self.quiet = if self.unmeasured == 0 {
                self.quiet + 1
            } else {
                0
            };
            (self.unmeasured, self.measured_at) = (0, now);
        }
        let owed = admitted.saturating_sub(self.paid);
        self.paid = self.paid.saturating_sub(admitted);
        self.paid_here = self.paid_here.saturating_sub(admitted).min(self.paid);
        owed
    }

    /// Removes what was paid beyond what the bucket may still admit, after a report. Returns the
    /// part that was charged in this window, to be given back; the rest is dropped.
    pub fn surplus(&mut self) -> u64 {
        // A full bucket, and its refill in this second.
        let keep = self.share.saturating_mul(2);
        let back = self.paid.saturating_sub(keep).min(self.paid_here);
        self.paid = self.paid.min(keep);
        self.paid_here = self.paid_here.saturating_sub(back).min(self.paid);
        back
    }

    /// Whether the bucket has been idle for so long that it should be abandoned.
    pub fn is_quiet(&self) -> bool {
        self.quiet >= QUIET_REPORTS
    }

    /// Whether it may admit nothing more, and no report will come.
    pub fn is_over(&self, now: Nanos) -> bool {
        self.is_lost && (self.share == 0 || now >= self.until)
    }

    /// Whether its next bucket starts full, because it has none.
    pub fn is_fresh(&self, now: Nanos) -> bool {
        self.share == 0 || now >= self.until
    }

    /// The charges for a second that its load needs and that it can use, if `envoys` share the
    /// limit. It can use `floor` tokens in any case.
    pub fn wants(&self, terms: &Terms, envoys: u64, floor: u64, now: Nanos) -> Wants {
        let (need, most) = match self.load {
            None => (
                terms.unknown(envoys).min(terms.even(envoys)),
                terms.unknown(envoys),
            ),
            // With room to grow.
            Some(load) => (load, load.saturating_add(load / 4).max(floor).max(1)),
        };
        // At most what can be assigned for a second.
        let charge = |share: u64| {
            let share = share.min(u32::MAX.into());
            if self.is_fresh(now) {
                share.saturating_mul(2)
            } else {
                share
            }
        };
        Wants {
            need: charge(need),
            most: charge(most),
        }
    }

    /// Records the charge for this second. Returns the tokens per second to assign, 0 for none.
    pub fn assign(&mut self, granted: u64, window: u64, now: Nanos) -> u64 {
        self.share = match granted {
            // A second token would come before the next second is paid for.
            1 => 1,
            granted if self.is_fresh(now) => granted / 2,
            granted => granted,
        };
        self.pay(granted, window);
        self.share
    }

    /// Records a further charge for this second. Returns the tokens per second to assign.
    pub fn raise(&mut self, granted: u64, window: u64) -> u64 {
        self.share = self.share.saturating_add(granted);
        self.pay(granted, window);
        self.share
    }

    /// Sets the end of its assignment.
    pub fn lasts(&mut self, seconds: u64, now: Nanos) {
        self.until = now.saturating_add(Nanos::new(SECOND.get().saturating_mul(seconds)));
    }

    /// The number of tokens it may spend after this second if it cannot be reached.
    pub fn later(&self, now: Nanos) -> u64 {
        let rest = self
            .until
            .saturating_since(now.saturating_add(SECOND))
            .get();
        self.share.saturating_mul(rest.div_ceil(SECOND.get()))
    }

    /// The number of tokens it may spend after this second, the last of an assignment that began
    /// within a second included.
    pub fn reserve(&self, now: Nanos) -> u64 {
        self.later(now).saturating_add(self.share)
    }

    /// Adds a charge in a window without a change of the assignment.
    pub fn pay(&mut self, granted: u64, window: u64) {
        if window != self.window {
            (self.window, self.paid_here) = (window, 0);
        }
        self.paid = self.paid.saturating_add(granted);
        self.paid_here = self.paid_here.saturating_add(granted);
    }

    /// After a change of the limit or its window: nothing is given back to the old window.
    pub fn keep_all(&mut self) {
        self.paid_here = 0;
    }
}
