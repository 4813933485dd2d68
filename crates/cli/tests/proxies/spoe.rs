//! SPOE beside what the other listeners have: TLS with rights, limits in a store, limits in shadow
//! mode.

use std::{fs, path::Path, thread};

use tidegate_redis_servers::{Server, eventually};

use crate::{
    certificates::Authority,
    haproxy::{Haproxy, metric, spoe},
    program::{Serving, scratch},
};

/// A request names its limit, and perhaps another one; its key is its user.
const AS_ASKED: &str = "    args   limit=req.hdr(x-limit) key=req.hdr(x-user)
    event  on-frontend-http-request

spoe-message address
    args   limit=req.hdr(x-and) key=req.hdr(x-user)
    event  on-frontend-http-request if { req.hdr(x-and) -m found }
";

impl Haproxy {
    /// The response to a request for this limit.
    fn ask(&self, limit: &str) -> String {
        self.get(&format!("x-user: ada\r\nx-limit: {limit}\r\n"))
    }

    /// The response to a request for two limits.
    fn ask_both(&self, limit: &str, other: &str) -> String {
        self.get(&format!(
            "x-user: ada\r\nx-limit: {limit}\r\nx-and: {other}\r\n"
        ))
    }

    /// How many of this many requests are admitted.
    fn admits(&self, limit: &str, requests: usize) -> usize {
        (0..requests)
            .filter(|_| is_admitted(&self.ask(limit)))
            .count()
    }
}

/// Whether Tidegate admitted a request: HAProxy passes it on as well if there was no decision.
fn is_admitted(answer: &str) -> bool {
    answer.starts_with("http/1.1 200 ") && answer.contains("\r\nratelimit: ")
}

fn is_denied(answer: &str) -> bool {
    answer.starts_with("http/1.1 429 ") && answer.contains("\r\nratelimit: ")
}

/// The reason that the variable `error` gives for a request without a decision, which is passed on.
fn error(answer: &str) -> &str {
    assert!(
        answer.starts_with("http/1.1 200 ") && !answer.contains("\r\nratelimit: "),
        "{answer}"
    );
    answer
        .lines()
        .find_map(|line| line.strip_prefix("x-error: "))
        .unwrap_or_default()
}

