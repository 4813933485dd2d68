//! A limit that tenants share.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tidegate_limiter::{
    FairBuildError, FairError, FairLimiter, FairTenants, Joined, KeyedLimit, Limiter, ManualClock,
    Nanos, Policy, Quota, Terms, TermsError, TotalStep,
};

fn bucket(limit: u64) -> Policy {
    use tidegate_limiter::algorithm::TokenBucket;
    let bucket = TokenBucket::new(Quota::per_second(limit));
    bucket.burst(limit / 10).unwrap().into()
}

/// What tenants are admitted in ten seconds, after two, if each asks as often as `rates` says.
fn serve(limiter: &FairLimiter<ManualClock>, tenants: &[(&str, u64)]) -> Vec<u64> {
    let mut got = vec![0; tenants.len()];
    for micro in 0..12_000_000_u64 / 50 {
        let now = Nanos::from_micros(micro * 50);
        for (i, &(tenant, rate)) in tenants.iter().enumerate() {
            // As many requests as are due by now, at most one each 50 µs.
            let due = |micro: u64| micro * 50 * rate / 1_000_000;
            if due(micro + 1) > due(micro)
                && limiter.at(now).acquire(tenant, 1).is_allowed()
                && now >= Nanos::from_secs(2)
            {
                got[i] += 1;
            }
        }
    }
    got
}

fn limiter(policy: Policy) -> tidegate_limiter::FairBuilder<ManualClock> {
    FairLimiter::builder(policy).clock(ManualClock::default())
}

#[track_caller]
fn assert_near(got: u64, expected: u64) {
    let difference = got.abs_diff(expected);
    assert!(difference * 50 <= expected, "{got}, and not {expected}");
}

#[test]
fn tenants_get_their_weights_parts_and_what_others_leave() {
    let builder = limiter(bucket(1_000)).weight("acme", 3).unwrap();
    let limiter = builder.build().unwrap();
    let got = serve(
        &limiter,
        &[("acme", 2_000), ("beta", 2_000), ("little", 100)],
    );
    assert_near(got[2], 1_000);
    assert_near(got[0], 6_750);
    assert_near(got[1], 2_250);
}

#[test]
fn what_a_tenant_uses_is_known() {
    let builder = limiter(bucket(1_000)).weight("acme", 3).unwrap();
    let limiter = builder.build().unwrap();
    let got = serve(
        &limiter,
        &[("acme", 2_000), ("beta", 2_000), ("little", 100)],
    );
    let now = Nanos::from_secs(12);
    for (at, tenant) in ["acme", "beta", "little"].into_iter().enumerate() {
        let used = limiter.at(now).used(tenant).unwrap();
        let right = got[at] as f64 / 10_000.0;
        assert!(
            (used - right).abs() < 0.03,
            "{tenant}: {used}, and not {right}"
        );
    }
    assert!((limiter.at(now).share("acme") - 0.6).abs() < 1e-9);
    assert_eq!(limiter.at(now).used("nobody"), None);
    // What a tenant used fades when it does not ask.
    let used = limiter.at(Nanos::from_secs(18)).used("acme").unwrap();
    assert!(used < 0.1, "{used}");
    let _ = limiter.at(Nanos::from_secs(18)).acquire("acme", 1);
    let _ = limiter.at(Nanos::from_secs(18)).charge("acme", 5_000);
    assert!(limiter.at(Nanos::from_secs(18)).used("acme") > Some(1.0));
}

#[test]
fn a_ceiling_holds_and_a_guarantee_is_kept() {
    let builder = limiter(bucket(1_000)).ceiling(0.5).unwrap();
    let builder = builder.guarantee("acme", 0.4).unwrap();
    let limiter = builder.weight("big", 20).unwrap().build().unwrap();
    let got = serve(
        &limiter,
        &[("acme", 2_000), ("big", 2_000), ("other", 2_000)],
    );
    assert_near(got[0], 4_000);
    assert_near(got[1], 5_000);
    assert_near(got.iter().sum(), 10_000);
}

