//! The promises of servers that refund each other's units, or decide in memory from allotments.
#![cfg(feature = "servers")]

use crate::harness;

use harness::{Resp, Running, acquire, admitted, frame, on_store as on};
use serde_json::json;
use tidegate_redis_servers::{Server, eventually};

#[test]
fn a_leased_limit_is_decided_in_memory_and_never_over() {
    let store = Server::start(&[]);
    let rules = "limits: [{name: log, limit: 400/1h, algorithm: sliding-log, sharing: leased}]";
    let servers = ["leased-one", "leased-two"].map(|name| on(name, &store.address(), rules));
    let total: usize = std::thread::scope(|scope| {
        let asking = servers.iter().flat_map(|server| [server; 3]);
        let asking: Vec<_> = asking
            .map(|server| scope.spawn(|| admitted(server, "log", "alice", 200)))
            .collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).sum()
    });
    assert!((1..=400).contains(&total), "{total} admitted of 400");
    let leased =
        |server: &Running| server.metric("tidegate_shared_store_decisions_total{by=\"lease\"}");
    assert!(servers.iter().map(leased).sum::<u64>() > 0);
}

#[test]
fn any_server_can_refund_and_freed_permits_go_to_the_next_request() {
    let store = Server::start(&[]);
    let rules = "
limits:
  - {name: log, limit: 3/1h, algorithm: sliding-log, overrides: {vip: 5/1h}}
  - {name: seats, limit: 2, algorithm: concurrency, hold: 1h}
";
    let [one, two] = ["refund-one", "refund-two"].map(|name| on(name, &store.address(), rules));
    assert!(one.resp("ACQUIRE log bob 2").starts_with("[0 3 1 "));
    assert!(two.resp("REFUND log bob").starts_with("[0 3 2 "));
    let body = |limit: &str, key: &str, cost: u32| {
        json!({"limit": limit, "key": key, "cost": cost}).to_string()
    };
    let refunded = one.post("/v1/refund", &body("log", "bob", 9));
    assert_eq!(
        (refunded.status, &refunded.json()["remaining"]),
        (200, &json!(3))
    );
    assert!(one.resp("ACQUIRE log vip 5").starts_with("[0 5 0 "));
    assert!(two.resp("REFUND log vip 4").starts_with("[0 5 4 "));
    // A pipeline is answered in order, with refunds in between.
    let mut client = Resp::connect(one.resp);
    let commands = [
        "ACQUIRE log eve 3",
        "ACQUIRE log eve",
        "REFUND log eve",
        "ACQUIRE log eve",
        "PEEK log eve",
    ];
    client.send(
        &commands
            .iter()
            .flat_map(|command| frame(command))
            .collect::<Vec<u8>>(),
    );
    let replies = commands.map(|_| client.reply()[..6].to_owned());
    assert_eq!(replies, ["[0 3 0", "[1 3 0", "[0 3 1", "[0 3 0", "[1 3 0"]);
    // A blocked key can be refunded, and stays blocked.
    one.resp("BLOCK log bob");
    assert!(one.resp("REFUND log bob").starts_with("[1 3 "));

    assert_eq!(
        [
            acquire(&one, "seats", "room").0,
            acquire(&two, "seats", "room").0
        ],
        [200, 200]
    );
    let (status, full) = acquire(&one, "seats", "room");
    assert_eq!(
        (status, &full["limit"], &full["remaining"]),
        (429, &json!(2), &json!(0))
    );
    assert_eq!(
        two.post("/v1/refund", &body("seats", "room", 1)).json()["remaining"],
        1
    );
    assert_eq!(
        [
            acquire(&one, "seats", "room").0,
            acquire(&two, "seats", "room").0
        ],
        [200, 429]
    );
    // A refund never exceeds the use.
    assert!(one.resp("REFUND seats room 100").starts_with("[0 2 2 "));
    let joint = r#"{"all":[{"limit":"seats","key":"x"},{"limit":"log","key":"x","cost":2}]}"#;
    assert_eq!(
        [(); 2].map(|()| one.post("/v1/acquire", joint).status),
        [200, 429]
    );
    assert!(
        two.resp("PEEK seats x").starts_with("[0 2 1 "),
        "what one denied the other did not give out"
    );

    assert!(one.resp("REFUND nowhere bob").contains("no limit"));
}

#[test]
fn a_refund_without_a_reply_from_the_store_is_reported() {
    let mut store = Server::start(&[]);
    let rules = "limits: [{name: log, limit: 3/1h, algorithm: sliding-log, on_error: closed}]";
    let server = on("refund-down", &store.address(), rules);
    assert!(server.resp("ACQUIRE log bob 2").starts_with("[0 3 1 "));
    store.kill();
    eventually("the server has noticed", || {
        server.get("/readyz").status == 503
    });
    assert!(
        server
            .resp("REFUND log bob")
            .starts_with("ERR the refund to limit `log` may not have been made")
    );
    assert_eq!(
        server
            .post("/v1/refund", r#"{"limit":"log","key":"bob"}"#)
            .status,
        503
    );
}
