//! A limit whose rule changes, in every way: what a key may still use follows
//! [`Policy::transfer`](tidegate_core::Policy::transfer), in memory and over a store.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Algorithm, ManualClock, Nanos, Policy};
use tidegate_limiter::KeyedLimiter;
use tidegate_redis::{Mode, OnError, SharedLimit, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server};

/// So long that the test takes no part of it, and so that no window ends within it.
/// More units than any case has.
const MOST: u64 = 10_000;
const WINDOW: &str = "366d";
const SLACK: Duration = Duration::from_hours(30 * 24);
const NOW: Nanos = Nanos::from_secs(1_763_000_000);

/// A policy before and after a change, and how much is used before.
#[derive(Clone, Copy)]
struct Case {
    from: Policy,
    to: Policy,
    used: u64,
}

fn cases() -> Vec<Case> {
    let names = [
        "fixed-window:first-hit=true",
        "sliding-window",
        "sliding-counter",
        "sliding-log",
        "token-bucket",
        "leaky-bucket",
    ];
    let mut all = Vec::new();
    for name in names {
        for (from, to, used) in [(20, 200, 15), (20, 200, 20), (60, 20, 40), (60, 20, 3)] {
            all.push((
                format!("{name} {from}/{WINDOW}"),
                format!("{name} {to}/{WINDOW}"),
                used,
            ));
        }
    }
    for (from, to) in [("20", "200"), ("60", "20")] {
        for used in [15, 20] {
            // With the burst kept.
            let of = |limit| format!("token-bucket:burst=20 {limit}/{WINDOW}");
            all.push((of(from), of(to), used));
        }
    }
    let policy = |text: String| text.parse().expect("the policy is well formed");
    all.into_iter()
        .map(|(from, to, used)| Case {
            from: policy(from),
            to: policy(to),
            used,
        })
        .collect()
}

/// How the rule changes at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Reload,
    Override,
    Restart,
}

/// What happened to the key before the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Fresh,
    Acquired,
    /// Twice as much as is used otherwise: it may exceed the limit.
    Charged,
}

impl Before {
    fn units(self, used: u64) -> u64 {
        match self {
            Self::Fresh => 0,
            Self::Acquired => used,
            Self::Charged => 2 * used,
        }
    }
}

/// What the change leaves by the algorithm's own definition, as a number of units that are admitted
/// one at a time.
fn left(case: &Case, before: Before, shared: &Policy) -> u64 {
    let mut old = vec![0; case.from.words()];
    let units = before.units(case.used);
    if before == Before::Charged {
        case.from.charge(&mut old, NOW, units);
    } else {
        for _ in 0..units {
            let _decision = case.from.decide(&mut old, NOW, 1);
        }
    }
    let mut new = vec![0; shared.words()];
    let later = NOW.saturating_add(Nanos::from_millis(20));
    shared.transfer(&mut new, &case.from, &old, later);
    (0..MOST)
        .find(|_| shared.decide(&mut new, later, 1).is_denied())
        .unwrap_or_default()
}

fn left_in_memory(case: &Case, before: Before, way: Way) -> u64 {
    let clock = ManualClock::new(NOW);
    let limiter = KeyedLimiter::builder(case.from)
        .clock(&clock)
        .build()
        .expect("there is memory");
    let units = before.units(case.used);
    if before == Before::Charged {
        let _denied = limiter.charge("k", units);
    } else {
        for _ in 0..units {
            let _decision = limiter.acquire("k", 1);
        }
    }
    clock.advance(Duration::from_millis(20));
    if way == Way::Override {
        limiter.set_override("k", case.to).expect("there is room");
    } else {
        limiter
            .set_policy(case.to)
            .expect("there is memory")
            .finish();
    }
    (0..MOST)
        .find(|_| limiter.acquire("k", 1).is_denied())
        .unwrap_or_default()
}

fn store(server: &Server, name: &str) -> Store {
    let address = server
        .address()
        .parse()
        .expect("the address is well formed");
    Store::named(address, "tidegate", name).expect("the prefix is a word")
}

fn build(store: &Store, name: &str, policy: Policy, mode: Mode, announced: bool) -> SharedLimit {
    store
        .limit(name, policy)
        .mode(mode)
        .slack(SLACK)
        .unreported(2)
        .on_error(OnError::Closed)
        .deadline(PATIENCE)
        .announced(announced)
        .build()
        .expect("the policy can be shared")
}

