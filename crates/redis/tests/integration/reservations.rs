//! Reservations that one node makes and another settles.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{
    Policy, Quota,
    algorithm::{Concurrency, FixedWindow},
};
use tidegate_redis::{
    Corrected, Correction, Health, Mode, Part, Reserved, SharedLimit, Store, StoreError,
};
use tidegate_redis_servers::{PATIENCE, Server, eventually};

const MINUTE: Duration = Duration::from_mins(1);

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn open(server: &Server) -> Store {
    let store = Store::open(&server.address()).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn limit(store: &Store, name: &str, policy: impl Into<Policy>) -> SharedLimit {
    store
        .limit(name, policy)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

/// Requests, tokens and permits, as each node builds them.
fn limits(store: &Store) -> [SharedLimit; 3] {
    let permits = Concurrency::new(3)
        .hold(Duration::from_hours(1))
        .expect("the hold is short");
    [
        limit(
            store,
            "requests",
            Policy::sliding_log(quota("5/366d")).expect("the log is short"),
        ),
        limit(
            store,
            "tokens",
            FixedWindow::new(quota("1000/366d")).first_hit(),
        ),
        limit(store, "in-flight", permits),
    ]
}

async fn reserve(
    store: &Store,
    limits: &[SharedLimit],
    costs: &[u64],
    ttl: Duration,
) -> Option<u128> {
    let part = |(limit, &cost): (_, &u64)| {
        (
            Part {
                limit,
                key: b"k",
                cost,
            },
            false,
        )
    };
    let parts: Vec<_> = limits.iter().zip(costs).map(part).collect();
    let random = u128::from(rand()) << 64 | u128::from(rand());
    match store
        .reserve(random, &parts, b"[\"text\"]", ttl, 100)
        .await
        .expect("the store replies")
    {
        Reserved::Decided(id, decisions) => decisions
            .iter()
            .all(tidegate_core::Decision::is_allowed)
            .then_some(id),
        other => panic!("{other:?}"),
    }
}

fn rand() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(())
}

async fn settle(store: &Store, limits: &[SharedLimit], id: u128, costs: &[u64]) -> Corrected {
    let part = |((at, limit), &actual): ((usize, _), &u64)| Correction {
        at,
        limit,
        key: b"k",
        actual,
        is_unused: false,
    };
    let parts: Vec<_> = limits.iter().enumerate().zip(costs).map(part).collect();
    store.settle(id, &parts).await.expect("the store replies")
}

async fn left(limits: &[SharedLimit]) -> Vec<u64> {
    let mut left = Vec::new();
    for limit in limits {
        left.push(limit.peek("k", 0).await.decision.remaining());
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_reserves_in_one_round_trip_and_another_settles_once() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server), open(&server));
    let (here, there) = (limits(&one), limits(&two));
    let permit = there[2].permit("k", 1).await.expect("there is room");
    let mut fewest = u64::MAX;
    // Heartbeats and announced rules count, too, so one look is not enough.
    for _ in 0..20 {
        let calls = one.stats().calls;
        reserve(&one, &here, &[0, 0, 0], MINUTE)
            .await
            .expect("nothing is asked for");
        fewest = fewest.min(one.stats().calls - calls);
    }
    assert_eq!(fewest, 1);
    let id = reserve(&one, &here, &[1, 800, 1], MINUTE)
        .await
        .expect("there is room");
    assert_eq!(left(&there).await, [4, 200, 1]);
    assert_eq!(reserve(&two, &there, &[1, 201, 1], MINUTE).await, None);
    assert_eq!(left(&here).await, [4, 200, 1], "nothing was taken");

    assert_eq!(two.reserved(id).await, Ok(Some(b"[\"text\"]".to_vec())));
    assert_eq!(
        settle(&two, &there, id, &[1, 350, 0]).await,
        Corrected::Now(vec![1, 800, 1])
    );
    for costs in [[0, 0, 0], [1, 9_000, 1]] {
        assert_eq!(settle(&one, &here, id, &costs).await, Corrected::Before);
    }
    assert_eq!(
        left(&here).await,
        [4, 650, 2],
        "the other holder keeps its permit"
    );
    drop(permit);

    let id = reserve(&two, &there, &[1, 600, 1], MINUTE)
        .await
        .expect("there is room");
    assert_eq!(
        settle(&one, &here, id, &[1, 1_600, 1]).await,
        Corrected::Now(vec![1, 600, 1])
    );
    assert!(
        there[1].acquire("k", 0).await.is_denied(),
        "950 units of debt"
    );
    assert_eq!(settle(&one, &here, 7, &[1, 1, 1]).await, Corrected::Unknown);
    assert_eq!(one.reserved(7).await, Ok(None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_takes_more_and_units_from_before_a_reset_do_not_return() {
    let server = Server::start(&[]);
    let store = open(&server);
    let limits = limits(&store);
    let tokens = &limits[1..2];
    let id = reserve(&store, tokens, &[300], MINUTE)
        .await
        .expect("there is room");
    let extend = async |cost| {
        let part = Part {
            limit: &tokens[0],
            key: b"k",
            cost,
        };
        match store.extend(id, &[(part, false)]).await {
            Ok(Reserved::Decided(_, decisions)) => Ok(decisions[0].is_allowed()),
            other => Err(other),
        }
    };
    assert_eq!(extend(600).await, Ok(true));
    assert_eq!(extend(101).await, Ok(false));
    tokens[0].reset("k").await.expect("the store replies");
    assert!(tokens[0].acquire("k", 500).await.is_allowed());
    assert_eq!(extend(50).await, Ok(true));
    assert_eq!(
        settle(&store, tokens, id, &[0]).await,
        Corrected::Now(vec![950])
    );
    assert_eq!(
        left(tokens).await,
        [500],
        "only the extension after the reset returns"
    );
    assert_eq!(extend(1).await, Err(Ok(Reserved::Ended)));
    let gone = store
        .extend(
            7,
            &[(
                Part {
                    limit: &tokens[0],
                    key: b"k",
                    cost: 1,
                },
                false,
            )],
        )
        .await;
    assert_eq!(gone, Ok(Reserved::Unknown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_ends_what_has_expired_and_a_late_settlement_counts() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server), open(&server));
    let (here, there) = (limits(&one), limits(&two));
    assert_eq!(two.due(true).await, Ok(vec![]));
    let id = reserve(&one, &here, &[1, 400, 1], Duration::from_millis(1))
        .await
        .expect("there is room");
    drop((here, one));
    let mut due = Vec::new();
    for _ in 0..PATIENCE.as_millis() / 10 {
        due = two.due(true).await.expect("the store replies");
        if !due.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(due, [id]);
    // The limits of tokens and permits release, that of requests keeps.
    let released: Vec<_> = (1..3)
        .map(|at| Correction {
            at,
            limit: &there[at],
            key: b"k",
            actual: 0,
            is_unused: false,
        })
        .collect();
    assert_eq!(
        two.expire(id, &released).await,
        Ok(Corrected::Now(vec![400, 1]))
    );
    assert_eq!(left(&there).await, [4, 1_000, 3]);
    assert_eq!(two.due(false).await, Ok(vec![]));
    assert_eq!(two.expire(id, &released).await, Ok(Corrected::Before));
    assert_eq!(
        settle(&two, &there, id, &[0, 100, 1]).await,
        Corrected::Now(vec![1, 0, 0])
    );
    assert_eq!(left(&there).await, [5, 900, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_limits_never_deny_and_the_number_of_open_reservations_is_bounded() {
    let server = Server::start(&[]);
    let store = open(&server);
    let limits = limits(&store);
    let part = |at: usize, cost| Part {
        limit: &limits[at],
        key: b"k",
        cost,
    };
    // The log would deny six, and is a shadow limit.
    let parts = [(part(0, 6), true), (part(1, 10), false)];
    for number in 0..2 {
        let told = store.reserve(number, &parts, b"[]", MINUTE, 2).await;
        let Ok(Reserved::Decided(id, decisions)) = told else {
            panic!("{told:?}")
        };
        assert_eq!(
            (id, decisions[0].is_denied(), decisions[1].is_allowed()),
            (number, true, true)
        );
    }
    assert_eq!(left(&limits[..2]).await, [5, 980]);
    assert_eq!(
        store.reserve(2, &parts, b"[]", MINUTE, 2).await,
        Ok(Reserved::Full)
    );
    assert_eq!(
        settle(&store, &limits[..2], 0, &[0, 0]).await,
        Corrected::Now(vec![0, 10])
    );
    let told = store
        .reserve(3, &[(part(1, 1_001), true)], b"[]", MINUTE, 2)
        .await;
    assert!(matches!(told, Ok(Reserved::Decided(3, _))), "{told:?}");
    let twice = [(part(1, 1), false), (part(1, 1), false)];
    assert_eq!(
        store.reserve(4, &twice, b"[]", MINUTE, 9).await,
        Err(StoreError::OneKey)
    );
    assert_eq!(left(&limits[1..2]).await, [990]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_limit_is_reserved_in_the_store_and_a_lost_store_is_an_error() {
    let server = Server::start(&[]);
    let store = open(&server);
    let policy = Policy::sliding_window(quota("1000/360d"));
    let leased = store
        .limit("leased", policy)
        .mode(Mode::Leased)
        .deadline(PATIENCE);
    let leased = leased.build().expect("the policy can be shared");
    assert!(leased.acquire("k", 1).await.is_allowed());
    let one = [leased];
    let id = reserve(&store, &one, &[500], MINUTE)
        .await
        .expect("there is room");
    let before = left(&one).await[0];
    assert!(before < 500);
    assert_eq!(
        settle(&store, &one, id, &[100]).await,
        Corrected::Now(vec![500])
    );
    assert_eq!(left(&one).await[0], before + 400);

    drop(server);
    let part = Part {
        limit: &one[0],
        key: b"k",
        cost: 1,
    };
    assert!(
        store
            .reserve(1, &[(part, false)], b"[]", MINUTE, 9)
            .await
            .is_err()
    );
    assert!(store.settle(id, &[]).await.is_err());
}
