//! The store is up only if decisions work there, not only the heartbeat.
#![cfg(feature = "servers")]

use tidegate_core::Policy;
use tidegate_redis::{Health, Mode, OnError, SharedLimit, Source, Store};
use tidegate_redis_servers::{Cluster, PATIENCE, Reply, Server, eventually};

const POLICIES: [&str; 7] = [
    "fixed-window 9/1h",
    "sliding-window 9/1h",
    "sliding-counter 9/1h",
    "token-bucket 9/1h",
    "leaky-bucket 9/1h",
    "sliding-log 9/1h",
    "concurrency:hold=1h 9",
];

fn open(address: &str) -> Store {
    Store::open(address).expect("the address is well formed")
}

fn limit(store: &Store, policy: &str, mode: Mode) -> SharedLimit {
    let policy: Policy = policy.parse().expect("the policy is well formed");
    store
        .limit("x", policy)
        .mode(mode)
        .on_error(OnError::Closed)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

/// Waits until the store is down for a reason that has this text.
fn is_down(store: &Store, text: &str) {
    let why = || store.trouble().map(|why| why.to_string());
    eventually(text, || {
        store.health() == Health::Down && why().is_some_and(|why| why.contains(text))
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_command_of_the_limits_scripts_is_down_and_says_which() {
    // Logs read a key in another way, and heartbeats read none.
    for (command, policy) in [("MGET", POLICIES[1]), ("GET", POLICIES[5])] {
        let server = Server::start(&["--rename-command", command, ""]);
        let store = open(&server.address());
        eventually("the heartbeat works", || store.health() == Health::Up);
        let _limit = limit(&store, policy, Mode::Exact);
        is_down(&store, "rename-command");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_a_right_of_the_limits_scripts_is_told_and_the_right_helps_at_once() {
    let server = Server::start(&[]);
    let rights = [
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">secret",
        "~tidegate:*",
        "+@all",
        "-mget",
        "-info",
    ];
    assert_eq!(server.ask(&rights).text(), "OK");
    let address = format!("redis://app:secret@127.0.0.1:{}", server.port());
    let store = open(&address);
    eventually("the heartbeat works", || store.health() == Health::Up);
    let limit = limit(&store, POLICIES[3], Mode::Exact);
    is_down(&store, "+mget");
    server.ask(&["ACL", "SETUSER", "app", "+mget"]);
    eventually("it is up again", || store.health() == Health::Up);
    assert_eq!(limit.acquire("k", 1).await.source, Source::Store);
    // A right that is taken away shows with the first decision.
    server.ask(&["ACL", "SETUSER", "app", "-mget"]);
    let failed = limit.acquire("k", 1).await;
    assert!(matches!(failed.source, Source::Failed(_)), "{failed:?}");
    is_down(&store, "+mget");
    // The user may not ask for the server's description, and asked once.
    let Reply::Array(log) = server.ask(&["ACL", "LOG"]) else {
        panic!("the log is a list")
    };
    let of_info = |entry: &&Reply| matches!(entry, Reply::Array(of) if of.contains(&Reply::Text("info".into())));
    let entries: Vec<&Reply> = log.iter().filter(of_info).collect();
    let once = entries.iter().all(
        |entry| matches!(entry, Reply::Array(of) if of.get(1) == Some(&Reply::Text("1".into()))),
    );
    assert!(entries.len() <= 1 && once, "{entries:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_by_the_address_of_a_single_server_is_down() {
    let cluster = Cluster::start(3);
    for node in cluster.addresses() {
        let store = open(&format!("redis://{node}"));
        is_down(&store, "redis+cluster://");
    }
    let store = open(&format!(
        "redis+cluster://{}",
        cluster.addresses().join(",")
    ));
    for policy in POLICIES {
        let _limit = limit(&store, policy, Mode::Leased);
    }
    eventually("the cluster is up", || store.health() == Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_script_in_force_passes_and_leaves_no_key() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    let mut limits = Vec::new();
    for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
        for policy in POLICIES {
            limits.push(limit(&store, policy, mode));
        }
    }
    eventually("each script has run", || {
        let known = server.ask(&["INFO", "commandstats"]);
        known.text().contains("cmdstat_setrange") || known.text().contains("cmdstat_del")
    });
    eventually("the store is up, and only the nodes have a key", || {
        store.health() == Health::Up && server.ask(&["KEYS", "*probe*"]) == Reply::Array(vec![])
    });
    assert_eq!(store.trouble(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_may_evict_limits_is_reported_and_so_are_evictions() {
    let quiet = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let store = open(&quiet.address());
    eventually("it is examined", || store.stats().evicted_keys == Some(0));
    assert_eq!(
        store.stats().evicts,
        None,
        "without a maximum it evicts nothing"
    );
    let server = Server::start(&["--maxmemory", "3mb", "--maxmemory-policy", "volatile-ttl"]);
    let store = open(&server.address());
    eventually("the policy is read", || {
        store.stats().evicts.as_deref() == Some("volatile-ttl")
    });
    assert_eq!(store.health(), Health::Up);
    let fill =
        "for i = 1, 9000 do redis.call('SET', 'other' .. i, string.rep('x', 900), 'EX', 86400) end";
    for _ in 0..9 {
        server.ask(&["EVAL", fill, "0"]);
        server.ask(&["SET", "one", "more"]);
    }
    // A new kind of limit comes with an examination.
    let _limit = limit(&store, POLICIES[0], Mode::Exact);
    eventually("evictions are counted", || {
        store.stats().evicted_keys.is_some_and(|keys| keys > 0)
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_another_type_leave_each_server_to_its_own_rule() {
    let server = Server::start(&[]);
    server.ask(&["SET", "tidegate:rules", "not a hash"]);
    let store = open(&server.address());
    let policy: Policy = POLICIES[1].parse().expect("the policy is well formed");
    let limit = store.limit("x", policy).announced(true).deadline(PATIENCE);
    let limit = limit.build().expect("the policy can be shared");
    assert_eq!(limit.acquire("k", 1).await.source, Source::Store);
}

/// As fakeredis does: its heartbeats work, but a script with the library `struct` ends the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_ends_the_connection_whenever_a_limits_script_runs_is_down() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Server::start(&[]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let to = server.port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(mut real) = tokio::net::TcpStream::connect(("127.0.0.1", to)).await else {
                return;
            };
            tokio::spawn(async move {
                let (mut asked, mut replied) = (vec![0; 1 << 16], vec![0; 1 << 16]);
                loop {
                    tokio::select! {
                        count = client.read(&mut asked) => match count {
                            Ok(count @ 1..) => {
                                let text = String::from_utf8_lossy(&asked[..count]);
                                if text.contains("struct.pack") || real.write_all(&asked[..count]).await.is_err() {
                                    return;
                                }
                            }
                            _ => return,
                        },
                        count = real.read(&mut replied) => match count {
                            Ok(count @ 1..) if client.write_all(&replied[..count]).await.is_ok() => {}
                            _ => return,
                        },
                    }
                }
            });
        }
    });
    let store = open(&format!("redis://127.0.0.1:{port}"));
    eventually("the heartbeat works", || store.health() == Health::Up);
    let _limit = limit(&store, POLICIES[1], Mode::Exact);
    is_down(&store, "as fakeredis does");
    let why = store.examine().await.expect_err("it cannot decide");
    assert_eq!(why.name(), "unfit");
}
