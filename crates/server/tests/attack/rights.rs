//! Who may do what: each path × role × prefix × listener × HTTP version, and each command of RESP ×
//! role × prefix. The paths come from the table of routes and the commands from the server, so a
//! new one without a sample fails here.

use std::net::SocketAddr;

use tidegate_server::{
    access::Role,
    http::{Endpoint, Plane, ROUTES, Route},
};

use crate::harness::{Http, Resp, Running, digest_of, http2, scratch};

const RULES: &str = "
limits:
  - {name: team-a.rate, limit: 100000/1h}
  - {name: team-a.slots, limit: 100000, algorithm: concurrency}
  - {name: team-b.secret, limit: 100000/1h}
  - {name: team-b.secret-slots, limit: 100000, algorithm: concurrency}
";
const ROLES: [Role; 4] = [Role::Decide, Role::Observe, Role::Operate, Role::Report];

/// A client, and what it may do.
#[derive(Clone, Copy, Debug)]
struct Client {
    /// `None` without credentials.
    role: Option<Role>,
    /// Whether it concerns the limits of team A only.
    is_bounded: bool,
}

impl Client {
    fn all() -> Vec<Self> {
        let of = |role| {
            [false, true].map(|is_bounded| Self {
                role: Some(role),
                is_bounded,
            })
        };
        let nobody = Self {
            role: None,
            is_bounded: false,
        };
        ROLES.into_iter().flat_map(of).chain([nobody]).collect()
    }

    fn token(self) -> Option<String> {
        Some(format!(
            "token-of-{}-{}",
            self.role?.name(),
            self.is_bounded
        ))
    }

    fn may(self, role: Role) -> bool {
        self.role == Some(role) || self.role == Some(Role::Operate) && role == Role::Observe
    }
}

fn serving(name: &str) -> Running {
    let file = scratch(&format!("{name}-access")).join("access.yaml");
    let entry = |client: &Client| {
        let (role, token) = (client.role?.name(), client.token()?);
        let limits = if client.is_bounded {
            "limits: [team-a.], "
        } else {
            ""
        };
        let (bounded, digest) = (client.is_bounded, digest_of(&token));
        Some(format!(
            "  - {{name: {role}-{bounded}, roles: [{role}], {limits}tokens: ['{digest}']}}\n"
        ))
    };
    let entries: String = Client::all().iter().filter_map(entry).collect();
    std::fs::write(&file, format!("access:\n{entries}")).unwrap();
    Running::with_rules_and(name, RULES, |options| {
        options.access = Some(file);
        options.rules_writable = true;
        options.trace_keys = Some("100%".parse().unwrap());
    })
}

/// How a path concerns the limits of one team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// A request names a limit, or what belongs to a team like one.
    Names,
    /// A response lists what concerns the client.
    Lists,
    /// It concerns all limits, or a name that belongs to no team.
    All,
    /// Nothing.
    Nothing,
}

