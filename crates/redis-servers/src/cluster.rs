//! A cluster of masters, each with a replica.

use crate::{Reply, Server, eventually};

/// The number of slots of a Redis cluster.
const SLOTS: usize = 16_384;

/// A cluster: the first half of the servers are masters, and the others are their replicas in the
/// same order.
#[derive(Debug)]
pub struct Cluster {
    /// The servers.
    pub servers: Vec<Server>,
    masters: usize,
}

impl Cluster {
    /// Starts `masters` masters and as many replicas, and waits until all nodes report that the
    /// cluster is up.
    ///
    /// # Panics
    /// When the cluster does not come up.
    pub fn start(masters: usize) -> Self {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "4000"];
        let servers: Vec<Server> = (0..2 * masters).map(|_| Server::start(&options)).collect();
        let cluster = Self { servers, masters };
        let first = &cluster.servers[0];
        for (at, server) in cluster.servers.iter().enumerate() {
            // Each gets its own epoch, so that no conflict has to be resolved.
            server.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            first.ask(&["CLUSTER", "MEET", "127.0.0.1", &server.port().to_string()]);
        }
        for (at, server) in cluster.servers[..masters].iter().enumerate() {
            // One by one, because Redis accepts ranges only from 7.0 on.
            let slots = SLOTS * at / masters..SLOTS * (at + 1) / masters;
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let order: Vec<&str> = ["CLUSTER", "ADDSLOTS"]
                .into_iter()
                .chain(slots.iter().map(String::as_str))
                .collect();
            server.ask(&order);
        }
        for at in 0..masters {
            let (master, replica) = (cluster.id(at), &cluster.servers[masters + at]);
            eventually("the replica follows its master", || {
                replica.ask(&["CLUSTER", "REPLICATE", &master]) == Reply::Text("OK".into())
            });
        }
        cluster.settle(2 * masters);
        cluster
    }

    /// Waits until each server knows `known` nodes and sees all slots served.
    fn settle(&self, known: usize) {
        for (at, server) in self.servers.iter().enumerate() {
            eventually("the cluster is well", || {
                let info = server.ask(&["CLUSTER", "INFO"]);
                let replicating = at < self.masters
                    || server
                        .ask(&["INFO", "replication"])
                        .text()
                        .contains("master_link_status:up");
                replicating
                    && info.text().contains("cluster_state:ok")
                    && info
                        .text()
                        .contains(&format!("cluster_known_nodes:{known}\r"))
            });
        }
    }

    /// The addresses of all servers.
    pub fn addresses(&self) -> Vec<String> {
        self.servers
            .iter()
            .map(|server| format!("127.0.0.1:{}", server.port()))
            .collect()
    }

    fn id(&self, at: usize) -> String {
        self.servers[at].ask(&["CLUSTER", "MYID"]).text().into()
    }

    /// Starts to move a slot from one master to another: existing keys stay, and new keys go to the
    /// other master.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.servers[to].ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        self.servers[from].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Moves a slot's keys and then the slot.
    ///
    /// # Panics
    /// When the keys cannot be moved.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let port = self.servers[to].port().to_string();
        eventually("all keys of the slot have moved", || {
            let Reply::Array(keys) =
                self.servers[from].ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])
            else {
                return false;
            };
            for key in &keys {
                self.servers[from].ask(&["MIGRATE", "127.0.0.1", &port, key.text(), "0", "5000"]);
            }
            keys.is_empty()
        });
        let target = self.id(to);
        // The new owner comes first, as in redis-cli.
        for server in [to, from]
            .into_iter()
            .chain((0..self.masters).filter(|&at| at != to && at != from))
        {
            self.servers[server].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
    }
}
