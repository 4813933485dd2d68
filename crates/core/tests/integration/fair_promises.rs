//! What a tenant of a shared limit can count on, one promise a test.

#![allow(
    clippy::cast_sign_loss,
    reason = "times and numbers of units are not negative"
)]

use crate::market;

use market::{Market, water_fill};
use tidegate_core::algorithm::{Concurrency, LeakyBucket, TokenBucket};
use tidegate_core::fair::{FairError, FairShares, Terms};
use tidegate_core::{Nanos, Policy, Quota};

const SECOND: u64 = 1_000_000_000;

fn bucket(limit: u64) -> Policy {
    let bucket = TokenBucket::new(Quota::per_second(limit));
    bucket.burst(limit / 10).unwrap().into()
}

fn weight(weight: u32) -> Terms {
    Terms::new().with_weight(weight).unwrap()
}

/// A tenant that asks steadily: so many requests a second, of this cost, from and to a second, with
/// this charge a tenth of a second after each admission.
#[derive(Clone, Copy)]
struct Asker {
    rate: f64,
    cost: u64,
    from: f64,
    to: f64,
    late: u64,
}

fn asks(rate: f64) -> Asker {
    Asker {
        rate,
        cost: 1,
        from: 0.0,
        to: f64::MAX,
        late: 0,
    }
}

/// The units of each tenant in each second.
fn serve(market: &mut Market, askers: &[Asker], seconds: usize) -> Vec<Vec<f64>> {
    let mut events = Vec::new();
    for (tenant, asker) in askers.iter().enumerate() {
        // Different starts, so that nobody is always first.
        let mut at = asker.from + (tenant as f64 + 0.5) / (askers.len() as f64 * asker.rate);
        while at < asker.to.min(seconds as f64) {
            events.push(((at * 1e9) as u64, tenant));
            at += 1.0 / asker.rate;
        }
    }
    events.sort_unstable();
    let mut units = vec![vec![0.0; askers.len()]; seconds + 1];
    let mut late = std::collections::VecDeque::<(u64, usize)>::new();
    for (at, tenant) in events {
        while late.front().is_some_and(|&(due, _)| due <= at) {
            let (due, tenant) = late.pop_front().unwrap();
            market.charge(tenant, askers[tenant].late, due);
            units[(due / SECOND) as usize][tenant] += askers[tenant].late as f64;
        }
        let asker = &askers[tenant];
        if market.ask(tenant, asker.cost, at).is_allowed() {
            units[(at / SECOND) as usize][tenant] += asker.cost as f64;
            if asker.late > 0 {
                late.push_back((at + SECOND / 10, tenant));
            }
        }
    }
    units
}

/// The sums of the seconds from `from` on.
fn sums(units: &[Vec<f64>], from: usize, to: usize) -> Vec<f64> {
    let mut sums = vec![0.0; units[0].len()];
    for second in &units[from..to] {
        sums.iter_mut()
            .zip(second)
            .for_each(|(sum, units)| *sum += units);
    }
    sums
}

fn assert_near(got: f64, expected: f64, part: f64) {
    let difference = (got - expected).abs();
    assert!(difference <= expected * part, "{got}, and not {expected}");
}

#[test]
fn the_total_is_never_over_whatever_the_tenants_do() {
    let limit = 500;
    let quota = Quota::per_second(limit);
    let (log, window) = (
        Policy::sliding_log(quota).unwrap(),
        Policy::sliding_window(quota),
    );
    for (policy, most) in [
        (log, limit),
        (window, limit),
        (bucket(limit), limit + limit / 10),
    ] {
        let terms: Vec<_> = (1..=5)
            .map(|i| weight(i).with_guarantee(0.2).unwrap())
            .collect();
        let mut market = Market::new(policy, &terms);
        let askers = [
            asks(2_000.0),
            Asker {
                from: 1.3,
                to: 3.4,
                ..asks(700.0)
            },
            Asker {
                cost: 7,
                ..asks(90.0)
            },
            Asker {
                from: 2.0,
                ..asks(50.0)
            },
            Asker {
                cost: 50,
                from: 0.4,
                ..asks(10.0)
            },
        ];
        serve(&mut market, &askers, 6);
        // From each admission on, what was admitted in less than a second.
        let all = &market.admitted;
        for (i, (from, _)) in all.iter().enumerate() {
            let within = all[i..].iter().take_while(|(at, _)| at - from < SECOND);
            let sum: u64 = within.map(|(_, units)| units).sum();
            assert!(sum <= most, "{}: {sum} from {from}", policy.name());
        }
        let sum: u64 = all.iter().map(|(_, units)| units).sum();
        assert!(sum > limit * 5, "{}: {sum}", policy.name());
    }
}

