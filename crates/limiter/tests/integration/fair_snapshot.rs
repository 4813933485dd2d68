//! A snapshot of tenants at any moment: what follows is as if nothing had happened.

use proptest::prelude::*;
use tidegate_limiter::{
    FairLimiter, HashKeys, ManualClock, Nanos, Policy, Quota, TenantEntry, Terms,
};

type Fair = FairLimiter<ManualClock>;

const TENANTS: [&str; 8] = ["acme", "beta", "c", "d", "e", "f", "g", "h"];

fn build(policy: Policy, weight: u32, hash: Option<HashKeys>) -> Fair {
    let builder = FairLimiter::builder(policy)
        .clock(ManualClock::default())
        .max_tenants(64)
        .ceiling(0.6)
        .and_then(|builder| builder.weight("acme", weight))
        .and_then(|builder| builder.guarantee("beta", 0.2))
        .unwrap();
    match hash {
        Some(hash) => builder.hash_keys(hash).build().unwrap(),
        None => builder.build().unwrap(),
    }
}

fn named(weight: u32) -> (Terms, [(&'static [u8], Terms); 2]) {
    let others = Terms::new().with_ceiling(0.6).unwrap();
    let acme = others.with_weight(weight).unwrap();
    let beta = others.with_guarantee(0.2).unwrap();
    (others, [(b"acme", acme), (b"beta", beta)])
}

fn save(limiter: &Fair, now: Nanos) -> Vec<TenantEntry> {
    let mut entries = Vec::new();
    limiter.at(now).snapshot(|entry| entries.push(entry));
    entries
}

fn restored(limiter: &Fair, from: &Policy, to: Policy, weight: u32, now: Nanos) -> Fair {
    let new = build(to, weight, Some(limiter.hash_keys()));
    for entry in save(limiter, now) {
        assert!(new.at(now).restore(from, &entry), "{entry:?}");
    }
    new
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize, u64),
    UpTo(usize, u64),
    Charge(usize, u64),
    Refund(usize, u64),
    Peek(usize, u64),
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let tenant = 0..TENANTS.len();
    let one = prop_oneof![
        12 => (tenant.clone(), 1..6_u64).prop_map(|(tenant, cost)| Step::Ask(tenant, cost)),
        1 => (tenant.clone(), 1..30_u64).prop_map(|(tenant, cost)| Step::UpTo(tenant, cost)),
        2 => (tenant.clone(), 1..9_u64).prop_map(|(tenant, cost)| Step::Charge(tenant, cost)),
        2 => (tenant.clone(), 1..6_u64).prop_map(|(tenant, cost)| Step::Refund(tenant, cost)),
        1 => (tenant, 1..6_u64).prop_map(|(tenant, cost)| Step::Peek(tenant, cost)),
    ];
    let span = prop_oneof![8 => 0..20_000_000_u64, 1 => 0..1_500_000_000_u64];
    (span, one)
}

/// What a step answers, and what the tenant is known to have used.
fn take(limiter: &Fair, step: &Step, now: Nanos) -> String {
    let (tenant, answer) = match *step {
        Step::Ask(tenant, cost) => {
            let decision = limiter.at(now).acquire(TENANTS[tenant], cost);
            (tenant, format!("{decision:?}"))
        }
        Step::UpTo(tenant, cost) => {
            let answer = limiter.at(now).acquire_up_to(TENANTS[tenant], cost);
            (tenant, format!("{answer:?}"))
        }
        Step::Charge(tenant, cost) => {
            let decision = limiter.at(now).charge(TENANTS[tenant], cost);
            (tenant, format!("{decision:?}"))
        }
        Step::Refund(tenant, cost) => {
            limiter.at(now).refund(TENANTS[tenant], cost);
            (tenant, String::new())
        }
        Step::Peek(tenant, cost) => {
            let decision = limiter.at(now).peek(TENANTS[tenant], cost);
            (tenant, format!("{decision:?}"))
        }
    };
    let used = limiter.at(now).used(TENANTS[tenant]);
    let share = limiter.at(now).share(TENANTS[tenant]);
    format!("{answer} {used:?} {share}")
}

fn policy(number: usize, faster: u64) -> Policy {
    let quota = Quota::per_second(100 * faster);
    match number {
        0 => Policy::token_bucket(quota),
        1 => Policy::fixed_window(quota),
        2 => Policy::sliding_log(quota).unwrap(),
        3 => Policy::sliding_window(quota),
        // A fraction of a nanosecond per unit: two words.
        4 => Policy::token_bucket(Quota::per_minute(7_001 * faster)),
        5 => Policy::fixed_window(Quota::per_minute(900 * faster)),
        _ => Policy::concurrency(20 * u32::try_from(faster).unwrap()),
    }
}

proptest! {
    #[test]
    fn decisions_after_a_restore_equal_those_of_the_limiter_that_went_on(
        number in 0..7_usize,
        steps in prop::collection::vec(step(), 50..400),
        at in prop::collection::vec(0..400_usize, 3),
    ) {
        let policy = policy(number, 1);
        let limiter = build(policy, 3, None);
        let mut other = restored(&limiter, &policy, policy, 3, Nanos::from_secs(1_700_000_000));
        let mut now = Nanos::from_secs(1_700_000_000);
        for (count, (span, step)) in steps.iter().enumerate() {
            if at.contains(&count) {
                other = restored(&other, &policy, policy, 3, now);
            }
            now = now.saturating_add(Nanos::new(*span));
            prop_assert_eq!(take(&limiter, step, now), take(&other, step, now), "{} {:?}", count, step);
        }
    }

    #[test]
    fn a_restore_under_another_policy_is_as_a_change_of_the_policy(
        number in 0..7_usize,
        steps in prop::collection::vec(step(), 50..300),
        at in 0..300_usize,
        weight in 1..9_u32,
        // The same kind of policy with another rate, or another one.
        to in 0..8_usize,
    ) {
        let from = policy(number, 1);
        let to = if to == 7 || (number == 6) != (to == 6) { policy(number, 2) } else { policy(to, 1) };
        let limiter = build(from, 3, None);
        let mut other = restored(&limiter, &from, from, 3, Nanos::from_secs(1_700_000_000));
        let mut now = Nanos::from_secs(1_700_000_000);
        for (count, (span, step)) in steps.iter().enumerate() {
            if count == at {
                let (others, named) = named(weight);
                limiter.at(now).change(to, others, named).unwrap();
                other = restored(&other, &from, to, weight, now);
            }
            now = now.saturating_add(Nanos::new(*span));
            prop_assert_eq!(take(&limiter, step, now), take(&other, step, now), "{} {:?}", count, step);
        }
    }
}

proptest! {
    /// A snapshot may come from a file that was changed.
    #[test]
    fn no_snapshot_panics(
        number in 0..7_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), word()), 1..6),
        steps in prop::collection::vec(step(), 1..20),
    ) {
        let (policy, now) = (policy(number, 1), Nanos::from_secs(9));
        let limiter = build(policy, 3, None);
        for tenant in TENANTS {
            let _ = limiter.at(now).acquire(tenant, 4);
        }
        let mut saved = save(&limiter, now);
        for (entry, word, to) in changes {
            let words: &mut [u64] = match entry.get_mut(&mut saved) {
                TenantEntry::Total(state) | TenantEntry::Common { state, .. } => state,
                TenantEntry::Share(entry) | TenantEntry::Ceiling(entry) => match entry {
                    tidegate_limiter::SnapshotEntry::Key { state, .. } => state,
                    other => panic!("{other:?}"),
                },
                TenantEntry::Guarantee { state, .. } => state,
                TenantEntry::Note { words, .. } => words,
                other => panic!("{other:?}"),
            };
            *word.get_mut(words) = to;
        }
        let other = build(policy, 3, Some(limiter.hash_keys()));
        for entry in &saved {
            let _ = other.at(now).restore(&policy, entry);
        }
        let mut now = now;
        for (span, step) in steps {
            now = now.saturating_add(Nanos::new(span));
            take(&other, &step, now);
        }
    }
}

