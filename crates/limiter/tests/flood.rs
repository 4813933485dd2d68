//! What a flood of made-up keys can do, and what it cannot: the bounds that the table publishes.
//!
//! Short by default. `TIDEGATE_FLOOD=100000000` sets how many made-up keys the long ones
//! (`--ignored`) send through a limiter of the default size.

#[path = "integration/policies/mod.rs"]
mod policies;

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate_limiter::{
    Algorithm, Debt, Decision, DenialReason, Forgotten, HashKeys, KeyedBuilder, KeyedLimiter,
    Lasts, Nanos, Policy, Quota, RecordSpot, Share, SnapshotEntry, WhenFull,
    algorithm::TokenBucket,
};

/// A multiple of an hour, so that all of a test lies in one window.
const NOW: Nanos = Nanos::from_secs(36_000);
const SMALL: usize = 2_048;

fn policies(quota: &str) -> Vec<Policy> {
    policies::of(quota.parse().unwrap())
}

fn limiter(
    policy: Policy,
    max_keys: usize,
    with: impl FnOnce(KeyedBuilder) -> KeyedBuilder,
) -> KeyedLimiter<()> {
    // Fixed: by chance a key is mistaken for another one's record, rarely, but not never.
    let builder = KeyedLimiter::builder(policy).hash_keys(HashKeys::from_seeds(3, 5));
    with(builder.max_keys(max_keys)).clock(()).build().unwrap()
}

/// A key of a kind: real ones and made-up ones never meet.
fn key(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_le_bytes());
    key
}

fn millis(after: u64) -> Nanos {
    NOW.saturating_add(Nanos::from_millis(after))
}

#[test]
fn after_a_flood_new_and_known_keys_get_their_quota() {
    // The README's limit for logins, and made-up keys with one request each.
    for policy in policies("5/10m") {
        members_and_strangers(policy, SMALL, 40 * SMALL as u64, 5);
    }
}

#[test]
#[ignore = "a hundred million keys: some minutes in a release build"]
fn after_a_hundred_million_keys_new_and_known_keys_get_their_quota() {
    members_and_strangers(
        Policy::token_bucket("5/10m".parse().unwrap()),
        1 << 20,
        long(),
        5,
    );
}

fn long() -> u64 {
    std::env::var("TIDEGATE_FLOOD").map_or(100_000_000, |keys| {
        keys.parse().expect("TIDEGATE_FLOOD: a number")
    })
}

fn members_and_strangers(policy: Policy, max_keys: usize, flood: u64, limit: u64) {
    let limiter = limiter(policy, max_keys, |builder| builder);
    let room = |key: &[u8], now| {
        (0..=limit)
            .take_while(|_| limiter.at(now).acquire(key, 1).is_allowed())
            .count()
    };
    let members = (max_keys / 4) as u64;
    for member in 0..members {
        assert!(limiter.at(NOW).acquire(key(1, member), 1).is_allowed());
    }
    for made_up in 0..flood {
        let _ = limiter.at(NOW).acquire(key(2, made_up), 1);
    }
    assert_eq!(
        limiter.stats().forgotten.exhausted,
        0,
        "nobody was exhausted"
    );
    let later = millis(1);
    let limit = limit as usize;
    for member in 0..members {
        let room = room(&key(1, member), later);
        assert!(
            room + 1 >= limit,
            "{}: a member with 1 of {limit} used got {room} more",
            policy.name()
        );
    }
    // At most one in 100,000 is wrongly denied.
    let new = 100_000.min(50 * max_keys as u64);
    let denied = (0..new)
        .filter(|&new| room(&key(3, new), later) < limit)
        .count();
    assert!(
        denied <= 1,
        "{}: {denied} of {new} new keys did not get their limit",
        policy.name()
    );
}

#[test]
fn an_exhausted_key_stays_exhausted_during_a_flood_of_fresh_keys() {
    for policy in policies("200/10m") {
        exhausted_among_busy(policy, SMALL, 60 * SMALL as u64);
    }
}

