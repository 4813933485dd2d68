//! Makes one connection for all callers, and reconnects when it is lost.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError,
    RedisResult, ServerErrorKind, TlsCertificates, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use tokio::{runtime::Handle, sync::watch};

use super::{
    address::{Address, Target, tcp},
    fault,
};
use crate::{StoreError, sync::lock};

/// The time limit for connecting to a server, including the handshake.
const CONNECT: Duration = Duration::from_secs(2);
/// The time limit for connecting to a store. A cluster client waits for a silent node twice, before
/// and after it knows all nodes, and then continues with the others.
const ATTEMPT: Duration = Duration::from_secs(6);
/// The time limit for a cluster node's reply. Callers have given up by then, and while the client
/// asks a silent node for the cluster's topology, it asks no other node. (On a single server, only
/// the callers' deadlines apply.)
const ANSWER: Duration = Duration::from_secs(3);

/// A connection. Cheap to clone.
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

/// The connection of a store, and how to make it.
pub struct Connector {
    address: Address,
    /// The prefix of the store's keys, for errors that name the necessary permissions.
    prefix: Arc<str>,
    runtime: Handle,
    state: Arc<Mutex<ConnectorState>>,
}

/// `None` until the attempt has ended.
type Attempt = watch::Receiver<Option<Result<(u64, Connection), StoreError>>>;

#[derive(Default)]
struct ConnectorState {
    /// Each connection has a number, so that only a caller that saw this one fail discards it.
    connection: Option<(u64, Connection)>,
    made: u64,
    /// The digest of the files with which the connection was made.
    files: String,
    /// The error of the latest attempt.
    failure: Option<StoreError>,
    /// The attempt in progress.
    attempt: Option<Attempt>,
}

impl Connector {
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn new(address: Address, prefix: &str) -> Self {
        if address.is_tls() {
            // If the program has already installed another provider, that one is used.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Self {
            address,
            prefix: prefix.into(),
            runtime: Handle::current(),
            state: Arc::default(),
        }
    }

    pub const fn address(&self) -> &Address {
        &self.address
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The runtime that drives the connection.
    pub const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Converts a client error.
    pub fn fault(&self, error: &RedisError) -> StoreError {
        let is_moved = matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)
        );
        if is_moved && !self.address.is_cluster() {
            return StoreError::node_of_a_cluster();
        }
        fault::of(error, &self.prefix)
    }

    /// Returns the connection or connects. Concurrent callers share one attempt, which continues if
    /// they give up.
    pub async fn get(&self) -> Result<(u64, Connection), StoreError> {
        let mut attempt = {
            let mut state = lock(&self.state);
            if let Some(connection) = &state.connection {
                return Ok(connection.clone());
            }
            let reached = state.made > 0;
            state
                .attempt
                .get_or_insert_with(|| self.attempt(reached))
                .clone()
        };
        let lost = |_| StoreError::Refused("the runtime is shutting down".into());
        let result = attempt.wait_for(Option::is_some).await.map_err(lost)?;
        result.clone().unwrap_or(Err(StoreError::Down))
    }

    fn attempt(&self, reached: bool) -> Attempt {
        let (tell, receiver) = watch::channel(None);
        let (address, prefix, state) = (
            self.address.clone(),
            self.prefix.clone(),
            Arc::clone(&self.state),
        );
        self.runtime.spawn(async move {
            // Passwords and certificates change while the process runs.
            let (read, usual) = (address.clone(), (address, String::new()));
            let again = tokio::task::spawn_blocking(move || read.read_again()).await;
            let (address, files) = again.unwrap_or(usual);
            let made = match tokio::time::timeout(ATTEMPT, connect(&address)).await {
                Ok(made) => made.map_err(|error| unreached(&address, &prefix, &error, reached)),
                Err(_) => Err(silent(&address)),
            };
            let result = {
                let mut state = lock(&state);
                state.attempt = None;
                state.files = files;
                state.failure = made.as_ref().err().cloned();
                made.map(|connection| {
                    state.made += 1;
                    state.connection = Some((state.made, connection.clone()));
                    (state.made, connection)
                })
            };
            // All callers may have given up.
            let _ = tell.send(Some(result));
        });
        receiver
    }

    /// The number of the current connection, if any.
    pub fn number(&self) -> Option<u64> {
        lock(&self.state)
            .connection
            .as_ref()
            .map(|(number, _)| *number)
    }

    /// Discards a connection that failed. A cluster's connection stays in use until there is a new
    /// one, because some of its shards may still work.
    pub fn give_up(&self, number: u64) {
        let mut state = lock(&self.state);
        if state
            .connection
            .as_ref()
            .is_none_or(|(mine, _)| *mine != number)
        {
            return;
        }
        if !self.address.is_cluster() {
            state.connection = None;
        } else if state.attempt.is_none() {
            state.attempt = Some(self.attempt(true));
        }
    }

    /// Connects again if the files of the address have changed since the latest attempt. The
    /// connection stays in use until there is a new one.
    pub fn refresh(self: &Arc<Self>) {
        let connector = Arc::clone(self);
        self.runtime.spawn_blocking(move || {
            let (_, files) = connector.address.read_again();
            let mut state = lock(&connector.state);
            if state.connection.is_some() && state.attempt.is_none() && state.files != files {
                state.attempt = Some(connector.attempt(true));
            }
        });
    }

    /// How many connections were made.
    pub fn made(&self) -> u64 {
        lock(&self.state).made
    }

    /// Replaces a timeout by the error of the latest connection attempt, if there is one. Callers
    /// may give up before an attempt fails, and a timeout alone does not help the user.
    pub fn explain(&self, error: &StoreError) -> StoreError {
        let state = lock(&self.state);
        if *error != StoreError::TimedOut || state.connection.is_some() {
            return error.clone();
        }
        state
            .failure
            .clone()
            .unwrap_or_else(|| silent(&self.address))
    }
}