/// Words of all sizes, and floats.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..9_u64,
        any::<f64>().prop_map(f64::to_bits),
        any::<[f32; 2]>().prop_map(|[a, b]| u64::from(a.to_bits()) << 32 | u64::from(b.to_bits())),
        Just(u64::MAX),
        Just(Nanos::MAX.get()),
    ]
}

#[test]
fn a_snapshot_comes_before_the_first_request_and_in_order() {
    let policy = policy(0, 1);
    let now = Nanos::from_secs(9);
    let limiter = build(policy, 3, None);
    // Nobody has asked: there is only the total.
    assert_eq!(save(&limiter, now).len(), 1);
    for tenant in TENANTS {
        assert!(limiter.at(now).acquire(tenant, 5).is_allowed());
    }
    let saved = save(&limiter, now);
    let fresh = || build(policy, 3, Some(limiter.hash_keys()));
    let used = fresh();
    assert!(used.at(now).acquire("acme", 1).is_allowed());
    let unordered = fresh();
    for entry in &saved[1..] {
        assert!(!used.at(now).restore(&policy, entry), "{entry:?}");
        let is_common = matches!(entry, TenantEntry::Common { .. });
        assert!(is_common || !unordered.at(now).restore(&policy, entry));
    }
    // Permits and a rate have no state in common, and neither has a policy without shares.
    let permits = build(Policy::concurrency(20), 3, Some(limiter.hash_keys()));
    assert!(!permits.at(now).restore(&policy, &saved[1]));
    let delays = Policy::leaky_bucket(Quota::per_second(9));
    assert!(!fresh().at(now).restore(&delays, &saved[1]));
    // All kinds are there, and what is damaged is refused.
    let after = fresh();
    let mut kinds = [0; 6];
    for entry in &saved {
        assert!(after.at(now).restore(&policy, entry));
        let damaged = match entry.clone() {
            TenantEntry::Total(_) => (0, TenantEntry::Total(vec![])),
            TenantEntry::Common { notes, .. } => {
                let state = vec![1; 3];
                (1, TenantEntry::Common { state, notes })
            }
            TenantEntry::Share(entry) => (2, TenantEntry::Share(without_words(entry))),
            TenantEntry::Ceiling(entry) => (3, TenantEntry::Ceiling(without_words(entry))),
            TenantEntry::Guarantee { tag, .. } => {
                let state = [u64::MAX; 2];
                (4, TenantEntry::Guarantee { tag, state })
            }
            TenantEntry::Note { place, .. } => {
                let words = [0; 3];
                (5, TenantEntry::Note { place, words })
            }
            other => panic!("{other:?}"),
        };
        kinds[damaged.0] += 1;
        assert!(!after.at(now).restore(&policy, &damaged.1), "{damaged:?}");
    }
    assert_eq!(kinds, [1, 1, 8, 8, 1, 8]);
}

