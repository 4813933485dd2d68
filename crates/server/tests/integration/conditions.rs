//! What is wrong with the server as a whole is on every page and in the API, each time with its
//! real cause: since when, what follows, what helps. The store's outage is in `outage.rs`, rejected
//! rules are in `pages.rs`, and certificates in the tests of the program.

use crate::harness;

use std::time::Duration;

use harness::{Http, Resp, Running, scratch};
use serde_json::{Value, json};
use tidegate_redis_servers::eventually;
use tidegate_server::{Options, Order};

/// Waits for the only condition of a server, compares it with the strip of two pages, and returns it.
fn condition(server: &Running, name: &str) -> Value {
    let all = || server.get("/v1/limits").json()["conditions"].clone();
    let named = |all: &Value| all.as_array().unwrap().iter().any(|of| of["name"] == name);
    eventually(&format!("the condition {name}"), || named(&all()));
    let all = all();
    let found = all.as_array().unwrap().iter().find(|of| of["name"] == name);
    let found = found.unwrap().clone();
    for path in ["/", "/orders"] {
        let body = Http::connect(server.admin).send("GET", path, "").body;
        let class = if found["is_wrong"] == true {
            "wrong"
        } else {
            "warns"
        };
        let strip = body
            .split(&format!(
                "class=\"condition {class}\" data-condition=\"{name}\""
            ))
            .nth(1)
            .unwrap_or_else(|| panic!("{path} has no {name}: {body}"));
        let strip = strip.split("</div>").next().unwrap();
        for part in ["Effect: ", "Remedy: ", "since "] {
            assert!(strip.contains(part), "{part}: {strip}");
        }
        let remedy = found["remedy"].as_str().unwrap();
        assert!(strip.contains(&remedy.replace('"', "&quot;")), "{strip}");
    }
    found
}

/// The parts of a condition that a test compares.
fn parts(condition: &Value) -> (String, String, bool) {
    let text = |name: &str| condition[name].as_str().unwrap().to_owned();
    (text("state"), text("effect"), condition["is_wrong"] == true)
}

fn strip(server: &Running) -> String {
    let body = Http::connect(server.admin).send("GET", "/", "").body;
    let well = body.split("class=\"well\">").nth(1).unwrap();
    well.split("</p>").next().unwrap().to_owned()
}

#[test]
fn exhausted_keys_that_a_full_table_forgot_are_shown_for_ten_minutes() {
    let rules = "limits:
  - {name: small, limit: 1/1h, algorithm: sliding-log, max_keys: 8}
";
    let server = Running::with_rules("conditions-forgotten", rules);
    let mut client = Resp::connect(server.resp);
    eventually("the first look", || {
        strip(&server).contains("no exhausted key forgotten")
    });
    let mut key = 0;
    let forgotten = "tidegate_keys_forgotten_exhausted_total{limit=\"small\"}";
    while server.metric(forgotten) == 0 {
        for _ in 0..100 {
            client.ask(&format!("ACQUIRE small key-{key}"));
            key += 1;
        }
        assert!(key < 100_000, "no key was forgotten");
    }
    let (state, effect, is_wrong) = parts(&condition(&server, "forgotten-keys"));
    assert!(
        state.contains(" forgotten because the table was full: small (the last 0s ago)"),
        "{state}"
    );
    assert!(
        is_wrong && effect == "each of them may use its limit a second time",
        "{effect}"
    );
    assert!(!strip(&server).contains("no exhausted key forgotten"));
    // It is over when none was forgotten for ten minutes.
    server.advance(Duration::from_secs(601));
    eventually("the condition is over", || {
        server.get("/v1/limits").json()["conditions"] == json!([])
            && strip(&server).contains("no exhausted key forgotten")
    });
}

#[test]
fn a_clock_that_was_set_is_shown() {
    let rules = "limits: [{name: daily, limit: 5/1d, algorithm: fixed-window}]";
    let server = Running::with_rules("conditions-clock", rules);
    eventually("the first look", || strip(&server).contains("clock steady"));
    server.clock.set_wall_ahead(3_600_000_000_000);
    let (state, effect, is_wrong) = parts(&condition(&server, "clock"));
    assert!(
        state.contains("the system's time was set") && state.contains("3600 s away"),
        "{state}"
    );
    assert!(
        !is_wrong && effect.contains("rates do not depend on it"),
        "{effect}"
    );
}

