//! How a server is to be run.

use std::{net::TcpListener, path::PathBuf, sync::Arc, time::Duration};

use tidegate_redis::Timeout;

use crate::{
    heavy::TOP_KEYS,
    history::HISTORY_BYTES,
    rate_limits::Consume,
    throttle::ThrottleAllowed,
    tls::TlsFiles,
    trace::{KeyShare, TRACE_BYTES},
};

/// How a server is to be run. [`Options::default`] is what `tidegate serve` does without options, on ports of the
/// system's choice.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where HTTP listens; `None` for not at all.
    pub http: Option<String>,
    /// Where the Redis protocol listens; `None` for not at all.
    pub resp: Option<String>,
    /// Where gRPC listens, for Envoy; `None` for not at all. Needs the crate's feature `grpc`.
    pub grpc: Option<String>,
    /// Where the control plane listens: metrics, rules, blocks, resets; `None` for not at all.
    pub admin: Option<String>,
    /// Certificates for TLS on all listeners; `None` for none.
    pub tls: Option<TlsFiles>,
    /// The file that says who may do what; `None` to let everybody in.
    pub access: Option<PathBuf>,
    /// Listen on addresses that other machines can reach without TLS or without credentials.
    pub insecure: bool,
    /// The rules file; `None` for the built-in example, or for no rules where there is an `envoy_config`.
    pub rules: Option<PathBuf>,
    /// Whether operators may change the rules file over HTTP.
    pub rules_writable: bool,
    /// A file or a directory with the configuration of Envoy's rate limit service.
    pub envoy_config: Option<PathBuf>,
    /// What a request from Envoy consumes that is denied.
    pub envoy_consume: Consume,
    /// Whether Envoy is told to add the header fields `RateLimit` and `RateLimit-Policy` to responses.
    pub envoy_headers: bool,
    /// How many keys each limit remembers that has no bound of its own.
    pub max_keys: usize,
    /// How many bytes the states of all limits may take together, divided by use; `None` for what the rules say, or else
    /// `max_keys` for each limit.
    pub max_memory: Option<u64>,
    /// How many keys each limit remembers by name in each count of its heavy keys; 0 for none.
    pub top_keys: usize,
    /// How many bytes the history of what limits decided may take; 0 keeps none.
    pub history_memory: u64,
    /// Which share of all keys is traced; `None` for no trace.
    pub trace_keys: Option<KeyShare>,
    /// How many bytes the trace may take; a second copy is made while somebody reads it.
    pub trace_memory: u64,
    /// The address of a store that servers share their limits over; `None` to keep them in memory.
    pub store: Option<String>,
    /// The store's password, where it does not stand in the address.
    pub store_password: Option<String>,
    /// How many servers share the store, at least: while it does not answer, each holds its limits to its share.
    pub nodes: u32,
    /// What the keys in the store begin with: servers of one prefix share their limits.
    pub store_prefix: String,
    /// How long the store may take for a decision, unless the limit says otherwise.
    pub store_deadline: Timeout,
    /// Where the state is kept over a restart. Together with a store, it is how many servers share the store.
    pub state: Option<PathBuf>,
    /// How often it is written.
    pub state_interval: Duration,
    /// How often the rules file is looked at. A change is loaded when two looks agree on it.
    pub reload_interval: Duration,
    /// What RESP clients must give with `AUTH`.
    pub resp_password: Option<String>,
    /// How many threads serve RESP.
    pub resp_threads: usize,
    /// After this long without a command a RESP connection is closed; zero for never.
    pub resp_idle_timeout: Duration,
    /// How many connections each protocol takes. Beyond that the connection that has been idle longest gives way.
    pub max_connections: usize,
    /// How many connections each client address may have on each listener (of IPv6 each network of 64 bits); `None` for as many as
    /// there are.
    pub max_connections_per_peer: Option<usize>,
    /// Sockets that listen already, by the option that they stand for (`http`, `resp`, `grpc`, `admin`).
    pub sockets: Vec<(String, Arc<TcpListener>)>,
    /// How long an HTTP client may take nothing of its answer.
    pub http_write_timeout: Duration,
    /// Web pages of these origins may ask over HTTP, as in `https://ops.example.com`; browsers tell the origin.
    pub http_origins: Vec<String>,
    /// Which buckets `CL.THROTTLE` may ask for.
    pub throttle: ThrottleAllowed,
    /// How long requests under way may take when the server stops.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            http: Some("127.0.0.1:0".to_owned()),
            resp: Some("127.0.0.1:0".to_owned()),
            grpc: None,
            admin: Some("127.0.0.1:0".to_owned()),
            tls: None,
            access: None,
            insecure: false,
            rules: None,
            rules_writable: false,
            envoy_config: None,
            envoy_consume: Consume::default(),
            envoy_headers: false,
            max_keys: 1 << 20,
            max_memory: None,
            top_keys: TOP_KEYS,
            history_memory: HISTORY_BYTES,
            trace_keys: None,
            trace_memory: TRACE_BYTES,
            store: None,
            store_password: None,
            nodes: 1,
            store_prefix: "tidegate".to_owned(),
            store_deadline: Timeout::USUAL,
            state: None,
            state_interval: Duration::from_secs(30),
            reload_interval: Duration::from_secs(1),
            resp_password: None,
            resp_threads: 1,
            resp_idle_timeout: Duration::ZERO,
            max_connections: 10_000,
            max_connections_per_peer: None,
            sockets: Vec::new(),
            http_write_timeout: Duration::from_secs(10),
            http_origins: Vec::new(),
            throttle: ThrottleAllowed::default(),
            grace: Duration::from_secs(10),
        }
    }
}
