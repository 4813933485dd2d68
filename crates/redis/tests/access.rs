//! Who may ask a store: sentinels with a password, users with few permissions.

use std::time::Duration;

use tidegate_core::{
    Policy, Quota,
    algorithm::{Concurrency, FixedWindow},
};
use tidegate_redis::{Health, Mode, Part, SharedLimit, Source, Store, StoreError};
use tidegate_redis_servers::{PATIENCE, Sentinel, Server, eventually};

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn limit(store: &Store, name: &str, policy: Policy, mode: Mode) -> SharedLimit {
    let limit = store.limit(name, policy).mode(mode).deadline(PATIENCE);
    limit.build().expect("the policy can be shared")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_told_their_own_password_and_the_master_another() {
    let master = Server::start(&["--requirepass", "masters"]);
    let sentinel = Sentinel::watch_with_password(&master, 0, "sent/inels");
    let policy = Policy::fixed_window(quota("5/366d"));
    let open = |options: &str| {
        let address = format!("redis+sentinel://:masters@127.0.0.1:{}/main{options}", sentinel.port());
        Store::open(&address).expect("the address is well formed")
    };
    for options in [
        "?sentinel_password=sent%2Finels",
        "?sentinel_username=watcher&sentinel_password=sent%2Finels&protocol=resp3",
    ] {
        let store = open(options);
        eventually("the store is reached", || store.health() == Health::Up);
        assert_eq!(limit(&store, "x", policy, Mode::Exact).acquire("k", 0).await.source, Source::Store);
        assert!(!format!("{store:?}").contains("inels"), "{store:?}");
    }
    for options in ["", "?sentinel_password=masters"] {
        let store = open(options);
        let answer = limit(&store, "x", policy, Mode::Exact).acquire("k", 1).await;
        assert!(matches!(answer.source, Source::Local(_)), "{options}: {answer:?}");
    }
}

/// What the error says that a user needs, as `ACL SETUSER` takes it.
fn rules(error: &StoreError) -> Vec<String> {
    let told = error.to_string().replace("PREFIX:*", "tidegate:*");
    let words = told.split([' ', '(', ')', ',']).filter(|word| word.starts_with(['+', '~']));
    words.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_may_do_everything_with_what_the_error_says_that_it_needs_and_not_with_less() {
    let server = Server::start(&[]);
    let needed = rules(&StoreError::NotPermitted("why".into()));
    assert!(needed.len() > 15, "{needed:?}");
    let set = |user: &str, rules: &[&str]| {
        let order = ["ACL", "SETUSER", user, "on", ">secret"];
        let reply = server.ask(&[&order, rules].concat());
        assert_eq!(reply.text(), "OK", "{rules:?}");
    };
    let all: Vec<&str> = needed.iter().map(String::as_str).collect();
    set("able", &all);
    let open = |user: &str| {
        let address = format!("redis://{user}:secret@127.0.0.1:{}", server.port());
        Store::open(&address).expect("the address is well formed")
    };

    let store = open("able");
    eventually("the store is reached", || store.health() == Health::Up);
    let permits = Concurrency::new(40).hold(Duration::from_hours(24)).expect("the hold is short");
    let policies: Vec<Policy> = vec![
        FixedWindow::new(quota("40/366d")).into(),
        Policy::sliding_window(quota("40/360d")),
        Policy::sliding_counter(quota("40/366d")),
        Policy::token_bucket(quota("40/366d")),
        Policy::leaky_bucket(quota("40/366d")),
        Policy::sliding_log(quota("40/366d")).expect("the log is short"),
        Policy::sliding_log(quota("400/366d")).expect("the log is short"),
        permits.into(),
    ];
    for (at, policy) in policies.into_iter().enumerate() {
        for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
            let limit = limit(&store, &format!("{mode:?}{at}"), policy, mode);
            for key in ["k", "{tag}k"] {
                for cost in [1, 0, 2] {
                    let answer = limit.acquire(key, cost).await;
                    assert!(!matches!(answer.source, Source::Local(_)), "{policy:?}: {answer:?}");
                }
                assert!(!matches!(limit.peek(key, 1).await.source, Source::Local(_)), "{policy:?}");
                let part = Part { limit: &limit, key: key.as_bytes(), cost: 1 };
                let together = store.acquire_all(&[part]).await.expect("there is no cluster");
                assert!(!matches!(together[0].source, Source::Local(_)), "{policy:?}: {together:?}");
                if limit.mode() == Mode::Exact {
                    assert_eq!(limit.refund(key, 1).await.map(|told| told.source), Ok(Source::Store));
                }
                if limit.plan().hold().is_some() {
                    let mut permit = limit.permit(key, 1).await.expect("there is room");
                    assert!(permit.renew().await.expect("the store answers"));
                }
            }
        }
    }
    store.close().await;
    let stats = store.stats();
    assert_eq!((stats.errors_of("not-permitted"), stats.errors_of("server")), (0, 0), "{stats:?}");

    for missing in ["+evalsha", "+time", "+mget", "~tidegate:*"] {
        let user = format!("without{missing}");
        let fewer: Vec<&str> = all.iter().copied().filter(|rule| *rule != missing).collect();
        set(&user, &fewer);
        let user = user.replace('+', "%2B");
        let store = open(&user);
        let limit = limit(&store, "x", Policy::fixed_window(quota("5/366d")), Mode::Exact);
        // It may be known already, by the sign of life.
        let Source::Local(error) = limit.acquire("k", 1).await.source else { panic!("{missing} is needed") };
        assert!(matches!(error, StoreError::NotPermitted(_) | StoreError::Down), "{missing}: {error:?}");
        assert!(store.stats().errors_of("not-permitted") > 0, "{missing}: {:?}", store.stats());
    }
}