#[test]
fn a_state_that_cannot_be_written_is_shown() {
    let directory = scratch("conditions-state");
    let (rules, inner) = (directory.join("rules.yaml"), directory.join("inner"));
    std::fs::write(&rules, "limits: [{name: a, limit: 5/1h}]").unwrap();
    std::fs::create_dir(&inner).unwrap();
    let server = Running::start(Options {
        rules: Some(rules),
        state: Some(inner.join("state")),
        state_interval: Duration::from_millis(50),
        ..Options::default()
    });
    eventually("the first look", || {
        strip(&server).contains("state written")
    });
    std::fs::remove_dir_all(&inner).unwrap();
    let (state, effect, is_wrong) = parts(&condition(&server, "state-file"));
    assert!(
        state.starts_with("the state could not be written ("),
        "{state}"
    );
    assert!(
        !is_wrong && effect.contains("at the last write"),
        "{effect}"
    );
    std::fs::create_dir(&inner).unwrap();
    server.stop();
}

#[cfg(feature = "servers")]
mod over_a_store {
    use tidegate_redis_servers::Server;

    use super::*;
    use crate::harness::on_store;

    const RULES: &str = "limits: [{name: logins, limit: 5/1h, algorithm: sliding-log}]";

    #[test]
    fn orders_that_the_store_lost_are_shown() {
        let mut store = Server::start(&[]);
        let server = on_store("conditions-orders", &store.address(), RULES);
        eventually("the first look", || {
            strip(&server).contains("no orders lost")
        });
        for key in ["eve", "mallory"] {
            assert_eq!(server.resp(&format!("BLOCK logins {key}")), "OK");
        }
        store.start_again();
        let (state, effect, is_wrong) = parts(&condition(&server, "lost-orders"));
        assert!(
            state.contains("the store had lost blocks and overrides")
                && state.contains("2 given again, 0 lost"),
            "{state}"
        );
        assert!(!is_wrong && effect == "none: they hold again", "{effect}");
    }

    #[test]
    fn a_store_that_evicted_limits_is_shown() {
        let store = Server::start(&["--maxmemory", "200mb", "--maxmemory-policy", "allkeys-lru"]);
        let server = on_store("conditions-eviction", &store.address(), RULES);
        eventually("the server knows the policy", || {
            server.metric("tidegate_shared_store_may_evict") == 1
                && strip(&server).contains("no exhausted key forgotten")
        });
        for at in 0..16 {
            store.ask(&["SET", &format!("filler-{at}"), &"x".repeat(1 << 20)]);
        }
        store.ask(&["CONFIG", "SET", "maxmemory", "12mb"]);
        store.ask(&["SET", "next", "x"]);
        // Otherwise the server looks at the store again in a while.
        server.order(Order::Reload);
        let (state, effect, is_wrong) = parts(&condition(&server, "eviction"));
        assert!(state.starts_with("the store has evicted "), "{state}");
        assert!(
            is_wrong && effect.contains("admits its units again"),
            "{effect}"
        );
    }

    #[test]
    fn a_store_with_another_time_is_shown_until_it_has_the_same() {
        let store = Server::with_clock();
        let server = on_store("conditions-store-clock", &store.address(), RULES);
        eventually("the first look", || strip(&server).contains("clock steady"));
        store.shift_clock(90);
        let (state, effect, is_wrong) = parts(&condition(&server, "store-clock"));
        assert!(
            state.starts_with("the store's clock is 1m")
                && state.contains(" ahead of this machine's"),
            "{state}"
        );
        assert!(
            !is_wrong && effect.contains("the store's clock"),
            "{effect}"
        );
        assert!(!strip(&server).contains("clock steady"));
    }

    #[test]
    fn another_rule_at_another_server_is_shown_until_it_is_the_same() {
        let store = Server::start(&[]);
        let start = |name: &str, rules: &str| {
            Running::with_rules_and(&format!("conditions-{name}"), rules, |options| {
                options.name = Some(name.to_owned());
                options.store_deadline = Duration::from_secs(5).into();
                options.store = Some(store.address());
            })
        };
        let one = start("one", RULES);
        let two = start("two", &RULES.replace("5/1h", "7/1h"));
        for server in [&one, &two] {
            let (state, effect, is_wrong) = parts(&condition(server, "other-rules"));
            assert!(
                state.starts_with("logins has another rule at server "),
                "{state}"
            );
            assert!(
                !is_wrong && effect.contains("by different rules"),
                "{effect}"
            );
            assert!(!strip(server).contains("rules in force"));
        }
        drop(two);
        eventually("the other server is gone", || {
            strip(&one).contains("rules in force")
        });
    }
}
