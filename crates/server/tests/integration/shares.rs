//! A limit that tenants share: its rules, every door, and who gets how much of it.

use crate::harness;

use std::{fs, path::PathBuf, time::Duration};

use harness::{Http, Resp, Running, frame, replace, scratch};
use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_redis_servers::{Server, eventually};
use tidegate_server::{
    Options,
    limits::{Capacity, Limits},
    rules::{self, Keeping},
};

const RULES: &str = "
limits:
  - name: api
    limit: 1000/1s
    burst: 100
    algorithm: token-bucket
    shares: {weights: {acme: 3}, ceiling: 80%}
    deny: [mallory, eve/1]
  - {name: window, limit: 100/1h, algorithm: fixed-window, shares: {}}
  - {name: per-key, limit: 5/1h, algorithm: sliding-log}
";

/// The problems of a limit with these lines, one per line.
fn complaints(lines: &str, keeping: Keeping) -> String {
    let text = format!("limits:\n  - {{name: a, {lines}}}\n");
    let problems = rules::parse_for(&text, keeping).expect_err(lines);
    let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
    told.join("\n")
}

#[test]
fn shares_in_rules_are_checked_with_what_to_do_instead() {
    for (lines, expected) in [
        (
            "limit: 5/1s, shares: {guarantee: {a: 60%, b: 60.5%}}",
            "the guarantees are 120.5 % of the limit together; lower them to at most 100 %",
        ),
        (
            "limit: 5/1s, shares: {guarantee: {a: 60%}, ceiling: 50%}",
            "tenant `a`: the guarantee is above the ceiling; lower the guarantee or raise",
        ),
        (
            "limit: 5/1s, shares: {ceiling: 0%}",
            "a ceiling must be above 0 %",
        ),
        ("limit: 5/1s, shares: {ceiling: 60}", "as in `60%`"),
        ("limit: 5/1s, shares: {ceiling: 101%}", "as in `60%`"),
        ("limit: 5/1s, shares: {ceiling: 655.99%}", "as in `60%`"),
        ("limit: 5/1s, shares: {ceiling: 1.234%}", "as in `60%`"),
        ("limit: 5/1s, shares: {weights: {a: 0}}", "from 1 to 1000"),
        (
            "limit: 5/1s, shares: {weights: {a: 1001}}",
            "from 1 to 1000",
        ),
        (
            "limit: 5/1s, shares: {weights: {a: 1.5}}",
            "tenant `a`: it is `1.5`",
        ),
        ("limit: 5/1s, shares: {weights: {a: 1, \"a\": 2}}", "twice"),
        (
            "limit: 5/1s, shares: {weights: {a/b: 2}}",
            "no key has the tenant `a/b`, because its name ends at the first `/`",
        ),
        (
            "limit: 5/1s, shares: {by: user}",
            "choose one of: tenant, key",
        ),
        (
            "limit: 5/1s, shares: {weight: {a: 2}}",
            "did you mean `weights`?",
        ),
        ("limit: 5/1s, shares: true", "must be a mapping"),
        (
            "limit: 5/1s, algorithm: leaky-bucket, shares: {}",
            "leaky-bucket does not support them; change the algorithm",
        ),
        (
            "limit: 5/1s, shares: {}, count_denied: true",
            "remove the option",
        ),
        (
            "limit: 5/1s, shares: {}, block_for: 1m",
            "remove the option",
        ),
        ("limit: 5/1s, shares: {}, global: true", "remove `global`"),
        ("limit: 5/1s, shares: {}, soft: true", "use `shadow`"),
        (
            "limit: 5/1s, shares: {}, thresholds: [80%]",
            "remove `thresholds`",
        ),
        (
            "limit: 5/1s, shares: {}, when_full: deny",
            "remove `when_full`",
        ),
        ("limit: 5/1s, shares: {}, deny: [\"\"]", "names no tenant"),
        (
            "limit: 5/1s, shares: {}, overrides: {a: 9/1s}",
            "give the tenant a weight",
        ),
        (
            "limit: 5/1s, shares: {}, sharing: reported",
            "write `sharing: leased` or `sharing: exact`",
        ),
        ("limit: 5/1s, shares: {}, line: true", "remove `line`"),
    ] {
        for keeping in [Keeping::Memory, Keeping::Store] {
            let told = complaints(lines, keeping);
            assert!(told.contains(expected), "{lines}\nsaid: {told}");
            assert!(told.starts_with("line 2"), "{told}");
        }
    }
    let permits = "limit: 5, algorithm: concurrency, shares: {}";
    let told = complaints(permits, Keeping::Store);
    assert!(
        told.contains("not over a store") && told.contains("without `--store`"),
        "{told}"
    );
    let permits = format!("limits:\n- {{name: a, {permits}}}");
    assert!(rules::parse_for(&permits, Keeping::Memory).is_ok());
    for sharing in ["exact", "leased"] {
        let lines = format!("name: a, limit: 5/1s, shares: {{}}, sharing: {sharing}");
        let text = format!("limits: [{{{lines}, on_error: closed}}]");
        assert!(rules::parse_for(&text, Keeping::Store).is_ok());
    }
}

