//! Passwords and certificates that change while a program runs, and advice for addresses that do
//! not fit the server.
#![cfg(feature = "servers")]

use std::{fs, path::PathBuf, time::Duration};

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Address, OnError, SharedLimit, Source, Store, StoreError};
use tidegate_redis_servers::{PATIENCE, Server, eventually, free_port};

fn limit(store: &Store) -> SharedLimit {
    let quota: Quota = "1000000/1h".parse().expect("the quota is well formed");
    let limit = store
        .limit("x", Policy::token_bucket(quota))
        .on_error(OnError::Closed);
    limit
        .deadline(Duration::from_secs(5))
        .build()
        .expect("the policy can be shared")
}

/// Waits until the store decides again.
async fn decides(limit: &SharedLimit) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if limit.acquire("k", 1).await.source == Source::Store {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store does not decide: {:?}", limit.store().trouble());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_a_file_is_read_for_each_connection_and_at_a_refresh() {
    let server = Server::start(&[]);
    server.ask(&["ACL", "SETUSER", "app", "on", ">one", "~*", "+@all"]);
    let file = server.directory().join("password");
    fs::write(&file, "one\n").expect("the directory takes a file");
    let address: Address = format!("redis://app@127.0.0.1:{}", server.port())
        .parse()
        .expect("it is well formed");
    let missing = address
        .clone()
        .with_password_file("/nowhere/password")
        .expect_err("it is missing");
    assert!(
        missing.to_string().contains("/nowhere/password"),
        "{missing}"
    );
    let store =
        Store::at(address.with_password_file(&file).expect("it is there"), "p").expect("a word");
    let limit = limit(&store);
    decides(&limit).await;
    // The server changes first, and drops the connections of the user.
    server.ask(&["ACL", "SETUSER", "app", "resetpass", ">two"]);
    server.ask(&["CLIENT", "KILL", "USER", "app"]);
    eventually("the old password is refused", || {
        store.stats().errors_of("not-permitted") > 0
    });
    fs::write(&file, "two\n").expect("the directory takes a file");
    decides(&limit).await;
    let made = store.stats().connections;
    store.refresh();
    // The store connects again only if the file has changed.
    server.ask(&["ACL", "SETUSER", "app", ">three"]);
    fs::write(&file, "three\n").expect("the directory takes a file");
    store.refresh();
    eventually("there is a new connection", || {
        store.stats().connections > made
    });
    assert_eq!(
        (
            store.stats().connections,
            limit.acquire("k", 1).await.source
        ),
        (made + 1, Source::Store)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_that_changes_in_its_file_is_trusted_with_the_next_connection() {
    let port = free_port();
    let directory = std::env::temp_dir().join(format!("tidegate-ca-{}-{port}", std::process::id()));
    fs::create_dir_all(&directory).expect("the temporary directory takes a directory");
    let write = |name: &str| -> [PathBuf; 2] {
        let made = rcgen::generate_simple_self_signed(["localhost".into()])
            .expect("a certificate can be made");
        let paths = ["cert", "key"].map(|kind| directory.join(format!("{name}-{kind}.pem")));
        fs::write(&paths[0], made.cert.pem()).expect("it can be written");
        fs::write(&paths[1], made.signing_key.serialize_pem()).expect("it can be written");
        paths
    };
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let [old, new] = ["old", "new"].map(write);
    let server = Server::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &text(&old[0]),
        "--tls-key-file",
        &text(&old[1]),
        "--tls-ca-cert-file",
        &text(&old[0]),
        "--tls-auth-clients",
        "no",
    ]);
    let trusted = directory.join("trusted.pem");
    fs::copy(&old[0], &trusted).expect("it can be copied");
    let encoded = text(&trusted).replace('/', "%2F").replace('-', "%2d");
    let store =
        Store::open(&format!("rediss://localhost:{port}?ca={encoded}")).expect("it is well formed");
    let limit = limit(&store);
    decides(&limit).await;
    server.ask(&[
        "CONFIG",
        "SET",
        "tls-cert-file",
        &text(&new[0]),
        "tls-key-file",
        &text(&new[1]),
    ]);
    fs::copy(&new[0], &trusted).expect("it can be copied");
    server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    decides(&limit).await;
    // If the system does not remove them, it cleans them up later.
    let _ = fs::remove_dir_all(directory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_does_not_fit_the_server_gets_the_advice_that_helps() {
    let server = Server::start(&[]);
    let port = server.port();
    for (address, advice) in [
        (format!("redis://127.0.0.1:{port}/99"), "database 99"),
        (
            format!("redis+cluster://127.0.0.1:{port}"),
            "write redis://",
        ),
    ] {
        let store = Store::open(&address).expect("it is well formed");
        eventually(
            "the reason is known",
            || matches!(store.trouble(), Some(StoreError::Address(why)) if why.contains(advice)),
        );
        let told = store.trouble().expect("it is down").to_string();
        assert!(!told.contains("ACL"), "{told}");
    }
}
