//! One limit whose threads decide from units of their own.

use std::{
    cell::Cell,
    fmt,
    num::NonZeroUsize,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tidegate_core::{
    Algorithm, Clock, Decision, Nanos, Policy,
    lease::{Answer, Lease, Mode, Request, Terms},
};

use crate::SystemClock;

/// The maximum time for which a stripe keeps units.
const SLACK: Nanos = Nanos::from_millis(10);

/// A limit without keys for many threads that ask at the same time: threads do not wait for each other's cache line.
///
/// Each thread belongs to a stripe. A stripe takes some units from the shared state under a lock, and its threads then admit
/// from these units with one atomic operation on memory of their own, as nodes with a [lease](tidegate_core::lease) do.
///
/// * **Never over**: the policy, asked at the same moments, would have admitted everything that all threads together admit.
/// * **Denials that a [`Limiter`](crate::Limiter) would not give**: units in another stripe are not available to this one. A
///   stripe holds at most what its threads use in 5 ms, and an allotment is at most a quarter of what is left when it is taken,
///   so allotments shrink to nothing towards the limit and the shared state decides each request. Before the shared state
///   denies a request, it takes back the units of stripes that were not used for 2.5 ms, except for a token bucket, whose units
///   lose value while they are held: it gets them back after at most 10 ms. A thread that the system stops between two steps may
///   lose the units that its stripe held until they expire: up to 5 % of a limit of 100,000 when eight threads share two busy
///   processors. Never is more admitted than the limit.
/// * A token bucket is smaller by what refills in 10 ms, and a sliding log longer by 10 ms, each by at most a sixteenth.
/// * Policies that cannot be decided ahead (leaky bucket, permits in flight, `count_denied`, token buckets of less than 16) are decided
///   by the shared state under its lock. [`is_striped`](Self::is_striped) tells.
///
/// A [`Limiter`](crate::Limiter) also waits, blocks, changes its policy, and takes part in joint decisions; a striped one does not.
/// Permits of a concurrency policy never come back from it.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{Policy, Quota, StripedLimiter};
///
/// let total = StripedLimiter::new(Policy::sliding_window(Quota::per_second(1_000_000)));
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| assert!(total.acquire(1).is_allowed()));
///     }
/// });
/// ```
pub struct StripedLimiter<C = SystemClock> {
    terms: Terms,
    policy: Policy,
    /// The shared state. Locked before a lease's own lock, never within it.
    state: Mutex<Box<[u64]>>,
    stripes: Box<[Lease]>,
    clock: C,
}

impl StripedLimiter {
    /// A limiter with the system clock and a stripe for each processor.
    #[must_use]
    pub fn new(policy: impl Into<Policy>) -> Self {
        Self::with_clock(policy, SystemClock::new())
    }
}

impl<C> StripedLimiter<C> {
    /// A limiter with its own clock and a stripe for each processor.
    #[must_use]
    pub fn with_clock(policy: impl Into<Policy>, clock: C) -> Self {
        let stripes = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self::with_stripes(policy, clock, stripes)
    }

    /// A limiter with its own clock and this many stripes, rounded up to a power of two. More threads than stripes share them.
    #[must_use]
    pub fn with_stripes(policy: impl Into<Policy>, clock: C, stripes: NonZeroUsize) -> Self {
        let policy = policy.into();
        let terms = Terms::leased(policy, SLACK);
        let stripes = (0..stripes.get().next_power_of_two()).map(|_| Lease::new(terms)).collect();
        let state = Mutex::new(vec![0; terms.policy().words()].into());
        Self { terms, policy, state, stripes, clock }
    }

    /// The limiter's policy.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// The limiter's clock.
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Whether threads decide from units of their own. Otherwise the shared state decides each request under its lock.
    #[must_use]
    pub fn is_striped(&self) -> bool {
        self.terms.mode() == Mode::Leased
    }

    /// Asks for `cost` at the given time.
    ///
    /// `remaining` is what the stripe holds and what the shared state had left when the stripe took its units.
    #[inline]
    pub fn acquire_at(&self, cost: u32, now: Nanos) -> Decision {
        self.acquire_by(thread_number(), cost, now)
    }