#[test]
fn forgotten_tenants_are_served_with_equal_weights_and_names_keep_theirs() {
    let builder = limiter(bucket(10_000)).max_tenants(64);
    let limiter = builder.weight("acme", 50).unwrap().build().unwrap();
    // Two hundred tenants take turns, next to one with a name.
    let names: Vec<String> = (0..200).map(|i| format!("tenant-{i}")).collect();
    let mut tenants: Vec<(&str, u64)> = names.iter().map(|name| (&**name, 100)).collect();
    tenants.push(("acme", 20_000));
    let got = serve(&limiter, &tenants);
    let (all, acme) = (&got[..200], got[200]);
    println!(
        "acme {acme}, others {:?} to {:?}",
        all.iter().min(),
        all.iter().max()
    );
    // acme's part of 250 is a fifth.
    assert!(acme >= 18_000, "{acme}");
    assert!(got.iter().sum::<u64>() >= 98_000);
    let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
    assert!(*least * 2 >= *most, "{least} to {most}");
}

#[test]
fn charges_refunds_and_resets_count_in_the_share() {
    let limiter = limiter(bucket(1_000)).build().unwrap();
    let at = Nanos::from_millis;
    for (i, tenant) in ["a", "b", "c"].into_iter().cycle().take(600).enumerate() {
        let _ = limiter.at(at(i as u64)).acquire(tenant, 1);
    }
    let now = at(600);
    let _ = limiter.at(now).charge("a", 500);
    assert!(limiter.total().at(now).peek(1).is_denied());
    // The total has recovered, and a has not.
    for ms in 600..1_200 {
        for tenant in ["b", "c", "b", "c"] {
            let _ = limiter.at(at(ms)).acquire(tenant, 1);
        }
    }
    let now = at(1_200);
    let peek = limiter.at(now).peek("a", 1);
    assert!(
        peek.is_denied() && limiter.at(now).peek("b", 0).is_allowed(),
        "{peek}"
    );
    assert_eq!(
        limiter.at(now).acquire("a", 1),
        peek,
        "a peek changes nothing"
    );
    limiter.at(now).refund("a", 500);
    assert!(limiter.at(now).peek("a", 1).is_allowed());
}

#[test]
fn up_to_takes_what_one_unit_after_another_would() {
    let built = || {
        limiter(bucket(1_000))
            .ceiling(0.5)
            .unwrap()
            .build()
            .unwrap()
    };
    let (one, up_to) = (built(), built());
    let mut taken = Vec::new();
    for ms in 0..3_000_u64 {
        let now = Nanos::from_millis(ms);
        for limiter in [&one, &up_to] {
            for tenant in ["b", "c"] {
                let _ = limiter.at(now).acquire(tenant, 1);
            }
        }
        if ms % 50 == 49 {
            let single = (0..40)
                .take_while(|_| one.at(now).acquire("a", 1).is_allowed())
                .count() as u64;
            let (most, decision) = up_to.at(now).acquire_up_to("a", 40);
            assert_eq!(decision.is_allowed(), most > 0, "{decision}");
            taken.push((single, most));
        }
    }
    let partial = taken.iter().filter(|(_, most)| (1..40).contains(most));
    assert!(partial.count() > 20, "{taken:?}");
    let (single, most) = taken
        .iter()
        .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    assert!(single.abs_diff(most) * 20 <= single, "{single} and {most}");
    // Nothing was taken beyond the total.
    assert!(up_to.at(Nanos::from_secs(3)).acquire_up_to("d", 0).0 == 0);
}

