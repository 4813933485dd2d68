//! Blocks, quotas of single keys, resets and refunds that operators make at one of several servers.
#![cfg(feature = "servers")]

#[path = "integration/harness/mod.rs"]
mod harness;

use harness::{Running, acquire, on_store as on};
use serde_json::{Value, json};
use tidegate_redis_servers::{Server, eventually};

const RULES: &str = "
limits:
  - {name: exact, limit: 60/1d, algorithm: sliding-window, deny: [mallory], overrides: {vip: 70/1d}}
  - {name: leased, limit: 60/1d, algorithm: sliding-window, sharing: leased}
  - {name: reported, limit: 60/1d, algorithm: sliding-window, sharing: reported}
";
const MODES: [&str; 3] = ["exact", "leased", "reported"];

fn body(limit: &str, key: &str, more: &Value) -> String {
    let mut body = json!({"limit": limit, "key": key});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body.to_string()
}

fn denies(server: &Running, limit: &str, key: &str) -> bool {
    acquire(server, limit, key).0 == 429
}

/// A limit of the rules in force.
fn rules(server: &Running, limit: &str) -> Value {
    let told = server.get("/v1/rules").json();
    let limits = told["limits"].as_array().unwrap();
    limits
        .iter()
        .find(|its| its["name"] == limit)
        .unwrap()
        .clone()
}

#[test]
fn a_block_at_one_server_holds_at_all_in_every_mode_until_any_server_ends_it() {
    let store = Server::start(&[]);
    let [one, two] = ["block-one", "block-two"].map(|name| on(name, &store.address(), RULES));
    for limit in MODES {
        assert!(!denies(&two, limit, "eve"));
        assert_eq!(
            one.post("/v1/block", &body(limit, "eve", &json!({})))
                .status,
            200
        );
        assert!(
            denies(&one, limit, "eve"),
            "{limit}: at once at this server"
        );
        eventually("the other server follows", || denies(&two, limit, "eve"));
        assert_eq!(
            rules(&two, limit)["blocked"],
            json!({"count": 1, "keys": {"eve": {"until": null}}})
        );
    }
    let joint = r#"{"all":[{"limit":"exact","key":"ok"},{"limit":"leased","key":"eve"}]}"#;
    assert_eq!(two.post("/v1/acquire", joint).status, 429);
    // A server that starts later knows them, too.
    let three = on("block-three", &store.address(), RULES);
    eventually("it follows", || {
        MODES.iter().all(|limit| denies(&three, limit, "eve"))
    });
    for limit in MODES {
        assert_eq!(two.resp(&format!("UNBLOCK {limit} eve")), "1");
        assert_eq!(two.resp(&format!("UNBLOCK {limit} eve")), "0");
        eventually("the block ends everywhere", || !denies(&one, limit, "eve"));
    }
    // Over RESP, and for a time.
    assert_eq!(one.resp("BLOCK exact eve 600000"), "OK");
    assert!(denies(&one, "exact", "eve"));
    eventually("the other server follows", || {
        let told = two
            .post("/v1/peek", &body("exact", "eve", &json!({})))
            .json();
        told["retry_after_ms"]
            .as_u64()
            .is_some_and(|wait| (500_000..=600_000).contains(&wait))
    });
    assert_eq!(
        one.post("/v1/unblock", &body("exact", "mallory", &json!({})))
            .status,
        409
    );
}

#[test]
fn a_quota_that_an_operator_gives_a_key_holds_at_all_servers_in_every_mode() {
    let store = Server::start(&[]);
    let [one, two] = ["plan-one", "plan-two"].map(|name| on(name, &store.address(), RULES));
    let limit_of = |server: &Running, limit: &str, key: &str| {
        server
            .post("/v1/peek", &body(limit, key, &json!({})))
            .json()["limit"]
            .as_u64()
            .unwrap()
    };
    for limit in MODES {
        let order = body(limit, "vip", &json!({"quota": "500/1d", "for": "2h"}));
        assert_eq!(one.post("/v1/override", &order).status, 200);
        assert_eq!(limit_of(&one, limit, "vip"), 500, "{limit}");
        eventually("the other server follows", || {
            limit_of(&two, limit, "vip") == 500
        });
        assert_eq!(limit_of(&two, limit, "other"), 60);
        let admitted = (0..100)
            .filter(|_| acquire(&two, limit, "vip").0 == 200)
            .count();
        assert_eq!(admitted, 100, "{limit}");
        let told = rules(&two, limit);
        assert_eq!(told["runtime_overrides"]["vip"]["quota"], "500/1d");
        assert_eq!(told["runtime_overrides_count"], 1);
    }
    assert_eq!(two.resp("OVERRIDE leased vip end"), "1");
    eventually("the rules apply again", || {
        limit_of(&one, "leased", "vip") == 60
    });
    assert_eq!(two.resp("OVERRIDE exact vip end"), "1");
    eventually("the rules' own override, too", || {
        limit_of(&one, "exact", "vip") == 70
    });
    for (quota, status) in [("many", 400), ("5/1001ns", 400)] {
        let refused = one.post(
            "/v1/override",
            &body("exact", "vip", &json!({"quota": quota})),
        );
        assert_eq!(refused.status, status, "{}", refused.json());
    }
}