    #[inline]
    fn acquire_by(&self, thread: usize, cost: u32, now: Nanos) -> Decision {
        // The number of stripes is a power of two.
        let lease = &self.stripes[thread & (self.stripes.len() - 1)];
        match lease.ask_quickly(cost, now) {
            Some((decision, None)) => decision,
            Some((decision, Some(request))) => {
                let _ = self.serve(lease, request, now);
                decision
            }
            None => self.acquire_slowly(lease, cost, now),
        }
    }

    #[cold]
    #[inline(never)]
    fn acquire_slowly(&self, lease: &Lease, cost: u32, now: Nanos) -> Decision {
        match lease.ask(cost, now) {
            Answer::Decided(decision) => decision,
            Answer::Renew(decision, request) => {
                let _ = self.serve(lease, request, now);
                decision
            }
            Answer::Refill(request) => self.serve(lease, request, now),
        }
    }

    /// Brings a stripe's request to the shared state, and the answer back.
    #[cold]
    #[inline(never)]
    fn serve(&self, lease: &Lease, request: Request, now: Nanos) -> Decision {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut grant = self.terms.serve(&mut state, now, &request);
        if grant.decision.is_denied() && self.reclaim(&mut state, now) {
            // A denied request was charged nothing. What came back with it must not come back twice.
            grant = self.terms.serve(&mut state, now, &Request { back: None, ..request });
        }
        drop(state);
        lease.granted(request, &grant, now)
    }

    /// Takes back the units that stripes hold and do not use. Returns whether there were any.
    fn reclaim(&self, state: &mut [u64], now: Nanos) -> bool {
        let mut found = false;
        for lease in &self.stripes {
            while let Some(request) = lease.returning(now) {
                let grant = self.terms.serve(state, now, &request);
                let _ = lease.granted(request, &grant, now);
                found = true;
            }
        }
        found
    }
}

impl<C: Clock> StripedLimiter<C> {
    /// Asks for `cost` now.
    #[inline]
    pub fn acquire(&self, cost: u32) -> Decision {
        self.acquire_at(cost, self.clock.now())
    }
}

impl<C> fmt::Debug for StripedLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StripedLimiter")
            .field("policy", &self.policy)
            .field("stripes", &self.stripes)
            .finish_non_exhaustive()
    }
}

