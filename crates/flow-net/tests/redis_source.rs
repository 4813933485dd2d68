//! Rules from a key of a real Redis server. Each test starts its own server.
#![cfg(all(feature = "servers", feature = "redis-source"))]

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::mpsc::{self, Receiver},
    time::Duration,
};

use redis::{Client, Commands, Connection};
use tidegate_flow::{
    Gate,
    rules::{FlowRule, IsolationRule, Rules},
    sources::{Follower, SourceError, sentinel::Kind},
};
use tidegate_flow_net::sources::RedisSource;
use tidegate_redis_servers::Server;

/// How long a test waits for an event that normally takes about a second. On a busy machine a
/// server may stall for minutes.
const PATIENCE: Duration = Duration::from_mins(10);

/// Returns a connection for commands of the test.
fn connect(server: &Server) -> Connection {
    Client::open(server.address())
        .unwrap()
        .get_connection()
        .expect("redis-server answers")
}

fn flow(count: u32) -> String {
    format!(r#"[{{"resource":"abc","count":{count}}}]"#)
}

fn change(redis: &mut Connection, value: &str) {
    let _: () = redis.set("rules:flow", value).unwrap();
    let _: () = redis.publish("rules", "changed").unwrap();
}

/// Follows a source once its server answers in time.
fn follow(
    gate: &Gate,
    source: impl Fn() -> RedisSource,
) -> (Follower, Receiver<Result<(), String>>) {
    for _ in 0..100 {
        let (report, reports) = mpsc::channel();
        let report = move |result: Result<(), &SourceError>| {
            let _ = report.send(result.map_err(ToString::to_string));
        };
        if let Ok(follower) = gate.follow(source(), report) {
            return (follower, reports);
        }
    }
    panic!("the server never answers in time");
}

struct Followed {
    gate: Gate,
    follower: Follower,
    reports: Receiver<Result<(), String>>,
}

impl Followed {
    fn new(server: &Server) -> Self {
        let gate = Gate::new();
        let source =
            || RedisSource::sentinel(&server.address(), "rules:flow", "rules", Kind::Flow).unwrap();
        let (follower, reports) = follow(&gate, source);
        Self {
            gate,
            follower,
            reports,
        }
    }

    fn next(&self) -> Result<(), String> {
        self.reports.recv_timeout(PATIENCE).expect("a report")
    }

    /// Waits for the next load. A stalled server may cause reported failures in between.
    fn load(&self) -> Vec<FlowRule> {
        while self.next().is_err() {}
        self.gate.rules().flow
    }

    /// Waits for a failure whose message contains `says`.
    fn failure(&self, says: &str) -> String {
        loop {
            match self.next() {
                Err(said) if said.contains(says) => return said,
                Err(_) => {}
                Ok(()) => panic!("loaded, instead of saying {says}"),
            }
        }
    }
}

#[test]
fn a_key_is_loaded_and_followed_and_a_bad_rule_is_refused_whole() {
    let server = Server::start(&[]);
    let mut redis = connect(&server);
    change(&mut redis, &flow(1));
    let followed = Followed::new(&server);
    assert_eq!(followed.gate.rules().flow, [FlowRule::new("abc", 1)]);

    change(&mut redis, &flow(2));
    assert_eq!(followed.load(), [FlowRule::new("abc", 2)]);

    change(
        &mut redis,
        r#"[{"resource":"abc","count":3},{"resource":"abc","count":-1}]"#,
    );
    let said = followed.failure("the threshold is -1");
    assert!(said.contains("the Redis key rules:flow"), "{said}");
    assert_eq!(
        followed.gate.rules().flow,
        [FlowRule::new("abc", 2)],
        "the previous rules stay active"
    );
    // The failure is recorded before it is reported. It is still set, or a stalled server has set
    // another one.
    assert!(followed.follower.failure().is_some());

    // Without a message the change takes a little longer.
    let _: () = redis.set("rules:flow", flow(4)).unwrap();
    assert_eq!(followed.load(), [FlowRule::new("abc", 4)]);

    let _: () = redis.del("rules:flow").unwrap();
    followed.failure("to have no rules, set it to []");
    change(&mut redis, "[]");
    assert_eq!(followed.load(), []);
}

/// The commands that a server receives, from `MONITOR`: the first word and the first argument.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn new(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(
            self.0.read_line(&mut line).unwrap(),
            0,
            "the server is gone"
        );
        line.trim_end().into()
    }

    /// Returns the next of these commands.
    fn next<'c>(&mut self, commands: &[&'c str]) -> &'c str {
        loop {
            let line = self.line();
            if let Some(command) = commands
                .iter()
                .find(|command| line.contains(&format!("] \"{command}\"")))
            {
                return command;
            }
        }
    }
}

