//! A rule that blocks keys for denials, against a naive oracle: the same limiter without blocks, a
//! list of the denials and a list of the blocks.

use crate::policies;

use std::time::Duration;

use proptest::prelude::*;
use tidegate_limiter::{
    Clock, DenialReason, KeyedLimiter, Limiter, ManualTimer, Nanos, Penalty, Policy, Quota,
    Request, acquire_all_at,
};

const START: Nanos = Nanos::from_secs(100);
const SPANS: [u64; 3] = [300, 1_100, 4_000];
const WITHIN: u64 = 700;

fn penalty(after: u32) -> Penalty {
    let spans = SPANS.map(Duration::from_millis);
    let penalty = Penalty::new(&spans).unwrap();
    penalty.after(after, Duration::from_millis(WITHIN)).unwrap()
}

/// The denials of one key and the blocks that follow from them, in milliseconds.
#[derive(Debug, Default)]
struct Naive {
    after: usize,
    /// Since the last block.
    denials: Vec<u64>,
    /// The beginning, the end, and the step of each block.
    blocks: Vec<(u64, u64, usize)>,
}

impl Naive {
    fn blocked_for(&self, now: u64) -> Option<u64> {
        let (_, end, _) = self.blocks.last()?;
        (*end > now).then(|| end - now)
    }

    fn denied(&mut self, now: u64) {
        self.denials.push(now);
        // Runs of denials, each within the span from its first one.
        let mut runs: Vec<Vec<u64>> = Vec::new();
        for &at in &self.denials {
            match runs.last_mut() {
                Some(run) if self.after > 1 && at < run[0] + WITHIN => run.push(at),
                _ => runs.push(vec![at]),
            }
        }
        if runs.last().map_or(0, Vec::len) < self.after {
            return;
        }
        let step = match self.blocks.last() {
            Some((begin, end, step)) if now < end + (end - begin) => (step + 1).min(2),
            _ => 0,
        };
        self.blocks.push((now, now + SPANS[step], step));
        self.denials.clear();
    }

    fn forget(&mut self) {
        (self.denials, self.blocks) = (Vec::new(), Vec::new());
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Advance(u64),
    Acquire(u64),
    UpTo(u64),
    Joint { cost: u64, fits: bool },
    Charge(u64),
    Refund(u64),
    Reserve { cost: u64, actual: u64 },
    Wait(u64),
    Unblock,
    Reset,
    Change(u64),
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..600_u64).prop_map(Step::Advance),
        8 => (1..7_u64).prop_map(Step::Acquire),
        1 => (0..7_u64).prop_map(Step::UpTo),
        3 => (1..5_u64, any::<bool>()).prop_map(|(cost, fits)| Step::Joint { cost, fits }),
        1 => (0..9_u64).prop_map(Step::Charge),
        1 => (1..4_u64).prop_map(Step::Refund),
        1 => (1..5_u64, 0..7_u64).prop_map(|(cost, actual)| Step::Reserve { cost, actual }),
        1 => (1..5_u64).prop_map(Step::Wait),
        1 => Just(Step::Unblock),
        1 => Just(Step::Reset),
        1 => (1..9_u64).prop_map(Step::Change),
        1 => Just(Step::Restore),
    ]
}

fn limiter(policy: Policy, timer: &ManualTimer) -> KeyedLimiter<ManualTimer> {
    let limiter = KeyedLimiter::builder(policy).max_keys(64);
    limiter.clock(timer.clone()).build().unwrap()
}

/// A limiter with the same states, through a snapshot.
fn restored(limiter: &KeyedLimiter<ManualTimer>, now: Nanos) -> KeyedLimiter<ManualTimer> {
    let fresh = KeyedLimiter::builder(limiter.policy())
        .max_keys(64)
        .hash_keys(limiter.hash_keys());
    let fresh = fresh.clock(limiter.clock().clone()).build().unwrap();
    limiter.at(now).snapshot(|entry| {
        assert!(fresh.at(now).restore(&limiter.policy(), &entry));
    });
    fresh
}