/// Reserves a unit of a team's limit. Returns the id.
fn reserved(server: &Running, team: &str) -> String {
    let limit = if team == "team-a" {
        "team-a.rate"
    } else {
        "team-b.secret"
    };
    let token = Client {
        role: Some(Role::Decide),
        is_bounded: false,
    }
    .token()
    .unwrap();
    let body = format!(r#"{{"limit":"{limit}","key":"r","ttl":"1h"}}"#);
    let (status, answer) = over_http1(server.http, ("POST", "/v1/reserve"), Some(&token), &body);
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    answer["id"].as_str().unwrap().to_owned()
}

fn over_http1(
    address: SocketAddr,
    (method, path): (&str, &str),
    token: Option<&str>,
    body: &str,
) -> (u16, String) {
    let authorization = token.map_or(String::new(), |token| {
        format!("authorization: Bearer {token}\r\n")
    });
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}");
    let mut http = Http::connect(address);
    http.write(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let answer = http.read();
    (answer.status, answer.body)
}

/// A request for an endpoint: the rest of its path, its body, and its scope.
fn sample(server: &Running, endpoint: Endpoint, team: &str) -> (String, String, Scope) {
    use Scope::{All, Lists, Names, Nothing};

    let [rate, slots] = match team {
        "team-a" => ["team-a.rate", "team-a.slots"],
        _ => ["team-b.secret", "team-b.secret-slots"],
    };
    let app = format!("{team}.app-secret");
    let body = |body: String, scope| (String::new(), body, scope);
    let query = |query: String, scope| (query, String::new(), scope);
    let key = format!(r#"{{"limit":"{rate}","key":"k"}}"#);
    match endpoint {
        Endpoint::Acquire
        | Endpoint::Peek
        | Endpoint::Reserve
        | Endpoint::Charge
        | Endpoint::Block
        | Endpoint::Unblock
        | Endpoint::Reset => body(key, Names),
        Endpoint::Extend | Endpoint::Settle => body(
            format!(r#"{{"id":"{}","costs":[2]}}"#, reserved(server, team)),
            Names,
        ),
        Endpoint::Cancel => body(format!(r#"{{"id":"{}"}}"#, reserved(server, team)), Names),
        // A rate needs the role `operate`, too.
        Endpoint::Refund => body(format!(r#"{{"limit":"{slots}","key":"k"}}"#), Names),
        Endpoint::Override => body(
            format!(r#"{{"limit":"{rate}","key":"o","quota":"5/1m"}}"#),
            Names,
        ),
        Endpoint::Check => query(format!("{rate}?key=k"), Names),
        Endpoint::CheckPath => query(format!("{rate}/a"), Names),
        Endpoint::Json => {
            let entries = r#"[{"entries":[{"key":"k","value":"v"}]}]"#;
            body(
                format!(r#"{{"domain":"{team}","descriptors":{entries}}}"#),
                Names,
            )
        }
        // They are named like a limit: `CL.THROTTLE`.
        Endpoint::Throttle => body(
            r#"{"key":"k","max_burst":15,"count_per_period":30,"period":60}"#.to_owned(),
            All,
        ),
        Endpoint::Explain => query(format!("?limit={rate}&key=k"), Names),
        Endpoint::Top | Endpoint::History => query(format!("?limit={rate}"), Names),
        Endpoint::FlowReport => body(
            format!(r#"{{"app":"{app}","instance":"i","now":1,"resources":[]}}"#),
            Names,
        ),
        Endpoint::FlowRules => body(format!(r#"{{"app":"{app}","rules":"flow: []"}}"#), Names),
        Endpoint::Rules
        | Endpoint::Audit
        | Endpoint::Blocks
        | Endpoint::Overrides
        | Endpoint::Denied
        | Endpoint::Limits
        | Endpoint::Flow
        | Endpoint::Trace
        | Endpoint::Metrics => query(String::new(), Lists),
        Endpoint::WhatIf => body(RULES.to_owned(), Lists),
        Endpoint::Mark => body(format!(r#"{{"limit":"{rate}","note":"deployed"}}"#), Names),
        Endpoint::RulesFile | Endpoint::Reload => query(String::new(), All),
        Endpoint::RulesCheck => body(RULES.to_owned(), All),
        Endpoint::RulesSave => ("?version=other".to_owned(), RULES.to_owned(), All),
        Endpoint::Servers
        | Endpoint::Health
        | Endpoint::Ready
        | Endpoint::HealthCheck
        | Endpoint::OpenApi => query(String::new(), Nothing),
    }
}

/// The status that a request must have; `None` for any that is not about rights.
fn expected(
    route: &Route,
    plane: Plane,
    client: Client,
    is_foreign: bool,
    scope: Scope,
) -> Option<u16> {
    if !route.is_on(plane) {
        return Some(404);
    }
    let needs = route.needs()?;
    if client.role.is_none() {
        return Some(401);
    }
    let is_refused = match scope {
        Scope::Names => is_foreign,
        Scope::All => true,
        Scope::Lists | Scope::Nothing => false,
    };
    let instead = match (plane, route.endpoint) {
        (Plane::Admin, Endpoint::Peek) => client.may(Role::Observe),
        (Plane::Admin, Endpoint::Charge) => client.may(Role::Operate),
        _ => false,
    };
    let may = client.may(needs) || instead;
    (!may || client.is_bounded && is_refused).then_some(403)
}

#[test]
fn each_path_serves_only_the_roles_and_the_limits_of_its_clients() {
    let server = serving("attack-rights");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut asked = 0;
    // Clients that may do everything come first, so that there is something to see.
    for client in Client::all() {
        for route in ROUTES {
            for (team, is_foreign) in [("team-a", false), ("team-b", true)] {
                let (rest, body, scope) = sample(&server, route.endpoint, team);
                let path = route.path.split('{').next().unwrap().to_owned() + &rest;
                for (plane, address) in [(Plane::Data, server.http), (Plane::Admin, server.admin)] {
                    let request = (route.method, &*path);
                    let what = format!("{request:?} on {plane:?} for {client:?}");
                    let token = client.token();
                    for version in [1, 2] {
                        let ask = || match version {
                            1 => over_http1(address, request, token.as_deref(), &body),
                            _ => runtime.block_on(http2::ask(
                                address,
                                request,
                                token.as_deref(),
                                &body,
                            )),
                        };
                        let (status, answer) = loop {
                            let answer = ask();
                            // The reader before may still have its place.
                            if answer.0 != 503 || !answer.1.contains("Trace being read") {
                                break answer;
                            }
                        };
                        asked += 1;
                        match expected(route, plane, client, is_foreign, scope) {
                            Some(wanted) => assert_eq!(status, wanted, "{what}: {answer}"),
                            // Its key would be a header field.
                            None if route.endpoint == Endpoint::CheckPath && status == 400 => {}
                            None => {
                                assert!(
                                    !matches!(status, 400..=405 | 500..),
                                    "{what}: {status} {answer}"
                                );
                            }
                        }
                        let names_it = is_foreign && scope == Scope::Names;
                        if client.is_bounded && !names_it && status != 404 {
                            // Its own text, in an answer about that text.
                            let own = ["team-a.app-secret"]
                                .iter()
                                .fold(answer, |all, own| all.replace(own, ""));
                            assert!(!own.contains("secret"), "{what}: {own}");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(asked, Client::all().len() * ROUTES.len() * 2 * 2 * 2);
}

#[test]
fn an_unknown_name_reveals_no_names_of_other_teams() {
    let server = serving("attack-nearest");
    let client = Client {
        role: Some(Role::Decide),
        is_bounded: true,
    };
    let token = client.token().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let body = r#"{"limit":"team-a.secret","key":"k"}"#;
    let (status, told) = runtime.block_on(http2::ask(
        server.http,
        ("POST", "/v1/peek"),
        Some(&token),
        body,
    ));
    assert_eq!(status, 404);
    assert!(
        told.contains("team-a.rate") && !told.contains("team-b"),
        "{told}"
    );
    let mut resp = Resp::connect(server.resp);
    assert_eq!(resp.ask(&format!("AUTH decide-true {token}")), "OK");
    for ask in [
        "PEEK team-a.secret k",
        "RESERVE 60000 team-a.secret k 1",
        "ACQUIREANY team-a.secret k 1",
    ] {
        let told = resp.ask(ask);
        assert!(
            told.starts_with("ERR no limit is named") && told.contains("team-a.rate"),
            "{told}"
        );
        assert!(!told.contains("team-b"), "{told}");
    }
}

/// A command with its arguments, and the role that it needs on the limit in the first one; `None`
/// for commands about the connection or the server.
fn command(server: &Running, name: &str, limit: &str) -> (String, Option<Role>) {
    let decide = Some(Role::Decide);
    let id = || reserved(server, limit.split('.').next().unwrap());
    match name {
        // On the limits of the reservation.
        "reserve" => (format!("{name} 60000 {limit} k 1"), decide),
        "acquireany" => (format!("{name} {limit} k 1"), decide),
        "extend" | "settle" => (format!("{name} {} 1", id()), decide),
        "cancel" => (format!("{name} {}", id()), decide),
        "acquire" | "peek" | "charge" => (format!("{name} {limit} k"), decide),
        "increx" => (format!("{name} {limit}:k"), decide),
        "refund" => (
            format!(
                "{name} {} k",
                limit
                    .replace("rate", "slots")
                    .replace("secret", "secret-slots")
            ),
            decide,
        ),
        "block" => (format!("{name} {limit} b 1000"), Some(Role::Operate)),
        "unblock" => (format!("{name} {limit} b"), Some(Role::Operate)),
        "override" => (format!("{name} {limit} o 5/1m 1000"), Some(Role::Operate)),
        "top" => (format!("{name} {limit}"), Some(Role::Observe)),
        "ping" | "info" | "dbsize" | "role" | "unwatch" => (name.to_owned(), None),
        "watch" => (format!("{name} k"), None),
        "echo" => (format!("{name} hello"), None),
        "client" => (format!("{name} id"), None),
        "select" => (format!("{name} 0"), None),
        "command" => (format!("{name} count"), None),
        "config" => (format!("{name} get maxclients"), None),
        _ => panic!("give a sample of the command {name}"),
    }
}

#[test]
fn each_command_serves_only_the_roles_and_the_limits_of_its_clients() {
    let server = serving("attack-rights-resp");
    let log_in = |client: Client| {
        let mut resp = Resp::connect(server.resp);
        if let (Some(role), Some(token)) = (client.role, client.token()) {
            assert_eq!(
                resp.ask(&format!(
                    "AUTH {}-{} {token}",
                    role.name(),
                    client.is_bounded
                )),
                "OK"
            );
        }
        resp
    };
    let listed = log_in(Client {
        role: Some(Role::Operate),
        is_bounded: false,
    })
    .ask("COMMAND LIST");
    let listed: Vec<_> = listed.trim_matches(['[', ']']).split(' ').collect();
    assert!(
        listed.contains(&"acquire") && listed.len() > 15,
        "{listed:?}"
    );
    // These are for clients without credentials, too, and change the connection.
    let open = ["hello", "auth", "quit", "reset"];
    for client in Client::all() {
        let mut resp = log_in(client);
        for name in listed.iter().filter(|name| !open.contains(name)) {
            if ["multi", "exec", "discard"].contains(name) {
                // What may not run outside a transaction is not queued in one.
                let began = resp.ask("MULTI");
                if client.role.is_none() {
                    assert!(began.starts_with("NOAUTH"), "{client:?}: {began}");
                    continue;
                }
                assert_eq!(began, "OK");
                let queued = resp.ask("ACQUIRE team-b.secret k 0");
                let may = client.may(Role::Decide) && !client.is_bounded;
                let expected = if may { "QUEUED" } else { "NOPERM" };
                assert!(queued.starts_with(expected), "{client:?}: {queued}");
                let ran = resp.ask("EXEC");
                let expected = if may { "[[0" } else { "EXECABORT" };
                assert!(ran.starts_with(expected), "{client:?}: {ran}");
                continue;
            }
            if ["cl.throttle", "rl.throttle", "gcra", "throttle"].contains(name) {
                // They are named like a limit: `cl.throttle`.
                let told = resp.ask(&format!("{name} k 15 30 60"));
                let may = client.may(Role::Decide) && !client.is_bounded;
                let expected = if client.role.is_none() {
                    "NOAUTH"
                } else if may && *name == "throttle" {
                    "[1"
                } else if may {
                    "[0"
                } else {
                    "NOPERM"
                };
                assert!(told.starts_with(expected), "{client:?}: {told}");
                continue;
            }
            for (limit, is_foreign) in [("team-a.rate", false), ("team-b.secret", true)] {
                let (ask, needs) = command(&server, name, limit);
                let told = resp.ask(&ask);
                let is_refused =
                    needs.is_some_and(|role| !client.may(role) || client.is_bounded && is_foreign);
                let what = format!("{ask} for {client:?}: {told}");
                match (client.role, is_refused) {
                    (None, _) => assert!(told.starts_with("NOAUTH"), "{what}"),
                    (_, true) => assert!(told.starts_with("NOPERM"), "{what}"),
                    (_, false) => assert!(
                        !told.starts_with("NO") && !told.starts_with("ERR"),
                        "{what}"
                    ),
                }
                if client.is_bounded && !is_refused && !is_foreign {
                    assert!(!told.contains("secret"), "{what}");
                }
            }
        }
    }
}
