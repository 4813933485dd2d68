//! Holds, and the recipes without Lua: Envoy asks with an estimate, reads the tokens of a stream
//! itself, and reports them.

use serde_json::{Value, json};
use tidegate_redis_servers::eventually;

use crate::{
    envoy::{Envoy, program, route, typed},
    program::Serving,
    rls::{filter, grpc, own, serving_config},
    web::{Client, backend},
};

const CONFIG: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10, hold: 5m, on_expiry: release}}
  - {key: short, rate_limit: {unit: year, requests_per_unit: 20, hold: 2s, on_expiry: release}}
  - {key: logins, rate_limit: {unit: year, requests_per_unit: 3, hold: 5m}}
  - {key: learnt, rate_limit: {unit: year, requests_per_unit: 1000, hold: 5m, estimate: p50}}
  - key: agent
    descriptors:
      - {key: tool, value: search, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: tool, rate_limit: {unit: year, requests_per_unit: 1}}
";

fn serving(name: &str) -> Serving {
    serving_config(name, CONFIG, &["--grpc", "127.0.0.1:0"])
}

/// The units left of a user's limit.
fn left(server: &Serving, limit: &str, user: &str) -> u64 {
    let answer = server.ask(&format!("PEEK shop.{limit} {user}"));
    let numbers: Vec<u64> = answer
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    // The length of the reply, whether it denies, the limit, and what remains.
    numbers[3]
}

/// Reads the tokens in the last event of a stream, without Lua.
fn sse_to_metadata() -> Value {
    let parser = typed(
        "content_parsers.json.v3.JsonContentParser",
        json!({ "rules": [{ "rule": {
            "selectors": [{ "key": "usage" }, { "key": "total_tokens" }],
            "on_present": { "metadata_namespace": "envoy.ai", "key": "total_tokens", "type": "NUMBER" },
        } }] }),
    );
    let message = typed(
        "filters.http.sse_to_metadata.v3.SseToMetadata",
        json!({ "response_rules": { "content_parser": { "name": "envoy.content_parsers.json", "typed_config": parser } } }),
    );
    json!({ "name": "envoy.filters.http.sse_to_metadata", "typed_config": message })
}

/// A route that asks with these hits, and reports the tokens of the stream.
fn held(prefix: &str, key: &str, hits: &Value) -> Value {
    let user = json!({ "request_headers": { "header_name": "x-user", "descriptor_key": key } });
    let id = json!({ "request_headers": { "header_name": "x-request-id", "descriptor_key": "hold_id" } });
    let report =
        json!({ "generic_key": { "descriptor_key": "hold_report", "descriptor_value": "1" } });
    let tokens = json!({ "format": "%DYNAMIC_METADATA(envoy.ai:total_tokens)%" });
    let limits = json!([
        { "actions": [user, id], "hits_addend": hits },
        { "actions": [user, id, report], "hits_addend": tokens, "apply_on_stream_done": true },
    ]);
    route(prefix, own(&limits))
}

/// 1 for an answer with status 401, and 0 for any other one. A group that did not match is empty.
fn failed_to_metadata() -> Value {
    let rule = json!({
        "header": ":status",
        "on_header_present": {
            "metadata_namespace": "logins",
            "key": "failed",
            "type": "NUMBER",
            "regex_value_rewrite": { "pattern": { "regex": "^40(1)$|^.*$" }, "substitution": "0\\1" },
        },
    });
    let message = typed(
        "filters.http.header_to_metadata.v3.Config",
        json!({ "response_rules": [rule] }),
    );
    json!({ "name": "envoy.filters.http.header_to_metadata", "typed_config": message })
}

/// As the gateways do: without entries that say what is what.
fn estimated(prefix: &str, key: &str) -> Value {
    let user = json!({ "request_headers": { "header_name": "x-user", "descriptor_key": key } });
    let tokens = json!({ "format": "%DYNAMIC_METADATA(envoy.ai:total_tokens)%" });
    let limits = json!([
        { "actions": [user], "hits_addend": { "number": 0 } },
        { "actions": [user], "hits_addend": tokens, "apply_on_stream_done": true },
    ]);
    route(prefix, own(&limits))
}

