//! A server with a manual clock, and clients that speak its protocols byte by byte.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod http2;

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_server::{
    Ended, Options, Order, Server,
    http::{Plane, ROUTES},
};
use tokio::sync::{mpsc, oneshot, watch};

/// How long a test waits for something that should happen immediately.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Puts a text in the place of a file in one step: a server that follows the file never sees half
/// of it, nor an empty one.
pub fn replace(path: &Path, text: impl AsRef<[u8]>) {
    let next = path.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(next, path).unwrap();
}

/// A running server.
pub struct Running {
    pub http: SocketAddr,
    pub admin: SocketAddr,
    pub resp: SocketAddr,
    pub grpc: SocketAddr,
    pub sentinel: SocketAddr,
    pub dashboard: SocketAddr,
    pub spoe: SocketAddr,
    pub clock: Arc<ManualTimer>,
    reloads: watch::Receiver<u64>,
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<Ended>>,
}

impl Running {
    /// A server with these rules.
    pub fn with_rules(name: &str, rules: &str) -> Self {
        Self::with_rules_and(name, rules, |_| ())
    }

    /// A server with these rules and changed options.
    pub fn with_rules_and(name: &str, rules: &str, change: impl FnOnce(&mut Options)) -> Self {
        let path = scratch(name).join("rules.yaml");
        std::fs::write(&path, rules).unwrap();
        let mut options = Options {
            rules: Some(path),
            ..Options::default()
        };
        change(&mut options);
        Self::start(options)
    }

    pub fn start(options: Options) -> Self {
        // Noon of some day, so that the start of fixed windows does not depend on the epoch.
        Self::start_at(options, Nanos::from_secs(1_700_049_600))
    }

    pub fn start_at(options: Options, now: Nanos) -> Self {
        Self::try_start_at(options, now).expect("the server should start")
    }

    pub fn try_start_at(options: Options, now: Nanos) -> Result<Self, String> {
        let clock = Arc::new(ManualTimer::new(now));
        let its = Arc::clone(&clock);
        let (orders, receiver) = mpsc::channel(4);
        let (told, tell) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                match Server::start_on(options, its).await {
                    Ok(server) => {
                        let started = (
                            server.address("http"),
                            server.address("admin"),
                            server.address("resp"),
                            server.address("grpc"),
                            server.address("sentinel-token"),
                            server.address("sentinel-dashboard"),
                            server.address("spoe"),
                            server.reloads(),
                        );
                        told.send(Ok(started)).unwrap();
                        server.run(receiver).await
                    }
                    Err(error) => {
                        told.send(Err(error.to_string())).unwrap();
                        Ended::Cut
                    }
                }
            })
        });
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let (http, admin, resp, grpc, sentinel, dashboard, spoe, reloads) = tell
            .blocking_recv()
            .expect("the server's thread panicked")?;
        let [http, admin, resp, grpc, sentinel, dashboard, spoe] =
            [http, admin, resp, grpc, sentinel, dashboard, spoe]
                .map(|address| address.unwrap_or(nowhere));
        let thread = Some(thread);
        Ok(Self {
            http,
            admin,
            resp,
            grpc,
            sentinel,
            dashboard,
            spoe,
            clock,
            reloads,
            orders,
            thread,
        })
    }

    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    pub fn orders(&self) -> mpsc::Sender<Order> {
        self.orders.clone()
    }

    pub fn order(&self, order: Order) {
        self.orders.blocking_send(order).unwrap();
    }

    /// Runs `change`, then waits until the rules have been loaded or rejected after it.
    pub fn reloading(&mut self, change: impl FnOnce()) {
        let before = *self.reloads.borrow_and_update();
        change();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let reloaded = self.reloads.wait_for(|count| *count > before);
            tokio::time::timeout(PATIENCE, reloaded)
                .await
                .expect("the rules should be loaded again")
                .unwrap();
        });
    }

    pub fn stop(self) -> Ended {
        self.order(Order::Stop);
        self.ended()
    }

    /// Waits for the end of a server that was told to stop.
    pub fn ended(mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn post(&self, path: &str, body: &str) -> Response {
        self.connect_for(path).send("POST", path, body)
    }

    pub fn get(&self, path: &str) -> Response {
        self.connect_for(path).send("GET", path, "")
    }

    /// A connection to the listener that serves a path: the data plane's if both do.
    pub fn connect_for(&self, path: &str) -> Http {
        let path = path.split('?').next().unwrap_or(path);
        let is_admin = ROUTES
            .iter()
            .any(|route| route.path == path && !route.is_on(Plane::Data));
        Http::connect(if is_admin { self.admin } else { self.http })
    }

    /// One of the server's metrics, by its name with labels.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").body;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name} in:\n{text}"))
            .parse()
            .unwrap()
    }

    /// Sends one RESP command on a new connection.
    pub fn resp(&self, command: &str) -> String {
        Resp::connect(self.resp).ask(command)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = self.orders.blocking_send(Order::Stop);
            let _ = thread.join();
        }
    }
}

