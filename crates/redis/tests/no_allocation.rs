//! A decision from an allotment allocates nothing.
#![cfg(feature = "servers")]

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocation_counter::measure;
use tidegate_core::{Policy, Quota};
use tidegate_redis::{Mode, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server};

// Only the caller's thread is counted; everything else runs on the worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_decision_from_an_allotment_or_a_remembered_denial_allocates_nothing() {
    let server = Server::start(&[]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = |name, quota: &str| {
        let quota: Quota = quota.parse().expect("the quota is well formed");
        let limit = store
            .limit(name, Policy::sliding_window(quota))
            .mode(Mode::Leased);
        limit
            .slack(Duration::from_mins(5))
            .deadline(PATIENCE)
            .build()
            .expect("the policy can be shared")
    };
    for (limit, wanted) in [
        (limit("large", "1000000/1h"), Source::Lease),
        (limit("small", "1/1h"), Source::Remembered),
    ] {
        let mut free = 0;
        for _ in 0..5_000 {
            let mut answer = pin!(limit.acquire("a key", 1));
            let mut first = Poll::Pending;
            let poll = || {
                first = answer
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
            };
            let allocations = measure(poll).count_total;
            match first {
                // A few renew the allotment, which creates a task.
                Poll::Ready(answer) => {
                    free += u32::from(answer.source == wanted && allocations == 0);
                }
                Poll::Pending => drop(answer.await),
            }
        }
        assert!(
            free > 2_500,
            "{free} decisions that allocate nothing, of {wanted:?}"
        );
    }
}