#[test]
fn an_exhausted_customer_is_unlocked_from_any_server_in_every_mode() {
    let store = Server::start(&[]);
    let [one, two] = ["unlock-one", "unlock-two"].map(|name| on(name, &store.address(), RULES));
    for limit in MODES {
        for path in ["/v1/reset", "/v1/refund"] {
            let key = path.rsplit('/').next().unwrap();
            while !denies(&one, limit, key) {}
            assert!(denies(&one, limit, key));
            let more = if key == "refund" {
                json!({"cost": 20})
            } else {
                json!({})
            };
            let done = two.post(path, &body(limit, key, &more));
            assert_eq!(done.status, 200, "{limit}: {}", done.json());
            eventually("the key is admitted where it was denied", || {
                !denies(&one, limit, key)
            });
        }
    }
    let all = one.post("/v1/reset", r#"{"limit":"leased"}"#);
    assert_eq!(all.status, 409);
    assert!(
        all.json()["detail"]
            .as_str()
            .unwrap()
            .contains("give a key"),
        "{}",
        all.json()
    );
}

#[test]
fn without_the_store_an_order_is_refused_and_those_in_force_stay() {
    let mut store = Server::start(&[]);
    let server = on("orders-down", &store.address(), RULES);
    assert_eq!(
        server
            .post("/v1/block", &body("exact", "eve", &json!({})))
            .status,
        200
    );
    store.kill();
    eventually("the store is known to be down", || {
        server.metric("tidegate_shared_store_up") == 0
    });
    assert!(denies(&server, "exact", "eve"));
    let refused = server.post("/v1/block", &body("exact", "bob", &json!({})));
    assert_eq!(refused.status, 503, "{}", refused.json());
    assert!(
        server
            .resp("UNBLOCK exact eve")
            .contains("may not have been made")
    );
    assert!(denies(&server, "exact", "eve"));
}

#[test]
fn a_denial_at_one_server_blocks_the_key_at_all_by_the_rule() {
    const RULES: &str = "
limits:
  - name: logins
    limit: 2/1h
    algorithm: sliding-window
    sharing: leased
    block_for: 1d, 7d
    block_after: 2
    block_within: 1h
  - {name: everyone, limit: 1000/1d, algorithm: sliding-window}
";
    let store = Server::start(&[]);
    let [one, two] = ["rule-one", "rule-two"].map(|name| on(name, &store.address(), RULES));
    let joint = r#"{"all":[{"limit":"everyone","key":"x"},{"limit":"logins","key":"eve"}]}"#;
    let reason = |server: &Running| acquire(server, "logins", "eve").1["reason"].clone();
    for server in [&one, &two] {
        assert!(!denies(server, "logins", "eve"));
    }
    let denied = one.post("/v1/acquire", joint);
    assert_eq!(
        (denied.status, &denied.json()["reason"]),
        (429, &json!("quota"))
    );
    assert_eq!(reason(&two), "blocked", "the second denial");
    for command in [
        "RESERVE 60000 logins eve 1",
        "ACQUIRE logins eve",
        "PEEK logins eve",
    ] {
        let told = one.resp(command);
        assert!(told.starts_with("[1 2 0 86"), "{command}: {told}");
    }
    assert_eq!(reason(&one), "blocked");
    for server in [&one, &two] {
        let blocks = server.get("/v1/blocks?limit=logins").json();
        let block = &blocks["blocks"][0];
        assert_eq!(
            (&block["key"], &block["client"]),
            (&json!("eve"), &json!("the rule"))
        );
        let left = block["until_ms"].as_u64().zip(block["since_ms"].as_u64());
        assert!(
            left.is_some_and(|(until, since)| until - since <= 86_400_000),
            "{block}"
        );
        let told = server.get("/v1/explain?limit=logins&key=eve").json();
        assert_eq!(
            (&told["reason"], &told["block"]["client"]),
            (&json!("blocked"), &json!("the rule"))
        );
    }
    assert_eq!(one.resp("UNBLOCK logins eve"), "1");
    assert_eq!(one.resp("UNBLOCK logins eve"), "0");
    assert_eq!(
        one.get("/v1/blocks?limit=logins").json()["blocks"],
        json!([])
    );
    // The limit is still used up, and this is the first denial that counts.
    assert_eq!(reason(&one), "quota");
    // The other server remembers the block for a second.
    let peek = || {
        two.post("/v1/peek", &body("logins", "eve", &json!({})))
            .json()
    };
    eventually("the other server follows", || peek()["reason"] == "quota");
}
