//! Waiting without keeping the runtime from other work.

use std::time::Duration;

use tidegate_redis::{Health, Store};
use tidegate_redis_servers::PATIENCE;
use tokio::time::sleep;

/// Waits until something is so, in pauses.
pub async fn until(what: &str, mut yes: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 5 {
        if yes() {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("still not so: {what}");
}

/// A store that has been reached.
pub async fn reach(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    until("the store is reached", || store.health() == Health::Up).await;
    store
}
