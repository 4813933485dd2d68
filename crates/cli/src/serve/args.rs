//! The options of `tidegate serve`.
#![allow(
    clippy::doc_markdown,
    clippy::doc_link_with_quotes,
    reason = "the options' comments are their help text"
)]

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use tidegate_core::parse_duration;
use tidegate_flow::cgroup;
use tidegate_server::{
    Mode, Options, StatsdAddress, Timeout, TlsFiles, Vendor, XdsSource,
    descriptors::{AnswerFields, Consume, FieldNames, Modes},
    heavy, reservations,
    rules::parse_timeout,
    throttle::ThrottleAllowed,
    trace::KeyShare,
    waits,
};
use tracing_subscriber::filter::LevelFilter;

#[cfg(feature = "webhook")]
use super::values::web_address;
use super::values::{
    ConsumeOption, LogFormat, SharingOption, bytes_or_off, host_name, metrics_path, network,
    origin, share_or_off, throttle, trace_bytes, usage_bytes, with_port,
};
use crate::values::{MayBeNone, bytes, header_names, part, positive};

/// The default maximum number of keys of a limit.
pub const MAX_KEYS: u32 = 1 << 20;
/// The default maximum number of connections of a listener.
const MAX_CONNECTIONS: u32 = 10_000;
/// The default number of heavy keys of each limit.
const TOP_KEYS: u32 = heavy::TOP_KEYS as u32;
const MOST_RESERVATIONS: u32 = reservations::MOST_RESERVATIONS as u32;
const MOST_WAITING: u32 = waits::MOST_WAITING as u32;

// The groups of the help, by listener and then by subject. `serve -h` shows one page, without the
// options that are hidden there.
const HTTP: &str = "HTTP";
const REDIS: &str = "Redis protocol";
const CONTROL: &str = "Control plane";
const ENVOY: &str = "gRPC, for Envoy";
const HAPROXY: &str = "HAProxy";
const SENTINEL: &str = "Sentinel";
const LISTENERS: &str = "All listeners";
const RULES: &str = "Rules";
const STORE: &str = "Shared store";
const STATE: &str = "State";
const TELEMETRY: &str = "Log and telemetry";