/// A number for the calling thread: threads that are started one after another get different stripes.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<Option<usize>> = const { Cell::new(None) });
    NUMBER.with(|number| {
        number.get().unwrap_or_else(|| {
            // Relaxed: only the numbers must differ.
            let mine = NEXT.fetch_add(1, Ordering::Relaxed);
            number.set(Some(mine));
            mine
        })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;
    use tidegate_core::{ManualClock, Quota};

    use super::*;

    fn striped(policy: Policy, stripes: usize) -> StripedLimiter<ManualClock> {
        StripedLimiter::with_stripes(policy, ManualClock::default(), NonZeroUsize::new(stripes).unwrap())
    }

    fn policies() -> impl Strategy<Value = Policy> {
        let quota = (prop_oneof![1..100_u32, 100..100_000_u32], 1..5_000_u64)
            .prop_map(|(limit, millis)| Quota::new(limit, std::time::Duration::from_millis(millis)).unwrap());
        (quota, 0..6).prop_map(|(quota, algorithm)| match algorithm {
            0 => Policy::token_bucket(quota),
            1 => Policy::fixed_window(quota),
            2 => Policy::sliding_counter(quota),
            3 => Policy::sliding_window(quota),
            4 => Policy::leaky_bucket(quota),
            _ => Policy::sliding_log(Quota::per_second(quota.limit().min(1_000))).unwrap(),
        })
    }

    proptest! {
        /// Whatever is admitted, the policy would admit if it were asked at the same moments.
        #[test]
        fn stripes_together_are_never_over(
            policy in policies(),
            stripes in 1..5_usize,
            steps in proptest::collection::vec(
                (0..4_usize, prop_oneof![0..50_000_u64, 0..5_000_000_u64, 0..500_000_000_u64], 1..4_u32, 1..60_u32),
                1..60,
            ),
        ) {
            let limiter = striped(policy, stripes);
            let mut alone = vec![0; policy.words()];
            let mut now = 5_000_000_000;
            for (thread, gap, cost, times) in steps {
                for _ in 0..times {
                    now += gap / u64::from(times);
                    if limiter.acquire_by(thread, cost, Nanos::new(now)).is_allowed() {
                        let would = policy.decide(&mut alone, Nanos::new(now), cost);
                        prop_assert!(!would.is_denied(), "at {} ns: {:?}", now, would);
                    }
                }
            }
        }
    }

    #[test]
    fn threads_are_never_over_and_find_what_the_others_hold() {
        for limit in [20, 1_000, 100_000] {
            let limiter = striped(Policy::fixed_window(Quota::per_hour(limit)), 4);
            let (time, admitted) = (AtomicU64::new(1_000_000), AtomicU64::new(0));
            thread::scope(|scope| {
                for number in 0..8 {
                    let (limiter, time, admitted) = (&limiter, &time, &admitted);
                    scope.spawn(move || {
                        for _ in 0..20_000 {
                            let now = Nanos::new(time.fetch_add(100, Ordering::Relaxed));
                            let allowed = limiter.acquire_by(number, 1, now).is_allowed();
                            admitted.fetch_add(u64::from(allowed), Ordering::Relaxed);
                        }
                    });
                }
            });
            assert!(admitted.load(Ordering::Relaxed) <= limit.into());
            // The others do not ask any more: what they hold goes to the one who asks.
            let mut now = time.into_inner();
            let mut all = admitted.into_inner();
            for _ in 0..limit {
                now += 10_000_000;
                all += u64::from(limiter.acquire_by(0, 1, Nanos::new(now)).is_allowed());
            }
            // A thread that was stopped between two steps may have lost the units that its stripe held.
            let limit = u64::from(limit);
            assert!(all <= limit && all >= limit / 10 * 9, "{all} of {limit}");
        }
    }

    #[test]
    fn what_other_stripes_hold_comes_back_before_a_denial() {
        let limiter = striped(Policy::fixed_window(Quota::per_hour(10_000)), 2);
        let mut now = 1_000_000;
        let mut ask = |thread, gap| {
            now += gap;
            limiter.acquire_by(thread, 1, Nanos::new(now)).is_allowed()
        };
        // A busy thread stops in the middle of its units.
        assert!((0..5_000).all(|_| ask(1, 2_000)));
        assert!(!limiter.stripes[1].is_idle(Nanos::ZERO), "it holds some");
        let rest = (0..6_000).filter(|_| ask(0, 2_000)).count();
        assert_eq!(rest, 5_000);
    }

    #[test]
    fn a_hot_limit_is_decided_from_the_stripes() {
        let limiter = striped(Policy::token_bucket(Quota::per_second(1_000_000_000)), 2);
        assert!(limiter.is_striped());
        let now = |at: u64| Nanos::new(5_000_000_000 + at * 1_000);
        let asked = (0..100_000).filter(|&at| limiter.acquire_by(at as usize, 1, now(at)).is_allowed());
        assert_eq!(asked.count(), 100_000);
        assert!(limiter.stripes.iter().all(|lease| !lease.is_idle(now(100_000))), "both hold units");
        for exact in [Policy::leaky_bucket(Quota::per_second(9)), Policy::token_bucket(Quota::per_second(9))]
        {
            assert!(!striped(exact, 2).is_striped());
        }
    }

    #[test]
    fn two_threads_have_different_stripes() {
        let mine = thread_number();
        assert_eq!(thread_number(), mine);
        assert_ne!(thread::spawn(thread_number).join().unwrap(), mine);
        let limiter = StripedLimiter::new(Policy::fixed_window(Quota::per_hour(2)));
        let answers = [0; 3].map(|_| limiter.acquire(1).is_allowed());
        assert_eq!(answers, [true, true, false]);
    }
}
