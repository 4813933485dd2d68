//! A server behind its real accept loops, which lives as long as the fuzzer.
#![allow(dead_code, reason = "each target uses its own part")]

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::client::SendRequest;
use socket2::{Domain, Socket, Type};
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_server::{Options, Server};
use tokio::{net, runtime::Runtime, sync::mpsc};

pub const RULES: &str = "limits:
  - {name: a, limit: 1000000/1h}
  - {name: g, limit: 9/1h, global: true}
  - {name: k, limit: 3/1m}
  - {name: two, limit: 2/1h, algorithm: sliding-log, global: true}
";
const ENVOY: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: second, requests_per_unit: 4, name: n}}
  - {key: k, value: u, metadata: {a: b}, rate_limit: {unlimited: true}, descriptors: [{key: k, rate_limit: {unit: year}}]}
  - {key: k, value: h, rate_limit: {unit: hour, requests_per_unit: 9}, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 5}}]}
  - {key: r, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: n}]}}
  - {key: s, value: x*, share_threshold: true, detailed_metric: true, rate_limit: {unit: week, requests_per_unit: 2}}
  - {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: h, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0, algorithm: sliding-log}}
  - {key: u, rate_limit: {unlimited: true}}
";
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
    pub spoe: SocketAddr,
    clock: Arc<ManualTimer>,
    /// The connection to the gRPC listener that the last call left open.
    grpc_client: Mutex<Option<SendRequest<Bytes>>>,
    runtime: Runtime,
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
            spoe: Some("127.0.0.1:0".to_owned()),
            resp: None,
            trace_keys: Some("100%".parse().expect("a share")),
            trace_memory: 1 << 20,
            history_memory: 1 << 20,
            max_keys: 1_000,
            ..Options::default()
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let clock = Arc::new(ManualTimer::new(Nanos::from_secs(1_700_049_600)));
        let its = Arc::<ManualTimer>::clone(&clock);
        let server = runtime
            .block_on(Server::start_on(options, its))
            .expect("a server");
        let address = |address: Option<SocketAddr>| address.expect("it listens");
        let [http, admin] = [server.address("http"), server.address("admin")].map(address);
        let [grpc, sentinel] =
            [server.address("grpc"), server.address("sentinel-token")].map(address);
        let spoe = address(server.address("spoe"));
        let (orders, receiver) = mpsc::channel(1);
        runtime.spawn(server.run(receiver));
        let grpc_client = Mutex::default();
        Self {
            http,
            admin,
            grpc,
            sentinel,
            spoe,
            clock,
            grpc_client,
            runtime,
            _orders: orders,
        }
    }

    /// Moves the server's clock on.
    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Calls this path of the gRPC listener with these messages. Returns the gRPC status and the
    /// bytes of the answer.
    pub fn call<'m>(
        &self,
        path: &str,
        messages: impl IntoIterator<Item = &'m [u8]>,
    ) -> (i32, Vec<u8>) {
        let mut body = Vec::new();
        for message in messages {
            body.push(0);
            body.extend((message.len() as u32).to_be_bytes());
            body.extend(message);
        }
        let body = Bytes::from(body);
        let mut client = self.grpc_client.lock().expect("no panic");
        self.runtime.block_on(async {
            // The server may have ended the connection that is open.
            if let Some(open) = client.take()
                && let Ok((answer, again)) = call(open, path, body.clone()).await
            {
                *client = Some(again);
                return answer;
            }
            let stream = net::TcpStream::connect(self.grpc)
                .await
                .expect("the server accepts");
            let (open, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            let (answer, again) = call(open, path, body).await.expect("an answer");
            *client = Some(again);
            answer
        })
    }
}

/// One call. Returns the gRPC status, the bytes of the answer, and the connection.
async fn call(
    client: SendRequest<Bytes>,
    path: &str,
    body: Bytes,
) -> Result<((i32, Vec<u8>), SendRequest<Bytes>), h2::Error> {
    let mut client = client.ready().await?;
    let request = http::Request::post(format!("http://localhost{path}"));
    let request = request
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let (answer, mut sends) = client.send_request(request.body(()).expect("a path"), false)?;
    // The server may answer before it has read everything.
    let _ = sends.send_data(body, true);
    let read = async {
        let (head, mut body) = answer.await?.into_parts();
        let mut bytes = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece?;
            body.flow_control().release_capacity(piece.len())?;
            bytes.extend_from_slice(&piece);
        }
        let trailers = body.trailers().await?;
        let status = trailers
            .as_ref()
            .unwrap_or(&head.headers)
            .get("grpc-status");
        let status = status.and_then(|status| status.to_str().ok()?.parse().ok());
        Ok::<_, h2::Error>((status.expect("every answer has a status"), bytes))
    };
    let answer = tokio::time::timeout(PATIENCE, read)
        .await
        .expect("the call ends")?;
    Ok((answer, client))
}

/// Sends these bytes on a new connection and then the end. Returns what the server sent until it
/// ended the connection.
///
/// # Panics
/// When it does not end it.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    // From one of many addresses of this machine: each has 28,000 ports, and the system keeps each
    // for a minute.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let from = Ipv4Addr::from_bits(
        0x7f00_0001 + (NEXT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff) % 0xf_ffff,
    );
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket
        .bind(&SocketAddr::from((from, 0)).into())
        .expect("a port");
    socket.connect(&address.into()).expect("the server accepts");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // The server may end the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert!(
            error.kind() != std::io::ErrorKind::WouldBlock,
            "the server keeps the connection"
        );
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
    let status = answer
        .get(9..12)
        .and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
    status.expect("an answer")
}
