//! HAProxy asks by SPOE.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command},
    time::{Duration, Instant},
};

use tidegate_redis_servers::{eventually, free_port};

use crate::{
    get,
    program::{Serving, scratch},
};

/// A running HAProxy, which is killed when the test ends.
pub struct Haproxy {
    child: Child,
    port: u16,
}

impl Haproxy {
    /// The packaged configuration with other addresses, in front of a backend. `messages` replaces
    /// its message by the two `check` and `address`, and `rule` is one more rule.
    pub fn before(tidegate: &str, name: &str, messages: Option<&str>, rule: &str) -> Self {
        Self::waiting("100ms", tidegate, name, messages, rule)
    }

    /// The same, but a request waits longer than Tidegate needs on any machine. `tidegate` may have
    /// options of a `server` line. Every response says why there was no decision.
    pub fn patient(tidegate: &str, name: &str, messages: &str) -> Self {
        let rule = "http-response set-header x-error %[var(txn.tidegate.error)]";
        Self::waiting("20s", tidegate, name, Some(messages), rule)
    }

    fn waiting(
        timeout: &str,
        tidegate: &str,
        name: &str,
        messages: Option<&str>,
        rule: &str,
    ) -> Self {
        let directory = scratch(name);
        let [port, backend] = [free_port(), free_port()];
        let here = directory.display().to_string();
        let packaged = |name: &str, changes: &[(&str, &str)]| {
            let packaged = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../packaging/haproxy")
                .join(name);
            changes
                .iter()
                .fold(fs::read_to_string(packaged).unwrap(), |text, (from, to)| {
                    assert!(text.contains(from), "{from} is no longer in {name}");
                    text.replace(from, to)
                })
        };
        let site = packaged(
            "tidegate.cfg",
            &[
                ("bind :80", &format!("bind 127.0.0.1:{port}")),
                ("127.0.0.1:9000", &format!("127.0.0.1:{backend}")),
                ("127.0.0.1:12345", tidegate),
                ("/etc/haproxy/", &format!("{here}/")),
                (
                    "timeout connect 100ms",
                    &format!("timeout connect {timeout}"),
                ),
                (
                    "    default_backend app",
                    &format!("    {rule}\n    default_backend app"),
                ),
            ],
        );
        let check =
            "    args   limit=str(per-address) key=src\n    event  on-frontend-http-request\n";
        let names = if messages.is_some() {
            "messages     check address"
        } else {
            "messages     check"
        };
        let changes = [
            (check, messages.unwrap_or(check)),
            ("messages     check", names),
            ("hello 100ms", &format!("hello {timeout}")),
            ("processing 100ms", &format!("processing {timeout}")),
        ];
        let agent = packaged("tidegate-spoe.conf", &changes);
        fs::write(directory.join("tidegate-spoe.conf"), agent).unwrap();
        let main = format!(
            "global\n    maxconn 100\ndefaults\n    timeout connect 5s\n    timeout client 30s\n    timeout server 30s\n{site}\n\
             frontend backend\n    mode http\n    bind 127.0.0.1:{backend}\n    http-request return status 200 content-type text/plain string backend\n"
        );
        let file = directory.join("haproxy.cfg");
        fs::write(&file, main).unwrap();
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-q").arg("-f").arg(&file);
        let child = command
            .spawn()
            .expect("haproxy is installed by scripts/test.sh");
        let haproxy = Self { child, port };
        eventually("HAProxy listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        haproxy
    }

    pub fn get(&self, fields: &str) -> String {
        get(self.port, "/", fields)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that HAProxy asks, and its address for that.
fn serving_haproxy(name: &str, address: &str) -> (Serving, String) {
    let rules = scratch(name).join("rules.yaml");
    let limits = "limits: [{name: per-address, limit: 2/1h, algorithm: sliding-log}, {name: per-user, limit: 5/1h}]\n";
    fs::write(&rules, limits).unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap(), "--spoe", address]);
    let address = spoe(&server);
    (server, address)
}

/// The address of the server's SPOE listener.
pub fn spoe(server: &Serving) -> String {
    let line = server
        .told
        .lines()
        .find_map(|line| line.trim().strip_prefix("SPOE"))
        .unwrap();
    line.trim().split(',').next().unwrap().to_owned()
}

pub fn metric(server: &Serving, name: &str) -> u64 {
    let metrics = server.get("/metrics");
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_default();
    line.trim()
        .parse()
        .unwrap_or_else(|_| panic!("{name} in {metrics}"))
}

#[test]
fn haproxy_denies_with_429_and_the_header_fields_over_connections_that_stay_open() {
    let (server, address) = serving_haproxy("haproxy-rules", "127.0.0.1:0");
    let haproxy = Haproxy::before(&address, "haproxy-denies", None, "");
    for left in [1, 0] {
        let answer = haproxy.get("x-tidegate-key: another\r\n");
        assert!(
            answer.starts_with("http/1.1 200 ") && answer.ends_with("backend"),
            "{answer}"
        );
        assert!(
            answer.contains(&format!("\r\nratelimit: \"per-address\";r={left};t=")),
            "{answer}"
        );
        assert!(
            answer.contains("\r\nratelimit-policy: \"per-address\";q=2;w=3600"),
            "{answer}"
        );
        assert!(!answer.contains("\r\nretry-after"), "{answer}");
    }
    for _ in 0..20 {
        let answer = haproxy.get("x-tidegate-key: another\r\n");
        assert!(answer.starts_with("http/1.1 429 "), "{answer}");
        assert!(
            answer.contains("\r\nretry-after: 3") && answer.contains("\r\nratelimit: "),
            "{answer}"
        );
    }
    assert_eq!(
        metric(&server, "tidegate_spoe_requests_total{outcome=\"denied\"}"),
        20
    );
    // Some for health checks, and for each of HAProxy's threads one for questions.
    let open = metric(&server, "tidegate_spoe_connections");
    let threads = std::thread::available_parallelism().unwrap().get() as u64;
    assert!((1..=threads + 1).contains(&open), "{open} connections");
}

#[test]
fn haproxy_asks_several_limits_at_once_with_costs_and_sees_errors() {
    let (_server, address) = serving_haproxy("haproxy-joint-rules", "127.0.0.1:0");
    let messages = "    args   limit=str(per-user) key=req.hdr(x-user) cost=req.hdr(x-cost)
    event  on-frontend-http-request if { req.hdr(x-user) -m found }

spoe-message address
    args   limit=str(per-address) key=src
    event  on-frontend-http-request
";
    let rule = "http-response set-header x-error %[var(txn.tidegate.error)]";
    let haproxy = Haproxy::before(&address, "haproxy-joint", Some(messages), rule);
    let user = |cost: &str| haproxy.get(&format!("x-user: alice\r\nx-cost: {cost}\r\n"));
    let never = user("6");
    assert!(
        never.starts_with("http/1.1 429 ") && !never.contains("\r\nretry-after"),
        "{never}"
    );
    let four = user("4");
    assert!(four.starts_with("http/1.1 200 "), "{four}");
    assert!(
        four.contains("\r\nratelimit: \"per-user\";r=1;t=")
            && four.contains("\"per-address\";r=1;t="),
        "{four}"
    );
    // Denied by the user's limit, so the address is not charged.
    assert!(user("2").starts_with("http/1.1 429 "));
    let mistaken = user("two");
    assert!(
        mistaken.starts_with("http/1.1 200 ")
            && mistaken.contains("\r\nx-error: message `check`: the cost must be"),
        "{mistaken}"
    );
    let nobody = haproxy.get("");
    assert!(
        nobody.starts_with("http/1.1 200 ")
            && nobody.contains("\r\nratelimit: \"per-address\";r=0;t="),
        "{nobody}"
    );
    assert!(haproxy.get("").starts_with("http/1.1 429 "));
}

#[test]
fn haproxy_continues_without_tidegate_and_asks_again_when_it_is_back() {
    // A listener that never replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let haproxy = Haproxy::before(
        &silent.local_addr().unwrap().to_string(),
        "haproxy-silent",
        None,
        "",
    );
    for _ in 0..4 {
        assert!(haproxy.get("").starts_with("http/1.1 200 "));
    }
    let (server, address) = serving_haproxy("haproxy-away-rules", "127.0.0.1:0");
    let haproxy = Haproxy::before(&address, "haproxy-away", None, "");
    let is_asked = || haproxy.get("").contains("\r\nratelimit: ");
    eventually("it is asked", is_asked);
    drop(server);
    for _ in 0..4 {
        let answer = haproxy.get("");
        assert!(
            answer.starts_with("http/1.1 200 ") && answer.ends_with("backend"),
            "{answer}"
        );
    }
    let (server, _) = serving_haproxy("haproxy-back-rules", &address);
    eventually("it is asked again", is_asked);
    server.signal("TERM");
    assert_eq!(
        server.ended(),
        Some(0),
        "it ends while HAProxy keeps its connections"
    );
    assert!(haproxy.get("").starts_with("http/1.1 200 "));
}

