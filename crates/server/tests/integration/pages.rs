//! The dashboard as a browser requests it, without a browser (scripts/pages.sh uses one).

mod flow;
use crate::harness;

use std::{io::Read, os::unix::fs::MetadataExt as _, time::Duration};

use harness::{Http, Resp, Response, Running, replace, scratch};
use ring::digest;
use serde_json::{Value, json};
use tidegate_redis_servers::eventually;
use tidegate_server::{Ended, rules};

const RULES: &str = "
limits:
  - {name: per-user, limit: 2/1h, algorithm: sliding-log, max_keys: 100}
  - {name: trial, limit: 1/1h, shadow: true, deny: [eve]}
  - {name: all, limit: 1000/1h, global: true}
";

fn page(server: &Running, path: &str) -> Response {
    Http::connect(server.admin).send("GET", path, "")
}

#[test]
fn no_page_loads_anything_from_elsewhere_and_the_data_plane_has_no_pages() {
    let server = Running::with_rules("pages-policy", RULES);
    let mut assets = 0;
    for path in [
        "/",
        "/limit?name=per-user",
        "/rules",
        "/flow",
        "/assets/ask.js",
        "/assets/page.js",
        "/assets/rules.js",
        "/assets/style.css",
        "/assets/icon.svg",
    ] {
        let response = page(&server, path);
        assert_eq!(response.status, 200, "{path}");
        let policy = response.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(
            !response
                .body
                .replace("http://www.w3.org/2000/svg", "")
                .contains("://"),
            "{path}: {}",
            response.body
        );
        assert!(response.body.len() < 64 * 1024, "{path}");
        if path.starts_with("/assets/") {
            assets += response.body.len();
            assert!(
                response.body.lines().all(|line| line.len() < 200),
                "{path} looks minified"
            );
        }
    }
    assert!(
        assets < 32 * 1024,
        "{assets} bytes; a page has less than 64 KiB beside them"
    );
    assert_eq!(Http::connect(server.http).send("GET", "/", "").status, 404);
}

#[test]
fn the_overview_has_the_most_denied_limits_first_and_can_be_filtered() {
    let server = Running::with_rules("pages-overview", RULES);
    let begun = || server.get("/v1/history?limit=all").json()["end"] == 1_700_049_600;
    eventually("the history has begun", begun);
    assert!(
        page(&server, "/").body.contains("data-head=\"Denied\">–<"),
        "nothing was asked"
    );
    for limit in ["per-user", "trial", "trial", "trial"] {
        server.resp(&format!("ACQUIRE {limit} alice"));
    }
    server.advance(Duration::from_secs(1));
    let body = || page(&server, "/").body;
    eventually("the second is in the page", || {
        body().contains("1 admitted and 2 would have been denied")
    });
    let body = body();
    assert!(body.contains("67 %") && body.contains("0 %"), "{body}");
    assert!(
        body.find("limit?name=trial").unwrap() < body.find("limit?name=per%2Duser").unwrap(),
        "{body}"
    );
    assert!(
        body.contains("3 of 3 limits") && body.contains("alice"),
        "{body}"
    );
    let filtered = page(&server, "/?q=tri").body;
    assert!(
        filtered.contains("1 of 3 limits") && !filtered.contains("per-user"),
        "{filtered}"
    );
}

