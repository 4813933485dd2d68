//! The options of a server.

use std::{net::TcpListener, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;
use tidegate_envoy::{
    descriptors::{AnswerFields, Consume, FieldNames, Modes},
    xds::XdsSource,
};
use tidegate_export::{statsd::StatsdAddress, telemetry::Telemetry};
use tidegate_headers::Vendor;
use tidegate_listen::tls::TlsFiles;
use tidegate_redis::{Mode, Timeout};
use tidegate_service::{
    decide::{reservations::MOST_RESERVATIONS, throttle::ThrottleAllowed, waits::MOST_WAITING},
    observe::{
        heavy::TOP_KEYS,
        history::HISTORY_BYTES,
        trace::{KeyShare, TRACE_BYTES},
    },
};

/// The options of a server. [`Options::default`] has the defaults of `tidegate serve`, except that
/// the system chooses the ports.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a separate option")]
pub struct Options {
    /// The address for HTTP; `None` turns it off.
    pub http: Option<String>,
    /// The address for the Redis protocol; `None` turns it off.
    pub resp: Option<String>,
    /// The address for gRPC, for Envoy; `None` turns it off. Needs the crate's feature `grpc`.
    pub grpc: Option<String>,
    /// How long a gRPC connection may be used before its client must open another one, a tenth more
    /// or less; `None` for as long as it likes.
    pub grpc_max_age: Option<Duration>,
    /// How long the calls of such a connection may still take.
    pub grpc_max_age_grace: Duration,
    /// The address for HAProxy's SPOE; `None` turns it off.
    pub spoe: Option<String>,
    /// The address of the token server for Sentinel's clients; `None` turns it off.
    pub sentinel: Option<String>,
    /// The address of the control plane (metrics, rules, blocks, resets); `None` turns it off.
    pub admin: Option<String>,
    /// The certificates for TLS; `None` turns TLS off.
    pub tls: Option<TlsFiles>,
    /// The listeners with TLS, by their options (`http`, `resp`, `grpc`, `spoe`, `admin`); empty
    /// for all.
    pub tls_listeners: Vec<String>,
    /// The DNS name or URI that a client's certificate must have, without an access file; `None`
    /// for any.
    pub tls_client_san: Option<String>,
    /// The access file; `None` gives all clients the default rights.
    pub access: Option<PathBuf>,
    /// Allow addresses that other machines can reach without TLS or without credentials.
    pub insecure: bool,
    /// The rules file; `None` for the built-in example, or for no rules if `envoy_config` is set.
    pub rules: Option<PathBuf>,
    /// Whether operators may change the rules file over HTTP.
    pub rules_writable: bool,
    /// Whether clients without credentials may read the metrics of the control plane.
    pub open_metrics: bool,
    /// Another path of `/metrics` on the control plane.
    pub metrics_path: Option<String>,
    /// A file or a directory with the configuration of Envoy's rate limit service.
    pub envoy_config: Option<PathBuf>,
    /// A file with Sentinel's cluster rules, or a directory with one for each namespace.
    pub sentinel_rules: Option<PathBuf>,
    /// How servers with a store share Sentinel's cluster rules for all programs together; `None`
    /// for exact.
    pub sentinel_sharing: Option<Mode>,
    /// The maximum number of requests for tokens that each namespace may make in a second.
    pub sentinel_max_qps: u32,
    /// The address for heartbeats of programs with Sentinel; `None` for none. They are shown with
    /// the programs that report, and get the same rules.
    pub sentinel_dashboard: Option<String>,
    /// Networks whose addresses a heartbeat may name, besides the sender's own.
    pub sentinel_dashboard_networks: Vec<IpNet>,
    /// Control planes that send the configuration of Envoy's rate limit service. Needs the crate's
    /// feature `grpc`.
    pub envoy_xds: Vec<XdsSource>,
    /// How requests from Envoy that a limit denies are charged.
    pub envoy_consume: Consume,
    /// Whether Envoy adds the header fields `RateLimit` and `RateLimit-Policy` to responses.
    pub envoy_headers: AnswerFields,
    /// The names of the header fields that Envoy adds to requests, if any: the limit, what remains,
    /// and the seconds until the unit ends.
    pub envoy_request_headers: Option<FieldNames>,
    /// How answers to Envoy differ from what the limits decide.
    pub envoy_modes: Modes,
    /// Where the counters of envoyproxy/ratelimit are sent; `None` for nowhere. Needs the crate's
    /// feature `grpc`.
    pub envoy_statsd: Option<StatsdAddress>,
    /// Whether the metrics have these counters under their names there, too. Needs the crate's
    /// feature `grpc`.
    pub envoy_metric_names: bool,
    /// Whether the server is unready while there is no rule for Envoy.
    pub envoy_await_rules: bool,
    /// The provider of language models whose header fields answers over HTTP and to Envoy also
    /// have.
    pub vendor_headers: Option<Vendor>,
    /// The maximum number of keys of each limit without its own bound.
    pub max_keys: usize,
    /// The maximum bytes for the states of all limits together, divided by use; `None` for the
    /// value in the rules, or else `max_keys` for each limit.
    pub max_memory: Option<u64>,
    /// The same bytes if neither `max_memory` nor the rules set them: a part of what the container
    /// may use.
    pub container_memory: Option<u64>,
    /// The number of keys that each count of a limit's heavy keys tracks by name; 0 for none.
    pub top_keys: usize,
    /// The maximum number of reservations that are open, or remembered after their end.
    pub max_reservations: usize,
    /// The maximum number of callers that wait in line.
    pub max_waiting: usize,
    /// The maximum number of callers that wait for one key; `None` for half of them.
    pub max_waiting_per_key: Option<usize>,
    /// The file to which each action of an operator is appended; `None` for none.
    pub audit: Option<PathBuf>,
    /// The URL to which thresholds that keys reach are posted; `None` for none. Needs the feature
    /// `webhook`.
    pub webhook: Option<String>,
    /// The directory of the ledger of usage; `None` keeps none.
    pub usage: Option<PathBuf>,
    /// The bound on the ledger's files, in bytes. When it is reached, the oldest days are merged.
    pub usage_max: u64,
    /// The maximum bytes for the history of decisions; 0 keeps none.
    pub history_memory: u64,
    /// The share of all keys that is traced; `None` for no trace.
    pub trace_keys: Option<KeyShare>,
    /// The maximum size of the trace in bytes; a reader needs as much again.
    pub trace_memory: u64,
    /// The address of a store over which servers share their limits; `None` keeps them in memory.
    pub store: Option<String>,
    /// The store's password, if it is not in the address.
    pub store_password: Option<String>,
    /// The file with the store's password, which is read again for each connection and at a reload;
    /// instead of `store_password`.
    pub store_password_file: Option<PathBuf>,
    /// The minimum number of servers that share the store. While it is down, each server admits its
    /// share of the limits. Without a number, a server that starts then takes a tenth, unless its
    /// state file knows the number.
    pub nodes: Option<u32>,
    /// The name under which servers that share the store see this one; `None` for the machine's and
    /// the process's number.
    pub name: Option<String>,
    /// The prefix of the keys in the store. Servers with the same prefix share their limits.
    pub store_prefix: String,
    /// The deadline of a decision by the store, unless the limit sets its own.
    pub store_deadline: Timeout,
    /// The state file, which keeps the state across a restart. With a store, it keeps only the
    /// number of servers.
    pub state: Option<PathBuf>,
    /// The interval between writes of the state.
    pub state_interval: Duration,
    /// The interval between checks of the rules file. A change is loaded when two checks agree on
    /// it.
    pub reload_interval: Duration,
    /// The password for `AUTH` over RESP.
    pub resp_password: Option<String>,
    /// The number of threads that serve RESP.
    pub resp_threads: usize,
    /// A RESP connection without a command for this long is closed; zero means never.
    pub resp_idle_timeout: Duration,
    /// The maximum number of connections of each protocol. Above it, the connection that was idle
    /// longest is closed.
    pub max_connections: usize,
    /// The directory that keeps the flow rules that operators push to programs; `None` to keep them
    /// in memory.
    pub flow_rules: Option<PathBuf>,
    /// The maximum number of connections of each client address on each listener (for IPv6 of each
    /// /64 network); `None` for half of the listener's connections, and for no bound on this
    /// machine.
    pub max_connections_per_peer: Option<usize>,
    /// Sockets that are already listening, by the option that they replace (`http`, `resp`, `grpc`,
    /// `spoe`, `sentinel-token`, `sentinel-dashboard`, `admin`).
    pub sockets: Vec<(String, Arc<TcpListener>)>,
    /// How long an HTTP client may read nothing of its response.
    pub http_write_timeout: Duration,
    /// Origins of web pages that may send HTTP requests, as in `https://ops.example.com`.
    pub http_origins: Vec<String>,
    /// The accepted `Host` names of a control plane without credentials, in addition to IP
    /// addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// The buckets that `CL.THROTTLE` may use.
    pub throttle: ThrottleAllowed,
    /// How long the server answers as before when it is to stop, while it says that it is not
    /// ready. A second order to stop ends this time.
    pub drain: Duration,
    /// How long requests in progress may take when the server stops.
    pub grace: Duration,
    /// Sends metrics and traces to a collector; `None` for not at all. Needs the crate's feature
    /// `otlp`. Whoever started it stops it.
    pub telemetry: Option<Arc<Telemetry>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            http: Some("127.0.0.1:0".to_owned()),
            resp: Some("127.0.0.1:0".to_owned()),
            grpc: None,
            grpc_max_age: None,
            grpc_max_age_grace: Duration::from_hours(1),
            spoe: None,
            sentinel: None,
            admin: Some("127.0.0.1:0".to_owned()),
            tls: None,
            tls_listeners: Vec::new(),
            tls_client_san: None,
            access: None,
            insecure: false,
            rules: None,
            rules_writable: false,
            open_metrics: false,
            metrics_path: None,
            envoy_config: None,
            sentinel_rules: None,
            sentinel_sharing: None,
            sentinel_max_qps: 30_000,
            sentinel_dashboard: None,
            sentinel_dashboard_networks: Vec::new(),
            envoy_xds: Vec::new(),
            envoy_consume: Consume::default(),
            envoy_headers: AnswerFields::None,
            envoy_request_headers: None,
            envoy_modes: Modes::default(),
            envoy_statsd: None,
            envoy_await_rules: false,
            envoy_metric_names: false,
            vendor_headers: None,
            max_keys: 1 << 20,
            max_memory: None,
            container_memory: None,
            top_keys: TOP_KEYS,
            max_reservations: MOST_RESERVATIONS,
            max_waiting: MOST_WAITING,
            max_waiting_per_key: None,
            audit: None,
            usage: None,
            usage_max: 1 << 30,
            webhook: None,
            history_memory: HISTORY_BYTES,
            trace_keys: None,
            trace_memory: TRACE_BYTES,
            store: None,
            store_password: None,
            store_password_file: None,
            nodes: None,
            name: None,
            store_prefix: "tidegate".to_owned(),
            store_deadline: Timeout::USUAL,
            state: None,
            state_interval: Duration::from_secs(30),
            reload_interval: Duration::from_secs(1),
            resp_password: None,
            resp_threads: 1,
            resp_idle_timeout: Duration::from_hours(1),
            flow_rules: None,
            max_connections: 10_000,
            max_connections_per_peer: None,
            sockets: Vec::new(),
            http_write_timeout: Duration::from_secs(10),
            http_origins: Vec::new(),
            admin_hosts: Vec::new(),
            throttle: ThrottleAllowed::default(),
            drain: Duration::ZERO,
            grace: Duration::from_secs(10),
            telemetry: None,
        }
    }
}
