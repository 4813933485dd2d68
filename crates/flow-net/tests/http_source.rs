//! Rules in configuration services. Consul, Nacos and Apollo are stand-ins that answer as their
//! documentation says; etcd is real (`scripts/test.sh --interop`), and a stand-in, too.
#![cfg(feature = "http-source")]

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use tidegate_flow::{
    Gate,
    rules::FlowRule,
    sources::{SourceError, sentinel::Kind},
};
use tidegate_flow_net::sources::HttpSource;

/// A service that answers with the status, header fields and body that were set last. Tells each
/// request's head and body.
struct Service {
    scheme: &'static str,
    address: SocketAddr,
    answer: Arc<Mutex<(u16, String, String)>>,
    requests: mpsc::Receiver<String>,
}

impl Service {
    fn start() -> Self {
        Self::with("http", Ok)
    }

    /// A service over TLS with this certificate and key.
    fn secured(made: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Self {
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ServerConfig::builder_with_provider(ring).with_safe_default_protocol_versions();
        let config = config
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into());
        let config = Arc::new(config.unwrap());
        Self::with("https", move |stream| {
            let session = rustls::ServerConnection::new(Arc::clone(&config))
                .map_err(std::io::Error::other)?;
            Ok(rustls::StreamOwned::new(session, stream))
        })
    }

    fn with<S: Read + Write>(
        scheme: &'static str,
        wrap: impl Fn(TcpStream) -> std::io::Result<S> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new((404, String::new(), String::new())));
        let (its, (tell, requests)) = (Arc::clone(&answer), mpsc::channel());
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let mut stream = wrap(stream).unwrap();
                // A client that does not trust the service sends no request.
                let Ok(request) = read(&mut stream) else {
                    continue;
                };
                let _ = tell.send(request);
                let (status, fields, body) = its.lock().unwrap().clone();
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} x\r\n{fields}Connection: close\r\nContent-Length: {length}\r\n\r\n"
                );
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        Self {
            scheme,
            address,
            answer,
            requests,
        }
    }

    fn url(&self) -> String {
        format!("{}://{}/", self.scheme, self.address)
    }

    fn says(&self, status: u16, fields: &str, body: impl Into<String>) {
        *self.answer.lock().unwrap() = (status, fields.to_owned(), body.into());
    }

    fn asked(&self) -> String {
        self.requests.recv_timeout(Duration::from_mins(1)).unwrap()
    }
}