#[test]
fn a_thousand_limits_are_shown_by_pages_in_the_order_that_is_asked_for() {
    let limit = |at| format!("  - {{name: limit-{at:04}, limit: 50000000/1h}}\n");
    let rules: String = std::iter::once("limits:\n".to_owned())
        .chain((0..1_000).map(limit))
        .collect();
    let server = Running::with_rules("pages-many", &rules);
    for (limit, keys) in [("limit-0400", 2), ("limit-0900", 1_200)] {
        for key in 0..keys {
            server.resp(&format!("ACQUIRE {limit} key-{key}"));
        }
    }
    let names = |path: &str| -> Vec<String> {
        let body = page(&server, path).body;
        let rows = body.split("id=\"limit-limit%2D").skip(1);
        rows.map(|row| row.chars().take(4).collect()).collect()
    };
    let first: Vec<String> = (0..25).map(|at| format!("{at:04}")).collect();
    assert_eq!(names("/?sort=file"), first);
    assert_eq!(names("/?sort=keys")[..3], ["0900", "0400", "0000"]);
    assert_eq!(names("/?sort=file&page=40").last().unwrap(), "0999");
    assert_eq!(
        names("/?sort=file&page=9999").last().unwrap(),
        "0999",
        "the last page"
    );
    let body = page(&server, "/?q=limit-0&sort=keys").body;
    assert!(
        body.contains("1,000 of 1,000 limits") && body.contains("Page 1 of 40"),
        "{body}"
    );
    assert!(
        body.contains("href=\"/?q=limit%2D0&amp;sort=keys&amp;page=2\""),
        "{body}"
    );
    assert!(body.contains("1,200"), "{body}");
    // What an open page gets each second.
    let mut live = Http::connect(server.admin);
    live.write(
        b"GET /live?q=&sort=keys&page=1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    );
    let (mut seen, mut bytes) = (Vec::new(), [0; 4096]);
    while !seen.ends_with(b"\n\n\r\n") {
        let read = live.stream().read(&mut bytes).unwrap();
        seen.extend_from_slice(&bytes[..read]);
    }
    assert!(
        (5_000..30_000).contains(&seen.len()),
        "{} bytes",
        seen.len()
    );
}

#[test]
fn charts_have_the_reasons_of_denials_the_limit_and_what_happened() {
    let rules = "limits: [{name: per-user, limit: 2/1h, algorithm: sliding-log}, {name: other, limit: 1/1h}]";
    let server = Running::with_rules_and("pages-reasons", rules, |options| {
        options.trace_keys = Some("100%".parse().unwrap());
    });
    let end = |end: u64| server.get("/v1/history?limit=other").json()["end"] == end;
    eventually("the history has begun", || end(1_700_049_600));
    let acquire = || server.post("/v1/acquire", r#"{"limit":"per-user","key":"eve"}"#);
    for _ in 0..5 {
        acquire();
    }
    let post = |path: &str, body: &str| server.post(path, body);
    let block = r#"{"limit":"per-user","key":"eve","note":"<b>"}"#;
    assert_eq!(post("/v1/block", block).status, 200);
    acquire();
    for (body, status) in [
        (r#"{"note":"shop 1.4 deployed"}"#, 200),
        (r#"{"note":"another limit","limit":"other"}"#, 200),
        (r#"{"note":"x","limit":"nobody"}"#, 404),
        (r#"{"note":" "}"#, 400),
        (r#"{"text":"x"}"#, 400),
    ] {
        assert_eq!(post("/v1/mark", body).status, status, "{body}");
    }
    assert_eq!(
        post("/v1/mark", &format!(r#"{{"note":"{}"}}"#, "x".repeat(201))).status,
        400
    );
    server.advance(Duration::from_secs(5));
    eventually("the seconds have been looked at", || end(1_700_049_605));
    let reasons = [
        "admitted 2",
        "denied, above the limit: 3",
        "denied, blocked: 1",
    ];
    let happened = [
        "block eve in per-user, by local client: &lt;b&gt;",
        "shop 1.4 deployed, by local client",
        "this server started",
    ];
    let key = page(&server, "/limit?name=per-user&key=eve").body;
    let (of_key, of_all) = key.split_once("All keys, last 3 minutes").unwrap();
    assert!(
        of_key.contains("eve, last 15 minutes (UTC): 2 admitted, 4 denied")
            && of_key.contains("limit 2/1h (2/h)"),
        "{of_key}"
    );
    let overview = page(&server, "/").body;
    for words in reasons.iter().chain(&happened) {
        for body in [of_key, of_all, &overview] {
            assert!(body.contains(words), "{words} in {body}");
        }
    }
    assert!(overview.contains("another limit in other") && !key.contains("another limit"));
    // A limit of each key does not hold for all of them together.
    assert!(!of_all.contains("limit 2/1h"), "{of_all}");
    let stranger = page(&server, "/limit?name=per-user&key=bob").body;
    assert!(
        !stranger.contains("block eve in per-user, by local client: &lt;b&gt;; ")
            && stranger.contains("bob, last 15 minutes (UTC): 0 admitted, 0 denied"),
        "{stranger}"
    );
    let untraced = Running::with_rules("pages-untraced", rules);
    let body = page(&untraced, "/limit?name=per-user&key=eve").body;
    assert!(body.contains("--trace-keys"), "{body}");
}

#[test]
fn seconds_that_share_a_bar_of_a_chart_are_added_up() {
    let server = Running::with_rules("pages-chart", RULES);
    let reaches = |second: u64| {
        let end = || server.get("/v1/history?limit=all").json()["end"] == 1_700_049_600 + second;
        eventually("the history goes on", end);
    };
    reaches(0);
    for second in 1..=2 {
        server.resp("ACQUIRE all x");
        server.advance(Duration::from_secs(1));
        reaches(second);
    }
    let body = page(&server, "/limit?name=all").body;
    assert!(
        body.contains("all, last 3 minutes (UTC): 2 admitted, 0 denied")
            && body.contains(r#"class="admitted" d="M0 120h178v-120h2V120z""#),
        "{body}"
    );
    // Of more minutes, a bar has five seconds that begin at a round time.
    server.advance(Duration::from_secs(178));
    reaches(180);
    server.advance(Duration::from_secs(2));
    reaches(182);
    let body = page(&server, "/limit?name=all").body;
    assert!(
        body.contains("all, last 15 minutes (UTC): 2 admitted, 0 denied")
            && body.contains(r#"class="admitted" d="M0 120h144v-120h1v120h35V120z""#),
        "{body}"
    );
    assert!(!body.contains(r#"class="denied" d="#), "{body}");
}

#[test]
fn a_hostile_key_is_only_text() {
    let server = Running::with_rules("pages-hostile", RULES);
    let mut client = Resp::connect(server.resp);
    for key in [
        &b"<script>alert(1)</script>"[..],
        b"a\r\n\r\nevent: x",
        b"\xff\x1b[2J",
        "\u{202e}b\u{2066}".as_bytes(),
        b"\"'&",
    ] {
        let mut frame = format!(
            "*3\r\n$7\r\nACQUIRE\r\n$8\r\nper-user\r\n${}\r\n",
            key.len()
        )
        .into_bytes();
        frame.extend_from_slice(key);
        frame.extend_from_slice(b"\r\n");
        client.send(&frame);
        client.reply();
    }
    let body = page(&server, "/limit?name=per-user").body;
    assert!(
        body.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !body.contains("<script>alert"),
        "{body}"
    );
    assert!(
        !body.contains(['\u{1b}', '\u{202e}', '\u{2066}']) && !body.contains("\nevent: x"),
        "{body}"
    );
    assert!(
        body.contains("a\u{fffd}\u{fffd}\u{fffd}\u{fffd}event: x")
            && body.contains("\u{fffd}b\u{fffd}"),
        "{body}"
    );
    // Buttons exist for the two keys that a request can name.
    assert_eq!(body.matches("action=\"/v1/block\"").count(), 2, "{body}");
}

#[test]
fn the_page_of_a_limit_has_its_keys_its_rule_and_the_state_of_a_key() {
    let server = Running::with_rules("pages-limit", RULES);
    for _ in 0..3 {
        server.resp("ACQUIRE per-user alice+1");
    }
    let body = page(&server, "/limit?name=per-user&key=alice%2B1").body;
    for words in [
        "Most denials",
        "Most requests",
        "3 requests, 1 denial",
        "algorithm: sliding-log",
        "<dd class=\"bad\">denied (quota), remaining 0 of 2</dd>",
        "<dt>unused in</dt><dd>1h</dd>",
        "<title>alice+1 in per-user – Tidegate</title>",
        "Block alice+1 in per-user?",
        "Refund alice+1 in per-user?",
        "Override the quota of alice+1 in per-user?",
    ] {
        assert!(body.contains(words), "{words} in {body}");
    }
    // Only actions that change something are offered.
    assert!(
        !body.contains("End own quota") && !body.contains(">Unblock<"),
        "{body}"
    );
    let own =
        r#"{"limit":"per-user","key":"alice+1","quota":"5/1h","for":"90s","note":"a partner"}"#;
    assert_eq!(server.post("/v1/override", own).status, 200);
    let block = r#"{"limit":"per-user","key":"alice+1","for":"2h","note":"scrapes"}"#;
    assert_eq!(server.post("/v1/block", block).status, 200);
    server.advance(Duration::from_secs(5));
    let body = page(&server, "/limit?name=per-user&key=alice%2B1").body;
    for words in [
        "denied (blocked), remaining 0 of 5",
        "<dt>block</dt><dd>given 5s ago, ends in 2h, by local client: scrapes</dd>",
        "<dt>override</dt><dd>5/1h, given 5s ago, ends in 1m25s, by local client: a partner</dd>",
        "tidegate unblock per-user alice+1",
        "End own quota",
        ">Unblock<",
    ] {
        assert!(body.contains(words), "{words} in {body}");
    }
    // They are the same facts, in the same words, as `tidegate explain` prints.
    let explained = server
        .get("/v1/explain?limit=per-user&key=alice%2B1")
        .json();
    for fact in explained["facts"].as_array().unwrap() {
        let text = fact["text"].as_str().unwrap().replace('"', "&quot;");
        assert!(body.contains(&text), "{text} in {body}");
    }
    let begun = || server.get("/v1/history?limit=all").status == 200;
    eventually("the history has begun", begun);
    let global = page(&server, "/limit?name=all").body;
    assert!(
        global.contains("all, last 3 minutes (UTC)") && !global.contains("Look up"),
        "{global}"
    );
    for (path, why) in [
        ("/limit?name=nobody", "no limit is named `nobody`"),
        ("/limit", "name=..."),
        ("/?x=1", "no field `x`"),
    ] {
        let missing = page(&server, path);
        assert!(
            missing.status == 404 && missing.body.contains(why),
            "{path}: {}",
            missing.body
        );
    }
}

#[test]
fn the_displayed_rules_are_those_in_force() {
    let text = "limits:
        - {name: a, limit: 5/1m, algorithm: token-bucket, burst: 7, overrides: {\"x: y\": {limit: 9/1m}}, deny: [eve, \"a b\"]}
        - {name: b, limit: 100/1h, algorithm: sliding-window, slots: 60, shadow: true, max_keys: 100}
        - {name: c, limit: 3, algorithm: concurrency, global: true}
        - {name: d, limit: 3/1s, sharing: leased, slack: 2s, on_error: closed}";
    let server = Running::with_rules("pages-in-force", text);
    let body = page(&server, "/rules").body;
    let shown = body
        .split("The rules in force\"><code>")
        .nth(1)
        .unwrap()
        .split("</code>")
        .next()
        .unwrap();
    let shown = shown.replace("&quot;", "\"").replace("&amp;", "&");
    assert_eq!(
        rules::parse(&shown).unwrap().limits,
        rules::parse(text).unwrap().limits,
        "{shown}"
    );
}

#[test]
fn rejected_rules_are_shown_with_their_problems_until_they_are_fixed() {
    let mut server = Running::with_rules("pages-rules", RULES);
    let path = std::env::temp_dir().join(format!(
        "tidegate-server-{}-pages-rules/rules.yaml",
        std::process::id()
    ));
    assert!(
        page(&server, "/rules")
            .body
            .contains("deny: [&quot;eve&quot;]")
    );
    assert!(
        page(&server, "/rules")
            .body
            .contains("max_keys: 100}\n  - {name: trial"),
        "the file as it is written"
    );
    server.reloading(|| replace(&path, "limits:\n  - {name: a, limit: 5}\n"));
    let body = page(&server, "/rules").body;
    assert!(
        body.contains("line 2") && body.contains("was rejected") && body.contains("name: per-user"),
        "{body}"
    );
    server.reloading(|| replace(&path, "limits:\n  - {name: a, limit: 5/1s}\n"));
    let body = page(&server, "/rules").body;
    assert!(
        !body.contains("was rejected") && body.contains("name: a\n  limit: 5/1s"),
        "{body}"
    );
}

#[test]
fn pages_that_get_updates_leave_connections_to_operators() {
    let server = Running::with_rules("pages-many", RULES);
    let stream = || {
        let mut page = Http::connect(server.admin);
        page.write(b"GET /live?name=per-user HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut status = [0; 12];
        page.stream().read_exact(&mut status).unwrap();
        (String::from_utf8_lossy(&status).into_owned(), page)
    };
    let mut pages: Vec<_> = (0..100).map(|_| stream()).collect();
    let count = |status: &str| {
        let all = pages.iter();
        all.filter(|(told, _)| told.ends_with(status)).count()
    };
    assert_eq!([count("200"), count("503")], [64, 36]);
    let body = r#"{"limit": "per-user", "key": "somebody"}"#;
    let unblock = Http::connect(server.admin).send("POST", "/v1/unblock", body);
    assert_eq!(unblock.status, 200);
    // A page that is closed makes room for another.
    pages.clear();
    tidegate_redis_servers::eventually("room for a page", || stream().0.ends_with("200"));
}

#[test]
fn a_stream_that_runs_is_no_idle_connection() {
    let server =
        Running::with_rules_and("pages-stream", RULES, |options| options.max_connections = 2);
    let mut page = Http::connect(server.admin);
    page.write(b"GET /live?name=per-user HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut seen = String::new();
    let read_more = |seen: &mut String| {
        let mut bytes = [0; 4096];
        let read = page.stream().read(&mut bytes).unwrap();
        assert_ne!(read, 0, "the stream ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
    };
    while !seen.contains("data: ") {
        read_more(&mut seen);
    }
    // The page has been silent for longest, but it is being written. So each new connection closes
    // the other one.
    for _ in 0..5 {
        assert_eq!(
            Http::connect(server.admin)
                .send("GET", "/v1/rules", "")
                .status,
            200
        );
    }
    server.resp("ACQUIRE per-user somebody");
    while !seen.contains("somebody") {
        read_more(&mut seen);
    }
}

#[test]
fn a_page_that_was_just_loaded_gets_nothing_older_than_itself() {
    let server = Running::with_rules("pages-newer", RULES);
    let first_update = || {
        let mut client = Http::connect(server.admin);
        client.write(b"GET /live?name=per-user&key=late HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut seen = String::new();
        while !seen.contains("data: ") || !seen.ends_with("\n\n\r\n") {
            let mut bytes = [0; 4096];
            let read = client.stream().read(&mut bytes).unwrap();
            assert_ne!(read, 0, "no update: {seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        (seen, client)
    };
    // Another page shows the key, and was last rendered before the block.
    let (before, _page) = first_update();
    assert!(!before.contains("denied (blocked)"), "{before}");
    let body = r#"{"limit": "per-user", "key": "late"}"#;
    let block = Http::connect(server.admin).send("POST", "/v1/block", body);
    assert_eq!(block.status, 200);
    let (after, _page) = first_update();
    assert!(after.contains("denied (blocked)"), "{after}");
}

#[test]
fn a_page_gets_updates_each_second_and_does_not_keep_the_server_from_stopping() {
    let server = Running::with_rules("pages-live", RULES);
    let mut client = Http::connect(server.admin);
    client.write(b"GET /live?name=per-user HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut seen = String::new();
    let mut stream = client.stream();
    let mut read_until = |words: &str, seen: &mut String| {
        while !seen.contains(words) {
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap();
            assert_ne!(read, 0, "it ended without {words}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    };
    read_until("data: ", &mut seen);
    assert!(seen.contains("text/event-stream"), "{seen}");
    server.resp("ACQUIRE per-user somebody");
    read_until("somebody", &mut seen);
    assert_eq!(server.stop(), Ended::Complete);
}

#[test]
fn only_the_servers_own_pages_may_block() {
    let server = Running::with_rules("pages-origin", RULES);
    let block = |host: &str, origin: &str| {
        let mut client = Http::connect(server.admin);
        let body = r#"{"limit":"per-user","key":"eve"}"#;
        let head = format!(
            "POST /v1/block HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.write(head.as_bytes());
        client.read().status
    };
    let own = server.admin.to_string();
    assert_eq!(block(&own, &format!("http://{own}")), 200);
    assert_eq!(block("localhost:8082", "http://localhost:8082"), 200);
    assert_eq!(block("[::1]:8082", "http://[::1]:8082"), 200);
    for (host, origin) in [
        (own.as_str(), "http://evil.example"),
        // A domain name that an attacker makes resolve to this machine.
        ("evil.example:8082", "http://evil.example:8082"),
        (
            "localhost.evil.example:8082",
            "http://localhost.evil.example:8082",
        ),
        (own.as_str(), "null"),
        ("127.0.0.1:8082", "http://127.0.0.1:9999"),
    ] {
        assert_eq!(block(host, origin), 403, "{host} {origin}");
    }
}

#[test]
fn without_credentials_nothing_is_told_or_done_under_a_name_that_nobody_gave() {
    let server = Running::with_rules_and("pages-host", RULES, |options| {
        options.admin_hosts = vec!["limits.internal".to_owned()];
    });
    let ask = |host: &str, request: &str| {
        let mut client = Http::connect(server.admin);
        client.write(
            format!("{request} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n").as_bytes(),
        );
        client.read()
    };
    for request in [
        "GET /",
        "GET /rules",
        "GET /live",
        "GET /metrics",
        "GET /v1/rules",
        "POST /v1/reload",
    ] {
        let refused = ask("evil.example:8082", request);
        assert_eq!(refused.status, 421, "{request}");
        assert!(
            refused
                .body
                .contains("the name `evil.example:8082` with --admin-host"),
            "{}",
            refused.body
        );
    }
    for host in [
        "",
        "127.0.0.1.evil.example:8082",
        "localhost.evil.example",
        "x.limits.internal",
        "limits.internal.",
    ] {
        assert_eq!(ask(host, "GET /metrics").status, 421, "{host}");
    }
    for host in [
        "127.0.0.1",
        "192.0.2.7:8082",
        "[::1]:8082",
        "[2001:db8::1]",
        "localhost",
        "LOCALHOST:1",
        "Limits.Internal:8082",
    ] {
        assert_eq!(ask(host, "GET /").status, 200, "{host}");
        assert_eq!(ask(host, "GET /metrics").status, 200, "{host}");
    }
    // Probes ask by any name, and learn nothing.
    assert_eq!(ask("evil.example", "GET /healthz").status, 200);
    // A page of a name that was given is the server's own.
    let mut client = Http::connect(server.admin);
    let body = r#"{"limit":"per-user","key":"eve"}"#;
    let head = "POST /v1/block HTTP/1.1\r\nhost: limits.internal\r\norigin: http://limits.internal\r\ncontent-length: ";
    client.write(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes());
    assert_eq!(client.read().status, 200);
}

#[test]
fn a_client_that_may_only_observe_sees_no_buttons_and_can_neither_save_rules_nor_override() {
    let path = scratch("pages-roles-access").join("access.yaml");
    let sha256 = |token: &str| {
        let digest = digest::digest(&digest::SHA256, token.as_bytes());
        digest
            .as_ref()
            .iter()
            .fold("sha256:".to_owned(), |text, byte| {
                format!("{text}{byte:02x}")
            })
    };
    let (reads, operates) = (sha256("reads"), sha256("operates"));
    let clients = format!(
        "access:
  - {{name: reader, roles: [observe], tokens: ['{reads}']}}
  - {{name: anna, roles: [operate], tokens: ['{operates}']}}
"
    );
    std::fs::write(&path, clients).unwrap();
    let server = Running::with_rules_and("pages-roles", RULES, |options| {
        options.rules_writable = true;
        options.access = Some(path.clone());
    });
    let ask = |token: &str, method: &str, path: &str, body: &str| {
        let mut client = Http::connect(server.admin);
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}");
        client.write(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        client.read()
    };
    let page = "/limit?name=per-user&key=alice";
    let (seen, operated) = (
        ask("reads", "GET", page, "").body,
        ask("operates", "GET", page, "").body,
    );
    assert!(
        seen.contains("remaining 2 of 2") && operated.contains("remaining 2 of 2"),
        "{seen}"
    );
    for path in ["/v1/block", "/v1/reset", "/v1/refund", "/v1/override"] {
        let action = format!("action=\"{path}\"");
        assert!(
            !seen.contains(&action) && operated.contains(&action),
            "{path}: {seen}"
        );
    }
    let own = r#"{"limit":"per-user","key":"alice","quota":"50/1h"}"#;
    assert_eq!(ask("reads", "POST", "/v1/override", own).status, 403);
    assert_eq!(ask("operates", "POST", "/v1/override", own).status, 200);
    let (seen, operated) = (
        ask("reads", "GET", "/rules", "").body,
        ask("operates", "GET", "/rules", "").body,
    );
    assert!(
        seen.contains("needs the role <code>operate</code>") && !seen.contains("id=\"save\""),
        "{seen}"
    );
    assert!(
        operated.contains("id=\"save\"") && operated.contains("action=\"/v1/reload\""),
        "{operated}"
    );
    // Looking and checking is observing; saving is not.
    let file = ask("reads", "GET", "/v1/rules/file", "").json();
    let version = file["version"].as_str().unwrap();
    let changed = RULES.replace("2/1h", "5/1h");
    assert_eq!(
        ask("reads", "POST", "/v1/rules/check", &changed).status,
        200
    );
    let save = format!("/v1/rules/save?version={version}");
    let refused = ask("reads", "POST", &save, &changed);
    assert!(
        refused.status == 403 && refused.body.contains("needs the role `operate`"),
        "{}",
        refused.body
    );
    assert_eq!(ask("reads", "GET", "/v1/rules/file", "").json(), file);
    let mut live = Http::connect(server.admin);
    let head = "GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer reads\r\n\r\n";
    live.write(head.as_bytes());
    let saved = ask("operates", "POST", &save, &changed);
    assert_eq!(saved.status, 200, "{saved:?}");
    let previous = saved.json()["previous"].as_str().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(previous).unwrap(), RULES);
    assert!(
        ask("reads", "GET", "/rules", "")
            .body
            .contains("Changed here by anna 0s ago.")
    );
    // A page that is open ends with the token that opened it.
    let without = std::fs::read_to_string(&path)
        .unwrap()
        .replace(&reads, &sha256("other"));
    replace(&path, &without);
    let mut seen = String::new();
    live.stream().read_to_string(&mut seen).unwrap();
    assert!(
        seen.contains("text/event-stream") && seen.ends_with("0\r\n\r\n"),
        "{seen}"
    );
    assert_eq!(ask("reads", "GET", "/live", "").status, 401);
}

/// A server whose rules may be changed, and the path of the file.
fn writable(name: &str) -> (Running, std::path::PathBuf) {
    let server = Running::with_rules_and(name, RULES, |options| options.rules_writable = true);
    (
        server,
        std::env::temp_dir().join(format!(
            "tidegate-server-{}-{name}/rules.yaml",
            std::process::id()
        )),
    )
}

fn version(server: &Running) -> String {
    server.get("/v1/rules/file").json()["version"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn rules_are_checked_while_they_are_written() {
    let (server, _) = writable("pages-check");
    let file = server.get("/v1/rules/file").json();
    assert_eq!(
        (&file["text"], &file["writable"]),
        (&RULES.into(), &true.into())
    );
    let check = |text: &str| server.post("/v1/rules/check", text).json();
    let same = check(RULES);
    assert_eq!(
        (&same["limits"], &same["diff"], &same["version"]),
        (&3.into(), &"".into(), &file["version"])
    );
    let changed = check(&RULES.replace("2/1h", "5/1h"));
    let diff = changed["diff"].as_str().unwrap();
    assert!(
        diff.contains("\n-  - {name: per-user, limit: 2/1h")
            && diff.contains("\n+  - {name: per-user, limit: 5/1h"),
        "{diff}"
    );
    assert!(
        !diff.contains("- - {name: trial") && changed["limits"] == 3,
        "{changed}"
    );
    let wrong = check(&RULES.replace("limit: 1/1h", "limit: 1"));
    assert_eq!(
        (&wrong["limits"], &wrong["mistakes"][0]["line"]),
        (&().into(), &4.into())
    );
    assert!(wrong["mistakes"][0]["mend"].is_string(), "{wrong}");
    assert_eq!(check("")["mistakes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_change_is_saved_loaded_and_the_old_file_kept() {
    let (server, path) = writable("pages-save");
    let changed = RULES.replace("2/1h", "5/1h");
    let saved = server.post(
        &format!("/v1/rules/save?version={}", version(&server)),
        &changed,
    );
    assert_eq!(saved.status, 200, "{saved:?}");
    // It is in force when the answer comes.
    assert!(server.resp("PEEK per-user alice").starts_with("[0 5 5"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), changed);
    let previous = saved.json()["previous"].as_str().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(&previous).unwrap(), RULES);
    assert_eq!(saved.json()["version"], version(&server).as_str());
    assert!(page(&server, "/rules").body.contains("Changed here by"));
    assert_eq!(
        std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
        2,
        "nothing else is left there"
    );
    // The file keeps its owner.
    if std::fs::metadata(&path).unwrap().uid() == 0 {
        std::os::unix::fs::chown(&path, Some(12_345), Some(54_321)).unwrap();
        let saved = server.post(
            &format!("/v1/rules/save?version={}", version(&server)),
            &changed,
        );
        let there = std::fs::metadata(&path).unwrap();
        assert_eq!(
            (saved.status, there.uid(), there.gid()),
            (200, 12_345, 54_321),
            "{saved:?}"
        );
    }
    // A link stays a link.
    let real = path.with_file_name("real.yaml");
    std::fs::rename(&path, &real).unwrap();
    std::os::unix::fs::symlink(&real, &path).unwrap();
    let saved = server.post(
        &format!("/v1/rules/save?version={}", version(&server)),
        RULES,
    );
    assert_eq!(saved.status, 200, "{saved:?}");
    assert!(path.is_symlink() && std::fs::read_to_string(&real).unwrap() == RULES);
}

#[test]
fn a_change_that_may_not_be_is_refused_and_leaves_the_file_alone() {
    let (server, path) = writable("pages-refuse");
    let old = version(&server);
    let save = |server: &Running, version: &str, text: &str| {
        let told = server.post(&format!("/v1/rules/save?version={version}"), text);
        (told.status, told.body)
    };
    let (status, body) = save(&server, &old, "limits:\n  - {name: a, limit: 5}\n");
    assert!(status == 422 && body.contains("\"line\":2"), "{body}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), RULES);
    // Somebody else has changed the file meanwhile.
    let theirs = RULES.replace("2/1h", "7/1h");
    std::fs::write(&path, &theirs).unwrap();
    let (status, body) = save(&server, &old, RULES);
    assert!(
        status == 409 && body.contains("has changed since you read it"),
        "{body}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), theirs);
    assert_eq!(server.post("/v1/rules/save", RULES).status, 400);
    assert_eq!(
        std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
        1
    );
    let read_only = Running::with_rules("pages-read-only", RULES);
    let (status, body) = save(&read_only, &version(&read_only), RULES);
    assert!(status == 403 && body.contains("--rules-writable"), "{body}");
    assert!(!page(&read_only, "/rules").body.contains("id=\"save\""));
    assert!(page(&server, "/rules").body.contains("id=\"save\""));
}

#[test]
fn a_limit_shows_how_long_its_decisions_took() {
    let server = Running::with_rules("pages-latency", RULES);
    let begun = || server.get("/v1/history?limit=all").json()["end"] == 1_700_049_600;
    eventually("the history has begun", begun);
    server.resp("ACQUIRE per-user alice");
    server.advance(Duration::from_secs(1));
    let shown = || {
        page(&server, "/limit?name=per-user")
            .body
            .contains("Time for a decision, 1 of the last 15 minutes: half within")
    };
    eventually("the second is in the page", shown);
}

#[test]
fn a_saved_file_keeps_its_owner_and_its_mode() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    let server = Running::with_rules_and("pages-owner", RULES, |options| {
        options.rules_writable = true;
    });
    let file = server.get("/v1/rules/file").json();
    let path = std::path::PathBuf::from(file["path"].as_str().unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    if chown(&path, Some(12_345), Some(23_456)).is_err() {
        // Only root may give files away.
        return;
    }
    let save = format!(
        "/v1/rules/save?version={}",
        file["version"].as_str().unwrap()
    );
    let saved = server.post(&save, &RULES.replace("2/1h", "5/1h"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let there = std::fs::metadata(&path).unwrap();
    assert_eq!(
        (there.uid(), there.gid(), there.mode() & 0o777),
        (12_345, 23_456, 0o640)
    );
}

#[test]
fn the_overview_shows_who_is_denied_and_why() {
    let rules = "limits:
  - {name: logins, limit: 1/1h, algorithm: sliding-log, deny: [mallory]}
  - {name: search, limit: 1/1s, algorithm: sliding-log}
  - {name: trial, limit: 1/1h, algorithm: sliding-log, shadow: true}
";
    let server = Running::with_rules("pages-denied", rules);
    assert!(!page(&server, "/").body.contains("Denied now"));
    // A partner with the most requests, all admitted, does not hide those who are denied.
    for (limit, key, times) in [
        ("logins", "mallory", 9),
        ("logins", "eve", 7),
        ("search", "robot", 5),
        ("trial", "bob", 3),
        ("search", "<b>", 3),
    ] {
        (0..times).for_each(|_| drop(server.resp(&format!("ACQUIRE {limit} {key}"))));
    }
    for second in 0..20 {
        server.advance(Duration::from_secs(1));
        assert_eq!(
            server.resp(&format!("PEEK search partner-{second}")),
            "[0 1 1 -1 0]"
        );
        server.resp("ACQUIRE search partner");
    }
    let denied = server.get("/v1/denied?n=4").json();
    let of = |key: &Value| {
        (
            key["limit_name"].clone(),
            key["key"].clone(),
            key["count"].clone(),
            key["denied"].clone(),
            key["reason"].clone(),
        )
    };
    let keys: Vec<_> = denied["keys"].as_array().unwrap().iter().map(of).collect();
    assert_eq!(
        keys,
        [
            (
                json!("logins"),
                json!("mallory"),
                json!(9),
                json!(true),
                json!("deny-listed")
            ),
            (
                json!("logins"),
                json!("eve"),
                json!(6),
                json!(true),
                json!("quota")
            ),
            (
                json!("search"),
                json!("robot"),
                json!(4),
                json!(false),
                json!(null)
            ),
            (
                json!("search"),
                json!("<b>"),
                json!(2),
                json!(false),
                json!(null)
            ),
        ]
    );
    let body = page(&server, "/").body;
    let section = &body[body.find("Denied now").expect("the section")
        ..body.find("class=\"limits\"").expect("the limits")];
    for words in [
        "mallory",
        "denied: deny-listed",
        "eve",
        "denied: quota",
        "robot",
        "admitted",
        "&lt;b&gt;",
        "shadow: lets all pass",
        "Block eve in logins?",
        "/limit?name=logins&amp;key=eve",
    ] {
        assert!(section.contains(words), "{words} in {section}");
    }
    assert!(
        section.contains("a block does not help: it is on the deny list")
            && !section.contains("Block mallory in logins?"),
        "{section}"
    );
    // The page of a limit offers no other remedy than the overview.
    let logins = page(&server, "/limit?name=logins").body;
    assert!(
        logins.contains("a block does not help: it is on the deny list")
            && logins.contains("Block eve in logins?")
            && !logins.contains("Block mallory in logins?"),
        "{logins}"
    );
    let block = r#"{"limit":"logins","key":"eve"}"#;
    assert_eq!(server.post("/v1/block", block).status, 200);
    for path in ["/", "/limit?name=logins"] {
        let body = page(&server, path).body;
        assert!(body.contains("Unblock eve in logins?"), "{path}: {body}");
    }
    assert!(!section.contains("partner"), "{section}");
    // The filter of the page applies, and a client without the right to block has no buttons.
    let filtered = page(&server, "/?q=search").body;
    assert!(
        filtered.contains("robot") && !filtered.contains("mallory"),
        "{filtered}"
    );
}

#[test]
fn every_page_shows_what_is_wrong_with_the_server_since_when_and_what_helps() {
    let mut server = Running::with_rules("pages-state", RULES);
    let path = std::env::temp_dir().join(format!(
        "tidegate-server-{}-pages-state/rules.yaml",
        std::process::id()
    ));
    let paths = [
        "/",
        "/limit?name=per-user",
        "/orders",
        "/rules",
        "/flow",
        "/audit",
        "/servers",
        "/nowhere",
    ];
    for path in paths.iter().filter(|path| **path != "/nowhere") {
        let body = page(&server, path).body;
        assert!(
            body.contains("no store · rules in force · clock steady")
                && !body.contains("data-condition"),
            "{path}: {body}"
        );
    }
    server.reloading(|| replace(&path, "limits:\n  - {name: a, limit: 5}\n"));
    eventually("the condition is seen", || {
        page(&server, "/").body.contains("data-condition=\"rules\"")
    });
    server.advance(Duration::from_secs(90));
    for path in paths.iter().filter(|path| **path != "/nowhere") {
        let body = page(&server, path).body;
        for words in [
            "class=\"condition warns\"",
            "the rules were rejected: ",
            "line 2",
            "since 1m30s ago",
            "Effect: the previous rules stay active",
            "Remedy: correct the file",
        ] {
            assert!(body.contains(words), "{path}: {words} in {body}");
        }
    }
    let limits = server.get("/v1/limits").json();
    assert_eq!(limits["conditions"][0]["name"], "rules");
    assert_eq!(limits["conditions"][0]["is_wrong"], false);
    server.reloading(|| replace(&path, RULES));
    eventually("the condition is over", || {
        !page(&server, "/").body.contains("data-condition")
    });
}

#[test]
fn a_page_lists_blocks_and_overrides_with_a_filter_and_buttons_that_end_them() {
    let server = Running::with_rules("pages-orders", RULES);
    for (path, body) in [
        (
            "/v1/block",
            r#"{"limit":"per-user","key":"eve","for":"1h","note":"<floods>"}"#,
        ),
        ("/v1/block", r#"{"limit":"trial","key":"bob"}"#),
        (
            "/v1/override",
            r#"{"limit":"per-user","key":"vip","quota":"9/1h"}"#,
        ),
    ] {
        assert_eq!(server.post(path, body).status, 200, "{body}");
    }
    let body = page(&server, "/orders").body;
    for words in [
        "Blocks (2)",
        "Overrides (1)",
        "in 1h",
        "when it is ended",
        "local client",
        "&lt;floods&gt;",
        "9/1h",
        "href=\"/limit?name=per%2Duser&amp;key=eve\"",
        "Unblock eve in per-user?",
        "End own quota of vip in per-user?",
    ] {
        assert!(body.contains(words), "{words} in {body}");
    }
    let filtered = page(&server, "/orders?q=bo").body;
    assert!(
        filtered.contains("Blocks (1)") && filtered.contains("Overrides (0)"),
        "{filtered}"
    );
    // Undo gives the block again, with what is left of its time and with its note.
    let undo = body
        .split("data-undo=\"")
        .skip(1)
        .find(|undo| undo.contains("floods"))
        .unwrap();
    let undo = undo.split('"').next().unwrap().replace("&quot;", "\"");
    let undo: Value =
        serde_json::from_str(&undo.replace("&lt;", "<").replace("&gt;", ">")).unwrap();
    assert_eq!(undo["path"], "/v1/block");
    assert_eq!(
        undo["fields"],
        json!({"limit": "per-user", "key": "eve", "for": "3600000ms", "note": "<floods>"})
    );
    let audit = page(&server, "/audit").body;
    assert!(
        audit.contains("href=\"/limit?name=per%2Duser&amp;key=vip\""),
        "{audit}"
    );
}

#[test]
fn pages_and_updates_are_compressed_for_a_client_that_accepts_it() {
    let server = Running::with_rules("pages-gzip", RULES);
    for (path, accept, compressed) in [
        ("/", "gzip, deflate", true),
        ("/", "gzip;q=0", false),
        ("/", "br", false),
        ("/assets/page.js", "GZIP", true),
        ("/live", "gzip", true),
        ("/live", "identity", false),
    ] {
        let mut client = Http::connect(server.admin);
        client.write(
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept-encoding: {accept}\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        );
        let mut head = Vec::new();
        while !head.windows(4).any(|four| four == b"\r\n\r\n") {
            let mut bytes = [0; 256];
            let read = client.stream().read(&mut bytes).unwrap();
            assert_ne!(read, 0);
            head.extend_from_slice(&bytes[..read]);
        }
        let head = String::from_utf8_lossy(&head);
        assert_eq!(
            head.contains("content-encoding: gzip"),
            compressed,
            "{path} {accept}: {head}"
        );
    }
}
