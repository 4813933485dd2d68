//! Rules from a key of a real Redis server, which each test starts for itself.
#![cfg(all(unix, not(loom), feature = "redis-source"))]

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    time::Duration,
};

use redis::{Client, Commands, Connection};
use tidegate_flow::{
    Gate,
    rules::{FlowRule, Rules},
    sources::{Follower, RedisSource, sentinel::Kind},
};

/// How long a test waits for what should happen within a second or so.
const PATIENCE: Duration = Duration::from_mins(1);

/// A server on a socket of its own, in a directory that goes with the test.
struct Server {
    dir: PathBuf,
    child: Child,
}

impl Server {
    fn start(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("tidegate-rules-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let child = run(&dir);
        Self { dir, child }
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.dir.join("redis.sock").display())
    }

    /// A connection, as soon as the server answers.
    fn connect(&self) -> Connection {
        let client = Client::open(self.url()).unwrap();
        let (answers, answered) = mpsc::channel();
        std::thread::spawn(move || {
            loop {
                match client.get_connection() {
                    Ok(connection) => return answers.send(connection),
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        answered.recv_timeout(PATIENCE).expect("redis-server answers")
    }

    fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn run(dir: &Path) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "no"]);
    let child = command.current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.unwrap_or_else(|e: io::Error| panic!("this test needs redis-server: install it ({e})"))
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn flow(count: u32) -> String {
    format!(r#"[{{"resource":"abc","count":{count}}}]"#)
}

fn change(redis: &mut Connection, value: &str) {
    let _: () = redis.set("rules:flow", value).unwrap();
    let _: () = redis.publish("rules", "changed").unwrap();
}

struct Followed {
    gate: Gate,
    follower: Follower,
    reports: Receiver<Result<(), String>>,
}

impl Followed {
    fn new(server: &Server) -> Self {
        let source = RedisSource::sentinel(&server.url(), "rules:flow", "rules", Kind::Flow).unwrap();
        let gate = Gate::new();
        let (report, reports) = mpsc::channel();
        let follower = gate
            .follow(source, move |result| {
                let _ = report.send(result.map_err(ToString::to_string));
            })
            .unwrap();
        Self { gate, follower, reports }
    }

    fn next(&self) -> Result<(), String> {
        self.reports.recv_timeout(PATIENCE).expect("a report")
    }

    fn loaded(&self) -> Vec<FlowRule> {
        self.gate.rules().flow.clone()
    }
}

#[test]
fn a_key_is_loaded_and_followed_and_a_bad_rule_is_refused_whole() {
    let server = Server::start("follow");
    let mut redis = server.connect();
    change(&mut redis, &flow(1));
    let followed = Followed::new(&server);
    assert_eq!(followed.loaded(), [FlowRule::new("abc", 1)]);

    change(&mut redis, &flow(2));
    assert_eq!((followed.next(), followed.loaded()), (Ok(()), vec![FlowRule::new("abc", 2)]));

    change(&mut redis, r#"[{"resource":"abc","count":3},{"resource":"abc","count":-1}]"#);
    let said = followed.next().unwrap_err();
    assert!(said.contains("the Redis key rules:flow") && said.contains("the threshold is -1"), "{said}");
    assert_eq!(followed.loaded(), [FlowRule::new("abc", 2)], "the old rules go on");
    assert_eq!(followed.follower.failure(), Some(said));

    // Without a message it takes a little longer.
    let _: () = redis.set("rules:flow", flow(4)).unwrap();
    assert_eq!((followed.next(), followed.loaded()), (Ok(()), vec![FlowRule::new("abc", 4)]));
    assert_eq!(followed.follower.failure(), None);

    let _: () = redis.del("rules:flow").unwrap();
    assert!(followed.next().unwrap_err().contains("to have no rules, set it to []"));
    change(&mut redis, "[]");
    assert_eq!((followed.next(), followed.loaded()), (Ok(()), Vec::new()));
}

#[test]
fn a_server_that_comes_back_is_followed_again() {
    let mut server = Server::start("restart");
    change(&mut server.connect(), &flow(1));
    let followed = Followed::new(&server);
    server.stop();
    followed.next().unwrap_err();
    assert_eq!(followed.loaded(), [FlowRule::new("abc", 1)], "the old rules go on");
    server.child = run(&server.dir);
    change(&mut server.connect(), &flow(2));
    // In between the server may be there and the key not yet.
    while followed.next().is_err() {}
    assert_eq!(followed.loaded(), [FlowRule::new("abc", 2)]);
}

#[test]
fn a_source_that_cannot_be_had_at_first_is_refused() {
    assert!(RedisSource::yaml("nonsense", "key", "channel").is_err());
    let nobody = RedisSource::yaml("redis+unix:///nonexistent/redis.sock", "key", "channel").unwrap();
    let gate = Gate::new();
    let error = gate.follow(nobody, |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("the Redis key key: "), "{error}");

    let server = Server::start("missing");
    drop(server.connect());
    let missing = RedisSource::yaml(&server.url(), "key", "channel").unwrap();
    assert!(gate.follow(missing, |_| ()).unwrap_err().to_string().contains("the key key is not there"));
    assert_eq!(gate.rules(), Rules::default());
}