#[test]
#[ignore = "a hundred million keys: some minutes in a release build"]
fn an_exhausted_key_stays_exhausted_during_a_flood_of_a_hundred_million_keys() {
    exhausted_among_busy(
        Policy::token_bucket("200/10m".parse().unwrap()),
        1 << 20,
        long(),
    );
}

fn exhausted_among_busy(policy: Policy, max_keys: usize, flood: u64) {
    let limiter = limiter(policy, max_keys, |builder| builder);
    // A leaky bucket is exhausted beyond its wait.
    let all = |key: &[u8]| {
        (0..3)
            .map(|_| limiter.at(NOW).acquire(key, 200))
            .filter(Decision::is_allowed)
            .count()
    };
    let exhausted = (max_keys / 4) as u64;
    for number in 0..exhausted {
        assert!(all(&key(1, number)) > 0);
    }
    for made_up in 0..flood {
        // All but one unit, and a little later each, so that these end last.
        let _ = limiter
            .at(NOW.saturating_add(Nanos::new(made_up / 100)))
            .acquire(key(2, made_up), 199);
    }
    assert!(
        limiter.stats().forgotten.most > flood / 2,
        "{}: {:?}",
        policy.name(),
        limiter.stats()
    );
    assert_eq!(
        limiter.stats().forgotten.exhausted,
        0,
        "{}: {:?}",
        policy.name(),
        limiter.stats()
    );
    let at = NOW.saturating_add(Nanos::new(flood / 100));
    let fresh = (0..exhausted)
        .filter(|&number| limiter.at(at).acquire(key(1, number), 1).is_allowed())
        .count();
    assert_eq!(fresh, 0, "{}", policy.name());
}

#[test]
fn the_waits_of_a_leaky_bucket_survive_a_flood_or_are_counted() {
    for cost in [1, 190] {
        let limiter = limiter(
            Policy::leaky_bucket("200/10m".parse().unwrap()),
            SMALL,
            |builder| builder,
        );
        let waiting = SMALL as u64 / 4;
        // The next unit of each waits for 480 s.
        for number in 0..waiting {
            assert!(limiter.at(NOW).acquire(key(1, number), 160).is_allowed());
        }
        for made_up in 0..60 * SMALL as u64 {
            let _ = limiter.at(NOW).acquire(key(2, made_up), cost);
        }
        let wait = |number| limiter.at(NOW).peek(key(1, number), 1).delay().as_secs();
        let lost = (0..waiting).filter(|&number| wait(number) < 479).count() as u64;
        let forgotten = limiter.stats().forgotten;
        // Smaller uses take nothing. Larger ones take some, and each is counted with its share.
        assert!(
            lost <= if cost == 1 { 0 } else { forgotten.most },
            "{lost} lost: {forgotten:?}"
        );
        assert!(forgotten.total() > 30 * SMALL as u64, "{forgotten:?}");
    }
}

#[test]
fn an_exhausted_key_is_kept_for_four_times_the_bound_of_exhausted_keys() {
    for policy in policies("3/10m") {
        for max_keys in [1, 7, 100, SMALL, 50_000] {
            let limiter = limiter(policy, max_keys, |builder| builder);
            let exhaust = |key: &[u8]| while limiter.at(NOW).acquire(key, 3).is_allowed() {};
            // The first of all is the first to be forgotten.
            for number in 0..4 * max_keys as u64 {
                exhaust(&key(1, number));
            }
            assert_eq!(
                limiter.stats().forgotten.total(),
                0,
                "{} at {max_keys}",
                policy.name()
            );
            let fresh = (0..4 * max_keys as u64)
                .filter(|&number| limiter.at(NOW).peek(key(1, number), 1).is_allowed())
                .count();
            assert_eq!(fresh, 0, "{} at {max_keys}", policy.name());
        }
    }
}

