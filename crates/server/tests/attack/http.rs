//! HTTP clients that occupy slots, send slowly, never read, or send ambiguous requests.

use std::{io::Write, time::Duration};

use serde_json::json;
use tidegate_server::{Ended, http::MAX_BODY};

use crate::{
    RULES,
    harness::{Http, Running},
};

const ASK: &str = r#"{"limit":"per-user","key":"alice"}"#;

#[test]
fn health_checks_are_answered_when_all_slots_are_taken_and_operators_have_separate_slots() {
    let server =
        Running::with_rules_and("attack-slots", RULES, |options| options.max_connections = 2);
    let mut busy = [Http::connect(server.http), Http::connect(server.http)];
    for http in &mut busy {
        // The server waits for the body, so the request is in progress.
        http.begin("/v1/acquire", ASK.len());
    }
    for path in ["/healthz", "/readyz", "/metrics", "/v1/rules"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(
        server
            .post("/v1/block", r#"{"limit":"per-user","key":"mallory"}"#)
            .status,
        200
    );
    assert_eq!(
        server
            .post("/v1/unblock", r#"{"limit":"per-user","key":"mallory"}"#)
            .status,
        200
    );
    let refused = server.post("/v1/acquire", ASK);
    assert_eq!(
        (refused.status, refused.header("connection")),
        (503, Some("close"))
    );
    assert!(
        refused.body.contains("raise --max-connections"),
        "{}",
        refused.body
    );
    // More than there are spare slots: those that ask nothing give way.
    let _idle: Vec<_> = (0..40).map(|_| Http::connect(server.http)).collect();
    assert_eq!(server.get("/healthz").status, 200);
    assert!(server.metric(r#"tidegate_connections_evicted_total{protocol="http"}"#) >= 8);
    for http in &mut busy {
        http.write(ASK.as_bytes());
        assert_eq!(http.read().status, 200, "who was there first is served");
    }
    assert_eq!(
        server.post("/v1/acquire", ASK).status,
        200,
        "one of them gives way for full service"
    );
}

#[test]
fn the_http_connection_that_was_idle_longest_is_closed_for_a_new_one() {
    let server =
        Running::with_rules_and("attack-idle", RULES, |options| options.max_connections = 2);
    let [mut one, mut two] = [Http::connect(server.http), Http::connect(server.http)];
    for http in [&mut one, &mut two] {
        assert_eq!(http.send("POST", "/v1/peek", ASK).status, 200);
    }
    assert_eq!(one.send("POST", "/v1/peek", ASK).status, 200);
    let mut three = Http::connect(server.http);
    assert_eq!(three.send("POST", "/v1/peek", ASK).status, 200);
    assert!(two.ends());
    assert_eq!(one.send("POST", "/v1/peek", ASK).status, 200);
    assert_eq!(
        server.metric(r#"tidegate_connections_evicted_total{protocol="http"}"#),
        1,
        "the metrics have separate slots"
    );
}

#[test]
fn slowly_sent_heads_keep_no_client_out() {
    let server =
        Running::with_rules_and("attack-loris", RULES, |options| options.max_connections = 8);
    let mut slow: Vec<_> = (0..40).map(|_| Http::connect(server.http)).collect();
    for http in &mut slow {
        // Connections that were already closed no longer accept it.
        let _ = http.try_write(b"POST /v1/acquire HTTP/1.1\r\nhost: a\r\nx-slow: ");
    }
    for _ in 0..3 {
        assert_eq!(server.post("/v1/peek", ASK).status, 200);
    }
}

#[test]
fn a_client_that_never_reads_loses_its_connection_and_does_not_delay_the_stop() {
    let server = Running::with_rules_and("attack-unread", RULES, |options| {
        options.http_write_timeout = Duration::from_millis(200);
        options.grace = Duration::from_mins(1);
    });
    let http = Http::connect(server.http);
    let mut stream = http.stream().try_clone().unwrap();
    stream
        .set_write_timeout(Some(crate::harness::PATIENCE))
        .unwrap();
    let asking = b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n".repeat(100);
    // Eventually the server resets the connection, and writes fail.
    let written = (0..100_000)
        .find_map(|_| stream.write_all(&asking).err())
        .expect("the server took everything");
    assert!(
        matches!(
            written.kind(),
            std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe
        ),
        "{written}"
    );
    assert_eq!(server.stop(), Ended::Complete);
}

#[test]
fn a_body_with_a_declared_length_above_the_bound_is_refused_before_it_is_read() {
    let server = Running::with_rules("attack-continue", RULES);
    let mut http = Http::connect(server.http);
    let length = MAX_BODY + 1;
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    );
    http.write(head.as_bytes());
    assert_eq!(http.read().status, 413, "not 100");
}

#[test]
fn a_request_needs_one_host_field() {
    let server = Running::with_rules("attack-host", RULES);
    let status = |head: &str| {
        let mut http = Http::connect(server.http);
        http.write(format!("{head}\r\n\r\n").as_bytes());
        http.read().status
    };
    assert_eq!(status("GET /healthz HTTP/1.1"), 400);
    assert_eq!(status("GET /nowhere HTTP/1.1"), 400);
    assert_eq!(status("GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b"), 400);
    assert_eq!(status("GET /healthz HTTP/1.1\r\nhost: a"), 200);
    assert_eq!(status("GET /healthz HTTP/1.0"), 200);
}

#[test]
fn a_field_given_twice_is_refused() {
    let server = Running::with_rules("attack-twice", RULES);
    let twice = server.post(
        "/v1/acquire",
        r#"{"limit":"per-user","key":"alice","key":"mallory"}"#,
    );
    assert_eq!(twice.status, 400);
    assert!(
        twice.body.contains("duplicate field `key`"),
        "{}",
        twice.body
    );
    let nested = server.post(
        "/v1/acquire",
        r#"{"all":[{"limit":"per-user","key":"a","cost":1,"cost":0}]}"#,
    );
    assert_eq!(nested.status, 400);
    assert_eq!(
        server.metric(r#"tidegate_decisions_total{limit="per-user",outcome="allowed"}"#),
        0
    );
}

#[test]
fn a_web_page_may_send_requests_only_if_its_origin_is_allowed() {
    let server = Running::with_rules_and("attack-origin", RULES, |options| {
        options.http_origins = vec!["https://ops.example.com".to_owned()];
    });
    let ask = |fields: &str| {
        let mut http = Http::connect(server.http);
        let length = ASK.len();
        http.write(
            format!("POST /v1/peek HTTP/1.1\r\n{fields}\r\ncontent-length: {length}\r\n\r\n{ASK}")
                .as_bytes(),
        );
        http.read().status
    };
    // A page whose domain name resolves to this machine (DNS rebinding) sends that name as Host,
    // too.
    assert_eq!(
        ask("host: evil.example\r\norigin: http://evil.example"),
        403
    );
    assert_eq!(
        ask(&format!("host: {0}\r\norigin: http://{0}", server.http)),
        403
    );
    assert_eq!(ask("host: a\r\norigin: null"), 403);
    assert_eq!(
        ask("host: a\r\norigin: https://ops.example.com\r\norigin: http://evil.example"),
        403
    );
    assert_eq!(ask("host: a\r\norigin: https://ops.example.com"), 200);
    assert_eq!(ask("host: a"), 200);
}

#[test]
fn an_image_on_a_foreign_page_takes_nothing() {
    let server = Running::with_rules("attack-image", RULES);
    let ask = |fields: &str| {
        let mut http = Http::connect(server.http);
        http.write(
            format!("GET /v1/check/per-user?key=boss HTTP/1.1\r\nhost: a\r\n{fields}\r\n")
                .as_bytes(),
        );
        http.read().status
    };
    for site in ["cross-site", "same-site"] {
        assert_eq!(
            ask(&format!(
                "sec-fetch-site: {site}\r\nsec-fetch-mode: no-cors\r\n"
            )),
            403,
            "{site}"
        );
        assert_eq!(
            ask(&format!(
                "sec-fetch-site: {site}\r\nsec-fetch-mode: navigate\r\n"
            )),
            403,
            "{site}"
        );
    }
    assert_eq!(
        server.metric(r#"tidegate_decisions_total{limit="per-user",outcome="allowed"}"#),
        0
    );
    assert_eq!(
        ask("sec-fetch-site: none\r\n"),
        200,
        "typed into the address bar"
    );
    let by_a_proxy = "sec-fetch-site: cross-site\r\nx-forwarded-uri: /cart\r\n";
    assert_eq!(ask(by_a_proxy), 200, "the fields of the proxy's own client");
}

#[test]
fn an_unknown_limit_is_answered_with_the_nearest_names_however_many_there_are() {
    let limits: Vec<_> = (0..900)
        .map(|at| format!("  - {{name: tenant-{at}, limit: 1/1s, max_keys: 4}}\n"))
        .collect();
    let server = Running::with_rules("attack-names", &format!("limits:\n{}", limits.concat()));
    let unknown = server.post("/v1/peek", r#"{"limit":"tenant-7x","key":"a"}"#);
    assert_eq!(unknown.status, 404);
    assert_eq!(
        unknown.json()["nearest_limits"],
        json!(["tenant-7", "tenant-70", "tenant-71"])
    );
    let told = server.resp("PEEK tenant-7x a");
    assert_eq!(
        told,
        "ERR no limit is named `tenant-7x`; the nearest names are: tenant-7, tenant-70, tenant-71"
    );
}

#[test]
fn a_key_or_a_whole_limit_is_reset_and_a_block_stays() {
    let server = Running::with_rules("attack-reset", RULES);
    let use_up =
        |key: &str| (0..3).for_each(|_| drop(server.resp(&format!("ACQUIRE per-user {key}"))));
    let remaining = |key: &str| {
        server
            .resp(&format!("PEEK per-user {key}"))
            .split(' ')
            .nth(2)
            .unwrap()
            .to_owned()
    };
    ["alice", "bob", "eve"].into_iter().for_each(use_up);
    assert_eq!(server.resp("BLOCK per-user eve"), "OK");
    let reset = |body: &str| server.post("/v1/reset", body);
    assert_eq!(
        reset(r#"{"limit":"per-user","key":"alice"}"#).json(),
        json!({"reset": true})
    );
    assert_eq!([remaining("alice"), remaining("bob")], ["3", "0"]);
    assert_eq!(reset(r#"{"limit":"per-user"}"#).status, 200);
    assert_eq!(remaining("bob"), "3");
    assert!(
        server.resp("PEEK per-user eve").starts_with("[1"),
        "blocked"
    );
    assert_eq!(reset(r#"{"limit":"nope"}"#).status, 404);
    assert_eq!(reset(r#"{"limit":"per-user","cost":1}"#).status, 400);
}