#[test]
fn a_stream_holds_its_estimate_until_its_tokens_are_reported() {
    if program().is_none() {
        return;
    }
    let server = serving("envoy-holds");
    let routes = json!([held("/", "user", &json!({ "number": 6 }))]);
    let filters = json!([filter(&json!({})), sse_to_metadata()]);
    let envoy = Envoy::start("envoy-holds", &filters, &routes, &grpc(&server), backend());
    let mut client = Client::of(envoy.port);
    let ada = ["x-user: ada"];
    let answer = client.get("/chat/2", &ada);
    assert!(
        answer.status == 200 && answer.body.ends_with("data: [DONE]\n\n"),
        "{answer:?}"
    );
    eventually("what was not used is back", || {
        left(&server, "user", "ada") == 8
    });
    // The hold of a running stream leaves too little for another one.
    let mut running = Client::of(envoy.port);
    assert_eq!(running.begin("/endless", &ada), 200);
    assert_eq!(left(&server, "user", "ada"), 2);
    assert_eq!(client.get("/chat/1", &ada).status, 429);
    assert_eq!(client.get("/chat/9", &["x-user: bob"]).status, 200);
    eventually("more was used than held", || {
        left(&server, "user", "bob") == 1
    });
    assert_eq!(
        left(&server, "user", "ada"),
        2,
        "a denied request holds nothing"
    );
    assert_eq!(envoy.stat("ratelimit.error"), 0);
}

#[test]
fn gateways_that_name_no_estimate_hold_what_was_used_before() {
    if program().is_none() {
        return;
    }
    let server = serving("envoy-learnt");
    let routes = json!([estimated("/", "learnt")]);
    let filters = json!([filter(&json!({})), sse_to_metadata()]);
    let envoy = Envoy::start("envoy-learnt", &filters, &routes, &grpc(&server), backend());
    let mut client = Client::of(envoy.port);
    for asked in 1..=8 {
        assert_eq!(client.get("/chat/50", &["x-user: ada"]).status, 200);
        eventually("it is reported", || {
            left(&server, "learnt", "ada") == 1_000 - 50 * asked
        });
    }
    let mut running = Client::of(envoy.port);
    assert_eq!(running.begin("/endless", &["x-user: ada"]), 200);
    assert_eq!(left(&server, "learnt", "ada"), 550, "the ninth holds 50");
}

/// The recipe of the book: each login takes a unit, and gets it back unless it failed.
#[test]
fn only_failed_logins_count() {
    if program().is_none() {
        return;
    }
    let server = serving("envoy-logins");
    let user =
        json!({ "request_headers": { "header_name": "x-user", "descriptor_key": "logins" } });
    let id = json!({ "request_headers": { "header_name": "x-request-id", "descriptor_key": "hold_id" } });
    let report =
        json!({ "generic_key": { "descriptor_key": "hold_report", "descriptor_value": "1" } });
    let failed = json!({ "format": "%DYNAMIC_METADATA(logins:failed)%" });
    let limits = json!([
        { "actions": [user, id], "hits_addend": { "number": 1 } },
        { "actions": [user, id, report], "hits_addend": failed, "apply_on_stream_done": true },
    ]);
    let routes = json!([route("/", own(&limits))]);
    let filters = json!([filter(&json!({})), failed_to_metadata()]);
    let envoy = Envoy::start("envoy-logins", &filters, &routes, &grpc(&server), backend());
    let mut client = Client::of(envoy.port);
    let ada = ["x-user: ada"];
    let mut expected = 3;
    for (status, failed) in [
        (200, 0),
        (401, 1),
        (403, 0),
        (200, 0),
        (401, 1),
        (302, 0),
        (500, 0),
    ] {
        assert_eq!(client.get(&format!("/login/{status}"), &ada).status, status);
        expected -= failed;
        eventually("the outcome is reported", || {
            left(&server, "logins", "ada") == expected
        });
    }
    // A login that runs counts until its outcome is known: no other one passes.
    let mut running = Client::of(envoy.port);
    assert_eq!(running.begin("/endless", &ada), 200);
    assert_eq!(client.get("/login/200", &ada).status, 429);
    assert_eq!(client.get("/login/401", &["x-user: bob"]).status, 401);
    drop(running);
    eventually("it has ended", || left(&server, "logins", "ada") == 1);
    assert_eq!(client.get("/login/401", &ada).status, 401);
    eventually("the third has failed", || {
        left(&server, "logins", "ada") == 0
    });
    assert_eq!(client.get("/login/200", &ada).status, 429);
    assert_eq!(envoy.stat("ratelimit.error"), 0);
}