#[test]
fn a_cost_that_another_limit_denies_is_not_taken_from_the_share() {
    let now = Nanos::from_secs(1);
    let built = || FairTenants::new(&bucket(1_000), 64, Terms::new(), []).unwrap();
    let (tenants, total) = (
        built(),
        Limiter::with_clock(bucket(1_000), ManualClock::default()),
    );
    let decide = |is_taken: bool| {
        tenants.at(now).acquire_with("a", 1, |step| {
            let decision = match (step, is_taken) {
                (TotalStep::Take, true) => total.at(now).acquire(1),
                _ => total.at(now).peek(1),
            };
            Ok::<_, ()>(Joined { decision, is_taken })
        })
    };
    // Others are active, so that a has only its share.
    for tenant in ["b", "c", "d"] {
        let _ = tenants
            .at(now)
            .acquire(tenant, 1, |_| total.at(now).acquire(1));
    }
    for _ in 0..1_000 {
        assert!(decide(false).unwrap().is_allowed());
    }
    let admitted = (0..1_000).take_while(|_| decide(true).unwrap().is_allowed());
    let first = admitted.count();
    assert!((20..100).contains(&first), "{first}");
    let failed = tenants.at(now).acquire_with("e", 1, |_| Err("no room"));
    assert_eq!(failed.unwrap_err(), "no room");
}

#[test]
fn a_reset_and_a_change_of_room_concern_all_tenants() {
    let limiter = limiter(bucket(1_000)).max_tenants(64).build().unwrap();
    let _ = serve(&limiter, &[("a", 2_000), ("b", 2_000)]);
    let now = Nanos::from_secs(12);
    let _ = limiter.at(now).charge("a", 5_000);
    assert!(limiter.at(now).peek("a", 1).is_denied());
    limiter.at(now).reset_all();
    assert_eq!(limiter.stats().keys, 0);
    assert!(limiter.at(now).peek("a", 1).is_allowed());
    let small = limiter.stats();
    let tenants = FairTenants::new(&bucket(10), 64, Terms::new(), []).unwrap();
    tenants.at(now).set_max_tenants(1_024).unwrap();
    let large = tenants.stats();
    assert_eq!((small.max_keys, large.max_keys), (64, 1_024));
    assert!(large.bytes > 8 * small.bytes, "{small:?} {large:?}");
    assert!(tenants.at(now).set_max_tenants(0).is_err());
}

#[test]
fn a_change_keeps_what_was_used() {
    let limiter = limiter(bucket(1_000)).build().unwrap();
    let _ = serve(&limiter, &[("a", 2_000), ("b", 2_000)]);
    let now = Nanos::from_secs(12);
    let named = [(&b"a"[..], Terms::new().with_weight(3).unwrap())];
    limiter
        .at(now)
        .change(bucket(2_000), Terms::new(), named)
        .unwrap();
    assert_eq!(limiter.total().policy(), bucket(2_000));
    let got = serve(&limiter, &[("a", 4_000), ("b", 4_000)]);
    // Their clocks stood still, so nothing was refilled before they went on.
    assert!(got[0] > 2 * got[1], "{got:?}");
    let too_much = Terms::new().with_guarantee(0.6).unwrap();
    let both = [(&b"a"[..], too_much), (&b"b"[..], too_much)];
    let refused = limiter.at(now).change(bucket(1_000), Terms::new(), both);
    assert!(
        matches!(refused, Err(FairBuildError::Guarantees { percent }) if percent.to_string() == "120")
    );
    assert_eq!(limiter.total().policy(), bucket(2_000));
    assert_eq!(limiter.terms("a").to_string(), "weight 3");
}