#[test]
fn a_message_wakes_a_source_that_waits() {
    let server = Server::start(&[]);
    let mut redis = connect(&server);
    change(&mut redis, &flow(0));
    let followed = Followed::new(&server);
    let mut monitor = Monitor::new(&server);
    // The message caused the read after it if the source was subscribed since the previous read,
    // that is, if it neither subscribed nor unsubscribed between the two reads. A message that
    // arrives as the wait ends, or while the machine stalls, finds no subscriber. Fifty such
    // messages in a row are very unlikely.
    let is_woken = (1..=50).any(|round| {
        // After a read that found a change, the source reads once more before it waits.
        for command in ["UNSUBSCRIBE", "SUBSCRIBE", "GET"] {
            monitor.next(&[command]);
        }
        change(&mut redis, &flow(round));
        let was_listening =
            monitor.next(&["SUBSCRIBE", "GET", "UNSUBSCRIBE", "PUBLISH"]) == "PUBLISH";
        let woken = was_listening && monitor.next(&["SUBSCRIBE", "GET", "UNSUBSCRIBE"]) == "GET";
        assert_eq!(followed.load(), [FlowRule::new("abc", round)]);
        woken
    });
    assert!(is_woken, "no message ever caused a read of the key");
}

#[test]
fn a_key_with_all_rules_as_yaml_is_followed() {
    let server = Server::start(&[]);
    let mut redis = connect(&server);
    let rules = |n: u32| {
        format!(
            "flow: [{{ resource: abc, limit: {n}/1s }}]\nisolation: [{{ resource: abc, in_flight: {n} }}]"
        )
    };
    change(&mut redis, &rules(1));
    let gate = Gate::new();
    gate.load(Rules::from(vec![FlowRule::new("gone", 1)]))
        .unwrap();
    let source = || RedisSource::yaml(&server.address(), "rules:flow", "rules").unwrap();
    let (follower, reports) = follow(&gate, source);
    let loaded =
        |n: u32| Rules::from(vec![FlowRule::new("abc", n)]).and(vec![IsolationRule::new("abc", n)]);
    assert_eq!(gate.rules(), loaded(1));
    let followed = Followed {
        gate,
        follower,
        reports,
    };
    change(&mut redis, &rules(2));
    followed.load();
    assert_eq!(followed.gate.rules(), loaded(2));
}

#[test]
fn a_server_that_comes_back_is_followed_again() {
    let mut server = Server::start(&[]);
    change(&mut connect(&server), &flow(1));
    let followed = Followed::new(&server);
    server.kill();
    followed.next().unwrap_err();
    assert_eq!(
        followed.gate.rules().flow,
        [FlowRule::new("abc", 1)],
        "the previous rules stay active"
    );
    server.start_again();
    change(&mut connect(&server), &flow(2));
    // In between the server may be up while the key is not set yet.
    assert_eq!(followed.load(), [FlowRule::new("abc", 2)]);
}

#[test]
fn an_unreachable_source_is_refused_at_start() {
    assert!(RedisSource::yaml("nonsense", "key", "channel").is_err());
    let nobody =
        RedisSource::yaml("redis+unix:///nonexistent/redis.sock", "key", "channel").unwrap();
    let gate = Gate::new();
    let error = gate.follow(nobody, |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("the Redis key key: "), "{error}");

    let server = Server::start(&[]);
    drop(connect(&server));
    let missing = || RedisSource::yaml(&server.address(), "key", "channel").unwrap();
    // A stalled server says nothing about the key.
    let says = |said: &str| said.contains("the key key is missing");
    let said = (0..100).any(|_| says(&gate.follow(missing(), |_| ()).unwrap_err().to_string()));
    assert!(said, "the error says that the key is missing");
    assert_eq!(gate.rules(), Rules::default());
}