/// Serve limits over HTTP, the Redis protocol and, for Envoy, gRPC
///
/// Without options, it serves built-in example rules on 127.0.0.1: HTTP on port 8080, the Redis
/// protocol on port 6380, and the control plane on port 8082. SIGHUP reloads the rules, SIGTERM
/// stops the server. Every option is also an environment variable.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "These are the common options. `tidegate serve --help` has all of them.",
    after_long_help = crate::about_store::STORE
)]
#[allow(clippy::struct_excessive_bools, reason = "each is a separate option")]
pub struct Args {
    /// A YAML file with these options, one per line without the dashes: `tls-cert: server.pem`
    ///
    /// The command line and environment variables take precedence. A flag is true or false; an
    /// option that takes several values also takes a list. The file is read when the server starts.
    /// Example:
    ///
    ///   http: 0.0.0.0:8080
    ///   tls-cert: /etc/tidegate/server.pem
    ///   tls-key: /etc/tidegate/server.key
    ///   tls-client-ca: /etc/tidegate/clients.pem
    ///   access: /etc/tidegate/access.yaml
    ///   rules: /etc/tidegate/rules.yaml
    #[arg(
        long,
        value_name = "FILE",
        env = "TIDEGATE_CONFIG",
        verbatim_doc_comment
    )]
    config: Option<PathBuf>,
    /// Address for HTTP, or unix:PATH for a Unix socket; `off` disables it
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_HTTP", default_value = "127.0.0.1:8080", help_heading = HTTP)]
    http: String,
    /// Address for the Redis protocol, or unix:PATH for a Unix socket; `off` disables it
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_RESP", default_value = "127.0.0.1:6380", help_heading = REDIS)]
    resp: String,
    /// Address for the control plane over HTTP (metrics, rules, blocks, resets), or unix:PATH;
    /// `off` disables it
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN", default_value = "127.0.0.1:8082", help_heading = CONTROL)]
    admin: String,
    /// Address for gRPC, for Envoy, or unix:PATH for a Unix socket; `off` disables it [default:
    /// 127.0.0.1:8081 if there is a configuration of Envoy]
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GRPC", help_heading = ENVOY)]
    grpc: Option<String>,
    /// Address or unix:PATH for HAProxy, which asks about its requests by SPOE; off unless it is
    /// given
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_SPOE", help_heading = HAPROXY)]
    spoe: Option<String>,
    /// The configuration of Envoy's rate limit service: a file, or a directory with files; reloaded
    /// when it changes
    ///
    /// The files are those of envoyproxy/ratelimit. A rate_limit may also have `algorithm` and its
    /// options, `sharing`, `on_error` and `max_keys`, as in a rules file. Without --rules, the
    /// server has only the limits of these files.
    #[arg(long, value_name = "PATH", env = "TIDEGATE_ENVOY_CONFIG", help_heading = ENVOY, hide_short_help = true)]
    pub(super) envoy_config: Option<PathBuf>,
    /// Ask the clients of gRPC for another connection after this long, a tenth more or less, so
    /// that load spreads over new servers
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_GRPC_MAX_AGE", value_parser = positive, help_heading = ENVOY, hide_short_help = true)]
    grpc_max_age: Option<Duration>,
    /// How long the calls of such a connection may still take before it is closed
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_GRPC_MAX_AGE_GRACE", default_value = "1h", value_parser = positive, help_heading = ENVOY, hide_short_help = true)]
    grpc_max_age_grace: Duration,
    /// Address of the token server for programs with Alibaba Sentinel, as ADDR:PORT or ADDR (port
    /// 18730); off unless it is given
    ///
    /// Sentinel's protocol has neither passwords nor TLS: let only the programs' network reach it,
    /// or give their addresses in --access.
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_SENTINEL_TOKEN", requires = "sentinel_rules", help_heading = SENTINEL, hide_short_help = true)]
    sentinel_token: Option<String>,
    /// The cluster rules for --sentinel-token: a directory with one file for each namespace, or one
    /// file; reloaded when it changes
    ///
    /// The files are Sentinel's JSON: arrays of flow rules and hot-parameter rules with
    /// `clusterMode` and `clusterConfig`. The name of a file without its ending (also without
    /// -flow-rules or -param-rules) is the namespace: the project.name of the programs.
    #[arg(long, value_name = "PATH", env = "TIDEGATE_SENTINEL_RULES", help_heading = SENTINEL, hide_short_help = true)]
    pub(super) sentinel_rules: Option<PathBuf>,
    /// How servers with --store share the cluster rules for all programs together (thresholdType 1)
    #[arg(long, value_name = "MODE", env = "TIDEGATE_SENTINEL_SHARING", default_value = "exact", help_heading = SENTINEL, hide_short_help = true)]
    sentinel_sharing: SharingOption,
    /// How many requests for tokens each namespace may make in a second
    #[arg(long, value_name = "N", env = "TIDEGATE_SENTINEL_MAX_QPS", default_value_t = 30_000, help_heading = SENTINEL, hide_short_help = true)]
    sentinel_max_qps: u32,
    /// Address for the heartbeats of programs with Alibaba Sentinel, as ADDR:PORT or ADDR (port
    /// 8858); off unless it is given
    ///
    /// The programs set csp.sentinel.dashboard.server to it. The server asks each of them for its
    /// metrics each second, shows it on the page Flow, and pushes the rules of its application.
    /// With --access, only clients with the role `report` and their addresses may send heartbeats.
    /// --flow-rules keeps the rules across restarts.
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_SENTINEL_DASHBOARD", help_heading = SENTINEL, hide_short_help = true)]
    sentinel_dashboard: Option<String>,
    /// Networks of programs whose heartbeats come from another address than they name, as in
    /// 10.0.0.0/8,192.0.2.7; the server calls any port there
    #[arg(long, value_name = "NETWORKS", env = "TIDEGATE_SENTINEL_DASHBOARD_NETWORKS", value_delimiter = ',', value_parser = network, help_heading = SENTINEL, hide_short_help = true)]
    sentinel_dashboard_networks: Vec<IpNet>,
    /// A control plane that sends the configuration of Envoy's rate limit service (xDS), as Envoy
    /// Gateway does; may be repeated
    ///
    /// http://HOST:PORT or https://HOST:PORT with options: node (this server's id), ca, cert, key,
    /// server_name, header (NAME:VALUE), metadata (NAME=VALUE), option (NAME=VALUE, for limits
    /// without this option), max_message (bytes), first_pause and longest_pause (1s, 1m: before a
    /// lost stream is opened again; they double). Examples:
    ///
    ///   https://envoy-gateway:18001?node=envoy-ratelimit&ca=/certs/ca.crt&cert=/certs/tls.crt&key=/certs/tls.key
    ///   http://ai-gateway-controller:18002?node=envoy-ai-gateway-ratelimit&option=hold=5m&option=estimate=p95
    ///
    /// The server starts without a configuration, admits everything, and enforces the rules as soon
    /// as they are sent. If the control plane is away, its last rules stay in force.
    #[arg(long, value_name = "URL", env = "TIDEGATE_ENVOY_XDS", value_delimiter = ' ', verbatim_doc_comment, help_heading = ENVOY, hide_short_help = true)]
    pub(super) envoy_xds: Vec<XdsSource>,
    /// How to charge a request from Envoy that a limit denies
    #[arg(long, value_name = "WHAT", env = "TIDEGATE_ENVOY_CONSUME", default_value = "each", help_heading = ENVOY, hide_short_help = true)]
    envoy_consume: ConsumeOption,
    /// Add the header fields RateLimit and RateLimit-Policy to responses through Envoy
    #[arg(long, env = "TIDEGATE_ENVOY_HEADERS", help_heading = ENVOY, hide_short_help = true)]
    envoy_headers: bool,
    /// Add three fields with these names instead: the limit, what remains, and the seconds until
    /// the unit ends
    ///
    /// They are those of the descriptor that denies, or else of the one with the least remaining.
    /// Envoyproxy/ratelimit's usual names are RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset.
    #[arg(long, value_name = "LIMIT,REMAINING,RESET", env = "TIDEGATE_ENVOY_HEADER_NAMES", value_parser = header_names, conflicts_with = "envoy_headers", help_heading = ENVOY, hide_short_help = true)]
    envoy_header_names: Option<FieldNames>,
    /// Add three fields with these names to requests that Envoy passes on
    ///
    /// They have the same numbers as those of --envoy-header-names.
    #[arg(long, value_name = "LIMIT,REMAINING,RESET", env = "TIDEGATE_ENVOY_REQUEST_HEADER_NAMES", value_parser = header_names, help_heading = ENVOY, hide_short_help = true)]
    envoy_request_header_names: Option<FieldNames>,
    /// Add ratelimit-limit-UNITs and ratelimit-remaining-UNITs to responses through Envoy, for each
    /// unit of the request's limits
    ///
    /// Of several limits with one unit, they are those of the one that denies or has the least
    /// remaining.
    #[arg(long, env = "TIDEGATE_ENVOY_UNIT_HEADERS", help_heading = ENVOY, hide_short_help = true)]
    envoy_unit_headers: bool,
    /// Align months of rules for Envoy to the calendar of UTC instead of counting 30 days
    #[arg(long, env = "TIDEGATE_ENVOY_CALENDAR_MONTHS", help_heading = ENVOY, hide_short_help = true)]
    envoy_calendar_months: bool,
    /// Let several files of --envoy-config, or resources of control planes, have descriptors of one
    /// domain
    #[arg(long, env = "TIDEGATE_ENVOY_MERGE_DOMAINS", help_heading = ENVOY, hide_short_help = true)]
    envoy_merge_domains: bool,
    /// Count an admitted hit of Envoy as near its limit beyond this part of it
    #[arg(long, value_name = "PART", env = "TIDEGATE_ENVOY_NEAR_LIMIT", default_value = "0.8", value_parser = part, help_heading = ENVOY, hide_short_help = true)]
    envoy_near_limit: f32,
    /// Admit every request of Envoy; descriptors still say what is over its limit, and metrics
    /// count it
    #[arg(long, env = "TIDEGATE_ENVOY_SHADOW", help_heading = ENVOY, hide_short_help = true)]
    envoy_shadow: bool,
    /// Treat every rule for Envoy as if it had `quota_mode`
    #[arg(long, env = "TIDEGATE_ENVOY_QUOTA", help_heading = ENVOY, hide_short_help = true)]
    envoy_quota: bool,
    /// Describe each request of Envoy in the metadata of its answer, with that of the rules below
    /// `metadata`, as envoyproxy/ratelimit does
    #[arg(long, env = "TIDEGATE_ENVOY_METADATA", help_heading = ENVOY, hide_short_help = true)]
    envoy_metadata: bool,
    /// Leave denied_by and denied_reason out of the metadata of answers to Envoy, as
    /// envoyproxy/ratelimit does
    #[arg(long, env = "TIDEGATE_ENVOY_WITHOUT_REASONS", help_heading = ENVOY, hide_short_help = true)]
    envoy_without_reasons: bool,
    /// Be ready (/readyz, /healthcheck, gRPC's health) only with a rule for Envoy: not before a
    /// control plane has sent one
    #[arg(long, env = "TIDEGATE_ENVOY_AWAIT_RULES", help_heading = ENVOY, hide_short_help = true)]
    envoy_await_rules: bool,
    /// Send the counters of rules for Envoy to StatsD under their names in envoyproxy/ratelimit
    ///
    /// tcp://HOST:PORT, udp://HOST:PORT or dogstatsd://HOST:PORT, with the options interval (10s)
    /// and tag (NAME:VALUE, may be repeated). The server sends each counter that has grown, and
    /// over TCP repeats later what it could not send.
    #[arg(long, value_name = "URL", env = "TIDEGATE_ENVOY_STATSD", help_heading = ENVOY, hide_short_help = true)]
    envoy_statsd: Option<StatsdAddress>,
    /// Add these counters to /metrics under their names there, such as
    /// ratelimit_service_rate_limit_total_hits
    #[arg(long, env = "TIDEGATE_ENVOY_METRIC_NAMES", help_heading = ENVOY, hide_short_help = true)]
    envoy_metric_names: bool,
    /// Add the header fields of a provider of language models to answers over HTTP and to Envoy:
    /// openai, anthropic or aws
    ///
    /// They report the limits whose names are or end with requests, tokens, input-tokens or
    /// output-tokens.
    #[arg(long, value_name = "VENDOR", env = "TIDEGATE_VENDOR_HEADERS", help_heading = LISTENERS, hide_short_help = true)]
    vendor_headers: Option<Vendor>,
    /// The server's certificate, in PEM with its intermediate certificates: all listeners then use
    /// TLS
    ///
    /// TLS 1.2 and 1.3; HTTP/2 by ALPN. Certificate, key and authority are reloaded when a file
    /// changes, and on SIGHUP; existing connections continue.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CERT", requires = "tls_key", help_heading = LISTENERS)]
    pub(super) tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_KEY", requires = "tls_cert", help_heading = LISTENERS)]
    tls_key: Option<PathBuf>,
    /// The listeners with TLS: some of http, resp, grpc, spoe and admin [default: all]
    #[arg(long, value_name = "NAMES", env = "TIDEGATE_TLS_LISTENERS", requires = "tls_cert", value_delimiter = ',', value_parser = ["http", "resp", "grpc", "spoe", "admin"], help_heading = LISTENERS, hide_short_help = true)]
    tls_listeners: Vec<String>,
    /// The authority of client certificates, in PEM: clients then need a certificate or a token
    ///
    /// Without --access, every client with a certificate from this authority may ask for decisions
    /// and read metrics and rules. Health checks need no certificate.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CLIENT_CA", requires = "tls_cert", help_heading = LISTENERS, hide_short_help = true)]
    pub(super) tls_client_ca: Option<PathBuf>,
    /// The DNS name or URI that a client's certificate must have; --access instead lists several,
    /// with their roles
    #[arg(long, value_name = "NAME", env = "TIDEGATE_TLS_CLIENT_SAN", requires = "tls_client_ca", conflicts_with = "access", help_heading = LISTENERS, hide_short_help = true)]
    tls_client_san: Option<String>,
    /// The access file, in YAML, with the roles of each client; reloaded when it changes
    ///
    /// A list of clients with the digests of their tokens (`tidegate token` generates a token), or
    /// the names in their certificates, and their roles: decide (ask limits), observe (metrics,
    /// rules), operate (block, refund, reset, reload), report (send statistics of programs).
    /// `limits` lists the prefixes of a client's limits. Example:
    ///
    ///   access: [{name: shop, roles: [decide], limits: [shop.], tokens: ["sha256:..."]}]
    ///
    /// Clients send `Authorization: Bearer TOKEN` over HTTP and gRPC, and `AUTH name TOKEN` or
    /// `AUTH TOKEN` over RESP. Health checks need no token.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ACCESS", verbatim_doc_comment, help_heading = LISTENERS)]
    pub(super) access: Option<PathBuf>,
    /// Listen on addresses that other machines can reach without TLS or without credentials
    ///
    /// Clients without credentials can then request decisions, and nothing else.
    #[arg(long, env = "TIDEGATE_INSECURE", help_heading = LISTENERS)]
    insecure: bool,
    /// The rules file, in YAML; reloaded when it changes [default: built-in example rules]
    #[arg(long, value_name = "FILE", env = "TIDEGATE_RULES", help_heading = RULES)]
    pub(super) rules: Option<PathBuf>,
    /// Let operators change the rules file over HTTP, as on the dashboard's page of rules
    ///
    /// Needs the role `operate`. The file is replaced in one step, FILE.previous keeps it as it
    /// was, and the log says who did it. A save is rejected if the file has changed since the page
    /// loaded it.
    #[arg(long, env = "TIDEGATE_RULES_WRITABLE", requires = "rules", help_heading = RULES, hide_short_help = true)]
    rules_writable: bool,
    /// Maximum number of keys of CL.THROTTLE, and of each limit without its own max_keys
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_KEYS", default_value_t = MAX_KEYS, value_parser = clap::value_parser!(u32).range(1..), help_heading = RULES, hide_short_help = true)]
    max_keys: u32,
    /// Memory for the keys of all limits together, such as 512MiB, divided by use
    ///
    /// Limits without their own max_keys, and CL.THROTTLE, start with equal parts of half of it.
    /// They grow, up to --max-keys, when they run out of room, and shrink when others need the
    /// memory. Without this option, half of the memory of the container counts, and without a
    /// container each limit may grow to --max-keys. The rules file can also set it (max_memory);
    /// this option takes precedence.
    #[arg(long, value_name = "BYTES", env = "TIDEGATE_MAX_MEMORY", value_parser = bytes, help_heading = RULES)]
    max_memory: Option<u64>,
    /// Heavy keys that each limit tracks by name, in each of four counts (GET /v1/top, TOP); 0
    /// turns it off
    ///
    /// These are the keys with the most requests and the most denials in the last five to ten
    /// minutes. Their names are kept only in memory. Clients with the role `observe` can read them.
    #[arg(long, value_name = "N", env = "TIDEGATE_TOP_KEYS", default_value_t = TOP_KEYS, value_parser = clap::value_parser!(u32).range(0..=100_000), help_heading = CONTROL, hide_short_help = true)]
    top_keys: u32,
    /// Reservations that are open or ended a short time ago (POST /v1/reserve, RESERVE); further
    /// ones are refused
    ///
    /// Each takes about 62 bytes, and more with long keys or several limits. The state file has
    /// them too.
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_RESERVATIONS", default_value_t = MOST_RESERVATIONS, value_parser = clap::value_parser!(u32).range(0..=10_000_000), help_heading = RULES, hide_short_help = true)]
    max_reservations: u32,
    /// Callers that wait in line (`wait` in POST /v1/acquire, WAIT in ACQUIRE); further ones are
    /// refused
    ///
    /// Each also keeps its connection busy, so the number should be smaller than --max-connections.
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_WAITING", default_value_t = MOST_WAITING, value_parser = clap::value_parser!(u32).range(0..=10_000_000), help_heading = RULES, hide_short_help = true)]
    max_waiting: u32,
    /// Callers that wait for one key of a limit; further ones are refused [default: half of
    /// --max-waiting]
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_WAITING_PER_KEY", value_parser = clap::value_parser!(u32).range(1..=10_000_000), help_heading = RULES, hide_short_help = true)]
    max_waiting_per_key: Option<u32>,
    /// File that gets one line of JSON for each action of an operator: block, reset, reload and so
    /// on
    ///
    /// The log and GET /v1/audit have them too. The server appends, and creates the file if it was
    /// moved away.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_AUDIT", help_heading = CONTROL, hide_short_help = true)]
    audit: Option<PathBuf>,
    /// Directory that gets what each key of each limit uses in each hour, as JSON lines;
    /// `tidegate usage` sums them
    ///
    /// The server appends every 5 seconds, so a kill loses the use of at most 5 seconds. Each
    /// server needs another directory. There is a file for each day (UTC). In 5 seconds up to
    /// 65,536 keys are counted by name, and the rest together.
    #[arg(long, value_name = "DIR", env = "TIDEGATE_USAGE", help_heading = CONTROL, hide_short_help = true)]
    usage: Option<PathBuf>,
    /// The largest size of all files of --usage, such as 1GiB (at least 16MiB)
    ///
    /// When it is reached, the oldest days are merged: to a line for each key of a day, then to the
    /// keys that used most. The sums of the limits stay.
    #[arg(long, value_name = "BYTES", env = "TIDEGATE_USAGE_MAX", default_value = "1GiB", value_parser = usage_bytes, help_heading = CONTROL, hide_short_help = true)]
    usage_max: u64,
    /// URL to which the server posts each of a limit's `thresholds` that a key reaches, as JSON
    ///
    /// A failed post is repeated up to 7 times, after 2 seconds and then twice as long each time.
    /// Up to 1,024 events wait; further ones are dropped, and tidegate_webhook_events_total counts
    /// them.
    #[cfg(feature = "webhook")]
    #[arg(long, value_name = "URL", env = "TIDEGATE_WEBHOOK", value_parser = web_address, help_heading = CONTROL, hide_short_help = true)]
    webhook: Option<String>,
    /// Memory for the history of each limit's decisions, such as 64MiB; `off` keeps none
    ///
    /// It covers each second of the last 15 minutes and each 10 seconds of the last 6 hours (GET
    /// /v1/history). A limit takes 174 KiB; limits without room have no history.
    #[arg(long, value_name = "BYTES", env = "TIDEGATE_HISTORY_MEMORY", default_value = "64MiB", value_parser = bytes_or_off, help_heading = CONTROL, hide_short_help = true)]
    history_memory: u64,
    /// Trace the requests of this share of all keys, as in 10%; `off` traces nothing
    ///
    /// A hash chooses the keys, and each of their requests is kept: time, hash, cost, limit and
    /// verdict. A reader of the trace also gets the names of heavy keys, as from GET /v1/top,
    /// unless it asks for names=false. The trace serves to try other rules
    /// (`tidegate simulate --server`, POST /v1/what-if) and can be written to a file
    /// (`tidegate record`, GET /v1/trace). Global limits are traced with 100% alone.
    #[arg(long, value_name = "PERCENT", env = "TIDEGATE_TRACE_KEYS", default_value = "off", value_parser = share_or_off, help_heading = CONTROL, hide_short_help = true)]
    trace_keys: MayBeNone<KeyShare>,
    /// Memory for the trace, as in 64MiB: 24 bytes for each request, the oldest are forgotten first
    ///
    /// Reading the trace temporarily doubles its memory.
    #[arg(long, value_name = "BYTES", env = "TIDEGATE_TRACE_MEMORY", default_value = "64MiB", value_parser = trace_bytes, help_heading = CONTROL, hide_short_help = true)]
    trace_memory: u64,
    /// Share the limits with other servers over Redis or Valkey: the store's address
    ///
    /// One server: redis://[user:password@]host[:port][/db] or redis+unix:///path; rediss:// for
    /// TLS. A cluster: redis+cluster://host:port,host:port. A master found through sentinels:
    /// redis+sentinel://host:port,host:port/name (the sentinels' own user and password:
    /// ?sentinel_username=...&sentinel_password=...). With TLS, ?ca=FILE names a private
    /// certificate authority, and ?cert=FILE&key=FILE a client certificate. Every limit of the
    /// rules, and CL.THROTTLE, is then decided in the store; deny lists and blocks stay with each
    /// server. The rules set each limit's decision while the store does not reply: see
    /// `tidegate check --help`. The end of this help lists the requirements of the store and the
    /// permissions of its user.
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true, help_heading = STORE)]
    store: Option<String>,
    /// The store's password (better as a variable: other users can see a command line)
    #[arg(long, value_name = "PASSWORD", env = "TIDEGATE_STORE_PASSWORD", hide_env_values = true, help_heading = STORE, hide_short_help = true)]
    store_password: Option<String>,
    /// A file with the store's password, in one line
    #[arg(long, value_name = "FILE", env = "TIDEGATE_STORE_PASSWORD_FILE", conflicts_with = "store_password", help_heading = STORE, hide_short_help = true)]
    pub(super) store_password_file: Option<PathBuf>,
    /// The minimum number of servers that share the store
    ///
    /// While the store does not reply, each server enforces its part of a limit with
    /// `on_error: local`: the limit divided by the last counted number of servers, but at least by
    /// this number. A server that starts while the store is down has counted none: without this
    /// option and without --state, which keeps the number, it takes a tenth of each limit.
    #[arg(long, value_name = "N", env = "TIDEGATE_NODES", value_parser = clap::value_parser!(u32).range(1..), help_heading = STORE, hide_short_help = true)]
    nodes: Option<u32>,
    /// Name of this server in the list of servers that share the store [default: HOST-PID]
    #[arg(long, value_name = "NAME", env = "TIDEGATE_NAME", requires = "store", help_heading = STORE, hide_short_help = true)]
    name: Option<String>,
    /// Prefix of the keys in the store; servers with the same prefix share their limits
    #[arg(long, value_name = "TEXT", env = "TIDEGATE_STORE_PREFIX", default_value = "tidegate", help_heading = STORE, hide_short_help = true)]
    store_prefix: String,
    /// Deadline of a decision in the store, for limits without their own; auto: three measured
    /// round trips and 20ms
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_STORE_DEADLINE", default_value = "50ms", value_parser = parse_timeout, help_heading = STORE, hide_short_help = true)]
    store_deadline: Timeout,
    /// File that keeps the state of the limits across restarts; with --store, the number of servers
    /// that share the store
    ///
    /// With --store, the store keeps the limits. The file keeps the number of servers that share
    /// it: a server that starts while the store is down divides its limits with `on_error: local`
    /// by that number. The number rises as soon as more servers are counted, and falls after 15
    /// seconds with fewer.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_STATE", help_heading = STATE)]
    pub(super) state: Option<PathBuf>,
    /// Directory that keeps the flow rules that operators push to programs (dashboard, POST
    /// /v1/flow/rules) across restarts
    ///
    /// One file for each application, in YAML, read when the server starts. The last hour of each
    /// program is kept there, too, and written every 30 seconds. Without it both are kept in memory
    /// only.
    #[arg(long, value_name = "DIR", env = "TIDEGATE_FLOW_RULES", help_heading = CONTROL, hide_short_help = true)]
    flow_rules: Option<PathBuf>,
    /// How often the state is written: a server that is killed loses the use of at most this time
    ///
    /// A write starts early enough to end within this time after the start of the previous one, if
    /// it takes at most twice as long as that one. If a write takes more than a third of this time,
    /// the next one starts immediately, and at most the use of two writes is lost.
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_STATE_INTERVAL", default_value = "30s", value_parser = positive, help_heading = STATE, hide_short_help = true)]
    pub(super) state_interval: Duration,
    /// How often to check the rules file; a change is loaded once two checks in a row find the same
    /// file
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_RELOAD_INTERVAL", default_value = "1s", value_parser = positive, help_heading = RULES, hide_short_help = true)]
    reload_interval: Duration,
    /// Password that Redis clients must send with AUTH (better as a variable: other users can see a
    /// command line)
    #[arg(long, value_name = "PASSWORD", env = "TIDEGATE_RESP_PASSWORD", hide_env_values = true, help_heading = REDIS, hide_short_help = true)]
    pub(super) resp_password: Option<String>,
    /// Threads for the Redis protocol; one answers hundreds of thousands of requests a second
    #[arg(long, value_name = "N", env = "TIDEGATE_RESP_THREADS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256), help_heading = REDIS, hide_short_help = true)]
    resp_threads: u16,
    /// Close a Redis connection after this long without a command; 0s means never
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_RESP_IDLE_TIMEOUT", default_value = "1h", value_parser = parse_duration, help_heading = REDIS, hide_short_help = true)]
    resp_idle_timeout: Duration,
    /// Longest period and refill time of a bucket that a client may use with CL.THROTTLE
    ///
    /// A bucket occupies memory until it is full again, so this bounds how long a client can occupy
    /// memory.
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_RESP_MAX_PERIOD", default_value = "1d", value_parser = positive, help_heading = REDIS, hide_short_help = true)]
    resp_max_period: Duration,
    /// Which buckets CL.THROTTLE accepts: on, off, or a list of max_burst:count:period, as in
    /// 15:30:60,5:10:60
    #[arg(long, value_name = "BUCKETS", env = "TIDEGATE_RESP_THROTTLE", default_value = "on", value_parser = throttle, help_heading = REDIS, hide_short_help = true)]
    resp_throttle: ThrottleAllowed,
    /// Origins whose web pages may send HTTP requests, as in https://ops.example.com (separate
    /// several with commas)
    #[arg(long, value_name = "ORIGIN", env = "TIDEGATE_HTTP_ORIGIN", value_delimiter = ',', value_parser = origin, help_heading = HTTP, hide_short_help = true)]
    http_origin: Vec<String>,
    /// Let clients without credentials read the metrics of the control plane, with the names of
    /// limits; nothing else there
    #[arg(long, env = "TIDEGATE_OPEN_METRICS", help_heading = CONTROL, hide_short_help = true)]
    open_metrics: bool,
    /// Serve /metrics of the control plane at this path, too
    #[arg(long, value_name = "PATH", env = "TIDEGATE_METRICS_PATH", value_parser = metrics_path, help_heading = CONTROL, hide_short_help = true)]
    metrics_path: Option<String>,
    /// Host names of the control plane that need no credentials, as in limits.internal (separate
    /// several with commas)
    ///
    /// Without credentials, the control plane answers only to IP addresses, localhost and these
    /// names, so that no web page can reach it by DNS rebinding. With --access or --tls-client-ca,
    /// every name is accepted.
    #[arg(long, value_name = "NAME", env = "TIDEGATE_ADMIN_HOST", value_delimiter = ',', value_parser = host_name, help_heading = CONTROL, hide_short_help = true)]
    admin_host: Vec<String>,
    /// Close an HTTP connection when its client reads nothing of a response for this long
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_HTTP_WRITE_TIMEOUT", default_value = "10s", value_parser = positive, help_heading = HTTP, hide_short_help = true)]
    http_write_timeout: Duration,
    /// Maximum number of connections per listener, and at most 256 of the control plane; another
    /// one closes the connection that was idle longest [default: 10000, or as many as the limit on
    /// open files allows]
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..), help_heading = LISTENERS, hide_short_help = true)]
    pub(super) max_connections: Option<u32>,
    /// Maximum number of connections per client address and listener (for IPv6 per /64 network)
    /// [default: as many as are free; no bound for clients on this machine]
    ///
    /// A proxy counts as one client for everything that it forwards.
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS_PER_PEER", value_parser = clap::value_parser!(u32).range(1..), help_heading = LISTENERS, hide_short_help = true)]
    max_connections_per_peer: Option<u32>,
    /// How long the server answers as before after the order to stop, while /readyz is 503
    ///
    /// Load balancers and proxies need this time to learn that they must ask another server. A
    /// second SIGTERM ends it.
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_DRAIN", default_value = "0s", value_parser = parse_duration, help_heading = LISTENERS, hide_short_help = true)]
    drain: Duration,
    /// How long requests in progress, and then the last write of the state (at least 5s), may take
    /// when the server stops
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_GRACE", default_value = "10s", value_parser = parse_duration, help_heading = LISTENERS, hide_short_help = true)]
    grace: Duration,
    #[cfg(feature = "otlp")]
    #[command(flatten, next_help_heading = TELEMETRY)]
    pub(super) otlp: crate::otlp::Sending,
    /// Format of the log on standard error
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "text", help_heading = TELEMETRY, hide_short_help = true)]
    pub(super) log_format: LogFormat,
    /// Most detailed level to log: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "TIDEGATE_LOG_LEVEL", default_value = "info", help_heading = TELEMETRY)]
    pub(super) log_level: LevelFilter,
    /// Options that were given and have no effect.
    #[arg(skip)]
    pub without_effect: Vec<String>,
}

