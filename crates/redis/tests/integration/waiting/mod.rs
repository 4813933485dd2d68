//! Waiting without blocking the runtime.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::time::Duration;

use tidegate_redis::{Health, Store};
use tidegate_redis_servers::PATIENCE;
use tokio::time::{Instant, sleep};

/// Polls until a condition is true.
pub async fn until(what: &str, mut yes: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 5 {
        if yes() {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("still false: {what}");
}

/// A store that has been reached.
pub async fn reach(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    until("the store is reached", || store.health() == Health::Up).await;
    store
}

/// Bounds a loop that runs until a condition is true.
pub struct Until {
    what: &'static str,
    begun: Instant,
}

impl Until {
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            begun: Instant::now(),
        }
    }

    /// Whether the loop must continue.
    ///
    /// # Panics
    /// If the loop has run for too long.
    pub fn is_yet_to_be(&self, so: bool) -> bool {
        assert!(
            so || self.begun.elapsed() < PATIENCE,
            "still false: {}",
            self.what
        );
        !so
    }
}
