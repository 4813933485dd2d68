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
    /// What the latest attempt failed with.
    failure: Option<StoreError>,
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
            let made = made.unwrap_or(Err(StoreError::TimedOut));
            let made = made.map_err(|error| unreached(address.is_tls(), error));
            let result = {
                let mut state = lock(&state);
                state.attempt = None;
                state.failure = made.as_ref().err().cloned();
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

    /// What is to be told of an error: where nobody waits for long enough to see an attempt fail, that no answer came in time
    /// is not what helps.
    pub fn explain(&self, error: &StoreError) -> StoreError {
        let state = lock(&self.state);
        if *error != StoreError::TimedOut || state.connection.is_some() {
            return error.clone();
        }
        state.failure.clone().unwrap_or_else(|| unreached(self.address.is_tls(), error.clone()))
    }
}

/// How a connection ends that was never one, in the client's words.
const ENDS: [&str; 4] = ["reset by peer", "roken pipe", "end of file", "eof"];

/// What an attempt failed with: there was no connection yet that could break, and perhaps only one of both speaks TLS.
fn unreached(tls: bool, error: StoreError) -> StoreError {
    let ended = |why: &str| ENDS.iter().any(|end| why.contains(end));
    let (why, hint) = match (error, tls) {
        (StoreError::TimedOut, true) => ("nothing answered the TLS handshake in time".into(), NO_TLS),
        // Of a cluster's nodes the client tells in words that none was in time.
        (StoreError::Lost(why), true)
            if ended(&why) || why.contains("corrupt message") || why.contains("timed out") =>
        {
            (why, NO_TLS)
        }
        (StoreError::Lost(why), false) if ended(&why) => (why, TLS),
        (StoreError::BadReply, false) => ("the answer is none of a Redis server".into(), TLS),
        (StoreError::Lost(why), _) => return StoreError::Refused(why),
        (error, _) => return error,
    };
    StoreError::Refused(format!("{why} ({hint})").into())
}

const NO_TLS: &str = "is it a TLS port? if not, write redis for rediss in the address";
const TLS: &str = "is it a TLS port? if so, write rediss for redis in the address";

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