#[test]
fn a_limiter_that_denies_when_full_refuses_new_keys_and_forgets_none() {
    for policy in policies("3/10m") {
        let limiter = limiter(policy, SMALL, |builder| builder.when_full(WhenFull::Deny));
        let mut exhausted = Vec::new();
        for number in 0..12 * SMALL as u64 {
            let (mut got, key) = (0, key(1, number));
            while limiter.at(NOW).acquire(key, 3).is_allowed() {
                got += 1;
            }
            exhausted.extend((got > 0).then_some(key));
        }
        let stats = limiter.stats();
        assert!(
            stats.refused > SMALL as u64 && exhausted.len() > 4 * SMALL,
            "{}: {stats:?}",
            policy.name()
        );
        assert_eq!(stats.forgotten.total(), 0);
        let at = millis(1);
        assert!(
            exhausted
                .iter()
                .all(|key| limiter.at(at).acquire(key, 3).is_denied()),
            "{}",
            policy.name()
        );
        // Strangers are told when to come again.
        let refused = (0..1_000)
            .map(|n| (n, limiter.at(at).acquire(key(3, n), 1)))
            .find(|(_, d)| d.is_denied());
        let (number, refused) = refused.expect("most are refused");
        let then = at.saturating_add(refused.retry_after().expect("a time").into());
        assert!(
            limiter.at(then).acquire(key(3, number), 1).is_allowed(),
            "{}",
            policy.name()
        );
    }
}

#[test]
fn a_keys_own_policy_ends_also_in_a_full_table_that_denies_new_keys() {
    for policy in policies("3/10m") {
        let limiter = limiter(policy, SMALL, |builder| builder.when_full(WhenFull::Deny));
        let own: Policy = "fixed-window 100/1h".parse().unwrap();
        limiter.at(NOW).set_override("vip", own).unwrap();
        assert!(limiter.at(NOW).acquire("vip", 50).is_allowed());
        for number in 0..12 * SMALL as u64 {
            while limiter.at(NOW).acquire(key(1, number), 3).is_allowed() {}
        }
        assert!(limiter.stats().refused > 0, "{}", policy.name());
        assert!(limiter.at(NOW).remove_override("vip"));
        assert_eq!(limiter.override_of("vip"), None, "{}", policy.name());
        let denied = limiter.at(NOW).acquire("vip", 1);
        assert!(denied.is_denied(), "{}: {denied}", policy.name());
        assert_eq!(denied.limit(), 3);
        assert!(!limiter.at(NOW).remove_override("vip"));
    }
}

#[test]
fn limits_given_with_requests_do_not_mix() {
    // As CL.THROTTLE keeps them: one limiter, each request with a bucket of its own.
    let each =
        |interval: Nanos, burst| Policy::from(TokenBucket::from_interval(interval, burst).unwrap());
    let home = each(Nanos::from_secs(1), 1);
    let (ages, daily) = (
        each(Nanos::from_secs(2_200_000_000), 1),
        each(Nanos::from_secs(86_400 / 5), 5),
    );
    let (modest, quick) = (
        each(Nanos::from_secs(2), 16),
        each(Nanos::from_millis(10), 100),
    );
    let limiter = limiter(home, SMALL, |builder| builder);
    for number in 0..20 * SMALL as u64 {
        let _ = limiter.at(NOW).acquire_with(&ages, key(1, number), 1);
        let _ = limiter.at(NOW).acquire_with(&daily, key(2, number), 5);
    }
    for number in 0..10_000 {
        let allowed = limiter
            .at(NOW)
            .acquire_with(&modest, key(3, number), 16)
            .is_allowed();
        assert!(
            allowed
                && limiter
                    .at(NOW)
                    .acquire_with(&quick, key(4, number), 100)
                    .is_allowed(),
            "{number}"
        );
    }
}

#[cfg(target_os = "linux")]
mod memory {
    use super::*;

