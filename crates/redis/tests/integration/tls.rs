//! TLS to the store.
#![cfg(feature = "servers")]

use crate::waiting;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Health, Mode, OnError, SharedDecision, Source, Store};
use tidegate_redis_servers::{PATIENCE, Proxy, Sentinel, Server, eventually, free_port};
use waiting::{reach, until};

/// The address for the inner run of the test.
const ADDRESS: &str = "TIDEGATE_TEST_TLS_ADDRESS";

/// A server that speaks TLS with a self-signed certificate.
struct Secured {
    port: u16,
    server: Server,
    directory: PathBuf,
}

impl Secured {
    /// Starts a server with further options.
    fn start(options: &[&str]) -> Self {
        let port = free_port();
        let directory =
            std::env::temp_dir().join(format!("tidegate-tls-{}-{port}", std::process::id()));
        fs::create_dir_all(&directory).expect("the temporary directory takes a directory");
        let certified = rcgen::generate_simple_self_signed(["localhost".into()])
            .expect("a certificate can be made");
        let files = [
            ("cert.pem", certified.cert.pem()),
            ("key.pem", certified.signing_key.serialize_pem()),
        ];
        let [cert, key] = files.map(|(name, text)| {
            let path = directory.join(name);
            fs::write(&path, text).expect("its own directory can be written");
            path.to_string_lossy().into_owned()
        });
        let port_text = port.to_string();
        let tls = [
            "--tls-port",
            &port_text,
            "--tls-cert-file",
            &cert,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &cert,
            "--tls-auth-clients",
            "no",
        ];
        Self {
            port,
            server: Server::start(&[&tls, options].concat()),
            directory,
        }
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        // If the directory cannot be removed, the system cleans it up later.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

async fn ask(address: &str) -> Source {
    let store = Store::open(address).expect("the address is well formed");
    // The store is reached or known to fail.
    eventually("the store is up or failing", || {
        store.health() == Health::Up || store.trouble().is_some()
    });
    let quota: Quota = "5/1h".parse().expect("the quota is well formed");
    let limit = store
        .limit("x", Policy::token_bucket(quota))
        .deadline(PATIENCE);
    limit
        .build()
        .expect("the policy can be shared")
        .acquire("k", 1)
        .await
        .source
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_connects_only_to_trusted_servers() {
    if let Ok(address) = std::env::var(ADDRESS) {
        assert_eq!(ask(&address).await, Source::Store);
        return;
    }
    let secured = Secured::start(&[]);
    let port = secured.port;
    let address = format!("rediss://localhost:{port}");
    assert!(
        matches!(ask(&address).await, Source::Local(_)),
        "a self-signed certificate is not trusted"
    );
    // The certificate is named in the address, with a client certificate that the server does not
    // request.
    let file = |name: &str| secured.directory.join(name).to_string_lossy().into_owned();
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    assert_eq!(
        ask(&format!("{address}?ca={cert}&cert={cert}&key={key}")).await,
        Source::Store
    );
    // The trusted certificates come from the environment, which only another process can change.
    let inner = Command::new(std::env::current_exe().expect("the test is a program"))
        .args(["--exact", "tls::tls_connects_only_to_trusted_servers"])
        .env("SSL_CERT_FILE", secured.directory.join("cert.pem"))
        .env(ADDRESS, &address)
        .output()
        .expect("the test can be run again");
    let output = String::from_utf8_lossy(&inner.stdout);
    assert!(
        inner.status.success() && output.contains("1 passed"),
        "{output}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mode_decides_in_a_cluster_with_tls() {
    let secured = Secured::start(&["--cluster-enabled", "yes", "--tls-cluster", "yes"]);
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let order: Vec<&str> = ["CLUSTER", "ADDSLOTS"]
        .into_iter()
        .chain(slots.iter().map(String::as_str))
        .collect();
    assert_eq!(secured.server.ask(&order).text(), "OK");
    let ok = || {
        secured
            .server
            .ask(&["CLUSTER", "INFO"])
            .text()
            .contains("cluster_state:ok")
    };
    eventually("the cluster is well", ok);
    let ca = secured.directory.join("cert.pem");
    let address = format!(
        "rediss+cluster://localhost:{}?ca={}",
        secured.port,
        ca.to_string_lossy()
    );
    let store = Store::open(&address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
        let policy: Policy = "40/1h".parse().expect("the policy is well formed");
        let limit = store
            .limit(&format!("{mode:?}"), policy)
            .mode(mode)
            .on_error(OnError::Closed);
        let limit = limit
            .deadline(PATIENCE)
            .build()
            .expect("the policy can be shared");
        let told = limit
            .acquire_many(&[("one", 30), ("one", 30), ("two", 1)])
            .await;
        let allowed: Vec<bool> = told.iter().map(SharedDecision::is_allowed).collect();
        assert_eq!(allowed, [true, false, true], "{mode:?}: {told:?}");
        assert!(
            told.iter()
                .all(|told| !matches!(told.source, Source::Failed(_))),
            "{mode:?}: {told:?}"
        );
    }
    store.close().await;
}

/// The store at each of these addresses is down, and the error has the hint once the first caller's
/// deadline has passed.
async fn told(addresses: &[&str], port: u16, deadline: Duration, hint: &str) {
    for address in addresses {
        let address = address.replace("PORT", &port.to_string());
        let store = Store::open(&address).expect("the address is well formed");
        let quota: Quota = "5/1h".parse().expect("the quota is well formed");
        let limit = store
            .limit("x", Policy::token_bucket(quota))
            .deadline(deadline);
        let limit = limit.build().expect("the policy can be shared");
        assert!(matches!(
            limit.acquire("k", 1).await.source,
            Source::Local(_)
        ));
        let why = store
            .trouble()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(why.contains(hint), "{address}: {why:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_address_of_a_plain_server_gives_a_hint() {
    let plain = Server::start(&[]);
    let sentinel = Sentinel::watch(&plain, 0);
    let hint = "write redis for rediss";
    // Too short to see an attempt to connect fail, because such a server may wait for more data.
    let usual = Duration::from_millis(50);
    told(
        &["rediss://127.0.0.1:PORT", "rediss+cluster://127.0.0.1:PORT"],
        plain.port(),
        usual,
        hint,
    )
    .await;
    told(
        &["rediss+sentinel://127.0.0.1:PORT/main"],
        sentinel.port(),
        usual,
        hint,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_address_of_a_tls_server_gives_a_hint() {
    let secured = Secured::start(&[]);
    let addresses = [
        "redis://127.0.0.1:PORT",
        "redis://127.0.0.1:PORT?protocol=resp3",
        "redis+cluster://127.0.0.1:PORT",
        "redis+sentinel://127.0.0.1:PORT/main",
    ];
    // The server closes the connection immediately. How soon the client sees this depends on the
    // machine.
    told(&addresses, secured.port, PATIENCE, "write rediss for redis").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_gives_no_tls_hint() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = reach(&proxy.address()).await;
    proxy.refuse(true);
    proxy.cut();
    until("it is down", || store.health() == Health::Down).await;
    let why = store.trouble().expect("it is down").to_string();
    assert!(
        why.contains("cannot reach the store") && !why.contains("TLS"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_client_reconnects_without_a_tls_hint() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let quota: Quota = "1000000/1s".parse().expect("the quota is well formed");
    // The client may lose a command that it is given while its connection ends: then the answer is
    // the policy's, at the deadline.
    let limit = store
        .limit("x", Policy::token_bucket(quota))
        .deadline(Duration::from_secs(5))
        .on_error(OnError::Closed);
    let limit = limit.build().expect("the policy can be shared");
    let made = store.stats().connections;
    for _ in 0..30 {
        // Kills the limit's and the heartbeat's connections, but not the one that sends this
        // command.
        server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        let answers = [limit.acquire("k", 1).await, limit.acquire("k", 1).await];
        for why in answers.iter().map(|answer| format!("{:?}", answer.source)) {
            assert!(!why.contains("TLS"), "{why}");
        }
        let why = store
            .trouble()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(!why.contains("TLS"), "{why}");
    }
    until("decisions are the store's again", || {
        store.health() == Health::Up
    })
    .await;
    assert_eq!(limit.acquire("k", 1).await.source, Source::Store);
    assert!(store.stats().connections > made, "its connections were cut");
}
