//! Servers that share a store: what they know of each other, also with `--state` while the store is
//! down, and with other rules. And readiness when the store replies too late.
#![cfg(feature = "servers")]

use crate::harness;

use std::{path::Path, time::Duration};

use harness::{Http, Resp, Running, scratch};
use tidegate_redis_servers::{Proxy, Server, eventually};
use tidegate_server::{Ended, Options, Order};

const RULES: &str = "limits: [{name: x, limit: 90/365d, algorithm: fixed-window}]";

fn options(directory: &Path, store: &str, state: Option<&str>) -> Options {
    let rules = directory.join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    Options {
        rules: Some(rules),
        store: Some(store.to_owned()),
        state: state.map(|name| directory.join(name)),
        state_interval: Duration::from_secs(1_000_000),
        ..Options::default()
    }
}

/// Three servers, each with its own file.
fn three(directory: &Path, store: &str) -> Vec<Running> {
    let start = |name| Running::start(options(directory, store, Some(name)));
    ["one.state", "two.state", "three.state"].map(start).into()
}

fn counts(server: &Running, nodes: u64) {
    eventually(&format!("{nodes} servers are counted"), || {
        server.metric("tidegate_shared_store_nodes") == nodes
    });
}

/// How many of a hundred requests a server admits alone while the store is down.
fn admitted_alone(server: &Running) -> usize {
    eventually("the store is known to be down", || {
        server.get("/readyz").json()["store"] == "down"
            && server.metric("tidegate_shared_store_up") == 0
    });
    let mut client = Resp::connect(server.resp);
    (0..100)
        .filter(|_| client.ask("ACQUIRE x k").starts_with("[0 "))
        .count()
}

#[test]
fn every_server_shows_those_that_share_its_store_by_name() {
    let directory = scratch("nodes-names");
    let store = Server::start(&[]);
    let named = |name: Option<&str>| {
        let options = options(&directory, &store.address(), None);
        Running::start(Options {
            name: name.map(ToOwned::to_owned),
            ..options
        })
    };
    let (first, second) = (named(Some("web <1>")), named(None));
    counts(&first, 2);
    counts(&second, 2);
    let told = second.get("/v1/servers").json();
    let servers = told["servers"].as_array().unwrap();
    let own = servers
        .iter()
        .find(|server| server["this"] == true)
        .unwrap();
    let other = servers
        .iter()
        .find(|server| server["this"] == false)
        .unwrap();
    assert_eq!(
        (servers.len(), &other["name"]),
        (2, &"web <1>".into()),
        "{told}"
    );
    assert!(
        own["name"]
            .as_str()
            .unwrap()
            .ends_with(&format!("-{}", std::process::id())),
        "{told}"
    );
    assert_eq!(
        [&own["version"], &other["version"]],
        [env!("CARGO_PKG_VERSION"); 2]
    );
    assert!(
        servers
            .iter()
            .all(|server| server["seen_ms_ago"].as_u64() < Some(11_000)),
        "{told}"
    );
    let page = |path: &str| Http::connect(first.admin).send("GET", path, "").body;
    assert!(
        page("/").contains("<a href=\"/servers\">2 servers</a>"),
        "{}",
        page("/")
    );
    let shown = page("/servers");
    assert!(
        shown.contains("web &lt;1&gt;<small>this server</small>"),
        "{shown}"
    );
    drop(store);
    let refused = || first.get("/v1/servers");
    eventually("the store is known to be down", || refused().status == 503);
    assert!(
        refused()
            .body
            .contains("the list of servers is in the store"),
        "{}",
        refused().body
    );
    assert!(
        page("/servers").contains("The list of servers is in the store: "),
        "{}",
        page("/servers")
    );
}

#[test]
fn servers_with_other_rules_are_shown_and_a_roll_out_is_never_over() {
    let directory = scratch("nodes-rules");
    let store = Server::start(&[]);
    let start = |name: &str, rules: &str| {
        let options = options(&directory, &store.address(), None);
        let rules_file = directory.join(format!("{name}.yaml"));
        std::fs::write(&rules_file, rules).unwrap();
        let (name, rules) = (Some(name.to_owned()), Some(rules_file));
        Running::start(Options {
            name,
            rules,
            store_deadline: Duration::from_secs(5).into(),
            ..options
        })
    };
    let admitted = |server: &Running, most: usize| {
        let mut client = Resp::connect(server.resp);
        (0..most)
            .filter(|_| client.ask("ACQUIRE x k").starts_with("[0 "))
            .count()
    };
    let old = start("old", RULES);
    assert_eq!(admitted(&old, 60), 60);
    let new = start("new", &RULES.replace("fixed-window", "sliding-log"));
    let third = start("third", &RULES.replace("fixed-window", "token-bucket"));
    let all =
        admitted(&new, 20) + admitted(&third, 100) + admitted(&new, 100) + admitted(&old, 100);
    assert_eq!(all, 30, "90 in all");
    let differ = |server: &Running| server.metric("tidegate_shared_store_rules_differ");
    eventually("all know", || {
        [&old, &new, &third]
            .into_iter()
            .all(|server| differ(server) == 1)
    });
    let page = Http::connect(new.admin).send("GET", "/", "").body;
    assert!(page.contains("x has another rule at server "), "{page}");
    drop((old, third));
    eventually("the others are gone", || differ(&new) == 0);
}

