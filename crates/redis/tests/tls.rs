//! A store by TLS.
#![cfg(feature = "servers")]

mod waiting;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Health, OnError, Source, Store};
use tidegate_redis_servers::{PATIENCE, Proxy, Sentinel, Server, eventually, free_port};
use waiting::{reach, until};

/// Tells the inner run of the test where to go.
const ADDRESS: &str = "TIDEGATE_TEST_TLS_ADDRESS";

/// A server that speaks TLS, with a certificate of nobody's.
struct Secured {
    port: u16,
    _server: Server,
    directory: PathBuf,
}

impl Secured {
    fn start() -> Self {
        let port = free_port();
        let directory = std::env::temp_dir().join(format!("tidegate-tls-{}-{port}", std::process::id()));
        fs::create_dir_all(&directory).expect("the temporary directory takes a directory");
        let certified =
            rcgen::generate_simple_self_signed(["localhost".into()]).expect("a certificate can be made");
        let files = [("cert.pem", certified.cert.pem()), ("key.pem", certified.signing_key.serialize_pem())];
        let [cert, key] = files.map(|(name, text)| {
            let path = directory.join(name);
            fs::write(&path, text).expect("its own directory can be written");
            path.to_string_lossy().into_owned()
        });
        let server = Server::start(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &cert,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &cert,
            "--tls-auth-clients",
            "no",
        ]);
        Self { port, _server: server, directory }
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        // A directory that stays is the system's to clean.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

async fn ask(address: &str) -> Source {
    let store = Store::open(address).expect("the address is well formed");
    // Reached, or known not to be.
    eventually("the store is up or failing", || store.health() == Health::Up || store.trouble().is_some());
    let quota: Quota = "5/1h".parse().expect("the quota is well formed");
    let limit = store.limit("x", Policy::token_bucket(quota)).deadline(PATIENCE);
    limit.build().expect("the policy can be shared").acquire("k", 1).await.source
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_spoken_with_who_is_trusted_and_nobody_else() {
    if let Ok(address) = std::env::var(ADDRESS) {
        assert_eq!(ask(&address).await, Source::Store);
        return;
    }
    let secured = Secured::start();
    let port = secured.port;
    let address = format!("rediss://localhost:{port}");
    assert!(matches!(ask(&address).await, Source::Local(_)), "a certificate of nobody's is not trusted");
    // Named in the address, with a client's certificate that the server does not ask for.
    let file = |name: &str| secured.directory.join(name).to_string_lossy().into_owned();
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    assert_eq!(ask(&format!("{address}?ca={cert}&cert={cert}&key={key}")).await, Source::Store);
    // Whom to trust comes from the environment, which only another process can have another of.
    let inner = Command::new(std::env::current_exe().expect("the test is a program"))
        .args(["--exact", "tls_is_spoken_with_who_is_trusted_and_nobody_else"])
        .env("SSL_CERT_FILE", secured.directory.join("cert.pem"))
        .env(ADDRESS, &address)
        .output()
        .expect("the test can be run again");
    assert!(inner.status.success(), "{}", String::from_utf8_lossy(&inner.stdout));
}

/// The store at each of these addresses is down, and is told for what it is when the first caller's deadline has passed.
async fn told(addresses: &[&str], port: u16, deadline: Duration, hint: &str) {
    for address in addresses {
        let address = address.replace("PORT", &port.to_string());
        let store = Store::open(&address).expect("the address is well formed");
        let quota: Quota = "5/1h".parse().expect("the quota is well formed");
        let limit = store.limit("x", Policy::token_bucket(quota)).deadline(deadline);
        let limit = limit.build().expect("the policy can be shared");
        assert!(matches!(limit.acquire("k", 1).await.source, Source::Local(_)));
        let why = store.trouble().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains(hint), "{address}: {why:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_with_tls_of_a_server_without_is_told_for_what_it_is() {
    let plain = Server::start(&[]);
    let sentinel = Sentinel::watch(&plain, 0);
    let hint = "write redis for rediss";
    // Not long enough to see an attempt to connect fail, as such a server may wait for more.
    let usual = Duration::from_millis(50);
    told(&["rediss://127.0.0.1:PORT", "rediss+cluster://127.0.0.1:PORT"], plain.port(), usual, hint).await;
    told(&["rediss+sentinel://127.0.0.1:PORT/main"], sentinel.port(), usual, hint).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_without_tls_of_a_server_with_it_is_told_for_what_it_is() {
    let secured = Secured::start();
    let addresses = [
        "redis://127.0.0.1:PORT",
        "redis://127.0.0.1:PORT?protocol=resp3",
        "redis+cluster://127.0.0.1:PORT",
        "redis+sentinel://127.0.0.1:PORT/main",
    ];
    // It closes the connection at once; how soon that is seen is the machine's matter.
    told(&addresses, secured.port, PATIENCE, "write rediss for redis").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_is_not_taken_for_a_server_with_tls() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = reach(&proxy.address()).await;
    proxy.refuse(true);
    proxy.cut();
    until("it is down", || store.health() == Health::Down).await;
    let why = store.trouble().expect("it is down").to_string();
    assert!(why.contains("cannot reach the store") && !why.contains("TLS"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_killed_connects_again_and_nobody_speaks_of_tls() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let quota: Quota = "1000000/1s".parse().expect("the quota is well formed");
    let limit = store.limit("x", Policy::token_bucket(quota)).deadline(PATIENCE).on_error(OnError::Closed);
    let limit = limit.build().expect("the policy can be shared");
    let made = store.stats().connections;
    for _ in 0..30 {
        // The limit's and the heartbeat's; not the one that asks for this.
        server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        let answers = [limit.acquire("k", 1).await, limit.acquire("k", 1).await];
        for why in answers.iter().map(|answer| format!("{:?}", answer.source)) {
            assert!(!why.contains("TLS"), "{why}");
        }
        let why = store.trouble().map(|error| error.to_string()).unwrap_or_default();
        assert!(!why.contains("TLS"), "{why}");
    }
    until("decisions are the store's again", || store.health() == Health::Up).await;
    assert_eq!(limit.acquire("k", 1).await.source, Source::Store);
    assert!(store.stats().connections > made, "its connections were cut");
}
