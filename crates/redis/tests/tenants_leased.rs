//! Nodes that hold units of tenants that share a limit: never over, shares by weight across nodes, and
//! nothing stays where nobody asks.
#![cfg(feature = "servers")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tidegate_core::{Clock, Nanos, Policy, clock::SystemClock, fair::Terms};
use tidegate_redis::{
    Health, Mode, OnError, Order, Part, SharedDecision, SharedLimit, Source, Store,
};
use tidegate_redis_servers::{PATIENCE, Server, eventually};

fn open(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn before_slash(key: &[u8]) -> &[u8] {
    key.split(|byte| *byte == b'/').next().unwrap_or(key)
}

fn leased(store: &Store, name: &str, policy: &str) -> SharedLimit {
    let heavy = Terms::new().with_weight(3).expect("a weight");
    let sure = Terms::new().with_guarantee(0.3).expect("a guarantee");
    let limit = store
        .limit(name, policy.parse::<Policy>().expect("a policy"))
        .tenants(
            before_slash,
            Terms::new(),
            [(&b"heavy"[..], heavy), (b"sure", sure)],
        )
        .mode(Mode::Leased)
        .deadline(PATIENCE)
        .on_error(OnError::Closed);
    let limit = limit.build().expect("it can be shared");
    assert_eq!(limit.mode(), Mode::Leased);
    limit
}

/// A tenant's requests at one node, `rate` a second, until told to stop.
struct Caller {
    admitted: Arc<AtomicU64>,
    from_leases: Arc<AtomicU64>,
    times: Arc<Mutex<Vec<(Nanos, Nanos)>>>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

fn calls(limit: &SharedLimit, key: &'static str, rate: u32) -> Caller {
    let [admitted, from_leases] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let (times, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let caller = (
        limit.clone(),
        Arc::clone(&admitted),
        Arc::clone(&from_leases),
        Arc::clone(&times),
        Arc::clone(&stop),
    );
    let task = tokio::spawn(async move {
        let (limit, admitted, from_leases, times, stop) = caller;
        let clock = SystemClock::new();
        let began = clock.now();
        let mut asked = 0;
        while !stop.load(Relaxed) {
            let due = clock.now().saturating_since(began).get() * u64::from(rate) / 1_000_000_000;
            while asked < due {
                asked += 1;
                let before = clock.now();
                let answer = limit.acquire(key, 1).await;
                if answer.is_allowed() {
                    admitted.fetch_add(1, Relaxed);
                    from_leases.fetch_add(u64::from(answer.source == Source::Lease), Relaxed);
                    let times: &Mutex<Vec<_>> = &times;
                    times.lock().unwrap().push((before, clock.now()));
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    Caller {
        admitted,
        from_leases,
        times,
        stop,
        task,
    }
}

impl Caller {
    fn admitted(&self) -> u64 {
        self.admitted.load(Relaxed)
    }

    async fn end(self) -> Vec<(Nanos, Nanos)> {
        self.stop.store(true, Relaxed);
        self.task.await.unwrap();
        let times = self.times.lock().unwrap();
        times.clone()
    }
}

/// What each caller gets in this time.
async fn measured(callers: &[Caller], span: Duration) -> Vec<u64> {
    let before: Vec<u64> = callers.iter().map(Caller::admitted).collect();
    tokio::time::sleep(span).await;
    let after = callers.iter().map(Caller::admitted);
    after
        .zip(before)
        .map(|(after, before)| after - before)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_get_their_weights_parts_across_nodes_and_never_more_than_the_limit() {
    let server = Server::start(&[]);
    let stores = [(); 2].map(|()| open(&server.address()));
    for (at, policy) in [
        "sliding-log 400/1s",
        "fixed-window 400/1s",
        "token-bucket:burst=100 400/1s",
    ]
    .into_iter()
    .enumerate()
    {
        let nodes = stores
            .each_ref()
            .map(|store| leased(store, &format!("w-{at}"), policy));
        // Twice the limit; the heavy tenant asks one node, the light one asks both, by two keys.
        let callers = [
            calls(&nodes[0], "heavy", 400),
            calls(&nodes[0], "light/1", 200),
            calls(&nodes[1], "light/2", 200),
        ];
        // The tenants' shares have converged by then.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let got = measured(&callers, Duration::from_secs(3)).await;
        let (heavy, light) = (got[0] as f64, (got[1] + got[2]) as f64);
        let leased: u64 = callers
            .iter()
            .map(|caller| caller.from_leases.load(Relaxed))
            .sum();
        println!("{policy}: {got:?}, {leased} from allotments");
        assert!((2.4..=3.6).contains(&(heavy / light)), "{policy}: {got:?}");
        assert!(heavy + light > 0.7 * 1_200.0, "{policy}: {got:?}");
        assert!(leased > 100, "{policy}: {leased} decisions from allotments");
        let mut times = Vec::new();
        for caller in callers {
            times.extend(caller.end().await);
        }
        never_over(policy, &times);
    }
}

/// The calls that lie within any window of a second, or within two adjacent ones, are no more than
/// the limit.
fn never_over(policy: &str, times: &[(Nanos, Nanos)]) {
    // In any window: a bucket has its burst on top, two fixed windows meet.
    let most = match policy {
        "sliding-log 400/1s" => 400,
        "fixed-window 400/1s" => 800,
        _ => 500,
    };
    for (begin, _) in times {
        let end = begin.saturating_add(Nanos::from_secs(1));
        let within = times.iter().filter(|(from, to)| from >= begin && *to < end);
        let within = within.count();
        assert!(within <= most, "{policy}: {within} in a second");
    }
    let first = times.iter().map(|(from, _)| *from).min().unwrap();
    let last = times.iter().map(|(_, to)| *to).max().unwrap();
    let windows = last.saturating_since(first).get().div_ceil(1_000_000_000) + 1;
    assert!(times.len() as u64 <= windows * 400 + 100, "{policy}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_tenant_leaves_the_others_get_and_a_guarantee_is_back_within_two_seconds() {
    let server = Server::start(&[]);
    let [one, other] = [(); 2].map(|()| open(&server.address()));
    let (here, there) = (
        leased(&one, "g", "token-bucket:burst=100 400/1s"),
        leased(&other, "g", "token-bucket:burst=100 400/1s"),
    );
    let greedy = [
        calls(&here, "greedy/1", 600),
        calls(&there, "greedy/2", 600),
    ];
    tokio::time::sleep(Duration::from_secs(1)).await;
    let alone: u64 = measured(&greedy, Duration::from_secs(2)).await.iter().sum();
    println!("alone: {alone} of 800");
    // It had 560 if the others' guarantee were kept for them. A busy machine does not ask for all.
    assert!(alone > 600, "a tenant that is alone has {alone} of 800");
    let sure = calls(&there, "sure/1", 120);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = sure.admitted();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let got = sure.admitted() - before;
    println!("guaranteed: {got} of 120");
    assert!(got >= 108, "{got} of 120 guaranteed");
    // An operator's weight counts in the next allotment.
    let order = Order::Override("weight=9");
    let until = Some(Duration::from_mins(1));
    one.order("g", b"greedy", order, until).await.unwrap();
    eventually("both nodes have heard of it", || {
        [&here, &there]
            .iter()
            .all(|node| node.terms_of("greedy/3").unwrap() == Terms::new().with_weight(9).unwrap())
    });
    sure.end().await;
    for caller in greedy {
        caller.end().await;
    }
    // Nothing is kept for those that no longer ask.
    let policy = "fixed-window 100/366d";
    let (here, there) = (leased(&one, "b", policy), leased(&other, "b", policy));
    let steady = calls(&here, "steady", 60);
    eventually("some are decided from an allotment", || {
        steady.from_leases.load(Relaxed) >= 5
    });
    let mut admitted = steady.end().await.len() as u64;
    eventually("the units are back", || {
        let left = futures(there.peek("x", 0));
        left == 100 - admitted
    });
    while there.acquire("steady", 1).await.is_allowed() {
        admitted += 1;
    }
    assert_eq!(admitted, 100);
}

/// The remaining units that a look shows.
fn futures(look: impl Future<Output = SharedDecision>) -> u64 {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(look))
        .decision
        .remaining()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_returns_what_it_holds() {
    let server = Server::start(&[]);
    let [one, other] = [(); 2].map(|()| open(&server.address()));
    for (at, policy) in ["fixed-window 1000/366d", "sliding-log 1000/366d"]
        .into_iter()
        .enumerate()
    {
        let name = format!("l-{at}");
        let (here, there) = (leased(&one, &name, policy), leased(&other, &name, policy));
        let steady = calls(&here, "steady", 200);
        eventually("some are decided from an allotment", || {
            steady.from_leases.load(Relaxed) >= 10
        });
        let admitted = steady.end().await.len() as u64;
        drop(here);
        eventually("the units are back", || {
            futures(there.peek("x", 0)) == 1_000 - admitted
        });
        // Another key of the tenant has the same allotment, and another tenant has none of it.
        let steady = calls(&there, "steady/1", 200);
        eventually("some are decided from an allotment", || {
            steady.from_leases.load(Relaxed) >= 10
        });
        assert!(there.acquire_here("other/1", 1).is_none());
        steady.end().await;
    }
}

/// What others decide about a tenant counts what the node holds, and nothing is taken twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_every_kind_count_once_while_a_node_holds_units() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    for (at, policy) in ["fixed-window 1000/366d", "sliding-log 1000/366d"]
        .into_iter()
        .enumerate()
    {
        let [limit, next] = ["k", "n"].map(|name| leased(&store, &format!("{name}-{at}"), policy));
        let steady = calls(&limit, "a/1", 200);
        eventually("some are decided from an allotment", || {
            steady.from_leases.load(Relaxed) >= 10
        });
        let part = |limit, key: &'static [u8]| Part {
            limit,
            key,
            cost: 1,
        };
        let mut admitted = 0;
        // From the allotment or the store; of both limits or of none.
        let both = store
            .acquire_all(&[part(&limit, b"a/2"), part(&next, b"a/2")])
            .await
            .unwrap();
        assert!(
            both.iter().all(SharedDecision::is_allowed),
            "{policy}: {both:?}"
        );
        admitted += 1;
        // Two tenants of one limit are never one decision, whoever holds units.
        let two = store
            .acquire_all(&[part(&limit, b"a/2"), part(&limit, b"b/2")])
            .await;
        assert!(two.is_err(), "{policy}: {two:?}");
        let (granted, _) = limit.acquire_up_to("a/3", 7).await;
        let once = limit.acquire_once(b"id", b"a/4", 2).await;
        assert!(once.is_allowed() && granted == 7, "{policy}");
        let (answer, estimate) = limit.acquire_estimate("a/5", 9).await;
        assert!(answer.is_allowed(), "{policy}");
        limit.settle("a/5", estimate, 4).await.unwrap();
        let _ = limit.charge("a/6", 3).await;
        admitted += granted + 2 + 4 + 3;
        admitted += steady.end().await.len() as u64;
        eventually("the units are back", || {
            futures(limit.peek("x", 0)) == 1_000 - admitted
        });
        // A refund has all nodes give back what they hold.
        let _left = limit.refund("a/7", 5).await.unwrap();
        eventually("the refund is there", || {
            futures(limit.peek("x", 0)) == 1_000 - admitted + 5
        });
        assert_eq!(futures(next.peek("x", 0)), 999);
        let used = limit.share_seen("a/8").expect("it asked lately").used;
        let most = admitted as f64 / 1_000.0;
        assert!(used > 0.0 && used <= most, "{policy}: {used} of {most}");
        // A tenant that starts fresh keeps what its node holds; the total stays.
        limit.reset("a/9").await.unwrap();
        assert_eq!(futures(limit.peek("x", 0)), 1_000 - admitted + 5);
    }
}
