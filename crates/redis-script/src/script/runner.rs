//! Runs a script on the current connection.

use std::sync::{Arc, atomic::Ordering};

use redis::{ErrorKind, ServerErrorKind, Value};

use super::{Script, call};
use crate::{StoreError, connection::Connector, stats::StoreCounters};

/// Runs scripts, without deadlines and without learning from failures.
pub struct Runner {
    pub connector: Arc<Connector>,
    pub counters: Arc<StoreCounters>,
}

impl Runner {
    /// Runs a script. `may_repeat` says whether to try again if a connection broke, which may be
    /// after the script ran.
    pub async fn run<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        arguments: &[A],
        may_repeat: bool,
    ) -> Result<Value, StoreError> {
        self.counters.calls.add(1);
        self.run_uncounted(script, keys, arguments, may_repeat)
            .await
    }

    /// Like [`run`](Self::run), without counting the call.
    pub async fn run_uncounted<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        arguments: &[A],
        may_repeat: bool,
    ) -> Result<Value, StoreError> {
        let is_cluster = self.connector.address().is_cluster();
        let mut again = may_repeat;
        loop {
            let (number, mut connection) = self.connector.get().await?;
            // Relaxed: a stale value only means that the text is sent once more. A restarted server
            // has a new connection. In a cluster, one node's knowledge says nothing about the
            // others.
            let with_text = !is_cluster && script.known_on.load(Ordering::Relaxed) != number;
            if with_text {
                self.counters.script_loads.add(1);
            }
            let mut reply = connection
                .query(&call::command(script, with_text, keys, arguments))
                .await;
            if let Err(error) = &reply
                && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
            {
                self.counters.script_loads.add(1);
                reply = connection
                    .query(&call::command(script, true, keys, arguments))
                    .await;
            }
            let error = match reply {
                Ok(reply) => {
                    if with_text {
                        script.known_on.store(number, Ordering::Relaxed);
                    }
                    return Ok(reply);
                }
                Err(error) => self.connector.fault(&error),
            };
            // A cluster client reconnects to its nodes on its own.
            if error.needs_reconnect() && !is_cluster {
                self.connector.give_up(number);
            }
            // The connection may have been closed while it was idle. The repeated request may be
            // charged twice, which is safe.
            if !again || !matches!(error, StoreError::Lost(_)) {
                return Err(error);
            }
            again = false;
            self.counters.calls.add(1);
        }
    }
}