#[test]
fn what_cannot_be_shared_is_refused_with_the_reason() {
    let builder = limiter(bucket(10)).guarantee("a", 0.7).unwrap();
    let error = builder.guarantee("b", 0.5).unwrap().build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the guarantees are 120 % of the limit together; lower them to at most 100 %"
    );
    let thirds = limiter(bucket(10)).guarantee("a", 1.0 / 3.0).unwrap();
    let thirds = thirds.guarantee("b", 1.0 / 3.0).unwrap();
    assert!(thirds.guarantee("c", 1.0 / 3.0).unwrap().build().is_ok());
    let leaky = Policy::leaky_bucket(Quota::per_second(5));
    let error = limiter(leaky).build().unwrap_err();
    assert!(matches!(
        error,
        FairBuildError::Policy(FairError::Algorithm("leaky-bucket"))
    ));
    let permits = limiter(Policy::concurrency(5)).build().unwrap();
    let error = permits
        .at(Nanos::ZERO)
        .change(bucket(10), Terms::new(), [])
        .unwrap_err();
    assert!(matches!(error, FairBuildError::Kind), "{error}");
    let builder = limiter(bucket(10)).ceiling(0.2).unwrap();
    let error = builder.guarantee("a", 0.3).unwrap_err();
    assert_eq!(error, TermsError::GuaranteeAboveCeiling);
}

#[test]
fn threads_never_take_more_than_the_total_and_are_counted_once() {
    let limiter = FairLimiter::builder(Policy::fixed_window("5000/1h".parse().unwrap()));
    let limiter = limiter.clock(ManualClock::default()).build().unwrap();
    let (admitted, step) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (limiter, admitted, step) = (&limiter, &admitted, &step);
            scope.spawn(move || {
                for i in 0..20_000_u64 {
                    let now = Nanos::from_micros(step.fetch_add(1, Relaxed) * 1_000);
                    let tenant = (i * 7 + thread) % 5;
                    if limiter.at(now).acquire(tenant, 1 + i % 3).is_allowed() {
                        admitted.fetch_add(1 + i % 3, Relaxed);
                    }
                }
            });
        }
    });
    let used = limiter.total().policy();
    let left = limiter.total().at(Nanos::from_secs(80)).peek(0).remaining();
    assert_eq!(admitted.into_inner() + left, 5_000, "{used:?}");
}

#[test]
fn the_current_time_is_that_of_the_clock() {
    let limiter = limiter(bucket(10)).build().unwrap();
    assert!(limiter.acquire("a", 1).is_allowed());
    assert!(limiter.acquire("a", 1).is_denied());
    limiter.total().clock().advance(Duration::from_millis(100));
    assert!(limiter.peek("a", 1).is_allowed());
    assert!(limiter.charge("a", 2).is_denied());
    limiter.refund("a", 2);
    assert!(limiter.acquire("a", 1).is_allowed());
}

#[test]
fn middleware_shares_the_limit_among_keys() {
    let limiter = limiter(bucket(10)).build().unwrap();
    let decide = |key: &str| futures::executor::block_on(limiter.decide(key.as_bytes(), 1));
    assert!(decide("a").is_allowed() && decide("b").is_denied());
    assert_eq!(KeyedLimit::policy(&limiter), bucket(10));
}

#[test]
fn permits_return_when_they_are_dropped_and_go_to_who_has_the_fewest() {
    let builder = limiter(Policy::concurrency(6)).ceiling(0.7).unwrap();
    let limiter = builder.weight("b", 2).unwrap().build().unwrap();
    let mut a: Vec<_> = (0..4).map(|_| limiter.permit("a", 1).unwrap()).collect();
    // Its ceiling is four of six, and only what it returns makes room for more.
    let denied = limiter.permit("a", 1).unwrap_err();
    assert_eq!(denied.retry_after(), None);
    let mut b: Vec<_> = (0..2).map(|_| limiter.permit("b", 1).unwrap()).collect();
    assert!(limiter.permit("b", 1).is_err());
    // The next one is for b, which has two for a weight of two.
    a.pop();
    assert!(limiter.permit("a", 1).is_err() && limiter.peek("a", 1).is_denied());
    assert_eq!(limiter.acquire_up_to("a", 1).0, 0);
    b.push(limiter.permit("b", 1).unwrap());
    assert_eq!(limiter.at(Nanos::ZERO).used("b"), Some(0.5));
    assert_eq!(limiter.total().peek(0).remaining(), 0);
    drop((a, b));
    assert_eq!(limiter.total().peek(0).remaining(), 6);
    assert_eq!(limiter.acquire_up_to("a", 6).0, 4);
    limiter.refund("a", 4);
    assert_eq!(limiter.at(Nanos::ZERO).used("a"), Some(0.0));
}