/// A server whose limits are in this store, with generous deadlines for busy machines.
pub fn on_store(name: &str, address: &str, rules: &str) -> Running {
    let server = Running::with_rules_and(name, rules, |options| {
        options.store_deadline = Duration::from_secs(5).into();
        options.store = Some(address.to_owned());
    });
    let ready = || server.get("/readyz").json()["status"] == "ready";
    tidegate_redis_servers::eventually("the store has been reached", ready);
    server
}

/// Sends one request and returns its status and body.
pub fn acquire(server: &Running, limit: &str, key: &str) -> (u16, Value) {
    let response = server.post(
        "/v1/acquire",
        &json!({"limit": limit, "key": key}).to_string(),
    );
    (response.status, response.json())
}

/// How many of this many requests, alternating between both protocols, are admitted.
pub fn admitted(server: &Running, limit: &str, key: &str, requests: usize) -> usize {
    let mut client = Resp::connect(server.resp);
    let over_http = (0..requests / 2)
        .filter(|_| acquire(server, limit, key).0 == 200)
        .count();
    let command = format!("ACQUIRE {limit} {key}");
    over_http
        + (requests / 2..requests)
            .filter(|_| client.ask(&command).starts_with("[0 "))
            .count()
}

/// The digest of a token, as the access file has it.
pub fn digest_of(token: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    digest
        .as_ref()
        .iter()
        .fold("sha256:".to_owned(), |text, byte| {
            format!("{text}{byte:02x}")
        })
}

/// An empty directory for one test.
pub fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-server-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A parsed HTTP response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(header, _)| header == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

/// An HTTP connection that stays open.
pub struct Http(BufReader<TcpStream>);

impl Http {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn send(&mut self, method: &str, path: &str, body: &str) -> Response {
        let length = body.len();
        self.write(
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
                .as_bytes(),
        );
        self.read()
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Sends the head of a request, and returns when the server waits for its body: the request is
    /// then in progress.
    pub fn begin(&mut self, path: &str, length: usize) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        );
        self.write(head.as_bytes());
        assert_eq!(self.read().status, 100);
    }

    pub fn read(&mut self) -> Response {
        let mut line = || {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let first = line();
        let status = first
            .split(' ')
            .nth(1)
            .unwrap_or_else(|| panic!("no status in {first:?}"))
            .parse()
            .unwrap();
        let mut headers = Vec::new();
        loop {
            let line = line();
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut response = Response {
            status,
            headers,
            body: String::new(),
        };
        if response.header("transfer-encoding") == Some("chunked") {
            let mut body = Vec::new();
            loop {
                let mut size = String::new();
                self.0.read_line(&mut size).unwrap();
                // Each chunk ends with a line end of its own.
                let mut chunk = vec![0; usize::from_str_radix(size.trim_end(), 16).unwrap() + 2];
                self.0.read_exact(&mut chunk).unwrap();
                if chunk.len() == 2 {
                    break;
                }
                body.extend_from_slice(&chunk[..chunk.len() - 2]);
            }
            response.body = String::from_utf8(body).unwrap();
            return response;
        }
        let length: usize = response
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        response.body = String::from_utf8(body).unwrap();
        response
    }

    /// Whether the server closes the connection without sending another byte.
    pub fn ends(&mut self) -> bool {
        // A reset counts as closing.
        !matches!(self.0.read(&mut [0]), Ok(1..))
    }
}

/// A RESP connection.
pub struct Resp(BufReader<TcpStream>);

impl Resp {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends words as a frame and formats the reply like redis-cli: bare integers, arrays in
    /// brackets.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(&frame(command));
        self.reply()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Whether nothing arrives within the stream's read timeout.
    pub fn is_silent(&mut self) -> bool {
        self.0.fill_buf().is_err()
    }

    pub fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let Some(kind) = line.get(..1) else {
            return "closed".to_owned();
        };
        let rest = &line[1..];
        match kind {
            "+" | ":" | "-" => rest.to_owned(),
            "_" => "nil".to_owned(),
            "$" if rest == "-1" => "nil".to_owned(),
            "$" | "=" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                String::from_utf8(bytes).unwrap()
            }
            "*" | "%" => {
                let items = rest.parse::<usize>().unwrap() * if kind == "%" { 2 } else { 1 };
                let items: Vec<_> = (0..items).map(|_| self.reply()).collect();
                let (open, close) = if kind == "%" { ("{", "}") } else { ("[", "]") };
                format!("{open}{}{close}", items.join(" "))
            }
            _ => panic!("no reply: {line:?}"),
        }
    }

    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Whether the server closes the connection without sending another byte.
    pub fn ends(&mut self) -> bool {
        // A reset counts as closing.
        !matches!(self.0.read(&mut [0]), Ok(1..))
    }
}

/// Converts words separated by blanks to a frame; `''` is the empty word.
pub fn frame(command: &str) -> Vec<u8> {
    let words: Vec<&str> = command
        .split(' ')
        .map(|word| if word == "''" { "" } else { word })
        .collect();
    let mut frame = format!("*{}\r\n", words.len());
    for word in words {
        write!(frame, "${}\r\n{word}\r\n", word.len()).unwrap();
    }
    frame.into_bytes()
}
