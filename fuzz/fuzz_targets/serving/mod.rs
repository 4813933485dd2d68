//! A server behind its real accept loops, which lives as long as the fuzzer.
#![allow(dead_code, reason = "each target uses its own part")]

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use tidegate_core::{ManualClock, Nanos};
use tidegate_server::{Options, Server};
use tokio::{runtime::Runtime, sync::mpsc};

pub const RULES: &str =
    "limits:\n  - {name: a, limit: 1000000/1h}\n  - {name: g, limit: 9/1h, global: true}\n";
const ENVOY: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 4}}]\n";
const SENTINEL: &str = r#"[{"resource":"r","grade":1,"count":1000000,"clusterMode":true,
    "clusterConfig":{"flowId":1,"thresholdType":1}}]"#;
/// How long an answer may take before it counts as a hang.
const PATIENCE: Duration = Duration::from_secs(20);

pub static SERVER: LazyLock<Serving> = LazyLock::new(Serving::start);

pub struct Serving {
    pub http: SocketAddr,
    pub admin: SocketAddr,
    pub grpc: SocketAddr,
    pub sentinel: SocketAddr,
    _runtime: Runtime,
    _orders: mpsc::Sender<tidegate_server::Order>,
}

impl Serving {
    fn start() -> Self {
        let directory = std::env::temp_dir().join(format!("tidegate-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let file = |name: &str, text: &str| -> PathBuf {
            let path = directory.join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let options = Options {
            rules: Some(file("rules.yaml", RULES)),
            envoy_config: Some(file("envoy.yaml", ENVOY)),
            sentinel_rules: Some(file("sentinel.json", SENTINEL)),
            grpc: Some("127.0.0.1:0".to_owned()),
            sentinel: Some("127.0.0.1:0".to_owned()),
            resp: None,
            trace_keys: Some("100%".parse().expect("a share")),
            trace_memory: 1 << 20,
            history_memory: 1 << 20,
            max_keys: 1_000,
            ..Options::default()
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_700_049_600)));
        let server = runtime.block_on(Server::start_on(options, clock)).expect("a server");
        let address = |address: Option<SocketAddr>| address.expect("it listens");
        let [http, admin] = [server.address("http"), server.address("admin")].map(address);
        let [grpc, sentinel] = [server.address("grpc"), server.address("sentinel-token")].map(address);
        let (orders, receiver) = mpsc::channel(1);
        runtime.spawn(server.run(receiver));
        Self { http, admin, grpc, sentinel, _runtime: runtime, _orders: orders }
    }
}

/// Sends these bytes on a new connection and then the end. Returns what the server sent until it ended the connection.
///
/// # Panics
/// When it does not end it.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    // From one of many addresses of this machine: each has 28,000 ports, and the system keeps each for a minute.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let from =
        Ipv4Addr::from_bits(0x7f00_0001 + (NEXT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff) % 0xf_ffff);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("a port");
    socket.connect(&address.into()).expect("the server accepts");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // The server may end the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert!(error.kind() != std::io::ErrorKind::WouldBlock, "the server keeps the connection");
    }
    answer
}

/// Sends a request. Returns the response's status.
pub fn post(address: SocketAddr, path: &str, body: &[u8]) -> u16 {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let answer = send(address, &[head.as_bytes(), body].concat());
    let status = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
    status.expect("an answer")
}