#[test]
fn permits_stay_with_their_tenants_while_the_limit_crosses_16_bits() {
    let limits = [
        60_000,
        65_535,
        65_536,
        70_000,
        65_535,
        9_000,
        1 << 20,
        60_000,
    ];
    let hold = Duration::from_hours(1);
    for held in [None, Some(hold)] {
        let policy = |limit: u32| -> Policy {
            let permits = tidegate_limiter::algorithm::Concurrency::new(limit);
            held.map_or(permits, |hold| permits.hold(hold).unwrap())
                .into()
        };
        // The longest hold keeps each permit in a list, which is short.
        let scale = if held.is_some() { 100 } else { 1 };
        let limiter = limiter(policy(limits[0] / scale)).build().unwrap();
        let permits = [("a", 20_000), ("b", 9_000)]
            .map(|(tenant, cost)| limiter.permit(tenant, u64::from(cost / scale)).unwrap());
        for limit in limits.map(|limit| limit / scale) {
            let now = Nanos::ZERO;
            limiter
                .at(now)
                .change(policy(limit), Terms::new(), [])
                .unwrap();
            let all = f64::from(limit);
            for (tenant, cost) in [("a", 20_000), ("b", 9_000)] {
                // What is known of a tenant follows when it asks.
                let _ = limiter.permit(tenant, 1).map(drop);
                let used = limiter.at(now).used(tenant).unwrap() * all;
                let expected = f64::from(cost / scale);
                assert!((used - expected).abs() < 1e-3, "{limit} {tenant}: {used}");
            }
            let free = limit.saturating_sub(29_000 / scale);
            assert_eq!(limiter.total().peek(0).remaining(), free.into(), "{limit}");
        }
        drop(permits);
        assert_eq!(limiter.total().peek(0).remaining(), (60_000 / scale).into());
        let now = Nanos::ZERO;
        for tenant in ["a", "b"] {
            assert_eq!(limiter.at(now).used(tenant), Some(0.0));
            let all = limiter.permit(tenant, (60_000 / scale).into());
            assert!(all.is_ok(), "{tenant}");
        }
    }
}

#[test]
fn units_from_before_a_reset_return_nothing() {
    for policy in [Policy::concurrency(4), bucket(40)] {
        let limiter = limiter(policy).build().unwrap();
        let take = |tenant, count| -> Vec<_> {
            let permits = (0..count).map(|_| limiter.permit(tenant, 1).unwrap());
            permits.collect()
        };
        let now = Nanos::ZERO;
        let before = take("a", 4);
        limiter.at(now).reset_all();
        let after = [take("a", 2), take("b", 2)];
        let used = ["a", "b"].map(|tenant| limiter.at(now).used(tenant));
        drop(before);
        assert_eq!(limiter.total().at(now).peek(0).remaining(), 0);
        assert_eq!(["a", "b"].map(|tenant| limiter.at(now).used(tenant)), used);
        assert!(limiter.permit("a", 1).is_err() && limiter.permit("b", 1).is_err());
        drop(after);
        assert_eq!(limiter.total().at(now).peek(0).remaining(), 4);
        assert_eq!(limiter.at(now).used("a"), Some(0.0));
    }
}