#[test]
fn a_tenant_that_asks_a_hundred_times_its_share_changes_the_others_by_at_most_one_percent() {
    let terms = vec![weight(1); 4];
    let served = |greedy: f64| {
        let askers = [asks(500.0), asks(500.0), asks(200.0), asks(greedy)];
        let units = serve(&mut Market::new(bucket(1_000), &terms), &askers, 12);
        sums(&units, 2, 12)
    };
    let (fair, greedy) = (served(600.0), served(26_000.0));
    for tenant in 0..3 {
        assert_near(greedy[tenant], fair[tenant], 0.01);
    }
    assert_near(fair[3], 800.0 / 3.0 * 10.0, 0.01);
}

#[test]
fn larger_costs_gain_nothing() {
    let askers = [
        asks(1_000.0),
        Asker {
            cost: 5,
            ..asks(200.0)
        },
        Asker {
            cost: 20,
            ..asks(50.0)
        },
    ];
    let units = serve(
        &mut Market::new(bucket(1_000), &[weight(1); 3]),
        &askers,
        12,
    );
    for got in sums(&units, 2, 12) {
        assert_near(got, 10_000.0 / 3.0, 0.03);
    }
}

#[test]
fn answers_of_ten_times_the_length_gain_nothing() {
    // Both take one unit first; one of them has nine more charged after a tenth of a second.
    let askers = [
        asks(800.0),
        Asker {
            late: 9,
            ..asks(800.0)
        },
    ];
    let units = serve(
        &mut Market::new(bucket(1_000), &[weight(1); 2]),
        &askers,
        22,
    );
    let got = sums(&units, 2, 22);
    assert!(got[1] <= 10_000.0 * 1.03, "{got:?}");
    assert!(got[0] >= 10_000.0 * 0.97, "{got:?}");
}

#[test]
fn a_guarantee_is_back_within_a_second() {
    let owner = weight(1).with_guarantee(0.4).unwrap();
    for policy in [
        bucket(1_000),
        Policy::sliding_log(Quota::per_second(1_000)).unwrap(),
    ] {
        let mut market = Market::new(policy, &[owner, weight(10), weight(10)]);
        let askers = [
            Asker {
                from: 5.0,
                ..asks(420.0)
            },
            asks(3_000.0),
            asks(3_000.0),
        ];
        let units = serve(&mut market, &askers, 10);
        for second in &units[2..5] {
            assert!(
                second[1] + second[2] >= 960.0,
                "lent while the owner is away: {second:?}"
            );
        }
        println!(
            "in the first second {}, then {:?}",
            units[5][0],
            &units[6..10]
        );
        for second in &units[6..10] {
            assert!(second[0] >= 400.0 * 0.98, "{second:?}");
        }
    }
}

#[test]
fn a_tenant_that_asks_rarely_is_served_next_to_one_that_takes_all() {
    // It asks once in two seconds, and the other one several times for each unit of the limit.
    let mut market = Market::new(bucket(100), &[weight(1); 2]);
    let askers = [
        asks(1_000.0),
        Asker {
            from: 5.0,
            ..asks(0.5)
        },
    ];
    let units = serve(&mut market, &askers, 45);
    // The first time it may find the limit used up: the other one was alone for long.
    let (rare, all) = (sums(&units, 8, 45)[1], sums(&units, 5, 45)[0]);
    assert!(rare >= 19.0 && all >= 0.97 * 4_000.0, "{rare} and {all}");
}

#[test]
fn a_tenant_that_is_alone_gets_all_up_to_its_ceiling() {
    for (terms, most) in [
        (weight(1), 1.0),
        (weight(1).with_ceiling(0.6).unwrap(), 0.6),
    ] {
        let mut market = Market::new(bucket(1_000), &[terms]);
        let got = sums(&serve(&mut market, &[asks(3_000.0)], 12), 2, 12)[0];
        assert_near(got, 10_000.0 * most, 0.02);
    }
    // At once, too.
    let mut market = Market::new(Policy::fixed_window(Quota::per_minute(100)), &[weight(1)]);
    assert!((0..100).all(|_| market.ask(0, 1, SECOND).is_allowed()));
    assert!(market.ask(0, 1, SECOND).is_denied());
}

