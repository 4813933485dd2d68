//! Permits when the store's replies are lost.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Policy, Quota, algorithm::Concurrency};
use tidegate_redis::{Health, SharedLimit, SharedPermit, Store};
use tidegate_redis_servers::{PATIENCE, Proxy, Reply, Server, eventually};

/// Two permits of a limit behind a proxy, taken in one call.
struct Bench {
    server: Server,
    proxy: Proxy,
    limit: SharedLimit,
}

impl Bench {
    fn start() -> Self {
        let server = Server::start(&[]);
        let proxy = Proxy::before(server.port());
        let store = Store::open(&proxy.address()).expect("the address is well formed");
        eventually("the store is reached", || store.health() == Health::Up);
        let policy = Concurrency::new(2)
            .hold(Duration::from_hours(1))
            .expect("the hold is short");
        let limit = store.limit("jobs", Policy::from(policy)).deadline(PATIENCE);
        let limit = limit.build().expect("the policy can be shared");
        Self {
            server,
            proxy,
            limit,
        }
    }

    /// While the first request is in flight, the others gather for one call.
    async fn two(&self) -> (SharedPermit, SharedPermit) {
        let ask = |key| self.limit.permit(key, 1);
        let (first, a, b) = tokio::join!(ask("first"), ask("k"), ask("k"));
        // From now on the server knows the script.
        assert_eq!(first.expect("there is room").renew().await, Ok(true));
        (a.expect("there is room"), b.expect("there is room"))
    }

    fn value(&self) -> Reply {
        let key = String::from_utf8(self.limit.redis_key("k")).expect("the key is text");
        self.server.ask(&["GET", &key])
    }

    fn calls(&self) -> u64 {
        self.limit.store().stats().calls
    }

    /// From now on requests arrive, but no reply returns before the connection is cut.
    fn lose_answers(&self) {
        self.proxy.delay(Duration::from_hours(1));
    }

    fn cut(&self) {
        self.proxy.delay(Duration::ZERO);
        self.proxy.cut();
    }

    /// Waits until the store decides again, which it does after everything that was sent before.
    async fn free(&self) -> u64 {
        for _ in 0..PATIENCE.as_millis() / 10 {
            let answer = self.limit.acquire("k", 0).await;
            if answer.source == tidegate_redis::Source::Store {
                return answer.decision.remaining();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the store does not decide again: {:?}", self.limit.store());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_is_lost_is_repeated_and_frees_no_other_permit() {
    let bench = Bench::start();
    let (a, b) = bench.two().await;
    let (both, calls) = (bench.value(), bench.calls());
    bench.lose_answers();
    drop(a);
    eventually("the release has arrived", || bench.value() != both);
    let one = bench.value();
    bench.cut();
    eventually("it is repeated", || bench.calls() >= calls + 2);
    assert_eq!(bench.free().await, 1, "the other permit is out");
    assert_eq!(bench.value(), one);
    let c = bench.limit.permit("k", 1).await.expect("there is room");
    assert!(bench.limit.permit("k", 1).await.is_err(), "three of two");
    drop((b, c));
    eventually("nothing is left of permits that are all back", || {
        bench.value() == Reply::Nil
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_whose_reply_is_lost_leaves_the_permits_to_their_holders() {
    let bench = Bench::start();
    let (mut a, b) = bench.two().await;
    let before = bench.value();
    bench.lose_answers();
    let renewal = tokio::spawn(async move {
        let told = a.renew().await;
        (a, told)
    });
    eventually("the renewal has arrived", || bench.value() != before);
    bench.proxy.refuse(true);
    bench.cut();
    let (mut a, told) = renewal.await.expect("nobody panics");
    assert!(
        told.is_err(),
        "the answer is lost, and nobody can be asked: {told:?}"
    );
    bench.proxy.refuse(false);
    assert_eq!(bench.free().await, 0);
    assert_eq!(a.renew().await, Ok(true), "they still are this holder's");
    drop(a);
    drop(b);
    eventually("nothing is left of permits that are all back", || {
        bench.value() == Reply::Nil
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_dropped_while_the_store_is_down_are_given_back_when_it_is_up() {
    let bench = Bench::start();
    let (a, b) = bench.two().await;
    bench.proxy.refuse(true);
    bench.proxy.cut();
    eventually("the store is down", || {
        bench.limit.store().health() == Health::Down
    });
    drop((a, b));
    bench.proxy.refuse(false);
    eventually("nothing is left of permits that are all back", || {
        bench.value() == Reply::Nil
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_permit_of_a_rate_limit_refunds_nothing() {
    let bench = Bench::start();
    let quota: Quota = "2/1h".parse().expect("the quota is well formed");
    let rate = bench
        .limit
        .store()
        .limit("rate", Policy::sliding_window(quota))
        .deadline(PATIENCE);
    let rate = rate.build().expect("the policy can be shared");
    for _ in 0..2 {
        let mut permit = rate.permit("k", 1).await.expect("there is room");
        assert_eq!(permit.renew().await, Ok(true), "there is nothing to renew");
    }
    assert!(rate.permit("k", 1).await.is_err());
    rate.store().close().await;
    assert!(
        rate.store().stats().errors.iter().all(|&count| count == 0),
        "{:?}",
        rate.store().stats()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settled_permits_return_whatever_was_used() {
    let bench = Bench::start();
    for used in [0, 1, 2] {
        let (answer, taken) = bench.limit.acquire_estimate("k", 1).await;
        assert!(answer.is_allowed(), "{answer:?}");
        let settled = bench.limit.settle("k", taken, used).await;
        assert_eq!(settled, Ok(()), "{used}");
        assert_eq!(bench.free().await, 2, "{used}");
    }
}