#[test]
fn a_reload_reads_the_stores_password_again() {
    let directory = scratch("nodes-password");
    let store = Server::start(&[]);
    store.ask(&["ACL", "SETUSER", "app", "on", ">one", "~*", "+@all"]);
    let password = directory.join("password");
    std::fs::write(&password, "one\n").unwrap();
    let options = options(
        &directory,
        &format!("redis://app@127.0.0.1:{}", store.port()),
        None,
    );
    let server = Running::start(Options {
        store_password_file: Some(password.clone()),
        ..options
    });
    eventually("the store is up", || {
        server.metric("tidegate_shared_store_up") == 1
    });
    let connections = || server.metric("tidegate_shared_store_connections_total");
    let made = connections();
    store.ask(&["ACL", "SETUSER", "app", ">two"]);
    std::fs::write(&password, "two\n").unwrap();
    server.order(Order::Reload);
    eventually("there is a new connection", || connections() == made + 1);
    store.ask(&["ACL", "SETUSER", "app", "<one"]);
    store.ask(&["CLIENT", "KILL", "USER", "app"]);
    eventually("and another with the new password", || {
        connections() > made + 1
    });
    eventually("the store decides", || {
        server.resp("ACQUIRE x k").starts_with("[0 90 ")
    });
    assert_eq!(
        server.metric("tidegate_shared_store_errors_total{error=\"not-permitted\"}"),
        0
    );
}

#[test]
fn servers_that_start_while_the_store_is_down_use_their_previous_share() {
    let directory = scratch("nodes-start");
    let store = Server::start(&[]);
    let address = store.address();
    let servers = three(&directory, &address);
    for server in &servers {
        counts(server, 3);
    }
    for server in servers {
        assert_eq!(server.stop(), Ended::Complete);
    }
    drop(store);
    let servers = three(&directory, &address);
    let admitted: Vec<usize> = servers.iter().map(admitted_alone).collect();
    assert_eq!(admitted, [30, 30, 30]);
    // A server without a file knows nothing of the others, and takes a tenth, unless it is told how
    // many there are.
    let unknown = options(&directory, &address, None);
    assert_eq!(admitted_alone(&Running::start(unknown.clone())), 9);
    assert_eq!(
        admitted_alone(&Running::start(Options {
            nodes: Some(1),
            ..unknown
        })),
        90
    );
    // No server has counted since, so the known number stays.
    for server in servers {
        assert_eq!(server.stop(), Ended::Complete);
    }
    assert_eq!(
        admitted_alone(&Running::start(options(
            &directory,
            &address,
            Some("one.state")
        ))),
        30
    );
}

#[test]
fn a_store_that_was_emptied_and_dies_leaves_each_server_its_share() {
    let directory = scratch("nodes-emptied");
    let mut store = Server::start(&[]);
    let servers = three(&directory, &store.address());
    for server in &servers {
        counts(server, 3);
    }
    store.ask(&["FLUSHALL"]);
    eventually("a server has counted again, starting from one", || {
        // The server's own name is in the set, and the others' names follow with their next
        // heartbeat.
        store.ask(&["EXISTS", "tidegate:nodes"]).text() == "1"
    });
    store.kill();
    let admitted: Vec<usize> = servers.iter().map(admitted_alone).collect();
    assert_eq!(admitted, [30, 30, 30]);
}

#[test]
fn state_files_with_and_without_a_store_are_distinguished() {
    let directory = scratch("nodes-files");
    let store = Server::start(&[]);
    let address = store.address();
    // The use of a server without a store does not apply to the store.
    let alone = Options {
        store: None,
        ..options(&directory, &address, Some("state"))
    };
    let server = Running::start(alone.clone());
    assert!(server.resp("ACQUIRE x k 80").starts_with("[0 90 10"));
    assert_eq!(server.stop(), Ended::Complete);
    let server = Running::start(options(&directory, &address, Some("state")));
    counts(&server, 1);
    assert!(server.resp("ACQUIRE x k 90").starts_with("[0 90 0"));
    assert_eq!(server.stop(), Ended::Complete);
    // And the reverse.
    let server = Running::start(alone);
    assert!(server.resp("ACQUIRE x k 90").starts_with("[0 90 0"));
}

#[test]
fn a_server_is_not_ready_while_most_decisions_are_late() {
    let store = Server::start(&[]);
    let proxy = Proxy::before(store.port());
    let start = |on_error: &str| {
        let rules = format!(
            "limits: [{{name: x, limit: 1000000/1s, deadline: 15ms, on_error: {on_error}}}]"
        );
        Running::with_rules_and(&format!("nodes-late-{on_error}"), &rules, |options| {
            options.store = Some(proxy.address());
        })
    };
    let (local, closed) = (start("local"), start("closed"));
    for server in [&local, &closed] {
        eventually("the store is reached", || {
            server.get("/readyz").json()["status"] == "ready"
        });
    }
    // Heartbeats are in time (they may take 50 ms), but decisions are not.
    proxy.delay(Duration::from_millis(30));
    let asks = |server: &Running| {
        let mut client = Resp::connect(server.resp);
        (0..20).for_each(|_| assert!(client.ask("ACQUIRE x k").starts_with('[')));
    };
    eventually("that is reported", || {
        [&local, &closed].into_iter().for_each(asks);
        local.get("/readyz").json()["status"] == "degraded" && closed.get("/readyz").status == 503
    });
    let told = local.get("/readyz").json();
    assert_eq!(told["store"], "slow", "{told}");
    proxy.delay(Duration::ZERO);
    eventually("both are ready again", || {
        [&local, &closed].into_iter().for_each(asks);
        [&local, &closed]
            .iter()
            .all(|server| server.get("/readyz").json()["status"] == "ready")
    });
}