/// How many units these limits admit in turn, until each of them has denied one after another.
/// Units that are given back in the background arrive late, so it asks on until there are at least
/// so many.
async fn admitted(limits: &[SharedLimit], least: u64) -> u64 {
    let (mut admitted, mut denied, mut waits) = (0, 0, 0);
    while denied < limits.len() || admitted < least && waits < 2_000 {
        for limit in limits {
            let answer = limit.acquire("k", 1).await;
            assert!(!matches!(answer.source, Source::Failed(_)), "{answer:?}");
            if answer.is_allowed() {
                (admitted, denied) = (admitted + 1, 0);
            } else {
                denied += 1;
            }
        }
        if denied >= limits.len() && admitted < least {
            waits += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    admitted
}

/// The number of units that the limits at servers may admit after the change, at least and at most.
fn bounds(
    case: &Case,
    (before, way): (Before, Way),
    mode: Mode,
    to: &SharedLimit,
    servers: u64,
) -> (u64, u64) {
    let most = left(case, before, &case.to);
    match (mode, to.mode()) {
        (_, Mode::Exact) => (most, most),
        // A part of a bucket is kept back, under the former rule, too; and others cannot use what a
        // server holds.
        (Mode::Leased, _) => {
            let least = left(case, before, to.plan().policy());
            // While an override is in force, the limit of the rules holds at most a quarter of what
            // it left.
            let held = match way {
                Way::Override if to.mode() != Mode::Exact => case.from.limit() / 4,
                _ => 0,
            };
            (least.saturating_sub(1 + held).min(most), most)
        }
        // Each server may use that much before it reports it.
        _ => (most, most + 2 * servers),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_rule_leaves_what_the_algorithm_says_in_every_mode_and_way() {
    let server = Server::start(&[]);
    let mut stores: Vec<Store> = (0..3)
        .map(|at| store(&server, &format!("node-{at}")))
        .collect();
    let mut number = 0;
    for case in cases() {
        for before in [Before::Fresh, Before::Acquired, Before::Charged] {
            for way in [Way::Reload, Way::Override, Way::Restart] {
                let expected = left(&case, before, &case.to);
                let what = format!("{} to {}: {before:?}, {way:?}", case.from, case.to);
                assert_eq!(
                    left_in_memory(&case, before, way),
                    expected,
                    "in memory: {what}"
                );
                for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
                    for servers in [1, 3] {
                        number += 1;
                        let what = format!("{what}, {mode}, {servers} servers");
                        let name = format!("limit-{number}");
                        let old: Vec<SharedLimit> = stores[..servers]
                            .iter()
                            .map(|store| build(store, &name, case.from, mode, true))
                            .collect();
                        let mut used = 0;
                        if before == Before::Charged {
                            used = case.used;
                            let _denied = old[0].charge("k", before.units(used)).await;
                        } else if before == Before::Acquired {
                            // A part of a leased bucket is kept back.
                            let most = case.used.min(old[0].plan().policy().limit());
                            for _ in 0..PATIENCE.as_millis() {
                                if used == most {
                                    break;
                                }
                                used += u64::from(old[0].acquire("k", 1).await.is_allowed());
                            }
                            assert_eq!(used, most, "{what}");
                        }
                        // What the server holds goes back, or is reported. The others keep the
                        // former rule.
                        if way == Way::Restart {
                            stores[0].close().await;
                            stores[0] = store(&server, "node-0");
                        }
                        let mut new = vec![build(
                            &stores[0],
                            &name,
                            case.to,
                            mode,
                            way != Way::Override,
                        )];
                        if servers == 3 {
                            new.push(build(
                                &stores[1],
                                &name,
                                case.to,
                                mode,
                                way != Way::Override,
                            ));
                        }
                        // An override is a limit beside that of the rules.
                        let kept = if way == Way::Override {
                            old
                        } else {
                            old.into_iter().skip(new.len()).collect()
                        };
                        let (least, most) = bounds(
                            &Case { used, ..case },
                            (before, way),
                            mode,
                            &new[0],
                            servers as u64,
                        );
                        let found = admitted(&new, least).await;
                        assert!(
                            (least..=most).contains(&found),
                            "{what}: {found}, not {least} to {most}"
                        );
                        drop(kept);
                    }
                }
            }
        }
    }
}