impl Args {
    /// Whether the listener of this option has TLS.
    pub(super) fn has_tls(&self, listener: &str) -> bool {
        let all = self.tls_listeners.is_empty();
        self.tls_cert.is_some() && (all || self.tls_listeners.iter().any(|name| name == listener))
    }

    /// The first missing part of a combination of options. On the command line these are errors
    /// already; a part may be in --config, or in a variable.
    pub(super) fn lacks(&self) -> Option<&'static str> {
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Some("TLS needs a certificate and its key: give both --tls-cert and --tls-key");
        }
        if self.tls_client_ca.is_some() && self.tls_cert.is_none() {
            return Some("--tls-client-ca needs TLS: give --tls-cert and --tls-key, too");
        }
        if self
            .grpc
            .as_ref()
            .is_some_and(|grpc| !grpc.eq_ignore_ascii_case("off"))
            && self.envoy_config.is_none()
            && self.envoy_xds.is_empty()
        {
            return Some(
                "--grpc needs a configuration of Envoy's rate limit service: --envoy-config PATH or --envoy-xds URL",
            );
        }
        if self
            .sentinel_token
            .as_ref()
            .is_some_and(|address| !address.eq_ignore_ascii_case("off"))
            && self.sentinel_rules.is_none()
        {
            return Some("--sentinel-token needs rules: --sentinel-rules PATH");
        }
        if self.store_password.is_some() && self.store_password_file.is_some() {
            return Some(
                "the store's password is given twice: keep --store-password or --store-password-file",
            );
        }
        None
    }

    fn envoy_modes(&self) -> Modes {
        Modes {
            merge_domains: self.envoy_merge_domains,
            near_limit: self.envoy_near_limit,
            shadow: self.envoy_shadow,
            quota: self.envoy_quota,
            metadata: self.envoy_metadata,
            calendar_months: self.envoy_calendar_months,
            each_unit: self.envoy_unit_headers,
            without_reasons: self.envoy_without_reasons,
        }
    }

    pub(super) fn options(&self) -> Options {
        let listener =
            |address: &str| (!address.eq_ignore_ascii_case("off")).then(|| address.to_owned());
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let on_port = |address: &Option<String>, port| {
            address
                .as_deref()
                .and_then(listener)
                .map(|address| with_port(&address, port))
        };
        Options {
            http: listener(&self.http),
            resp: listener(&self.resp),
            admin: listener(&self.admin),
            tls: match (&self.tls_cert, &self.tls_key) {
                (Some(cert), Some(key)) => Some(TlsFiles {
                    cert: cert.clone(),
                    key: key.clone(),
                    client_ca: self.tls_client_ca.clone(),
                }),
                _ => None,
            },
            tls_listeners: self.tls_listeners.clone(),
            tls_client_san: self.tls_client_san.clone(),
            access: self.access.clone(),
            insecure: self.insecure,
            grpc: match &self.grpc {
                Some(address) => listener(address),
                None if !cfg!(feature = "grpc") => None,
                None => (self.envoy_config.is_some() || !self.envoy_xds.is_empty())
                    .then(|| "127.0.0.1:8081".to_owned()),
            },
            grpc_max_age: self.grpc_max_age,
            grpc_max_age_grace: self.grpc_max_age_grace,
            envoy_xds: self.envoy_xds.clone(),
            spoe: self.spoe.as_deref().and_then(listener),
            sentinel: on_port(&self.sentinel_token, 18_730),
            sentinel_dashboard: on_port(&self.sentinel_dashboard, 8_858),
            sentinel_dashboard_networks: self.sentinel_dashboard_networks.clone(),
            sentinel_rules: self.sentinel_rules.clone(),
            sentinel_sharing: (self.sentinel_sharing == SharingOption::Leased)
                .then_some(Mode::Leased),
            sentinel_max_qps: self.sentinel_max_qps,
            envoy_config: self.envoy_config.clone(),
            envoy_consume: match self.envoy_consume {
                ConsumeOption::AllOrNone => Consume::AllOrNone,
                ConsumeOption::Each => Consume::Each,
            },
            envoy_headers: match (&self.envoy_header_names, self.envoy_headers) {
                (Some(names), _) => AnswerFields::Named(names.clone()),
                (None, true) => AnswerFields::RateLimit,
                (None, false) => AnswerFields::None,
            },
            envoy_request_headers: self.envoy_request_header_names.clone(),
            envoy_modes: self.envoy_modes(),
            envoy_await_rules: self.envoy_await_rules,
            envoy_statsd: self.envoy_statsd.clone(),
            envoy_metric_names: self.envoy_metric_names,
            vendor_headers: self.vendor_headers,
            rules: self.rules.clone(),
            rules_writable: self.rules_writable,
            open_metrics: self.open_metrics,
            metrics_path: self.metrics_path.clone(),
            max_keys: self.max_keys as usize,
            max_memory: self.max_memory,
            container_memory: cgroup::memory_limit(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
                .map(|limit| limit / 2),
            top_keys: self.top_keys as usize,
            max_reservations: self.max_reservations as usize,
            max_waiting: self.max_waiting as usize,
            max_waiting_per_key: self.max_waiting_per_key.map(|most| most as usize),
            audit: self.audit.clone(),
            usage: self.usage.clone(),
            usage_max: self.usage_max,
            #[cfg(feature = "webhook")]
            webhook: self.webhook.clone(),
            history_memory: self.history_memory,
            trace_keys: self.trace_keys,
            trace_memory: self.trace_memory,
            store: given(&self.store),
            store_password: given(&self.store_password),
            store_password_file: self.store_password_file.clone(),
            nodes: self.nodes,
            name: given(&self.name),
            store_prefix: self.store_prefix.clone(),
            store_deadline: self.store_deadline,
            state: self.state.clone(),
            flow_rules: self.flow_rules.clone(),
            state_interval: self.state_interval,
            reload_interval: self.reload_interval,
            resp_password: given(&self.resp_password),
            resp_threads: self.resp_threads.into(),
            resp_idle_timeout: self.resp_idle_timeout,
            max_connections: self.max_connections.unwrap_or(MAX_CONNECTIONS) as usize,
            max_connections_per_peer: self.max_connections_per_peer.map(|most| most as usize),
            http_write_timeout: self.http_write_timeout,
            http_origins: self.http_origin.clone(),
            admin_hosts: self.admin_host.clone(),
            throttle: match &self.resp_throttle {
                ThrottleAllowed::Within(_) => ThrottleAllowed::Within(self.resp_max_period),
                other => other.clone(),
            },
            drain: self.drain,
            grace: self.grace,
            ..Options::default()
        }
    }
}