#[test]
fn haproxy_as_packaged_limits_by_the_rules_that_the_packages_install() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/rules.yaml");
    let server = Serving::with(&["--rules", rules.to_str().unwrap(), "--spoe", "127.0.0.1:0"]);
    let haproxy = Haproxy::before(&spoe(&server), "haproxy-packaged", None, "");
    eventually("it is asked", || {
        haproxy.get("").contains("\r\nratelimit: ")
    });
    let denied = (0..150)
        .filter(|_| haproxy.get("").starts_with("http/1.1 429 "))
        .count();
    assert_eq!(
        metric(&server, "tidegate_spoe_requests_total{outcome=\"denied\"}"),
        denied as u64
    );
    assert!(
        (50..60).contains(&denied),
        "{denied} of 150 and a few before"
    );
}

/// Its connections stay open, and it answers nothing: the health checks find out.
#[test]
fn haproxy_hardly_waits_for_a_tidegate_that_is_stopped() {
    let (server, address) = serving_haproxy("haproxy-stopped-rules", "127.0.0.1:0");
    let haproxy = Haproxy::before(&address, "haproxy-stopped", None, "");
    eventually("it is asked", || {
        haproxy.get("").contains("\r\nratelimit: ")
    });
    server.signal("STOP");
    #[allow(
        clippy::disallowed_methods,
        reason = "HAProxy's deadline is by the real clock"
    )]
    let waits = (0..300).map(|_| {
        let asked = Instant::now();
        let answer = haproxy.get("");
        assert!(
            answer.starts_with("http/1.1 200 ") || answer.starts_with("http/1.1 429 "),
            "{answer}"
        );
        asked.elapsed()
    });
    let waited = waits
        .filter(|wait| *wait >= Duration::from_millis(95))
        .count();
    server.signal("CONT");
    // A check every 500 ms, and 200 ms until it fails: about seven requests one after another.
    assert!(
        (1..=30).contains(&waited),
        "{waited} of 300 waited for the whole deadline"
    );
    eventually("it is asked again", || {
        haproxy.get("").contains("\r\nratelimit: ")
    });
}