const NO_TLS: &str = "is it a TLS port? if not, write redis for rediss in the address";
const TLS: &str = "is it a TLS port? if so, write rediss for redis in the address; or a proxy such as twemproxy, which lacks commands \
                   and ends the connection? if so, use the server itself";
const CERTIFICATE: &str =
    "if a private authority signed it, name its certificate with ?ca=FILE in the address";

/// The error when an attempt to connect gets no reply at all.
fn silent(address: &Address) -> StoreError {
    if address.is_tls() {
        StoreError::Refused(format!("no reply to the TLS handshake in time ({NO_TLS})").into())
    } else {
        StoreError::TimedOut
    }
}

/// The error of an attempt to connect. If it failed before the first reply, perhaps only one side
/// speaks TLS; this hint is omitted if the store was `reached` before.
fn unreached(address: &Address, prefix: &str, error: &RedisError, reached: bool) -> StoreError {
    let cause = fault::of(error, prefix);
    let io = fault::io(error);
    let ended = !reached
        && matches!(
            io.map(io::Error::kind),
            Some(
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
            )
        );
    let tls = io
        .and_then(io::Error::get_ref)
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let hint = match (tls, address.is_tls()) {
        (Some(rustls::Error::InvalidCertificate(_)), _) => CERTIFICATE,
        (Some(_), _) => NO_TLS,
        (None, true) if cause == StoreError::TimedOut => return silent(address),
        (None, true) if ended => NO_TLS,
        (None, false) if ended || cause == StoreError::BadReply => TLS,
        _ => {
            if matches!(cause, StoreError::Script(_) | StoreError::Server(_))
                && let Some(advice) = address.advice()
            {
                return StoreError::Address(format!("{} ({advice})", fault::words(error)).into());
            }
            return match cause {
                StoreError::Lost(why) => StoreError::Refused(why),
                // No script has run yet, so the login itself lacks permission.
                StoreError::Forbidden(why) | StoreError::Script(why) => {
                    StoreError::NotPermitted(why)
                }
                cause => cause,
            };
        }
    };
    let why = match cause {
        StoreError::Lost(why) => why.to_string(),
        StoreError::BadReply => "the reply is not from a Redis server".into(),
        cause => cause.to_string(),
    };
    StoreError::Refused(format!("{why} ({hint})").into())
}

async fn connect(address: &Address) -> RedisResult<Connection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(None);
    let certificates = address.certificates.as_ref();
    Ok(match &address.target {
        Target::Single(info) => {
            let client = client(info, certificates)?;
            Connection::Single(
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await?,
            )
        }
        Target::Cluster(nodes) => {
            let mut builder = ClusterClient::builder(nodes.iter().cloned())
                .tcp_settings(tcp())
                .connection_timeout(CONNECT)
                .response_timeout(ANSWER)
                .retries(3)
                .min_retry_wait(5)
                .max_retry_wait(50);
            if let Some(certificates) = certificates {
                builder = builder.certs(certificates.clone());
            }
            match builder.build()?.get_async_connection().await {
                Ok(connection) => Connection::Cluster(connection),
                // The cluster client reports only in words why it reached no node. A direct
                // connection to one node returns the error's kind.
                Err(error) => {
                    let alone = client(&nodes[0], certificates)?;
                    let mut alone = alone
                        .get_multiplexed_async_connection_with_config(&config)
                        .await?;
                    let slots = alone
                        .req_packed_command(redis::cmd("CLUSTER").arg("SLOTS"))
                        .await;
                    return Err(slots.and_then(Value::extract_error).err().unwrap_or(error));
                }
            }
        }
        Target::Sentinel {
            sentinels,
            name,
            login,
        } => {
            let mut client = sentinel(sentinels, name, login, address)?;
            Connection::Single(client.get_async_connection_with_config(&config).await?)
        }
    })
}

fn client(
    info: &ConnectionInfo,
    certificates: Option<&TlsCertificates>,
) -> RedisResult<redis::Client> {
    match certificates {
        Some(certificates) => redis::Client::build_with_tls(info.clone(), certificates.clone()),
        None => redis::Client::open(info.clone()),
    }
}

fn sentinel(
    sentinels: &[ConnectionInfo],
    name: &str,
    login: &RedisConnectionInfo,
    address: &Address,
) -> RedisResult<SentinelClient> {
    let addresses = sentinels.iter().map(|sentinel| sentinel.addr().clone());
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?
        .set_client_to_redis_tcp_settings(tcp())
        .set_client_to_redis_db(login.db())
        .set_client_to_redis_protocol(login.protocol());
    if address.is_tls() {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
    }
    if let Some(username) = login.username() {
        builder = builder.set_client_to_redis_username(username);
    }
    if let Some(password) = login.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    let own = sentinels.first().map(ConnectionInfo::redis_settings);
    if let Some(username) = own.and_then(RedisConnectionInfo::username) {
        builder = builder.set_client_to_sentinel_username(username);
    }
    if let Some(password) = own.and_then(RedisConnectionInfo::password) {
        builder = builder.set_client_to_sentinel_password(password);
    }
    if let Some(certificates) = &address.certificates {
        builder = builder.set_client_to_redis_certificates(certificates.clone());
        builder = builder.set_client_to_sentinel_certificates(certificates.clone());
    }
    builder.build()
}