#[test]
fn permits_that_are_never_returned_become_free_for_their_tenant_too() {
    let held = tidegate_limiter::algorithm::Concurrency::new(4);
    let held: Policy = held.hold(Duration::from_secs(10)).unwrap().into();
    let limiter = limiter(held).ceiling(0.5).unwrap().build().unwrap();
    let at = Nanos::from_secs;
    assert!(limiter.at(at(1)).acquire("a", 2).is_allowed());
    assert!(limiter.at(at(10)).acquire("a", 1).is_denied());
    assert!(limiter.at(at(11)).acquire("a", 1).is_allowed());
    // Fewer permits, more, and none of those in use is forgotten.
    let change = |limit| {
        let policy: Policy = tidegate_limiter::algorithm::Concurrency::new(limit).into();
        limiter.at(at(12)).change(policy, Terms::new(), [])
    };
    change(1).unwrap();
    assert!(limiter.at(at(12)).acquire("a", 1).is_denied());
    change(3).unwrap();
    assert!(limiter.at(at(12)).acquire("a", 3).is_denied());
    assert!(limiter.at(at(12)).acquire("a", 2).is_allowed());
}

#[test]
fn a_permit_that_is_returned_after_its_hold_returns_no_other_one_of_its_tenant() {
    let held = tidegate_limiter::algorithm::Concurrency::new(10);
    let held: Policy = held.hold(Duration::from_secs(10)).unwrap().into();
    let limiter = limiter(held).ceiling(0.2).unwrap().build().unwrap();
    let advance = |seconds| {
        let clock = limiter.total().clock();
        clock.advance(Duration::from_secs(seconds));
    };
    let late = limiter.permit("a", 1).unwrap();
    advance(9);
    let _second = limiter.permit("a", 1).unwrap();
    advance(2);
    let _third = limiter.permit("a", 1).unwrap();
    assert!(limiter.permit("a", 1).is_err(), "the ceiling is two");
    drop(late);
    assert!(limiter.permit("a", 1).is_err(), "and stays two");
}

#[test]
fn threads_never_have_more_permits_than_there_are() {
    let limiter = FairLimiter::builder(Policy::concurrency(5))
        .build()
        .unwrap();
    let in_flight = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (limiter, in_flight) = (&limiter, &in_flight);
            scope.spawn(move || {
                for i in 0..20_000_u64 {
                    let cost = 1 + i % 3;
                    if let Ok(permit) = limiter.permit((i + thread) % 3, cost) {
                        assert!(in_flight.fetch_add(cost, Relaxed) + cost <= 5);
                        in_flight.fetch_sub(cost, Relaxed);
                        drop(permit);
                    }
                }
            });
        }
    });
    assert_eq!(limiter.total().peek(0).remaining(), 5);
    assert_eq!(limiter.at(Nanos::ZERO).used(1_u64), Some(0.0));
}

/// What two tenants with parts of 90 and 10 % of 100 a minute get in each of three minutes, after
/// one, if they ask as often in each second.
fn reserved(dev: u64, prod: u64) -> [u64; 2] {
    let policy = Policy::fixed_window("100/1m".parse().unwrap());
    let builder = limiter(policy).weight("prod", 9).unwrap();
    let builder = builder.guarantee("prod", 0.9).unwrap();
    let limiter = builder.guarantee("dev", 0.1).unwrap().build().unwrap();
    let mut got = [0; 2];
    for second in 0..240 {
        for turn in 0..dev.max(prod) {
            let now = Nanos::from_millis(second * 1_000 + turn * 50);
            for (at, (tenant, asks)) in [("dev", dev), ("prod", prod)].into_iter().enumerate() {
                if turn < asks && limiter.at(now).acquire(tenant, 1).is_allowed() && second >= 60 {
                    got[at] += 1;
                }
            }
        }
    }
    got.map(|got| got / 3)
}

/// The numbers of `docs/src/migrate.md`, next to those of `LiteLLM`.
#[test]
fn reservations_are_lent_and_taken_back() {
    for (asks, expected) in [
        ((0, 5), [0_u64, 100]),
        ((5, 0), [100, 0]),
        ((5, 5), [10, 90]),
        ((20, 2), [10, 90]),
    ] {
        let got = reserved(asks.0, asks.1);
        println!("{asks:?}: {got:?}");
        for (got, expected) in got.into_iter().zip(expected) {
            assert!(
                expected.abs_diff(got) <= 2,
                "{asks:?}: {got}, not {expected}"
            );
        }
    }
}