fn blocks_as_the_oracle(name: usize, after: u32, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let plain_policy =
        |limit| policies::of(Quota::new(limit, Duration::from_secs(1)).unwrap())[name];
    let timer = ManualTimer::new(START);
    let mut plain = limiter(plain_policy(3), &timer);
    let mut blocking = limiter(plain_policy(3).block_for(penalty(after)), &timer);
    let others =
        [0, 1_000_000].map(|limit| limiter(Policy::fixed_window(Quota::per_second(limit)), &timer));
    let mut naive = Naive {
        after: after as usize,
        ..Naive::default()
    };
    for step in steps {
        let now = timer.now();
        let ms = now.get() / 1_000_000;
        let blocked = naive.blocked_for(ms).is_some();
        match step {
            Step::Advance(ms) => timer.advance(Nanos::from_millis(ms)),
            Step::Acquire(cost) => {
                let decision = blocking.acquire("a", cost);
                let admits = !blocked && plain.acquire("a", cost).is_allowed();
                prop_assert_eq!(decision.is_allowed(), admits);
                if !blocked && !admits {
                    naive.denied(ms);
                }
            }
            Step::UpTo(cost) => {
                let (granted, decision) = blocking.acquire_up_to("a", cost);
                let (most, peek) = if blocked {
                    (0, blocking.peek("a", cost))
                } else {
                    plain.acquire_up_to("a", cost)
                };
                prop_assert_eq!(granted, most);
                prop_assert_eq!(decision.is_allowed(), peek.is_allowed());
                if !blocked && granted == 0 && cost > 0 {
                    naive.denied(ms);
                }
            }
            Step::Joint { cost, fits } => {
                let both = [
                    Request::keyed(&others[usize::from(fits)], b"other", 1),
                    Request::keyed(&blocking, b"a", cost),
                ];
                let decision = acquire_all_at(&both, now).unwrap();
                let fits_here = !blocked && plain.peek("a", cost).is_allowed();
                prop_assert_eq!(decision.is_allowed(), fits && fits_here);
                if fits && fits_here {
                    prop_assert!(plain.acquire("a", cost).is_allowed());
                }
                if !blocked && !fits_here {
                    naive.denied(ms);
                }
            }
            Step::Charge(cost) => {
                let allowed = blocking.charge("a", cost).is_allowed();
                let expected = plain.charge("a", cost).is_allowed();
                prop_assert_eq!(allowed, expected && !blocked);
            }
            Step::Refund(cost) => {
                blocking.refund("a", cost);
                plain.refund("a", cost);
            }
            Step::Reserve { cost, actual } => {
                let (decision, estimate) = blocking.at(now).acquire_estimate("a", cost);
                let expected = (!blocked).then(|| plain.at(now).acquire_estimate("a", cost));
                let admits = expected.is_some_and(|(decision, _)| decision.is_allowed());
                prop_assert_eq!(decision.is_allowed(), admits);
                if let Some((_, theirs)) = expected.filter(|_| admits) {
                    blocking.at(now).settle("a", estimate, actual);
                    plain.at(now).settle("a", theirs, actual);
                }
                if !blocked && !admits {
                    naive.denied(ms);
                }
            }
            // Who waits is served or not in time: that is no denial.
            Step::Wait(cost) => {
                let served = blocking.wait_blocking("a", cost, Some(now)).is_ok();
                prop_assert_eq!(
                    served,
                    !blocked && plain.wait_blocking("a", cost, Some(now)).is_ok()
                );
            }
            Step::Unblock => {
                prop_assert_eq!(blocking.unblock("a"), blocked);
                if blocked {
                    naive.forget();
                }
            }
            Step::Reset => {
                blocking.reset("a");
                plain.reset("a");
                naive.forget();
            }
            Step::Change(limit) => {
                let policy = plain_policy(limit);
                plain.at(now).set_policy(policy).unwrap().finish_at(now);
                let policy = policy.block_for(penalty(after));
                blocking.at(now).set_policy(policy).unwrap().finish_at(now);
            }
            Step::Restore => {
                plain = restored(&plain, now);
                blocking = restored(&blocking, now);
            }
        }
        let now = timer.now();
        let (look, expected) = (blocking.peek("a", 1), plain.peek("a", 1));
        let left = naive
            .blocked_for(now.get() / 1_000_000)
            .map(Duration::from_millis);
        prop_assert_eq!(look.is_allowed(), left.is_none() && expected.is_allowed());
        if let Some(left) = left {
            prop_assert_eq!(look.reason(), Some(DenialReason::Blocked));
            prop_assert_eq!(look.remaining(), 0);
            prop_assert_eq!(look.retry_after(), expected.retry_after().max(Some(left)));
            prop_assert!(look.reset_after() >= left);
            prop_assert_eq!(blocking.at(now).blocked_by_rule("a").is_some(), true);
        } else {
            prop_assert_eq!(look, expected);
            prop_assert_eq!(blocking.at(now).blocked_by_rule("a"), None);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn denials_block_a_key_as_long_as_the_rule_says(
        name in 0..6_usize,
        after in 1..4_u32,
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        blocks_as_the_oracle(name, after, steps)?;
    }
}

fn one_a_second(span: u64) -> Policy {
    let penalty = Penalty::new(&[Duration::from_secs(span)]).unwrap();
    Policy::fixed_window(Quota::per_second(1)).block_for(penalty)
}

#[test]
fn a_blocked_key_of_a_full_table_stays_blocked_until_its_end() {
    for policy in policies::denying(Quota::per_second(1)) {
        let penalty = Penalty::new(&[Duration::from_mins(1)]).unwrap();
        let timer = ManualTimer::new(START);
        let limiter = KeyedLimiter::builder(policy.block_for(penalty)).max_keys(16);
        let limiter = limiter.clock(timer.clone()).build().unwrap();
        assert!(limiter.acquire("blocked", 1).is_allowed());
        assert!(limiter.acquire("blocked", 1).is_denied());
        // Many more than there is room for; each is used up, and none is blocked.
        for made_up in 0..40_u64 {
            assert!(limiter.acquire(made_up, 1).is_allowed());
        }
        timer.advance(Nanos::from_millis(59_000));
        assert_eq!(limiter.stats().keys.min(16), limiter.stats().keys);
        let denied = limiter.acquire("blocked", 1);
        assert_eq!(denied.reason(), Some(DenialReason::Blocked), "{policy}");
        // A record's end is rounded up by less than a 250,000th.
        timer.advance(Nanos::from_millis(1_001));
        assert!(limiter.acquire("blocked", 1).is_allowed(), "{policy}");
    }
}

#[test]
fn a_block_holds_up_those_who_wait_and_they_are_served_at_its_end() {
    let timer = ManualTimer::new(START);
    let limiter = limiter(one_a_second(10), &timer);
    assert!(limiter.acquire("a", 1).is_allowed());
    let mut waiting = std::pin::pin!(limiter.wait("a", 1, None));
    let mut poll = || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        waiting.as_mut().poll(&mut context).is_ready()
    };
    assert!(!poll());
    // Denied behind the one who waits: that denial blocks, too.
    let denied = limiter.acquire("a", 1);
    assert!(denied.is_denied());
    assert!(limiter.at(timer.now()).blocked_by_rule("a").is_some());
    timer.advance(Nanos::from_millis(9_999));
    assert!(!poll(), "the block has not ended");
    timer.advance(Nanos::from_millis(1));
    assert!(poll());
}

#[test]
fn a_limiter_without_keys_blocks_and_unblocks() {
    let timer = ManualTimer::new(START);
    let limiter = Limiter::with_clock(one_a_second(60), timer.clone());
    assert!(limiter.acquire(1).is_allowed());
    assert!(limiter.acquire(1).is_denied());
    timer.advance(Nanos::from_secs(30));
    assert_eq!(limiter.acquire(1).reason(), Some(DenialReason::Blocked));
    assert!(limiter.unblock());
    assert!(limiter.acquire(1).is_allowed());
}

#[test]
fn one_decision_over_two_requests_of_a_key_is_one_denial() {
    let timer = ManualTimer::new(START);
    let twice = Penalty::new(&[Duration::from_mins(1)]).unwrap();
    let policy = Policy::fixed_window(Quota::per_second(1))
        .block_for(twice.after(2, Duration::from_secs(10)).unwrap());
    let limiter = limiter(policy, &timer);
    let both = [
        Request::keyed(&limiter, b"a", 2),
        Request::keyed(&limiter, b"a", 2),
    ];
    let first = acquire_all_at(&both, timer.now()).unwrap();
    assert!(!first.is_allowed());
    assert_eq!(limiter.at(timer.now()).blocked_by_rule("a"), None);
    let second = acquire_all_at(&both, timer.now()).unwrap();
    assert!(!second.is_allowed());
    assert!(limiter.at(timer.now()).blocked_by_rule("a").is_some());
}

#[test]
fn a_key_with_its_own_policy_is_blocked_by_that_one() {
    let timer = ManualTimer::new(START);
    let limiter = limiter(Policy::fixed_window(Quota::per_second(1)), &timer);
    limiter
        .at(timer.now())
        .set_override("a", one_a_second(60))
        .unwrap();
    for key in ["a", "b"] {
        assert!(limiter.acquire(key, 1).is_allowed());
        assert!(limiter.acquire(key, 1).is_denied());
    }
    timer.advance(Nanos::from_secs(2));
    assert!(limiter.acquire("a", 1).is_denied());
    assert!(limiter.acquire("b", 1).is_allowed());
    limiter.at(timer.now()).remove_override("a");
    assert!(
        limiter.acquire("a", 1).is_allowed(),
        "the general policy does not block"
    );
}