fn file(directory: &Path, text: &str) -> String {
    let path = directory.join("file.yaml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn over_tls_the_client_certificate_gives_haproxy_its_rights() {
    let directory = scratch("spoe-tls");
    let [ours, clients, strangers] =
        ["ours", "clients", "strangers"].map(|name| Authority::new(&directory, name));
    let [cert, key] = ours.issue("server", &["localhost"]);
    let rights = "access:
  - {name: edge, roles: [decide], limits: [per-address], certificates: [edge.example]}
  - {name: watcher, roles: [observe], certificates: [watcher.example]}
";
    let access = file(&scratch("spoe-access"), rights);
    let limits =
        "{name: per-address, limit: 3/1h, algorithm: sliding-log}, {name: per-user, limit: 5/1h}";
    let rules = file(&scratch("spoe-tls-rules"), &format!("limits: [{limits}]"));
    let listening = [
        "--spoe",
        "127.0.0.1:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
    ];
    let knowing = [
        "--tls-client-ca",
        &clients.file(),
        "--access",
        &access,
        "--reload-interval",
        "50ms",
    ];
    let server = Serving::with(&[&["--rules", &rules], &listening[..], &knowing].concat());
    let tls = format!(
        "{} ssl verify required ca-file {} verifyhost localhost",
        spoe(&server),
        ours.file()
    );
    // A file with a certificate for this name and its key, as HAProxy reads it.
    let shown = |authority: &Authority, name: &str| {
        let [cert, key] = authority.issue(name, &[&format!("{name}.example")]);
        let [cert, key] = [cert, key].map(|file| fs::read_to_string(file).unwrap());
        let both = directory.join(format!("{}-{name}.both", authority.name));
        fs::write(&both, cert + &key).unwrap();
        both.to_str().unwrap().to_owned()
    };
    let shows = |name: &str| {
        let tls = format!("{tls} crt {}", shown(&clients, name));
        Haproxy::patient(&tls, &format!("spoe-{name}"), AS_ASKED)
    };

    let edge = shows("edge");
    assert_eq!(edge.admits("per-address", 2), 2);
    for told in [
        edge.ask("per-user"),
        edge.ask_both("per-address", "per-user"),
    ] {
        assert_eq!(error(&told), "edge may not use the limit `per-user`");
    }
    // What was refused was not charged.
    let answer = edge.ask("per-address");
    assert!(
        is_admitted(&answer) && answer.contains("\"per-address\";r=0;"),
        "{answer}"
    );
    assert!(is_denied(&edge.ask("per-address")));

    let watcher = shows("watcher");
    let no_role = "watcher may not ask for decisions: it needs the role `decide`";
    assert_eq!(error(&watcher.ask("per-user")), no_role);
    let unknown = "the connection needs a client certificate that the server knows";
    assert_eq!(error(&shows("unnamed").ask("per-user")), unknown);
    assert_eq!(
        error(&Haproxy::patient(&tls, "spoe-nameless", AS_ASKED).ask("per-user")),
        unknown
    );
    // Another authority's certificate, and no TLS at all: there is no connection that could say
    // why.
    let (cert, plain) = (shown(&strangers, "edge"), spoe(&server));
    for (tidegate, name) in [
        (format!("{tls} crt {cert}"), "spoe-stranger"),
        (plain, "spoe-plain"),
    ] {
        assert_eq!(
            error(&Haproxy::before(&tidegate, name, Some(AS_ASKED), "").ask("per-user")),
            ""
        );
    }

    // Connections stay open, and have the rights of the file as it is now.
    fs::write(
        &access,
        rights
            .replace("edge.example", "old.example")
            .replace("observe", "decide"),
    )
    .unwrap();
    eventually("the watcher may decide", || {
        is_admitted(&watcher.ask("per-user"))
    });
    assert_eq!(error(&edge.ask("per-address")), unknown);
}

/// The windows do not end within a test.
const SHARED: &str = "limits:
  - {name: exact, limit: 6/1h, algorithm: sliding-log}
  - {name: leased, limit: 400/1h, algorithm: sliding-log, sharing: leased}
  - {name: trial, limit: 1/1h, algorithm: sliding-log, shadow: true}
  - {name: opens, limit: 2/1h, algorithm: sliding-log, on_error: open}
  - {name: closes, limit: 9/1h, algorithm: sliding-log, on_error: closed}
  - {name: leased-opens, limit: 400/1h, algorithm: sliding-log, sharing: leased, on_error: open}
  - {name: leased-closes, limit: 400/1h, algorithm: sliding-log, sharing: leased, on_error: closed}
";

/// A server on this store, and its HAProxy.
fn sharing(name: &str, store: &Server, deadline: &str) -> (Serving, Haproxy) {
    let rules = file(&scratch(&format!("{name}-rules")), SHARED);
    let store = store.address();
    let arguments = [
        "--rules",
        &rules,
        "--spoe",
        "127.0.0.1:0",
        "--store",
        &store,
        "--store-deadline",
        deadline,
    ];
    let server = Serving::with(&arguments);
    eventually("the store has been reached", || {
        server.get("/readyz").contains("\"ready\"")
    });
    // Before the first count a server takes itself for one of ten.
    eventually("the servers are counted", || {
        metric(&server, "tidegate_shared_store_nodes") < 10
    });
    let haproxy = Haproxy::patient(&spoe(&server), name, AS_ASKED);
    (server, haproxy)
}

#[test]
fn two_haproxies_share_the_limits_of_a_store_and_shadow_limits_deny_nobody() {
    let store = Server::start(&[]);
    let both = ["spoe-store-one", "spoe-store-other"].map(|name| sharing(name, &store, "5s"));
    let together = |limit: &str, requests: usize| -> usize {
        thread::scope(|scope| {
            let asking = both
                .iter()
                .map(|(_, haproxy)| scope.spawn(|| haproxy.admits(limit, requests)));
            let asking: Vec<_> = asking.collect();
            asking.into_iter().map(|asked| asked.join().unwrap()).sum()
        })
    };
    assert_eq!(together("exact", 10), 6);
    let leased = together("leased", 220);
    assert!((1..=400).contains(&leased), "{leased} of 400");
    for (server, _) in &both {
        assert!(
            metric(
                server,
                "tidegate_shared_store_decisions_total{by=\"lease\"}"
            ) > 0
        );
    }
    assert_eq!(together("trial", 3), 6);
    let [(server, here), (_, there)] = &both;
    assert!(metric(server, "tidegate_shadow_denials_total{limit=\"trial\"}") > 0);
    let answer = here.ask("trial");
    assert!(answer.contains("\r\nratelimit: \"trial\";r=0;"), "{answer}");
    // The exact limit denies, so the other limits are not charged. A limit in shadow mode makes no
    // joint decision deny.
    for other in ["closes", "trial"] {
        let answer = there.ask_both(other, "exact");
        assert!(
            is_denied(&answer) && answer.contains("\r\nretry-after: "),
            "{answer}"
        );
    }
    let answer = there.ask_both("closes", "trial");
    assert!(
        is_admitted(&answer) && answer.contains("\"closes\";r=8;"),
        "{answer}"
    );
    // A leased limit beside an exact one is a part of the one decision.
    let answer = here.ask_both("closes", "leased-opens");
    assert!(
        is_admitted(&answer) && answer.contains("\"leased-opens\";r=399;"),
        "{answer}"
    );
    assert!(is_denied(&there.ask_both("leased-opens", "exact")));
    assert!(
        there
            .ask("leased-opens")
            .contains("\"leased-opens\";r=398;")
    );
}

#[test]
fn while_a_store_is_away_or_hangs_haproxy_gets_what_on_error_says() {
    let mut store = Server::start(&[]);
    let (server, haproxy) = sharing("spoe-store-fails", &store, "1s");
    assert_eq!(
        ["opens", "closes"].map(|limit| haproxy.admits(limit, 3)),
        [2, 3]
    );
    store.kill();
    eventually("the server knows", || {
        metric(&server, "tidegate_shared_store_up") == 0
    });
    let bob = |limit: &str| haproxy.get(&format!("x-user: bob\r\nx-limit: {limit}\r\n"));
    assert!((0..3).all(|_| is_admitted(&bob("opens"))));
    eventually("the store's denial is forgotten, within a second", || {
        is_admitted(&haproxy.ask("opens"))
    });
    assert_eq!(haproxy.admits("leased-opens", 3), 3);
    assert_eq!(haproxy.admits("exact", 10), 6, "decided locally");
    for limit in ["closes", "leased-closes"] {
        let answer = haproxy.ask(limit);
        assert!(is_denied(&answer), "{answer}");
    }
    assert!(is_denied(&haproxy.ask_both("leased-opens", "closes")));
    assert!(is_admitted(&haproxy.ask_both("leased-opens", "trial")));
    store.start_again();
    eventually("the store is asked again", || {
        is_admitted(&haproxy.ask("closes"))
    });
    store.freeze();
    // It waits for the deadline at first.
    assert!(is_admitted(&bob("opens")) && is_denied(&bob("closes")));
    store.thaw();
    eventually("the store is asked again", || {
        is_admitted(&haproxy.ask("closes"))
    });
}
