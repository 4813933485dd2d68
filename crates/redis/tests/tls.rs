//! A store by TLS.

use std::{fs, process::Command};

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Health, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server, eventually, free_port};

/// Tells the inner run of the test where to go.
const ADDRESS: &str = "TIDEGATE_TEST_TLS_ADDRESS";

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
    let certified =
        rcgen::generate_simple_self_signed(["localhost".into()]).expect("a certificate can be made");
    let directory = std::env::temp_dir().join(format!("tidegate-tls-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("the temporary directory takes a directory");
    let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    fs::write(&cert, certified.cert.pem()).expect("its own directory can be written");
    fs::write(&key, certified.signing_key.serialize_pem()).expect("its own directory can be written");
    let (cert, key) = (cert.to_string_lossy().into_owned(), key.to_string_lossy().into_owned());
    let port = free_port().to_string();
    let _server = Server::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
    ]);
    let address = format!("rediss://localhost:{port}");
    assert!(matches!(ask(&address).await, Source::Local(_)), "a certificate of nobody's is not trusted");
    // Whom to trust comes from the environment, which only another process can have another of.
    let inner = Command::new(std::env::current_exe().expect("the test is a program"))
        .args(["--exact", "tls_is_spoken_with_who_is_trusted_and_nobody_else"])
        .env("SSL_CERT_FILE", &cert)
        .env(ADDRESS, &address)
        .output()
        .expect("the test can be run again");
    assert!(inner.status.success(), "{}", String::from_utf8_lossy(&inner.stdout));
    // A directory that stays is the system's to clean.
    let _ = fs::remove_dir_all(&directory);
}
