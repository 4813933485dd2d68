//! Clients that connect without starting TLS, reset HTTP/2 streams, or open too many connections.

use std::{net::SocketAddr, path::Path, time::Duration};

use rcgen::{CertificateParams, KeyPair};
use tidegate_redis_servers::eventually;
use tidegate_server::{Options, TlsFiles};

use crate::{
    RULES,
    harness::{Http, Resp, Running, scratch},
};

const ASK: &str = r#"{"limit":"per-user","key":"alice"}"#;

fn certificate(directory: &Path) -> TlsFiles {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let files = TlsFiles {
        cert: directory.join("cert.pem"),
        key: directory.join("key.pem"),
        client_ca: None,
    };
    std::fs::write(&files.cert, certificate.pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}

fn with_tls(name: &str, change: impl FnOnce(&mut Options)) -> Running {
    let files = certificate(&scratch(&format!("{name}-certificate")));
    Running::with_rules_and(name, RULES, |options| {
        options.tls = Some(files);
        change(options);
    })
}

/// Connects with TLS, trusting any certificate, and checks that the server replies to a PING.
fn pings_over_tls(address: SocketAddr, files: &Path) -> bool {
    use std::{
        io::{Read, Write},
        net::TcpStream,
        sync::Arc,
    };

    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, StreamOwned,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    };

    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(files).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let Ok(stream) = TcpStream::connect(address) else {
        return false;
    };
    stream
        .set_read_timeout(Some(crate::harness::PATIENCE))
        .unwrap();
    let mut stream = StreamOwned::new(
        ClientConnection::new(Arc::new(config), name).unwrap(),
        stream,
    );
    let mut reply = [0; 7];
    stream.write_all(b"PING\r\n").is_ok()
        && stream.read_exact(&mut reply).is_ok()
        && reply == *b"+PONG\r\n"
}

#[test]
fn clients_that_start_no_tls_keep_no_client_out_and_lose_their_connections() {
    let name = "attack-half-open";
    let server = with_tls(name, |options| options.max_connections = 8);
    let cert = scratch_of(&format!("{name}-certificate")).join("cert.pem");
    // Some send nothing at all, and some an incomplete handshake.
    let mut silent: Vec<_> = (0..20).map(|_| Resp::connect(server.resp)).collect();
    for client in silent.iter_mut().skip(10) {
        let _ = client.try_send(b"\x16\x03\x01\x02\x00\x01");
    }
    for _ in 0..3 {
        assert!(pings_over_tls(server.resp, &cert));
    }
    // By the server's clock, as soon as the time for the handshake is over.
    server.advance(Duration::from_secs(11));
    assert!(silent.iter_mut().all(Resp::ends));
    // Plain text ends the connection, too.
    let mut plain = Resp::connect(server.resp);
    plain.send(b"PING\r\n");
    // An alert arrives first.
    assert!((0..16).any(|_| plain.ends()) && pings_over_tls(server.resp, &cert));
}

/// The directory that [`scratch`] made.
fn scratch_of(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tidegate-server-{}-{name}", std::process::id()))
}

#[test]
fn many_concurrent_handshakes_all_complete_and_commands_continue_between_them() {
    let name = "attack-handshakes";
    let server = with_tls(name, |_| ());
    let cert = scratch_of(&format!("{name}-certificate")).join("cert.pem");
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..64)
            .map(|_| scope.spawn(|| pings_over_tls(server.resp, &cert)))
            .collect();
        assert!(clients.into_iter().all(|client| client.join().unwrap()));
    });
}

#[test]
fn each_listener_bounds_the_connections_per_client() {
    let server = Running::with_rules_and("attack-per-peer", RULES, |options| {
        options.max_connections_per_peer = Some(2);
    });
    let mut http = [Http::connect(server.http), Http::connect(server.http)];
    let mut resp = [Resp::connect(server.resp), Resp::connect(server.resp)];
    for (http, resp) in http.iter_mut().zip(&mut resp) {
        assert_eq!(http.send("POST", "/v1/peek", ASK).status, 200);
        assert_eq!(resp.ask("PING"), "PONG");
    }
    assert!(Http::connect(server.http).ends() && Resp::connect(server.resp).ends());
    assert_eq!(server.metric("tidegate_resp_connections_refused_total"), 1);
    assert_eq!(server.metric("tidegate_http_connections_refused_total"), 1);
    let [first, _other] = resp;
    drop(first);
    eventually("a connection that ended makes room", || {
        let mut client = Resp::connect(server.resp);
        client.try_send(b"PING\r\n").is_ok() && !client.ends()
    });
}

#[test]
fn http2_works_and_a_client_that_resets_streams_quickly_loses_its_connection() {
    let server = Running::with_rules("attack-h2", RULES);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let resets = async {
        let stream = tokio::net::TcpStream::connect(server.http).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        let ended = tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let request = || {
            axum::http::Request::get(format!("http://{}/healthz", server.http))
                .body(())
                .unwrap()
        };
        let (answer, _) = client.send_request(request(), true).unwrap();
        assert_eq!(
            answer.await.unwrap().status(),
            200,
            "HTTP/2 without TLS, known in advance"
        );
        for _ in 0..100_000 {
            match client.send_request(request(), false) {
                Ok((_, mut stream)) => stream.send_reset(h2::Reason::CANCEL),
                Err(_) => break,
            }
            match client.ready().await {
                Ok(ready) => client = ready,
                Err(_) => break,
            }
            if ended.is_finished() {
                break;
            }
            tokio::task::yield_now().await;
        }
        tokio::time::timeout(crate::harness::PATIENCE, ended)
            .await
            .expect("it should end")
            .unwrap()
    };
    let error = runtime
        .block_on(resets)
        .expect_err("the server should end the connection");
    // The last frame may be lost while the client is still writing.
    assert!(
        error
            .reason()
            .is_none_or(|reason| reason == h2::Reason::ENHANCE_YOUR_CALM),
        "{error}"
    );
    assert_eq!(server.post("/v1/peek", ASK).status, 200);
}

#[test]
fn over_http2_the_dashboard_may_post_and_a_foreign_page_may_not() {
    let server = Running::with_rules("attack-h2-origin", RULES);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // HTTP/2 has `:authority` and no Host.
    let post = async |origin: &str| {
        let stream = tokio::net::TcpStream::connect(server.admin).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = axum::http::Request::post(format!("http://{}/v1/block", server.admin));
        let request = request.header("origin", origin).body(()).unwrap();
        let (answer, mut body) = client
            .ready()
            .await
            .unwrap()
            .send_request(request, false)
            .unwrap();
        let sent = r#"{"limit":"per-user","key":"mallory"}"#;
        body.send_data(sent.into(), true).unwrap();
        answer.await.unwrap().status().as_u16()
    };
    runtime.block_on(async {
        assert_eq!(post("http://evil.example").await, 403);
        assert_eq!(post(&format!("http://{}", server.admin)).await, 200);
        assert_eq!(post(&format!("https://{}", server.admin)).await, 200);
    });
}