#[test]
fn nothing_stays_idle_with_one_active_tenant_among_others_that_ask_little() {
    let mut market = Market::new(bucket(1_000), &[weight(1); 11]);
    let mut askers = [asks(1.0); 11];
    askers[0] = asks(4_000.0);
    let got = sums(&serve(&mut market, &askers, 12), 2, 12);
    assert!(got.iter().sum::<f64>() >= 10_000.0 * 0.98, "{got:?}");
    assert!(got[1..].iter().all(|&units| units > 9.5), "{got:?}");
}

#[test]
fn a_hundred_tenants_of_skewed_demand_get_a_jain_index_of_99_percent() {
    let terms: Vec<_> = (0..100).map(|i| weight(1 + i % 3)).collect();
    // Demands fall as 1 / rank, three times the limit together.
    let sum: f64 = (1..=100).map(|rank| 1.0 / f64::from(rank)).sum();
    let askers: Vec<_> = (1..=100)
        .map(|rank| asks(30_000.0 / sum / f64::from(rank)))
        .collect();
    let mut market = Market::new(bucket(10_000), &terms);
    let got = sums(&serve(&mut market, &askers, 12), 2, 12);
    let demand: Vec<f64> = askers.iter().map(|asker| asker.rate).collect();
    let fair = water_fill(10_000.0, &demand, &terms);
    // Of what max-min gives each: 1 is perfect.
    let parts: Vec<f64> = got
        .iter()
        .zip(&fair)
        .map(|(got, fair)| got / fair / 10.0)
        .collect();
    let (sum, squares) = (
        parts.iter().sum::<f64>(),
        parts.iter().map(|x| x * x).sum::<f64>(),
    );
    let jain = sum * sum / (100.0 * squares);
    println!("Jain's index {jain:.5}");
    assert!(jain >= 0.99, "{jain}: {parts:?}");
    assert!(got.iter().sum::<f64>() >= 98_000.0);
}

#[test]
fn after_retry_after_without_other_traffic_the_request_is_admitted() {
    let terms = [weight(1), weight(3), weight(1).with_ceiling(0.1).unwrap()];
    for seed in 0..200_u64 {
        for cost in [1, 3, 40] {
            let mut market = Market::new(bucket(1_000), &terms);
            let tenant = (seed % 3) as usize;
            serve(&mut market, &[asks(900.0), asks(2_000.0), asks(300.0)], 2);
            let at = 2 * SECOND + seed * 777_777;
            market.charge(tenant, seed * 3, at);
            let denied = market.ask(tenant, cost, at);
            let Some(wait) = denied.retry_after() else {
                assert!(denied.is_allowed(), "{denied}");
                continue;
            };
            let again = market.ask(tenant, cost, at + wait.as_nanos() as u64);
            assert!(
                again.is_allowed(),
                "seed {seed}, cost {cost}: {denied}, then {again}"
            );
        }
    }
}

#[test]
fn time_that_goes_back_or_jumps_changes_no_promise() {
    let mut market = Market::new(bucket(1_000), &[weight(1); 2]);
    for at in [5 * SECOND, SECOND, 0, Nanos::MAX.get(), u64::MAX, 7] {
        let before = market.state.virtual_now();
        for _ in 0..300 {
            let _ = market.ask(0, 1, at);
            let _ = market.ask(1, u64::MAX, at);
            market.charge(1, u64::MAX, at);
        }
        assert!(market.state.virtual_now() >= before);
    }
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let quota = Quota::per_second(10);
    let leaky: Policy = LeakyBucket::new(quota).into();
    assert_eq!(
        FairShares::new(&leaky),
        Err(FairError::Algorithm("leaky-bucket"))
    );
    for none in [0, 1] {
        let permits = FairShares::new(&Concurrency::new(none).into());
        assert_eq!(permits.err(), (none == 0).then_some(FairError::NoLimit));
    }
    let none = Policy::fixed_window(Quota::per_second(0));
    assert_eq!(FairShares::new(&none), Err(FairError::NoLimit));
    let counted = Policy::fixed_window(quota).count_denied();
    assert_eq!(FairShares::new(&counted), Err(FairError::Denials));
}