    /// Bytes of this process that are resident.
    fn resident() -> u64 {
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = rollup
            .lines()
            .find(|line| line.starts_with("Rss:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1_024
    }

    /// In a process of its own: other tests would be measured, too.
    #[test]
    #[ignore = "alone: run by its name with --ignored"]
    fn memory_follows_the_keys_and_a_flood_adds_forty_bytes_a_key() {
        const BOUND: usize = 1 << 20;
        let policy = Policy::token_bucket("5/10m".parse().unwrap());
        let limiters: Vec<_> = (0..40)
            .map(|_| limiter(policy, BOUND, |builder| builder))
            .collect();
        let before = resident();
        for limiter in &limiters {
            limiter.at(NOW).snapshot(|_| panic!("there is no key"));
        }
        assert!(
            resident() < before + (64 << 10),
            "{} bytes for snapshots of nothing",
            resident() - before
        );
        // 100 keys touch at most 200 pages of states.
        for number in 0..100 {
            let _ = limiters[0].at(NOW).acquire(key(1, number), 1);
        }
        let mut shown = 0;
        limiters[0].at(NOW).snapshot(|_| shown += 1);
        assert!(shown == 100 && resident() < before + (2 << 20));

        let flooded = &limiters[1];
        for number in 0..BOUND as u64 {
            let _ = flooded.at(NOW).acquire(key(1, number), 1);
        }
        let full = resident();
        for number in 0..6 * BOUND as u64 {
            let _ = flooded.at(NOW).acquire(key(2, number), 1);
        }
        let grown = resident() - full;
        assert!(
            flooded.stats().records > 4 * BOUND as u64 && grown <= 40 * BOUND as u64 + (256 << 10),
            "{grown}"
        );
    }
}

/// `when_full: deny`: a look says what a decision would say, for new and for known keys, except
/// where a key could move to make room.
#[test]
fn a_peek_agrees_with_the_decision_on_a_full_table() {
    for policy in policies("1/1h") {
        let limiter = limiter(policy, SMALL, |builder| builder.when_full(WhenFull::Deny));
        for number in 0..40 * SMALL as u64 {
            let _ = limiter.at(NOW).acquire(&key(1, number)[..], 1);
        }
        let (mut denied, mut differ) = (0, 0);
        for number in 0..2_000 {
            // Every fourth key was there before.
            let key = if number % 4 == 0 {
                key(1, number)
            } else {
                key(2, number)
            };
            let peeked = limiter.at(NOW).peek(&key[..], 1).is_allowed();
            let decided = limiter.at(NOW).acquire(&key[..], 1).is_allowed();
            denied += u64::from(!decided);
            differ += u64::from(peeked != decided);
        }
        // A leaky bucket with a wait still admits, so its records give way.
        assert!(
            denied >= 1_990 || policy.name() == "leaky-bucket",
            "{}: {denied} denied",
            policy.name()
        );
        assert!(
            differ <= 40,
            "{}: {differ} of 2,000 peeks differ",
            policy.name()
        );
    }
}

#[test]
fn a_flood_of_made_up_keys_never_resets_a_limited_key() {
    for policy in policies::denying("10/1h".parse().unwrap()) {
        let limiter = limiter(policy, 256, |builder| builder);
        assert!(limiter.at(NOW).acquire("mallory", 10).is_allowed());
        for number in 0..20_000 {
            // Each made-up key uses one unit, so none recovers within the hour.
            let now = millis(number);
            let _ = limiter.at(now).acquire(key(2, number), 1);
            if number % 100 == 0 {
                let again = limiter.at(now).acquire("mallory", 10);
                assert!(again.is_denied(), "{} after {number}", policy.name());
            }
            assert!(limiter.stats().keys <= 256);
        }
        assert!(
            limiter.stats().evicted > 10_000,
            "{}: the flood had to push keys out",
            policy.name()
        );
    }
}

#[test]
fn recovered_keys_are_evicted_first() {
    let limiter = limiter(
        Policy::token_bucket("10/1s".parse().unwrap()),
        1_000,
        |builder| builder,
    );
    for round in 0..50_u64 {
        for number in 0..500 {
            let _ = limiter
                .at(millis(10_000 * round))
                .acquire(key(round as u8, number), 10);
        }
    }
    let stats = limiter.stats();
    assert_eq!(
        stats.evicted, 0,
        "half of the room was always free or recovered: {stats:?}"
    );
    assert!(stats.reclaimed > 20_000 && stats.keys <= 1_000);
}

#[test]
fn up_to_the_bound_at_most_one_key_in_ten_thousand_is_evicted() {
    for policy in policies("200/1h") {
        let max_keys = if policy.words() > 100 { 2_000 } else { 100_000 };
        let limiter = limiter(policy, max_keys, |builder| builder);
        for number in 0..max_keys as u64 {
            let _ = limiter.at(NOW).acquire(key(1, number), 1);
        }
        let stats = limiter.stats();
        assert!(
            stats.evicted <= max_keys as u64 / 10_000,
            "{}: {stats:?}",
            policy.name()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Far more keys than places for records: what is admitted beyond the limits is what the
    /// figures say was forgotten.
    #[test]
    fn a_forgotten_key_gets_no_more_than_what_it_had_used(
        requests in prop::collection::vec((0_u64..150, 1_u64..=3), 200..900), max_keys in 1_usize..4, which in 0_usize..5
    ) {
        let limiter = limiter(windows_and_bucket("3/1h")[which], max_keys, |builder| builder);
        let mut admitted: HashMap<u64, u64> = HashMap::new();
        for (number, cost) in requests {
            if limiter.at(NOW).acquire(key(1, number), cost).is_allowed() {
                *admitted.entry(number).or_default() += cost;
            }
        }
        let beyond: u64 = admitted.values().map(|&used| used.saturating_sub(3)).sum();
        let Forgotten { quarter, half, three_quarters, most, exhausted, .. } = limiter.stats().forgotten;
        prop_assert_eq!((quarter, three_quarters), (0, 0), "of three units one is a half, two are most");
        prop_assert!(beyond <= half + 2 * most + 3 * exhausted, "{} beyond {:?}", beyond, limiter.stats());
    }

    /// With `deny` no key is ever over, and a refused key gets in at the time that it was told.
    #[test]
    fn a_table_that_denies_forgets_no_exhausted_key(
        requests in prop::collection::vec((0_u64..200, 0_u64..5), 300..900), max_keys in 1_usize..4, which in 0_usize..5
    ) {
        let policy = windows_and_bucket("3/1s")[which];
        let limiter = limiter(policy, max_keys, |builder| builder.when_full(WhenFull::Deny));
        let mut now = NOW;
        let mut ends: HashMap<u64, Nanos> = HashMap::new();
        for (number, gap) in requests {
            now = now.saturating_add(Nanos::from_millis(gap));
            let decision = limiter.at(now).acquire(key(1, number), 3);
            if decision.is_allowed() {
                let reset = now.saturating_add(decision.reset_after().into());
                let before = ends.insert(number, reset);
                // Counter and bucket recover bit by bit; with something left, a key may be
                // forgotten.
                prop_assert!(which >= 3 || before.is_none_or(|end| end <= now), "{} came again early", number);
            } else if decision.reason() == Some(DenialReason::TableFull) {
                let until = now.saturating_add(decision.retry_after().expect("a time").into());
                prop_assert!(until > now);
                let later = limiter.at(until).peek(key(1, number), 3);
                prop_assert!(later.is_allowed(), "in at the time that it was told");
                now = until;
            }
        }
        prop_assert_eq!(limiter.stats().forgotten.exhausted, 0);
    }
}

/// A policy of every algorithm that forgets all at once, then of those that do bit by bit.
fn windows_and_bucket(quota: &str) -> [Policy; 5] {
    let quota: Quota = quota.parse().unwrap();
    [
        Policy::fixed_window(quota),
        Policy::sliding_log(quota).unwrap(),
        Policy::sliding_window(quota),
        Policy::sliding_counter(quota),
        Policy::token_bucket(quota),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// More keys than room: whatever is evicted and comes back, no key's true window is ever over,
    /// and a key with a debt is in one place.
    #[test]
    fn no_key_is_over_its_limit_however_often_it_is_evicted(
        requests in prop::collection::vec((0_u64..40, 0_u64..300, 1_u64..3), 1..400),
        max_keys in 4_usize..12, strict in any::<bool>()
    ) {
        let quota: Quota = "3/1us".parse().unwrap();
        let policy = if strict { Policy::sliding_window(quota) } else { Policy::sliding_log(quota).unwrap() };
        let limiter = limiter(policy, max_keys, |builder| builder);
        // No more keys than there are places for their records.
        let keys = 4 * max_keys as u64;
        let mut admitted: HashMap<u64, Vec<u64>> = HashMap::new();
        let mut now = 10_000;
        for (key, gap, cost) in requests {
            let key = key % keys;
            now += gap;
            let at = Nanos::new(now);
            if limiter.at(at).acquire(key, cost).is_allowed() {
                admitted.entry(key).or_default().extend(std::iter::repeat_n(now, cost as usize));
            }
            prop_assert!(limiter.stats().keys <= max_keys as u64);
            let mut places = 0;
            limiter.at(at).snapshot(|_| places += 1);
            let with_debt = (0..keys).filter(|&key| limiter.at(at).peek(key, 0).remaining() < 3).count();
            prop_assert_eq!(places, with_debt);
        }
        prop_assert_eq!(limiter.stats().forgotten.total(), 0);
        for times in admitted.values() {
            for &end in times {
                let inside = times.iter().filter(|&&t| t <= end && end - t < 1_000).count();
                prop_assert!(inside <= 3, "{} in one window", inside);
            }
        }
    }
}

/// The debt that a limiter shows of one that it restored, and its place.
fn shown(policy: Policy, place: RecordSpot, debt: Debt, now: Nanos) -> Debt {
    let limiter = limiter(policy, 40, |builder| builder);
    assert!(
        limiter
            .at(now)
            .restore(&policy, &SnapshotEntry::Record { place, debt })
    );
    let mut all = Vec::new();
    limiter.at(now).snapshot(|entry| all.push(entry));
    let [SnapshotEntry::Record { place: shown, debt }] = all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(shown, place);
    debt
}

/// A place in a limiter of 40 keys, of which a record shows how many buckets each half has.
fn place(bits: u64) -> RecordSpot {
    let policy = Policy::fixed_window("1/1h".parse().unwrap());
    let limiter = limiter(policy, 40, |builder| builder);
    for number in 0..100 {
        let _ = limiter.at(NOW).acquire(key(1, number), 1);
    }
    let mut half = 0;
    limiter.at(NOW).snapshot(|entry| {
        if let SnapshotEntry::Record { place, .. } = entry {
            half = place.to_words()[1];
        }
    });
    RecordSpot::from_words([((bits >> 28) % half) << 28 | bits & ((1 << 28) - 1), half]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_end_of_a_record_is_rounded_up_by_less_than_a_250_000th(
        base in 0..Nanos::MAX.get() / 2, bits in 0_u32..61, span in any::<u64>(), share in 1_u8..=134, spot in any::<u64>()
    ) {
        let policy = Policy::sliding_window("1000/1h".parse().unwrap());
        let (now, end) = (Nanos::new(base), Nanos::new(base + 1 + (span >> (63 - bits))));
        let (place, share) = (place(spot), Share::new(share).unwrap());
        let read = shown(policy, place, Debt { share, lasts: Lasts::Until(end) }, now);
        let Lasts::Until(read_end) = read.lasts else { panic!("an end") };
        prop_assert_eq!(read.share, share);
        prop_assert!(read_end >= end && u128::from(read_end.get() - end.get()) * 250_000 <= u128::from(end.get() - base));
        prop_assert_eq!(shown(policy, place, read, now), read, "written again, it is what it was");
    }

    #[test]
    fn the_permits_of_a_record_are_counted_one_by_one_to_a_million(permits in 1..=u32::MAX, spot in any::<u64>()) {
        let debt = Debt { share: Share::EXHAUSTED, lasts: Lasts::UntilReturned(permits) };
        let read = shown(Policy::concurrency(9), place(spot), debt, NOW);
        let Lasts::UntilReturned(read) = read.lasts else { panic!("permits") };
        prop_assert!(read >= permits && (permits >= 1 << 20 || read == permits) && read - permits < 8_192);
    }
}
