//! The example does what it says.
#![cfg(feature = "servers")]

#[allow(dead_code, reason = "the test calls `run`")]
#[path = "../../examples/two_servers.rs"]
mod two_servers;

use tidegate_redis_servers::Server;

#[tokio::test]
async fn two_servers_admit_the_limit_together() {
    let server = Server::start(&[]);
    assert_eq!(two_servers::run(&server.address()).await.unwrap(), 5);
}

#[tokio::test]
async fn without_a_store_the_example_says_what_is_wrong() {
    let port = tidegate_redis_servers::free_port();
    let address = format!("redis://127.0.0.1:{port}");
    let error = two_servers::run(&address).await.unwrap_err().to_string();
    assert!(error.contains("refused"), "{error}");
}
