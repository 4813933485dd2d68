//! Costs that are known only after the work, charged to shared limits.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{
    Algorithm, Policy, Quota,
    algorithm::{Concurrency, FixedWindow},
};
use tidegate_redis::{Health, Mode, OnError, SharedLimit, Source, Store, StoreError};
use tidegate_redis_servers::{PATIENCE, Server, eventually};

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

/// A thousand in a window that does not end within a test.
fn policies() -> Vec<Policy> {
    vec![
        FixedWindow::new(quota("1000/366d")).first_hit().into(),
        Policy::sliding_window(quota("1000/360d")),
        Policy::sliding_counter(quota("1000/366d")),
        Policy::token_bucket(quota("1000/366d")),
        Policy::sliding_log(quota("1000/366d")).expect("the log is not too long"),
        Policy::sliding_log(quota("100/366d")).expect("the log is not too long"),
    ]
}

fn open(server: &Server) -> Store {
    let store = Store::open(&server.address()).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn limit(store: &Store, name: &str, policy: Policy, mode: Mode) -> SharedLimit {
    let builder = store.limit(name, policy).deadline(PATIENCE).mode(mode);
    builder.build().expect("the policy can be shared")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_by_one_node_ends_the_next_questions_of_all() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server), open(&server));
    for (at, policy) in policies().into_iter().enumerate() {
        let part = 1_000 / policy.limit();
        for (report, most) in [(100, 11), (300, 4), (1_200, 1)] {
            let name = format!("report-{at}-{report}");
            let nodes = [&one, &two].map(|store| limit(store, &name, policy, Mode::Exact));
            let mut passed = 0;
            for turn in 0..30 {
                let (asks, reports) = (&nodes[turn % 2], &nodes[(turn + 1) % 2]);
                if asks.acquire("a", 0).await.is_allowed() {
                    passed += 1;
                    let told = reports.charge("a", report / part).await;
                    assert_eq!(
                        (told.is_allowed(), told.source),
                        (passed < most, Source::Store),
                        "{policy:?}"
                    );
                }
            }
            assert_eq!(passed, most, "{policy:?} with reports of {report}");
            assert!(
                nodes[0].acquire("b", 1).await.is_allowed(),
                "another key has its own"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_and_reported_limits_are_charged_in_the_store_beyond_what_the_node_holds() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server), open(&server));
    for mode in [Mode::Leased, Mode::Reported] {
        let policy = Policy::sliding_window(quota("1000/360d"));
        let [here, there] =
            [&one, &two].map(|store| limit(store, &format!("charged-{mode:?}"), policy, mode));
        assert!(here.acquire("a", 1).await.is_allowed());
        assert!(here.charge("a", 5_000).await.decision.is_denied());
        // The other node holds nothing, so it asks the store.
        assert!(there.acquire("a", 1).await.decision.is_denied(), "{mode:?}");
        assert!(there.acquire("a", 0).await.decision.is_denied(), "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_without_a_store_is_made_in_memory_or_refused() {
    let mut server = Server::start(&[]);
    let store = open(&server);
    let build = |name: &str, on_error| {
        let policy = FixedWindow::new(quota("1000/366d")).first_hit();
        store
            .limit(name, policy)
            .deadline(Duration::from_millis(300))
            .on_error(on_error)
            .build()
            .unwrap()
    };
    let (local, closed) = (
        build("local", OnError::Local),
        build("closed", OnError::Closed),
    );
    server.kill();
    eventually("the outage is seen", || store.health() != Health::Up);
    let told = local.charge("a", 1_200).await;
    assert!(
        told.decision.is_denied() && matches!(told.source, Source::Local(_)),
        "{told:?}"
    );
    assert!(
        local.acquire("a", 0).await.decision.is_denied()
            && local.acquire("b", 0).await.is_allowed()
    );
    let told = closed.charge("a", 1_200).await;
    assert!(
        told.decision.is_denied() && matches!(told.source, Source::Failed(_)),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_not_charged() {
    let server = Server::start(&[]);
    let store = open(&server);
    let policy = Concurrency::new(10)
        .hold(Duration::from_mins(1))
        .expect("the hold is short");
    let held = limit(&store, "held", policy.into(), Mode::Exact);
    assert_eq!(
        held.charge("a", 3).await.source,
        Source::Failed(StoreError::Held)
    );
}
