//! A running envoyproxy/ratelimit.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use tidegate_redis_servers::{Server, eventually, free_port};

use crate::harness::scratch;

/// It uses its own Redis, and is killed when the test ends.
pub struct Theirs {
    child: Child,
    pub grpc: SocketAddr,
    /// The sums of its statsd counters.
    counters: Arc<Mutex<BTreeMap<String, u64>>>,
    _redis: Server,
}

impl Theirs {
    /// Starts it with these configuration files.
    pub fn start(name: &str, files: &[String]) -> Self {
        Self::start_with(name, files, &[])
    }

    /// The same, with more of its environment.
    pub fn start_with(name: &str, files: &[String], environment: &[(&str, &str)]) -> Self {
        let program = env::var_os("TIDEGATE_RATELIMIT")
            .expect("TIDEGATE_RATELIMIT names the program; scripts/test.sh --interop fetches it");
        let redis = Server::start(&[]);
        let root = scratch(name);
        let directory = root.join("ratelimit/config");
        fs::create_dir_all(&directory).unwrap();
        for (at, text) in files.iter().enumerate() {
            fs::write(directory.join(format!("{at}.yaml")), text).unwrap();
        }
        let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free_port();
        let mut command = Command::new(program);
        command
            .env("RUNTIME_ROOT", &root)
            .env("REDIS_URL", format!("127.0.0.1:{}", redis.port()));
        for (name, value) in [
            ("HOST", "127.0.0.1"),
            ("DEBUG_HOST", "127.0.0.1"),
            ("GRPC_HOST", "127.0.0.1"),
            ("LOG_LEVEL", "error"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("STATSD_HOST", "127.0.0.1"),
            ("STATSD_PROTOCOL", "tcp"),
            ("STATS_FLUSH_INTERVAL", "200ms"),
        ] {
            command.env(name, value);
        }
        command.env(
            "STATSD_PORT",
            statsd.local_addr().unwrap().port().to_string(),
        );
        command.envs(environment.iter().copied());
        command.env("GRPC_PORT", port.to_string());
        for name in ["PORT", "DEBUG_PORT"] {
            command.env(name, free_port().to_string());
        }
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let counters = Arc::default();
        thread::spawn({
            let counters = Arc::clone(&counters);
            move || gather(&statsd, &counters)
        });
        let grpc = SocketAddr::from(([127, 0, 0, 1], port));
        eventually("envoyproxy/ratelimit listens", || {
            TcpStream::connect(grpc).is_ok()
        });
        Self {
            child,
            grpc,
            counters,
            _redis: redis,
        }
    }

    /// A counter of a rule, as in `shop.path_/cart.total_hits`.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters
            .get(&format!("ratelimit.service.rate_limit.{name}"))
            .copied()
            .unwrap_or(0)
    }
}

impl Theirs {
    /// All counters of the service and its calls.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        of_the_service(&self.counters)
    }
}

/// The counters of the service and its calls, without those of its runtime and its store.
pub fn of_the_service(counters: &Mutex<BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
    let all = counters.lock().unwrap_or_else(PoisonError::into_inner);
    let is_there = |name: &str| {
        ["ratelimit.service.", "ratelimit_server."]
            .iter()
            .any(|one| name.starts_with(one))
    };
    all.iter()
        .filter(|(name, _)| is_there(name))
        .map(|(name, sum)| (name.clone(), *sum))
        .collect()
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Adds up lines such as `NAME:5|c`.
pub fn gather(statsd: &TcpListener, counters: &Mutex<BTreeMap<String, u64>>) {
    for stream in statsd.incoming().map_while(Result::ok) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let Some((name, rest)) = line.split_once(':') else {
                continue;
            };
            let Some(by) = rest
                .strip_suffix("|c")
                .and_then(|by| by.parse::<u64>().ok())
            else {
                continue;
            };
            *counters
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(name.to_owned())
                .or_default() += by;
        }
    }
}
