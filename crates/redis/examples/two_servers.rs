//! Two servers share a limit over a store: of ten requests, five at each, they admit five together.
//! Here both are in one process; in two processes, each has its own `Store`, too.
//!
//! ```console
//! TIDEGATE_STORE=redis://127.0.0.1:6379 cargo run -p tidegate-redis --example two_servers
//! ```

use std::{env, error::Error, process};

use tidegate_core::Policy;
use tidegate_redis::{OnError, SharedLimit, Source, Store};

/// One of the servers: its connection to the store, and the limit there.
struct Server {
    name: &'static str,
    limit: SharedLimit,
}

impl Server {
    async fn start(name: &'static str, address: &str) -> Result<Self, Box<dyn Error>> {
        let store = Store::open(address)?;
        let limit = store
            .limit("logins", Policy::sliding_log("5/1m".parse()?)?)
            .on_error(OnError::Closed)
            .build()?;
        // Says what is wrong if the store does not reply, or its user may not run the script.
        store.examine().await?;
        Ok(Self { name, limit })
    }

    /// Whether a login of this user may proceed.
    async fn admits(&self, user: &str) -> Result<bool, Box<dyn Error>> {
        let answer = self.limit.acquire(user, 1).await;
        if let Source::Failed(error) = answer.source {
            return Err(error.into());
        }
        match answer.decision.retry_after() {
            None => println!(
                "{}: admitted, {} left",
                self.name,
                answer.decision.remaining()
            ),
            Some(wait) => println!("{}: denied, again in {wait:.0?}", self.name),
        }
        Ok(answer.is_allowed())
    }
}

/// How many of ten requests the two servers admit together.
pub(crate) async fn run(address: &str) -> Result<u32, Box<dyn Error>> {
    let servers = [
        Server::start("one server", address).await?,
        Server::start("the other", address).await?,
    ];
    // Each run has a user of its own, who has used nothing yet.
    let user = format!("alice-{}", process::id());
    let mut admitted = 0;
    for _ in 0..5 {
        for server in &servers {
            admitted += u32::from(server.admits(&user).await?);
        }
    }
    Ok(admitted)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::var("TIDEGATE_STORE");
    let address = address.as_deref().unwrap_or("redis://127.0.0.1:6379");
    println!("{} of 10 requests were admitted", run(address).await?);
    Ok(())
}
