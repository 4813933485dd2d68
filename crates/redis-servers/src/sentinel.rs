//! A sentinel, alone: what it sees is what counts.

use std::fs;

use crate::{Reply, Server, eventually};

/// A `redis-server --sentinel` process that watches one master under the name `main`.
#[derive(Debug)]
pub struct Sentinel {
    server: Server,
}

impl Sentinel {
    /// Watches a master, and waits until the sentinel knows its replicas.
    ///
    /// # Panics
    /// When there is no `redis-server`, or it does not start.
    #[must_use]
    pub fn watch(master: &Server, replicas: usize) -> Self {
        let mut server = Server::bare(&["sentinel.conf", "--sentinel"]);
        let config = format!(
            "bind 127.0.0.1\nport {}\nsentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 2000\n",
            server.port(),
            master.port(),
        );
        fs::write(server.directory().join("sentinel.conf"), config)
            .expect("its own directory can be written");
        server.start_again();
        let sentinel = Self { server };
        eventually("the sentinel knows the replicas", || {
            matches!(sentinel.server.ask(&["SENTINEL", "REPLICAS", "main"]),
                Reply::Array(found) if found.len() == replicas)
        });
        sentinel
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.server.port()
    }

    /// The port of the master as the sentinel knows it.
    #[must_use]
    pub fn master(&self) -> Option<u16> {
        match self.server.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]) {
            Reply::Array(address) => address.get(1)?.text().parse().ok(),
            _ => None,
        }
    }
}