/// Reads a request. A short body comes with its head or right after it.
fn read(stream: &mut impl Read) -> std::io::Result<String> {
    let mut bytes = [0; 4_096];
    let mut request = String::new();
    while !request.contains("\r\n\r\n") || request.starts_with("POST") && !request.ends_with('}') {
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        request.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
    }
    Ok(request)
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Follows a source through a change, a mistake, a missing key and its return. `set` lets the
/// service have a value.
fn follow(source: HttpSource, set: impl Fn(Option<&str>)) {
    let rules = |count: u32| format!(r#"[{{"resource":"r","count":{count}}}]"#);
    let gate = Gate::new();
    let (report, reports) = mpsc::channel();
    let report = move |result: Result<(), &SourceError>| {
        // The receiver is gone at the end of the test.
        let _ = report.send(result.map_err(ToString::to_string));
    };
    set(Some(&rules(1)));
    let follower = gate
        .follow(source.sentinel(Kind::Flow).every(ms(5)), report)
        .unwrap();
    let next = || reports.recv_timeout(Duration::from_mins(1)).unwrap();
    assert_eq!(gate.rules().flow, [FlowRule::new("r", 1)]);
    set(Some(&rules(2)));
    assert_eq!(
        (next(), gate.rules().flow),
        (Ok(()), vec![FlowRule::new("r", 2)])
    );
    set(Some("[{"));
    let said = next().unwrap_err();
    assert!(
        said.starts_with("the key ") && said.contains("not well formed"),
        "{said}"
    );
    set(None);
    let said = next().unwrap_err();
    assert!(said.contains("is missing or empty"), "{said}");
    assert_eq!(
        (gate.rules().flow, follower.failure()),
        (vec![FlowRule::new("r", 2)], Some(said))
    );
    set(Some(&rules(3)));
    assert_eq!(
        (next(), gate.rules().flow),
        (Ok(()), vec![FlowRule::new("r", 3)])
    );
    assert_eq!(follower.failure(), None);
}

#[test]
fn consul_is_asked_with_the_index_of_its_last_answer() {
    let service = Service::start();
    service.says(
        200,
        "X-Consul-Index: 7\r\n",
        r#"[{"resource":"r","count":1}]"#,
    );
    let source =
        HttpSource::consul(&service.url(), "shop rules/flow").header("X-Consul-Token", "secret");
    let following = Gate::new()
        .follow(source.sentinel(Kind::Flow), |_| ())
        .unwrap();
    let first = service.asked();
    assert!(
        first.starts_with("GET /v1/kv/shop%20rules/flow?raw HTTP/1.1\r\n"),
        "{first}"
    );
    assert!(
        first
            .to_lowercase()
            .contains("\r\nx-consul-token: secret\r\n"),
        "{first}"
    );
    assert!(
        service
            .asked()
            .starts_with("GET /v1/kv/shop%20rules/flow?raw&wait=1s&index=7 HTTP/1.1")
    );
    drop(following);
    let source = HttpSource::consul(&service.url(), "k");
    follow(source, |value| match value {
        Some(value) => service.says(200, "X-Consul-Index: 8\r\n", value),
        None => service.says(404, "X-Consul-Index: 9\r\n", ""),
    });
}

#[test]
fn etcd_is_asked_by_its_json_gateway() {
    use base64::{Engine as _, prelude::BASE64_STANDARD};

    let service = Service::start();
    follow(HttpSource::etcd(&service.url(), "shop/flow"), |value| {
        let kvs = value.map(|value| serde_json::json!([{"value": BASE64_STANDARD.encode(value)}]));
        service.says(
            200,
            "",
            serde_json::json!({"header": {"revision": "1"}, "kvs": kvs}).to_string(),
        );
    });
    let asked = service.asked();
    assert!(
        asked.starts_with("POST /v3/kv/range HTTP/1.1\r\n")
            && asked.ends_with(r#"{"key":"c2hvcC9mbG93"}"#),
        "{asked}"
    );
}

#[test]
fn nacos_is_asked_for_a_configuration() {
    let service = Service::start();
    let source = HttpSource::nacos(&service.url(), "shop-flow", "A GROUP").tenant("t&1");
    follow(source, |value| match value {
        Some(value) => service.says(200, "", value),
        None => service.says(404, "", "config data not exist"),
    });
    let want =
        "GET /nacos/v1/cs/configs?dataId=shop-flow&group=A%20GROUP&tenant=t%261 HTTP/1.1\r\n";
    assert!(service.asked().starts_with(want));
}

#[test]
fn apollo_is_asked_for_a_namespace() {
    let service = Service::start();
    let source = HttpSource::apollo(
        &service.url(),
        "shop",
        "default",
        "application",
        "flowRules",
    );
    follow(source, |value| {
        let configurations = serde_json::json!({"flowRules": value, "other": "x"});
        service.says(
            200,
            "",
            serde_json::json!({"configurations": configurations}).to_string(),
        );
    });
    assert!(
        service
            .asked()
            .starts_with("GET /configs/shop/default/application HTTP/1.1\r\n")
    );
}

#[test]
fn a_service_that_fails_or_redirects_is_an_error_and_a_source_needs_a_format() {
    let service = Service::start();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = other.local_addr().unwrap();
    for (status, fields) in [
        (500, String::new()),
        (302, format!("Location: http://{place}/\r\n")),
    ] {
        service.says(status, &fields, "[]");
        let source = HttpSource::nacos(&service.url(), "d", "g").sentinel(Kind::Flow);
        let said = Gate::new().follow(source, |_| ()).unwrap_err().to_string();
        assert!(said.contains(&format!("the answer is {status}")), "{said}");
    }
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err());
    service.says(200, "", "[]");
    let said = Gate::new()
        .follow(HttpSource::nacos(&service.url(), "d", "g"), |_| ())
        .unwrap_err();
    assert!(said.to_string().contains("no format was chosen"), "{said}");
    let said = Gate::new()
        .follow(HttpSource::etcd("ftp://127.0.0.1", "k"), |_| ())
        .unwrap_err();
    assert!(
        said.to_string().contains("begins with http:// or https://"),
        "{said}"
    );
    let nowhere = HttpSource::consul(&format!("http://{place}"), "k").sentinel(Kind::Flow);
    drop(other);
    assert!(Gate::new().follow(nowhere, |_| ()).is_err());
}

#[test]
fn a_service_over_tls_is_asked_only_if_its_authority_is_trusted() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".into()]).unwrap();
    let service = Service::secured(&made);
    let authority =
        std::env::temp_dir().join(format!("tidegate-authority-{}.pem", std::process::id()));
    let source = || HttpSource::nacos(&service.url(), "d", "g").sentinel(Kind::Flow);
    let refused = |source| Gate::new().follow(source, |_| ()).unwrap_err().to_string();
    service.says(200, "", "[]");
    // The authorities of the system have not signed it.
    let said = refused(source());
    assert!(said.contains("certificate"), "{said}");
    let said = refused(source().authority(&authority));
    assert!(said.contains("tidegate-authority-"), "{said}");
    fs::write(&authority, "no certificate").unwrap();
    let said = refused(source().authority(&authority));
    assert!(said.contains("has no certificate in PEM"), "{said}");
    fs::write(&authority, made.cert.pem()).unwrap();
    follow(source().authority(&authority), |value| match value {
        Some(value) => service.says(200, "", value),
        None => service.says(404, "", "config data not exist"),
    });
    fs::remove_file(authority).unwrap();
}

/// etcd itself, which Debian has as `etcd-server`: written over HTTP, followed over HTTPS.
#[test]
#[ignore = "needs etcd: scripts/test.sh --interop"]
fn a_key_of_etcd_itself_is_followed() {
    use base64::{Engine as _, prelude::BASE64_STANDARD};

    let directory = std::env::temp_dir().join(format!("tidegate-etcd-{}", std::process::id()));
    let [client, secured, peer] = [(); 3].map(|()| tidegate_redis_servers::free_port());
    let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
    let secured = format!("https://127.0.0.1:{secured}");
    fs::create_dir_all(&directory).unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".into()]).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| directory.join(name));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut etcd = std::process::Command::new("etcd");
    etcd.arg("--data-dir")
        .arg(directory.join("data"))
        .arg("--cert-file")
        .arg(&cert)
        .arg("--key-file")
        .arg(&key);
    etcd.args([
        "--listen-client-urls",
        &format!("{client},{secured}"),
        "--advertise-client-urls",
        &client,
    ]);
    etcd.args([
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
    ]);
    etcd.args(["--initial-cluster", &format!("default={peer}")])
        .stderr(std::process::Stdio::null());
    let mut etcd = etcd.stdout(std::process::Stdio::null()).spawn().unwrap();
    let post = |path: &str, body: serde_json::Value| {
        ureq::post(format!("{client}{path}"))
            .send(body.to_string())
            .is_ok()
    };
    let key = BASE64_STANDARD.encode("shop/flow");
    tidegate_redis_servers::eventually("etcd answers", || {
        post("/v3/kv/range", serde_json::json!({"key": key}))
    });
    follow(
        HttpSource::etcd(&secured, "shop/flow").authority(cert),
        |value| {
            let done = match value {
                Some(value) => post(
                    "/v3/kv/put",
                    serde_json::json!({"key": key, "value": BASE64_STANDARD.encode(value)}),
                ),
                None => post("/v3/kv/deleterange", serde_json::json!({"key": key})),
            };
            assert!(done);
        },
    );
    etcd.kill().unwrap();
    etcd.wait().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}
