//! The connection: made once for everybody who needs it, and made anew when it is lost.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Cmd, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};
use tokio::{runtime::Handle, sync::watch};

use crate::{Address, StoreError, address::Place};

/// How long making a connection to a server may take, the handshake included.
const CONNECT: Duration = Duration::from_secs(2);
/// And to a store: a cluster's client waits for a silent node twice, before and after it knows all of them, and goes on with
/// the others.
const ATTEMPT: Duration = Duration::from_secs(6);
/// An answer of a cluster's node that is this late is of no use to anybody, and while the client asks a silent node who serves
/// what, it asks no other. (To a single server's, callers have deadlines.)
const ANSWER: Duration = Duration::from_secs(3);

/// A connection; cheap to clone.
#[derive(Clone)]
pub enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    pub async fn query(&mut self, command: &Cmd) -> RedisResult<Value> {
        let reply = match self {
            Self::Single(connection) => connection.req_packed_command(command).await,
            Self::Cluster(connection) => connection.req_packed_command(command).await,
        };
        reply?.extract_error()
    }
}

/// The connection of a store.
pub struct Link {
    address: Address,
    state: Arc<Mutex<State>>,
}

/// `None` until it has ended.
type Attempt = watch::Receiver<Option<Result<(u64, Connection), StoreError>>>;

#[derive(Default)]
struct State {
    /// With a number of its own, so that only who saw this one fail gives it up.
    connection: Option<(u64, Connection)>,
    made: u64,
    /// The attempt that is under way.
    attempt: Option<Attempt>,
}

impl Link {
    pub fn new(address: Address) -> Self {
        if address.is_tls() {
            // Where the program has chosen another provider already, that one is used.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Self { address, state: Arc::default() }
    }

    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// The connection, or what came of making it. However many ask, one attempt is made; it goes on when they give up.
    pub async fn get(&self, runtime: &Handle) -> Result<(u64, Connection), StoreError> {
        let mut attempt = {
            let mut state = lock(&self.state);
            if let Some(connection) = &state.connection {
                return Ok(connection.clone());
            }
            state.attempt.get_or_insert_with(|| self.attempt(runtime)).clone()
        };
        let lost = |_| StoreError::Refused("the runtime is shutting down".into());
        let result = attempt.wait_for(Option::is_some).await.map_err(lost)?;
        result.clone().unwrap_or(Err(StoreError::Down))
    }

    fn attempt(&self, runtime: &Handle) -> Attempt {
        let (tell, told) = watch::channel(None);
        let (address, state) = (self.address.clone(), Arc::clone(&self.state));
        runtime.spawn(async move {
            let made = tokio::time::timeout(ATTEMPT, connect(&address)).await;
            let made = made.unwrap_or(Err(StoreError::TimedOut)).map_err(|error| match error {
                // There was none yet that could break.
                StoreError::Lost(why) => StoreError::Refused(why),
                error => error,
            });
            let result = {
                let mut state = lock(&state);
                state.attempt = None;
                made.map(|connection| {
                    state.made += 1;
                    state.connection = Some((state.made, connection.clone()));
                    (state.made, connection)
                })
            };
            // Nobody may be waiting any more.
            let _ = tell.send(Some(result));
        });
        told
    }

    /// The number of the connection, if there is one.
    pub fn number(&self) -> Option<u64> {
        lock(&self.state).connection.as_ref().map(|(number, _)| *number)
    }

    /// Gives up a connection that failed. A cluster's goes on serving until there is a new one, as some of its parts may
    /// be well.
    pub fn give_up(&self, number: u64, runtime: &Handle) {
        let mut state = lock(&self.state);
        if state.connection.as_ref().is_none_or(|(mine, _)| *mine != number) {
            return;
        }
        if !self.address.is_cluster() {
            state.connection = None;
        } else if state.attempt.is_none() {
            state.attempt = Some(self.attempt(runtime));
        }
    }

    pub fn made(&self) -> u64 {
        lock(&self.state).made
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn connect(address: &Address) -> Result<Connection, StoreError> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
    Ok(match &address.place {
        Place::Single(url) => {
            let client = redis::Client::open(url.as_str())?;
            Connection::Single(client.get_multiplexed_async_connection_with_config(&config).await?)
        }
        Place::Cluster(nodes) => {
            let client = ClusterClient::builder(nodes.iter().map(String::as_str))
                .connection_timeout(CONNECT)
                .response_timeout(ANSWER)
                .retries(3)
                .min_retry_wait(5)
                .max_retry_wait(50)
                .build()?;
            Connection::Cluster(client.get_async_connection().await?)
        }
        Place::Sentinel { sentinels, name, login } => {
            let mut node = SentinelNodeConnectionInfo::default().set_redis_connection_info(login.clone());
            if address.is_tls() {
                node = node.set_tls_mode(redis::TlsMode::Secure);
            }
            let sentinels = sentinels.iter().map(String::as_str).collect();
            let mut client =
                SentinelClient::build(sentinels, name.clone(), Some(node), SentinelServerType::Master)?;
            Connection::Single(client.get_async_connection_with_config(&config).await?)
        }
    })
}