fn without_words(entry: tidegate_limiter::SnapshotEntry) -> tidegate_limiter::SnapshotEntry {
    match entry {
        tidegate_limiter::SnapshotEntry::Key { tag, .. } => {
            tidegate_limiter::SnapshotEntry::Own { tag, state: vec![] }
        }
        other => other,
    }
}

#[test]
fn a_snapshot_of_a_clock_that_was_ahead_counts_from_now_on() {
    let policy = policy(0, 1);
    let (later, now) = (Nanos::from_secs(90_000), Nanos::from_secs(9));
    let limiter = build(policy, 3, None);
    for tenant in ["acme", "beta"] {
        while limiter.at(later).acquire(tenant, 1).is_allowed() {}
    }
    let retry = limiter.at(later).peek("beta", 1).retry_after();
    let new = build(policy, 3, Some(limiter.hash_keys()));
    let ahead = later.saturating_since(now);
    for entry in save(&limiter, later) {
        let entry = match entry {
            TenantEntry::Total(_) => continue,
            entry => entry.sooner(&policy, ahead, now).unwrap(),
        };
        assert!(new.at(now).restore(&policy, &entry), "{entry:?}");
    }
    assert!(retry.is_some());
    assert_eq!(new.at(now).peek("beta", 1).retry_after(), retry);
    assert_eq!(new.at(now).used("beta"), limiter.at(later).used("beta"));
}

#[test]
fn tenants_that_no_longer_ask_are_forgotten_after_a_change_of_the_window() {
    // An epoch of a minute's window has a smaller number than one of a second's.
    let limiter = build(policy(0, 1), 3, None);
    let mut now = Nanos::from_secs(1_700_000_000);
    for tenant in TENANTS {
        assert!(limiter.at(now).acquire(tenant, 1).is_allowed());
    }
    let (others, named) = named(3);
    limiter.at(now).change(policy(5, 1), others, named).unwrap();
    assert!(limiter.at(now).share("c") < 0.2);
    now = now.saturating_add(Nanos::from_secs(60));
    assert!(limiter.at(now).acquire("c", 1).is_allowed());
    // Up to its ceiling.
    assert!((limiter.at(now).share("c") - 0.6).abs() < 1e-9);
    // Its note says that it is active in this part of the window, once.
    assert!(limiter.at(now).acquire("c", 1).is_allowed());
    assert!((limiter.at(now).share("c") - 0.6).abs() < 1e-9);
}
