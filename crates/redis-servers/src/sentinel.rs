//! A single sentinel, which decides failovers alone.

use std::fs;

use crate::{Reply, Server, eventually};

/// A `redis-server --sentinel` process that monitors one master under the name `main`.
#[derive(Debug)]
pub struct Sentinel {
    server: Server,
}

impl Sentinel {
    /// Monitors a master, and waits until the sentinel knows its replicas.
    ///
    /// # Panics
    /// When there is no `redis-server`, or it does not start.
    pub fn watch(master: &Server, replicas: usize) -> Self {
        Self::start(master, replicas, None)
    }

    /// Like [`watch`](Self::watch), with a password for the default user and for a user `watcher`.
    ///
    /// # Panics
    /// The same as [`watch`](Self::watch).
    pub fn watch_with_password(master: &Server, replicas: usize, password: &str) -> Self {
        Self::start(master, replicas, Some(password))
    }

    fn start(master: &Server, replicas: usize, password: Option<&str>) -> Self {
        let mut server = Server::bare(&["sentinel.conf", "--sentinel"]);
        server.password = password.map(Into::into);
        let users = password
            .map(|password| format!("requirepass {password}\nuser watcher on >{password} +@all\n"));
        let config = format!(
            "{}bind 127.0.0.1\nport {}\nsentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 2000\n{}",
            users.unwrap_or_default(),
            server.port(),
            master.port(),
            // The sentinel considers a master down that rejects its login.
            master
                .option("--requirepass")
                .map_or(String::new(), |pass| format!(
                    "sentinel auth-pass main {pass}\n"
                )),
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
    pub const fn port(&self) -> u16 {
        self.server.port()
    }

    /// Sends one command to the sentinel.
    pub fn ask(&self, command: &[&str]) -> Reply {
        self.server.ask(command)
    }

    /// The port of the master, according to the sentinel.
    pub fn master(&self) -> Option<u16> {
        match self
            .server
            .ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"])
        {
            Reply::Array(address) => address.get(1)?.text().parse().ok(),
            _ => None,
        }
    }
}