#[test]
fn shares_are_printed_as_they_were_read() {
    let text = "limits:
  - name: a
    limit: 5/1s
    max_keys: 100
    shares: {by: key, weights: {acme: 10, \"a b/c\": 2}, guarantee: {acme: 12.5%, x: 5%}, ceiling: 60%}
  - {name: b, limit: 5/1s, shares: {}}
  - {name: c, limit: 5/1s, shadow: true}
";
    let read = rules::parse(text).unwrap().limits;
    let printed: String = read.iter().map(rules::LimitSpec::yaml).collect();
    let again = rules::parse(&format!("limits:\n{printed}")).unwrap().limits;
    assert_eq!(read, again, "{printed}");
    let shares = read[0].shares.as_ref().unwrap();
    assert_eq!(
        shares.json(),
        json!({"by": "key", "weights": {"acme": 10, "a b/c": 2},
            "guarantee": {"acme": "12.5%", "x": "5%"}, "ceiling": "60%"})
    );
    assert!(read[1].shares.is_some() && read[2].shares.is_none());
}

#[test]
fn the_memory_of_tenants_counts_against_the_bound() {
    let limits = |max_memory: u64| {
        let rules = rules::parse(
            "limits: [{name: a, limit: 9/1s, shares: {}, max_keys: 10000}, {name: b, limit: 9/1s}]",
        );
        let capacity = Capacity {
            max_memory: Some(max_memory),
            ..Capacity::from(1 << 20)
        };
        Limits::new(rules.unwrap(), capacity, |_| None, Nanos::from_secs(1))
    };
    let refused = limits(1 << 20).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("raise max_memory"), "{refused}");
    let limits = limits(64 << 20).unwrap();
    let [of_tenants, of_keys] = [0, 1].map(|at| limits.limits()[at].stats());
    // Two tables of 10,000 tenants, and their notes.
    assert_eq!(of_tenants.max_keys, 10_000);
    assert!(of_tenants.bytes > 1_000_000, "{of_tenants:?}");
    assert!(of_tenants.bytes + of_keys.bytes <= 64 << 20);
}

fn post(server: &Running, path: &str, body: &Value) -> (u16, Value) {
    let response = server.post(path, &body.to_string());
    (response.status, response.json())
}

fn left(server: &Running) -> u64 {
    let (_, told) = post(
        server,
        "/v1/peek",
        &json!({"limit": "window", "key": "x", "cost": 0}),
    );
    told["remaining"].as_u64().unwrap()
}

/// A server with its own limits, or with those of a store.
fn serving(name: &str, store: Option<&Server>) -> Running {
    let server = Running::with_rules_and(name, RULES, |options| {
        options.store_deadline = Duration::from_secs(5).into();
        options.store = store.map(Server::address);
    });
    let ready = || server.get("/readyz").json()["status"] == "ready";
    eventually("the limits are ready", ready);
    server
}

#[test]
fn every_door_counts_in_the_total_and_in_the_share() {
    every_door(&serving("shares-doors", None));
}

#[test]
fn every_door_counts_in_the_total_and_in_the_share_over_a_store() {
    every_door(&serving("shares-doors-stored", Some(&Server::start(&[]))));
}

fn every_door(server: &Running) {
    let mut client = Resp::connect(server.resp);
    let ask = |key: &str, cost: u64| json!({"limit": "window", "key": key, "cost": cost});
    assert_eq!(post(server, "/v1/acquire", &ask("a/1", 3)).0, 200);
    assert_eq!(left(server), 97);
    assert_eq!(
        client.ask("ACQUIRE window a/2 2").split(' ').nth(2),
        Some("95")
    );
    assert_eq!(post(server, "/v1/charge", &ask("a", 5)).0, 200);
    assert!(client.ask("CHARGE window b/1 1").starts_with("[0 100 89"));
    assert_eq!(post(server, "/v1/refund", &ask("a/3", 4)).0, 200);
    assert_eq!(left(server), 93);
    // The first of several, and all of them.
    let any = json!({"any": [ask("a/1", 3), {"limit": "per-key", "key": "a"}]});
    assert_eq!(post(server, "/v1/acquire", &any).0, 200);
    let all = json!({"all": [ask("a/1", 3), {"limit": "per-key", "key": "a"}]});
    assert_eq!(post(server, "/v1/acquire", &all).0, 200);
    assert_eq!(left(server), 87);
    let all = json!({"all": [ask("a/1", 3), {"limit": "per-key", "key": "a", "cost": 5}]});
    assert_eq!(post(server, "/v1/acquire", &all).0, 429);
    assert_eq!(post(server, "/v1/peek", &all).0, 200);
    assert_eq!(left(server), 87);
    let twice = json!({"all": [ask("a/1", 1), ask("a/2", 1)]});
    let (status, told) = post(server, "/v1/acquire", &twice);
    assert!(
        status == 400
            && told["detail"]
                .as_str()
                .unwrap()
                .contains("sum of the costs")
    );
    // An id makes a repetition safe.
    for _ in 0..2 {
        let mut once = ask("a/1", 2);
        once["id"] = "one".into();
        assert_eq!(post(server, "/v1/acquire", &once).0, 200);
    }
    assert_eq!(left(server), 85);
    // An estimate, and what was used.
    for (actual, then) in [(4, 81), (30, 51)] {
        let (_, told) = post(server, "/v1/reserve", &ask("a/1", 10));
        let settle = json!({"id": told["id"], "costs": [actual]});
        assert_eq!(post(server, "/v1/settle", &settle).0, 200, "{told}");
        assert_eq!(left(server), then);
    }
    // As much as there is: a window's last tenth is kept for others, as b has asked.
    let (status, told) = post(
        server,
        "/v1/acquire",
        &json!({"limit": "window", "key": "a/1", "at_most": 100}),
    );
    assert!(status == 200 || status == 429, "{told}");
    let taken = 51 - left(server);
    assert_eq!(told["taken"].as_u64().unwrap_or(0), taken, "{told}");
}

#[test]
fn what_makes_no_sense_for_tenants_is_refused_with_what_to_do() {
    what_makes_no_sense(&serving("shares-refused", None));
    what_makes_no_sense(&serving("shares-refused-stored", Some(&Server::start(&[]))));
}

fn what_makes_no_sense(server: &Running) {
    let mut client = Resp::connect(server.resp);
    for (path, more, expected) in [
        ("/v1/acquire", json!({"wait": "1s"}), "ask without a wait"),
        (
            "/v1/override",
            json!({"quota": "9/1s"}),
            "a weight from 1 to 1000, as in `weight=10`, or a guarantee or a ceiling",
        ),
        ("/v1/override", json!({"quota": "weight=0"}), "`weight=10`"),
        // A weight is a tenant's, not a key's.
        ("/v1/override", json!({"quota": "weight=2"}), "`weight=10`"),
    ] {
        let mut body = json!({"limit": "api", "key": "acme/1"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, told) = post(server, path, &body);
        assert_eq!(status, 409, "{told}");
        assert!(
            told["detail"].as_str().unwrap().contains(expected),
            "{told}"
        );
    }
    assert!(
        client
            .ask("ACQUIRE api acme/1 1 WAIT 1000")
            .contains("ask without a wait")
    );
    assert!(client.ask("OVERRIDE api acme 9/1s").contains("a weight"));
    assert!(client.ask("BLOCK api ''").starts_with("ERR"));
    assert_eq!(client.ask("ACQUIRE api ''").split(' ').next(), Some("[0"));
}

#[test]
fn blocks_and_resets_concern_tenants_or_single_keys() {
    let server = Running::with_rules("shares-blocks", RULES);
    let mut client = Resp::connect(server.resp);
    let mut denied = |key: &str| client.ask(&format!("ACQUIRE api {key}")).starts_with("[1");
    assert!(denied("mallory/1") && denied("mallory") && denied("eve/1"));
    assert!(!denied("eve/2") && !denied("eve"));
    assert_eq!(server.resp("BLOCK api acme"), "OK");
    assert_eq!(server.resp("BLOCK api beta/1"), "OK");
    assert!(denied("acme/1") && denied("acme/2") && denied("beta/1"));
    assert!(!denied("beta/2"));
    let all = json!({"all": [{"limit": "api", "key": "acme/7"}, {"limit": "per-key", "key": "k"}]});
    assert_eq!(post(&server, "/v1/acquire", &all).0, 429);
    assert_eq!(server.resp("PEEK per-key k").split(' ').nth(2), Some("5"));
    assert_eq!(server.resp("UNBLOCK api acme"), "1");
    assert!(!denied("acme/1"));
    // A reset forgives a tenant its debt, and not what all have used.
    let charge = |key: &str, cost: u64| json!({"limit": "api", "key": key, "cost": cost});
    assert_eq!(post(&server, "/v1/charge", &charge("acme/1", 700)).0, 200);
    server.advance(Duration::from_millis(700));
    assert!(denied("acme/2") && !denied("beta/2"));
    let reset = json!({"limit": "api", "key": "acme"});
    assert_eq!(post(&server, "/v1/reset", &reset).0, 200);
    assert!(!denied("acme/2"));
}

#[test]
fn permits_in_flight_go_to_the_tenant_that_has_the_fewest() {
    let rules = "limits: [{name: calls, limit: 6, algorithm: concurrency, \
        shares: {weights: {b: 2}, ceiling: 70%}}, {name: all, limit: 100/1s}]";
    let server = Running::with_rules("shares-permits", rules);
    let mut client = Resp::connect(server.resp);
    let ask = |key: &str, cost: u64| json!({"limit": "calls", "key": key, "cost": cost});
    let take = |key: &str| post(&server, "/v1/acquire", &ask(key, 1));
    let give = |key: &str, cost: u64| post(&server, "/v1/refund", &ask(key, cost)).0;
    for key in ["a/1", "a/2", "a/1", "a/3", "b/1", "b/2"] {
        assert_eq!(take(key).0, 200, "{key}");
    }
    // The ceiling is four of six.
    let (status, told) = take("a/1");
    assert_eq!(
        (status, &told["reason"]),
        (429, &json!("in-flight")),
        "{told}"
    );
    assert!(told["retry_after_ms"].is_null(), "{told}");
    assert_eq!(take("b/1").0, 429);
    assert_eq!(give("a/2", 1), 200);
    // The next one is for b. Who has more knows when that ends.
    let (status, told) = take("a/9");
    assert_eq!(status, 429);
    assert_eq!(told["retry_after_ms"], 500, "{told}");
    assert!(client.ask("PEEK calls a/9").starts_with("[1"));
    assert!(client.ask("PEEK calls b/9").starts_with("[0"));
    let all = |key: &str| json!({"all": [ask(key, 1), {"limit": "all", "key": "x"}]});
    assert_eq!(post(&server, "/v1/acquire", &all("a/1")).0, 429);
    assert_eq!(client.ask("PEEK all x").split(' ').nth(2), Some("100"));
    assert_eq!(post(&server, "/v1/acquire", &all("b/1")).0, 200);
    // A tenant's turn ends when it does not ask again.
    assert_eq!(take("b/1").0, 429);
    assert_eq!(give("a/2", 1), 200);
    assert_eq!(take("a/1").0, 429);
    server.advance(Duration::from_millis(501));
    assert_eq!(take("a/1").0, 200);
    let told = server.get("/v1/explain?limit=calls&key=b/7").json();
    let tenant = &told["tenant"];
    assert_eq!(
        (&tenant["used"], &tenant["terms"]),
        (&json!(0.5), &json!("weight 2, ceiling 70 %"))
    );
    // A reset forgets the permits, and an operator changes a weight.
    assert_eq!(server.resp("OVERRIDE calls a weight=9"), "OK");
    let (_, reserved) = post(&server, "/v1/reserve", &ask("c", 1));
    assert_eq!(
        post(&server, "/v1/reset", &json!({"limit": "calls"})).0,
        200
    );
    assert_eq!(post(&server, "/v1/acquire", &ask("c", 4)).0, 200);
    let settle = json!({"id": reserved["id"], "costs": [0]});
    post(&server, "/v1/settle", &settle);
    assert_eq!(
        take("c").0,
        429,
        "the one from before the reset does not return"
    );
    assert_eq!(post(&server, "/v1/acquire", &ask("a", 2)).0, 200);
    assert_eq!(take("a").0, 429);
}

#[test]
fn a_limit_of_permits_starts_fresh_when_it_becomes_a_rate() {
    let rules = |limit: &str| format!("limits: [{{name: api, {limit}, shares: {{}}}}]");
    let (mut server, path) = following("shares-kind", &rules("limit: 2, algorithm: concurrency"));
    let admits = |server: &Running| {
        let ask = json!({"limit": "api", "key": "a"});
        let asked = (0..6).map(|_| post(server, "/v1/acquire", &ask).0);
        asked.filter(|status| *status == 200).count()
    };
    assert_eq!(admits(&server), 2);
    for (limit, most) in [("limit: 3/1h", 3), ("limit: 4, algorithm: concurrency", 4)] {
        server.reloading(|| replace(&path, rules(limit)));
        assert_eq!(admits(&server), most, "{limit}");
    }
}

/// The terms of a tenant, and its part of the limit.
fn terms(server: &Running, tenant: &str) -> (String, f64) {
    let path = format!("/v1/explain?limit=api&key={tenant}/1");
    let told = server.get(&path).json();
    let tenant = &told["tenant"];
    let terms = tenant["terms"].as_str();
    (
        terms.unwrap_or_else(|| panic!("{told}")).to_owned(),
        tenant["share"].as_f64().unwrap_or(0.0),
    )
}

#[test]
fn an_operator_changes_a_tenants_weight_while_the_server_runs() {
    let directory = scratch("shares-weight");
    let rules = directory.join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    let options = || Options {
        rules: Some(rules.clone()),
        state: Some(directory.join("state")),
        ..Options::default()
    };
    let server = Running::start(options());
    for key in ["acme/1", "beta/1"] {
        assert!(server.resp(&format!("ACQUIRE api {key}")).starts_with("[0"));
    }
    let acme = || terms(&server, "acme");
    assert_eq!(acme(), ("weight 3, ceiling 80 %".into(), 0.75));
    assert_eq!(server.resp("OVERRIDE api acme weight=9 10000"), "OK");
    assert_eq!(acme().0, "weight 9, ceiling 80 %");
    let told = server.get("/v1/explain?limit=api&key=acme").json();
    assert_eq!(told["override"]["quota"], "weight=9", "{told}");
    let listed = server.get("/v1/rules").json();
    let own = &listed["limits"][0]["runtime_overrides"]["acme"];
    assert_eq!(own["quota"], "weight=9", "{listed}");
    // A change of the rules keeps it, and its end gives the weight of the rules.
    replace(&rules, RULES.replace("ceiling: 80%", "ceiling: 70%"));
    assert_eq!(server.post("/v1/reload", "").status, 200);
    assert_eq!(acme().0, "weight 9, ceiling 70 %");
    server.advance(Duration::from_secs(11));
    eventually("the override ends", || acme().0 == "weight 3, ceiling 70 %");
    assert_eq!(server.resp("OVERRIDE api beta weight=2"), "OK");
    server.stop();
    let server = Running::start(options());
    assert!(server.resp("ACQUIRE api beta/1").starts_with("[0"));
    assert_eq!(terms(&server, "beta").0, "weight 2, ceiling 70 %");
    let end = json!({"limit": "api", "key": "beta", "end": true});
    assert_eq!(post(&server, "/v1/override", &end).0, 200);
    assert_eq!(terms(&server, "beta").0, "weight 1, ceiling 70 %");
}

#[test]
fn a_restart_keeps_what_all_have_used_and_blocks_of_tenants() {
    let directory = scratch("shares-restart");
    let rules = directory.join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    let options = || Options {
        rules: Some(rules.clone()),
        state: Some(directory.join("state")),
        ..Options::default()
    };
    let server = Running::start(options());
    assert!(server.resp("ACQUIRE window a/1 30").starts_with("[0"));
    assert!(server.resp("ACQUIRE window b/1 30").starts_with("[0"));
    assert_eq!(server.resp("BLOCK window c"), "OK");
    server.stop();
    let server = Running::start(options());
    assert_eq!(left(&server), 40);
    assert!(server.resp("PEEK window c/1").starts_with("[1"));
    server.stop();
    // A limit for each key does not take the state of all for that of a key.
    let for_each = RULES.replace(
        "algorithm: fixed-window, shares: {}",
        "algorithm: fixed-window",
    );
    fs::write(&rules, for_each).unwrap();
    let server = Running::start(options());
    assert_eq!(left(&server), 100);
    assert_eq!(server.resp("PEEK window ''").split(' ').nth(2), Some("100"));
}

/// A server that reads its rules again when they change, and their file.
fn following(name: &str, rules: &str) -> (Running, PathBuf) {
    let path = scratch(name).join("rules.yaml");
    fs::write(&path, rules).unwrap();
    let server = Running::start(Options {
        rules: Some(path.clone()),
        reload_interval: Duration::from_millis(10),
        ..Options::default()
    });
    (server, path)
}

/// A key with how often it asks in a second.
type Demand<'a> = (&'a str, u64);

/// How often each key is admitted in `seconds`, after `before` of which nothing is counted. All ask
/// over one connection, in an order that depends on nothing else; the clock moves in steps of 5 ms.
fn admitted(server: &Running, demands: &[Demand<'_>], before: u64, seconds: u64) -> Vec<u64> {
    let mut client = Resp::connect(server.resp);
    let mut got = vec![0; demands.len()];
    let mut seed = 88_172_645_463_325_252_u64;
    for step in 0..(before + seconds) * 200 {
        let due = |rate: u64, step: u64| step * rate / 200;
        let each = demands.iter().enumerate().flat_map(|(at, (_, rate))| {
            std::iter::repeat_n(at, (due(*rate, step + 1) - due(*rate, step)) as usize)
        });
        let mut asked: Vec<usize> = each.collect();
        for at in (1..asked.len()).rev() {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            asked.swap(at, (seed % (at as u64 + 1)) as usize);
        }
        let frames: Vec<u8> = asked
            .iter()
            .flat_map(|at| frame(&format!("ACQUIRE api {}", demands[*at].0)))
            .collect();
        client.send(&frames);
        for at in asked {
            let is_admitted = client.reply().starts_with("[0");
            got[at] += u64::from(is_admitted && step >= before * 200);
        }
        server.advance(Duration::from_millis(5));
    }
    got
}

/// What weighted max-min fairness gives each of these demands with weights.
fn water_filling(demands: &[(f64, f64)], limit: f64) -> Vec<f64> {
    let (mut low, mut high) = (0.0, limit);
    for _ in 0..200 {
        let level = f64::midpoint(low, high);
        let sum: f64 = demands
            .iter()
            .map(|(rate, weight)| rate.min(weight * level))
            .sum();
        if sum < limit {
            low = level;
        } else {
            high = level;
        }
    }
    demands
        .iter()
        .map(|(rate, weight)| rate.min(weight * low))
        .collect()
}

fn jain(parts: &[f64]) -> f64 {
    let sum: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    sum * sum / (parts.len() as f64 * squares)
}

fn rules(shares: &str) -> String {
    format!(
        "limits: [{{name: api, limit: 2000/1s, burst: 200, algorithm: token-bucket{shares}}}]\n"
    )
}

#[test]
fn a_hundred_tenants_with_skewed_demand_get_weighted_shares_of_an_overloaded_limit() {
    let names: Vec<String> = (0..100).map(|i| format!("t{i}/k")).collect();
    // The demand of the n-th tenant is as 1/n: 6,000 a second in all.
    let rate = |at: usize| {
        let n = at as u64 + 1;
        (1_157 + n / 2) / n
    };
    let demands: Vec<Demand<'_>> = names
        .iter()
        .enumerate()
        .map(|(n, name)| (&**name, rate(n)))
        .collect();
    let weights: Vec<String> = (0..100).step_by(5).map(|i| format!("t{i}: 3")).collect();
    let weighted = format!(", shares: {{weights: {{{}}}}}", weights.join(", "));
    let ideal = |n: usize| if n.is_multiple_of(5) { 3.0 } else { 1.0 };
    let wanted: Vec<(f64, f64)> = demands
        .iter()
        .enumerate()
        .map(|(n, of)| (of.1 as f64, ideal(n)))
        .collect();
    let ideals = water_filling(&wanted, 2_000.0);
    let index = |got: &[u64]| {
        let parts = got
            .iter()
            .zip(&ideals)
            .map(|(got, ideal)| *got as f64 / 6.0 / ideal);
        jain(&parts.collect::<Vec<_>>())
    };
    let server = Running::with_rules("shares-jain", &rules(&weighted));
    let got = admitted(&server, &demands, 3, 6);
    let with_shares = index(&got);
    assert!(
        with_shares >= 0.99,
        "{with_shares}: {got:?}, and not {ideals:?}"
    );
    assert!(got.iter().sum::<u64>() >= 11_760, "{got:?}");
    // One limit for all is not fair.
    let server = Running::with_rules("shares-global", &rules(", global: true"));
    let without = index(&admitted(&server, &demands, 3, 6));
    println!("weighted Jain's index {without} without shares, {with_shares} with them");
    assert!(without < 0.8, "{without}");
}

#[test]
fn a_lone_tenant_gets_the_limit_and_a_guarantee_is_back_within_a_second() {
    let server = Running::with_rules("shares-alone", &rules(", shares: {guarantee: {acme: 20%}}"));
    let got = admitted(&server, &[("beta/1", 6_000)], 0, 5)[0];
    assert!((9_800..=10_200).contains(&got), "{got}");
    // Others take all of it, and then acme comes back for its guarantee.
    let busy = [("beta/1", 3_000), ("gamma/1", 3_000)];
    let got: u64 = admitted(&server, &busy, 1, 4).iter().sum();
    assert!(got >= 7_840, "{got}");
    let got = admitted(&server, &[busy[0], busy[1], ("acme/1", 400)], 0, 1);
    assert!(got[2] >= 392, "{got:?}");
}

#[test]
fn asking_more_and_by_many_keys_gains_nothing() {
    let names: Vec<String> = (0..9).map(|i| format!("t{i}/k")).collect();
    let with = |greedy: &[Demand<'_>], name: &str| {
        let server = Running::with_rules(name, &rules(", shares: {}"));
        let mut demands: Vec<Demand<'_>> = names.iter().map(|name| (&**name, 600)).collect();
        demands.extend(greedy);
        let got = admitted(&server, &demands, 2, 4);
        let (others, greedy) = got.split_at(names.len());
        (others.to_vec(), greedy.iter().sum::<u64>())
    };
    let (before, usual) = with(&[("greedy/0", 600)], "shares-usual");
    let (others, greedy) = with(&[("greedy/0", 20_000)], "shares-greedy");
    println!("{before:?}, {usual}\n{others:?}, {greedy}");
    let sum = |all: &[u64]| all.iter().sum::<u64>();
    assert!(sum(&before).abs_diff(sum(&others)) * 100 <= sum(&before));
    for (before, now) in before.iter().zip(&others) {
        assert!(
            before.abs_diff(*now) * 100 <= *before,
            "{before}, then {now}"
        );
    }
    let keys: Vec<String> = (0..64).map(|i| format!("greedy/{i}")).collect();
    let keys: Vec<Demand<'_>> = keys.iter().map(|key| (&**key, 100)).collect();
    let (_, by_keys) = with(&keys, "shares-keys");
    println!("{by_keys} by keys");
    assert!(
        by_keys * 100 <= usual * 101,
        "{by_keys}, and {usual} by one"
    );
}

#[test]
fn operators_see_what_each_tenant_has_and_uses() {
    let server = Running::with_rules("shares-seen", &rules(", shares: {weights: {acme: 3}}"));
    let demands = [
        ("acme/1", 3_000),
        ("acme/2", 1_000),
        ("beta/1", 3_000),
        ("o\"k", 100),
    ];
    // What is used follows within seconds, so it takes some to be the mean of the last four.
    let got = admitted(&server, &demands, 8, 4);
    let told = server.get("/v1/explain?limit=api&key=beta/7").json();
    let tenant = &told["tenant"];
    assert_eq!(
        (&tenant["name"], &tenant["terms"]),
        (&json!("beta"), &json!("weight 1"))
    );
    assert!(
        (tenant["share"].as_f64().unwrap() - 0.2).abs() < 1e-9,
        "{tenant}"
    );
    // 2,000 × 4 units in four seconds; beta may use what the one with few requests leaves.
    let used = got[2] as f64 / 8_000.0;
    assert!(
        (tenant["used"].as_f64().unwrap() - used).abs() < 0.02,
        "{tenant}, and not {used}"
    );
    let borrowed = tenant["used"].as_f64().unwrap() - 0.2;
    assert!((tenant["borrowed"].as_f64().unwrap() - borrowed).abs() < 1e-9 && borrowed > 0.0);
    let facts = told["facts"].to_string();
    assert!(
        facts.contains("beta, weight 1: its share is 20.0 % of the limit"),
        "{facts}"
    );
    assert!(facts.contains("of it borrowed"), "{facts}");
    let one = json!({"limit": "api", "key": "beta/7", "cost": 1});
    while post(&server, "/v1/acquire", &one).0 == 200 {}
    let told = server.get("/v1/explain?limit=api&key=beta/7").json();
    let mend = told["mend"].as_str().unwrap();
    assert!(mend.contains("a larger weight"), "{mend}");
    let metric = |name: &str, tenant: &str| {
        server.metric(&format!(
            "tidegate_tenant_{name}{{limit=\"api\",tenant=\"{tenant}\"}}"
        ))
    };
    assert_eq!(
        (
            metric("share_permille", "acme"),
            metric("share_permille", "beta")
        ),
        (600, 200)
    );
    let used = metric("used_permille", "acme");
    assert!(
        used.abs_diff((got[0] + got[1]) / 8) <= 20,
        "{used}, {got:?}"
    );
    assert!(metric("denials", "beta") > 8_000 && metric("requests", "beta") > 10_000);
    // One decision in two is counted, so these are estimates.
    assert!(
        metric("denials", "o\\\"k") < 100 && got[3] == 400,
        "{got:?}"
    );
    let mut admin = Http::connect(server.admin);
    let page = admin.send("GET", "/limit?name=api", "").body;
    assert!(
        page.contains("Tenants") && page.contains("3 tenants of"),
        "{page}"
    );
    let page = admin.send("GET", "/limit?name=api&key=beta", "").body;
    assert!(
        page.contains("of it borrowed") && !page.contains("Own quota"),
        "{page}"
    );
    let told = server.get("/v1/top?limit=api").json();
    assert_eq!(told["asked_most"][0]["key"], "acme");
}

#[test]
fn a_reload_changes_weights_and_keeps_what_tenants_have_used() {
    let (mut server, path) = following("shares-reload", &rules(", shares: {}"));
    let demands = [("acme/1", 3_000), ("beta/1", 3_000)];
    let got = admitted(&server, &demands, 1, 2);
    assert!(got[0].abs_diff(got[1]) <= 40, "{got:?}");
    let charge = json!({"limit": "api", "key": "beta/9", "cost": 800});
    assert_eq!(post(&server, "/v1/charge", &charge).0, 200);
    // The debt is there after a change: acme gets as much more.
    server.reloading(|| replace(&path, rules(", max_keys: 1000, shares: {weights: {x: 3}}")));
    let got = admitted(&server, &demands, 0, 1);
    assert!((700..=900).contains(&(got[0] - got[1])), "{got:?}");
    let to = rules(", max_keys: 1000, shares: {weights: {acme: 3}}");
    server.reloading(|| replace(&path, to));
    let told = server.get("/v1/rules").json();
    assert_eq!(told["limits"][0]["shares"]["weights"], json!({"acme": 3}));
    assert_eq!(told["limits"][0]["max_keys"], 1000);
    let got = admitted(&server, &demands, 3, 2);
    assert!((2_940..=3_060).contains(&got[0]), "{got:?}");
    // Rules that are refused leave the shares as they are.
    server.reloading(|| replace(&path, rules(", shares: {guarantee: {a: 60%, b: 60%}}")));
    let again = admitted(&server, &demands, 1, 2);
    assert!((2_940..=3_060).contains(&again[0]), "{again:?}");
    // Without shares each key has the limit for itself.
    server.reloading(|| replace(&path, rules("")));
    let got = admitted(&server, &demands, 0, 1);
    assert!(got.iter().all(|got| *got >= 2_000), "{got:?}");
}
