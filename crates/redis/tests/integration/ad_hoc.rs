//! Limits whose policy comes with each request.
#![cfg(feature = "servers")]

use crate::waiting;

use std::{sync::Arc, time::Duration};

use tidegate_core::{Policy, algorithm::Concurrency};
use tidegate_redis::{AdHoc, Health, Plan, Source, StoreError};
use tidegate_redis_servers::{PATIENCE, Proxy, Server};
use waiting::{reach, until};

fn plan(policy: impl Into<Policy>) -> Arc<Plan> {
    Arc::new(Plan::new(policy.into()).expect("the policy can be shared"))
}

fn bucket(limit: &str) -> Arc<Plan> {
    plan(Policy::token_bucket(
        limit.parse().expect("the quota is well formed"),
    ))
}

async fn ask(ad_hoc: &AdHoc, plan: &Arc<Plan>, cost: u64) -> (bool, Source) {
    let told = ad_hoc
        .decide(plan, b"tidegate:x:k".to_vec(), cost)
        .await
        .expect("the store answers");
    (told.is_allowed(), told.source)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_is_remembered_for_its_cost_and_limit_and_costs_no_call() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let ad_hoc = store.ad_hoc(PATIENCE);
    let (small, large) = (bucket("3/12h"), bucket("5/12h"));
    assert_eq!(ask(&ad_hoc, &small, 2).await, (true, Source::Store));
    assert_eq!(ask(&ad_hoc, &small, 2).await, (false, Source::Store));
    for _ in 0..10 {
        assert_eq!(ask(&ad_hoc, &small, 2).await, (false, Source::Remembered));
    }
    // The same limit again, then another cost, then another limit.
    assert_eq!(
        ask(&ad_hoc, &bucket("3/12h"), 2).await,
        (false, Source::Remembered)
    );
    assert_eq!(ask(&ad_hoc, &small, 1).await, (true, Source::Store));
    assert_eq!(ask(&ad_hoc, &large, 2).await.1, Source::Store);
    assert_eq!((store.stats().decided, store.stats().remembered), (4, 11));
    // Permits can be released before the wait is over.
    let permits = plan(
        Concurrency::new(1)
            .hold(Duration::from_hours(1))
            .expect("the hold is short"),
    );
    let asked = [(); 3].map(|()| ad_hoc.decide(&permits, b"tidegate:x:p".to_vec(), 1));
    for asked in asked {
        assert_eq!(
            asked.await.expect("the store answers").source,
            Source::Store
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_ad_hoc_deadline_does_not_close_a_distant_store() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    proxy.delay(Duration::from_millis(200));
    let store = reach(&proxy.address()).await;
    let hasty = store.ad_hoc(Duration::from_millis(50));
    let late = hasty
        .decide(&bucket("3/12h"), b"tidegate:x:k".to_vec(), 1)
        .await;
    assert_eq!(late.map(|told| told.source), Err(StoreError::TimedOut));
    let calls = store.stats().calls;
    until("more heartbeats", || store.stats().calls >= calls + 3).await;
    assert_eq!((store.stats().opened, store.health()), (0, Health::Up));
}
