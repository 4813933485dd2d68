//! Sentinels with a password.
#![cfg(feature = "servers")]

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Health, Mode, SharedDecision, Source, Store};
use tidegate_redis_servers::{PATIENCE, Sentinel, Server, eventually};

async fn ask(store: &Store, mode: Mode) -> SharedDecision {
    let quota: Quota = "6/366d".parse().expect("the quota is well formed");
    let limit = store
        .limit("x", Policy::fixed_window(quota))
        .mode(mode)
        .deadline(PATIENCE);
    limit
        .build()
        .expect("the policy can be shared")
        .acquire("k", 1)
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_the_master_get_different_passwords() {
    let master = Server::start(&["--requirepass", "masters"]);
    let sentinel = Sentinel::watch_with_password(&master, 0, "sent/inels");
    let open = |options: &str| {
        let address = format!(
            "redis+sentinel://:masters@127.0.0.1:{}/main{options}",
            sentinel.port()
        );
        Store::open(&address).expect("the address is well formed")
    };
    for options in [
        "?sentinel_password=sent%2Finels",
        "?sentinel_username=watcher&sentinel_password=sent%2Finels&protocol=resp3",
    ] {
        let store = open(options);
        eventually("the store is reached", || store.health() == Health::Up);
        for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
            assert_eq!(ask(&store, mode).await.source, Source::Store, "{mode:?}");
        }
        assert!(!format!("{store:?}").contains("inels"), "{store:?}");
    }
    for options in ["", "?sentinel_password=masters"] {
        let store = open(options);
        let answer = ask(&store, Mode::Exact).await;
        assert!(
            matches!(answer.source, Source::Local(_)),
            "{options}: {answer:?}"
        );
    }
}