/// Twenty streams, or a thousand in the long run, hold the whole budget when their Envoy dies.
#[test]
fn a_killed_envoys_holds_end_after_their_time() {
    if program().is_none() {
        return;
    }
    let server = serving("envoy-dies");
    let routes = json!([held("/", "short", &json!({ "number": 1 }))]);
    let filters = json!([filter(&json!({})), sse_to_metadata()]);
    let backend = backend();
    let kills = if std::env::var_os("TIDEGATE_LONG").is_some() {
        50
    } else {
        2
    };
    for kill in 0..kills {
        let envoy = Envoy::start(
            &format!("envoy-dies-{kill}"),
            &filters,
            &routes,
            &grpc(&server),
            backend,
        );
        let mut streams: Vec<Client> = (0..20).map(|_| Client::of(envoy.port)).collect();
        for stream in &mut streams {
            assert_eq!(stream.begin("/endless", &["x-user: ada"]), 200);
        }
        drop(envoy);
        eventually("nothing is held any longer", || {
            left(&server, "short", "ada") == 20
        });
    }
}

/// The tools of MCP by agent and tool: Envoy reads the name of the tool out of the request.
#[test]
fn calls_of_tools_have_limits_by_agent_and_tool() {
    if program().is_none() {
        return;
    }
    let server = serving("envoy-mcp");
    let tool = json!({ "metadata": {
        "descriptor_key": "tool",
        "metadata_key": { "key": "envoy.filters.http.mcp", "path": [{ "key": "params" }, { "key": "name" }] },
        "source": "DYNAMIC",
    } });
    let agent =
        json!({ "request_headers": { "header_name": "x-agent", "descriptor_key": "agent" } });
    let routes = json!([route("/", own(&json!([{ "actions": [agent, tool] }])))]);
    let mcp = json!({ "name": "envoy.filters.http.mcp", "typed_config": typed("filters.http.mcp.v3.Mcp", json!({})) });
    let filters = json!([mcp, filter(&json!({}))]);
    let envoy = Envoy::start("envoy-mcp", &filters, &routes, &grpc(&server), backend());
    let mut client = Client::of(envoy.port);
    let mut call = |agent: &str, method: &str, tool: &str| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "name": tool, "arguments": {} } });
        let fields = [
            &*format!("x-agent: {agent}"),
            "accept: application/json, text/event-stream",
        ];
        client.post("/mcp", &fields, &body.to_string()).status
    };
    assert_eq!(
        [(); 3].map(|()| call("a", "tools/call", "search")),
        [200, 200, 429]
    );
    assert_eq!(
        [(); 2].map(|()| call("a", "tools/call", "write")),
        [200, 429]
    );
    assert_eq!(call("b", "tools/call", "search"), 200);
    assert_eq!([(); 3].map(|()| call("c", "tools/list", "")), [200; 3]);
    assert_eq!(envoy.stat("ratelimit.error"), 0);
}
