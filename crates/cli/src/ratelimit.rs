//! `tidegate ratelimit`: `serve` with the settings of envoyproxy/ratelimit, from its environment
//! variables.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{collections::BTreeMap, env, ffi::OsString, path::Path, time::Duration};

/// Serve in place of envoyproxy/ratelimit: all settings come from its environment variables
///
/// A program or a link with the name `ratelimit` does the same. The book has a table of the
/// variables (From envoyproxy/ratelimit). Those that have no effect are named in one line at the
/// start, and so are unknown ones that begin as its variables do.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the options of serve that the variables stand for, one in a line, and exit
    #[arg(long = "options")]
    _options: bool,
}

/// Variables without an effect, and what to use instead.
const WITHOUT_EFFECT: [(&str, &str); 16] = [
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
    ),
    (
        "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
        "the pauses between connections vary by themselves",
    ),
    (
        "XDS_CLIENT_BACKOFF_JITTER",
        "the pauses between connections vary by themselves",
    ),
    (
        "PROMETHEUS_MAPPER_YAML",
        "names are those of the usual mapping",
    ),
    (
        "USE_DOG_STATSD_MOGRIFIERS",
        "names are those of the counters",
    ),
    (
        "EXPIRATION_JITTER_MAX_SECONDS",
        "keys expire with their windows",
    ),
    (
        "LOCAL_CACHE_SIZE_IN_BYTES",
        "the rule's option `sharing: leased` decides in memory",
    ),
    ("REDIS_POOL_SIZE", "one connection carries all calls"),
    (
        "REDIS_POOL_ON_EMPTY_BEHAVIOR",
        "one connection carries all calls",
    ),
    (
        "REDIS_PIPELINE_WINDOW",
        "calls are put together without a pause",
    ),
    (
        "REDIS_PIPELINE_LIMIT",
        "calls are put together without a pause",
    ),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        "the certificate's name is always verified",
    ),
    ("REDIS_PERSECOND", "all limits are in one store"),
    ("TRACING_SERVICE_NAME", "OTEL_SERVICE_NAME"),
    ("TRACING_SERVICE_NAMESPACE", "OTEL_RESOURCE_ATTRIBUTES"),
    ("TRACING_SERVICE_INSTANCE_ID", "OTEL_RESOURCE_ATTRIBUTES"),
];

/// The variables with an effect, or whose effect Tidegate always has.
const HONOURED: [&str; 77] = [
    "BACKEND_TYPE",
    "CACHE_KEY_PREFIX",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    "CONFIG_GRPC_XDS_NODE_ID",
    "CONFIG_GRPC_XDS_NODE_METADATA",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    "CONFIG_GRPC_XDS_SERVER_URL",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS",
    "CONFIG_TYPE",
    "DEBUG_HOST",
    "DEBUG_PORT",
    "DISABLE_STATS",
    "EXTRA_TAGS",
    "FORCE_START_WITHOUT_INITIAL_CONFIG",
    "GRPC_CLIENT_TLS_CACERT",
    "GRPC_CLIENT_TLS_SAN",
    "GRPC_HOST",
    "GRPC_MAX_CONNECTION_AGE",
    "GRPC_MAX_CONNECTION_AGE_GRACE",
    "GRPC_PORT",
    "GRPC_SERVER_TLS_CERT",
    "GRPC_SERVER_TLS_KEY",
    "GRPC_SERVER_USE_TLS",
    "GRPC_UDS",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "HOST",
    "LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED",
    "LIMIT_LIMIT_HEADER",
    "LIMIT_REMAINING_HEADER",
    "LIMIT_REQUEST_HEADERS_ENABLED",
    "LIMIT_REQUEST_LIMIT_HEADER",
    "LIMIT_REQUEST_REMAINING_HEADER",
    "LIMIT_REQUEST_RESET_HEADER",
    "LIMIT_RESET_HEADER",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "MERGE_DOMAIN_CONFIG",
    "NEAR_LIMIT_RATIO",
    "PORT",
    "PROMETHEUS_ADDR",
    "PROMETHEUS_PATH",
    "QUOTA_MODE",
    "REDIS_AUTH",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "REDIS_SENTINEL_AUTH",
    "REDIS_SOCKET_TYPE",
    "REDIS_TIMEOUT",
    "REDIS_TLS",
    "REDIS_TLS_CACERT",
    "REDIS_TLS_CLIENT_CERT",
    "REDIS_TLS_CLIENT_KEY",
    "REDIS_TYPE",
    "REDIS_URL",
    "RESPONSE_DYNAMIC_METADATA",
    "RUNTIME_APPDIRECTORY",
    "RUNTIME_IGNOREDOTFILES",
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
    "RUNTIME_WATCH_ROOT",
    "SHADOW_MODE",
    "STATSD_HOST",
    "STATSD_PORT",
    "STATS_FLUSH_INTERVAL",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "TRACING_ENABLED",
    "TRACING_EXPORTER_PROTOCOL",
    "TRACING_SAMPLING_RATE",
    "USE_CALENDAR_MONTH_RATE_LIMIT",
    "USE_DOG_STATSD",
    "USE_PROMETHEUS",
    "USE_STATSD",
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
    "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
];

/// How the variables of envoyproxy/ratelimit begin.
const PREFIXES: [&str; 28] = [
    "BACKEND_",
    "CACHE_",
    "CONFIG_",
    "DEBUG_",
    "DISABLE_",
    "EXPIRATION_",
    "EXTRA_",
    "FORCE_",
    "GRPC_",
    "HEALTHY_",
    "LIMIT_",
    "LOCAL_",
    "LOG_",
    "MEMCACHE_",
    "MERGE_",
    "NEAR_",
    "PROMETHEUS_",
    "QUOTA_",
    "REDIS_",
    "RESPONSE_",
    "RUNTIME_",
    "SHADOW_",
    "STATSD_",
    "STATS_",
    "STOP_",
    "TRACING_",
    "USE_",
    "XDS_",
];

/// The longest deadline of the store. There, a request waits for 10s unless `REDIS_TIMEOUT` says
/// otherwise.
const LONGEST: Duration = Duration::from_secs(5);

/// The command line, with the options of `serve` in place of `ratelimit`.
pub fn arguments(given: Vec<OsString>) -> Vec<OsString> {
    let is_called = given.first().is_some_and(|program| {
        Path::new(program)
            .file_stem()
            .is_some_and(|stem| stem == "ratelimit")
    });
    let after = given
        .get(1)
        .is_some_and(|command| command == "ratelimit")
        .then(|| &given[2..]);
    let prints = match after.or(given.get(1..).filter(|_| is_called)) {
        Some([]) => false,
        Some([only]) if only == "--options" => true,
        _ => return given,
    };
    match options() {
        Ok((options, ignored)) => {
            if !ignored.is_empty() {
                eprintln!("tidegate: without effect: {}", ignored.join("; "));
            }
            if prints {
                let lines = options.chunk_by(|_, next| !next.starts_with("--"));
                let lines: String = lines.map(|line| line.join(" ") + "\n").collect();
                if let Err(error) = crate::output::write(&lines) {
                    crate::output::report(&error);
                    std::process::exit(1);
                }
                std::process::exit(0);
            }
            let program = given.into_iter().next();
            program
                .into_iter()
                .chain(options.into_iter().map(OsString::from))
                .collect()
        }
        Err(what) => {
            eprintln!("tidegate: {what}");
            std::process::exit(2);
        }
    }
}

/// The value of a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Why the variables cannot be used.
#[derive(Debug, thiserror::Error)]
enum SettingError {
    #[error("CONFIG_TYPE is {0}; it must be FILE or GRPC_XDS_SOTW")]
    ConfigType(String),
    #[error("{0} is {1}; it must be true or false")]
    Switch(&'static str, String),
    #[error("BACKEND_TYPE is {0}; give REDIS_URL, or none to count in memory")]
    BackendType(String),
    #[error("GRPC_SERVER_USE_TLS needs {0}")]
    TlsFile(&'static str),
    #[error("REDIS_SOCKET_TYPE is unix; REDIS_URL must be the path of a socket, without REDIS_TLS")]
    SocketPath,
    #[error("REDIS_SOCKET_TYPE is {0}; it must be tcp, tls or unix")]
    Socket(String),
    #[error("REDIS_SOCKET_TYPE is unix; REDIS_TYPE must be SINGLE")]
    SocketType,
    #[error("REDIS_URL is for sentinels: write NAME,HOST:PORT,HOST:PORT")]
    Sentinels,
    #[error("REDIS_TYPE is {0}; it must be SINGLE, CLUSTER or SENTINEL")]
    RedisType(String),
}

/// The options of those variables that are set, with their values.
fn set<const N: usize>(
    names: [(&'static str, &'static str); N],
) -> impl Iterator<Item = (&'static str, String)> {
    names
        .into_iter()
        .filter_map(|(name, option)| Some((option, variable(name)?)))
}

fn or(name: &str, usual: &str) -> String {
    variable(name).unwrap_or_else(|| usual.to_owned())
}

/// The variables that are true or false.
const SWITCHES: [&str; 18] = [
    "CONFIG_GRPC_XDS_SERVER_USE_TLS",
    "DISABLE_STATS",
    "GRPC_SERVER_USE_TLS",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED",
    "LIMIT_REQUEST_HEADERS_ENABLED",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "MERGE_DOMAIN_CONFIG",
    "QUOTA_MODE",
    "REDIS_TLS",
    "RESPONSE_DYNAMIC_METADATA",
    "SHADOW_MODE",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "TRACING_ENABLED",
    "USE_CALENDAR_MONTH_RATE_LIMIT",
    "USE_DOG_STATSD",
    "USE_PROMETHEUS",
    "USE_STATSD",
];

/// A switch in the forms that Go reads.
fn switch(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Whether a switch is on.
fn is_on(name: &str) -> bool {
    debug_assert!(SWITCHES.contains(&name), "{name}");
    variable(name).and_then(|value| switch(&value)) == Some(true)
}

/// The options of `serve`, and the variables that have no effect.
fn options() -> Result<(Vec<String>, Vec<String>), SettingError> {
    // As there, what is neither true nor false is refused: a misspelt REDIS_TLS must not be off.
    for name in SWITCHES {
        if let Some(value) = variable(name).filter(|value| switch(value).is_none()) {
            return Err(SettingError::Switch(name, value));
        }
    }
    let all = |address: &str| match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    let grpc = match variable("GRPC_UDS") {
        Some(path) => format!("unix:{path}"),
        None => format!("{}:{}", or("GRPC_HOST", "0.0.0.0"), or("GRPC_PORT", "8081")),
    };
    let has_stats = !is_on("DISABLE_STATS");
    let metrics =
        (has_stats && is_on("USE_PROMETHEUS")).then(|| all(&or("PROMETHEUS_ADDR", ":9090")));
    let debug = || {
        format!(
            "{}:{}",
            or("DEBUG_HOST", "127.0.0.1"),
            or("DEBUG_PORT", "6070")
        )
    };
    let mut given = vec![
        (
            "http",
            format!("{}:{}", or("HOST", "0.0.0.0"), or("PORT", "8080")),
        ),
        ("grpc", grpc),
        ("resp", "off".to_owned()),
        ("admin", metrics.clone().unwrap_or_else(debug)),
    ];
    given.extend(
        statsd()
            .filter(|_| has_stats)
            .map(|statsd| ("envoy-statsd", statsd)),
    );
    if cfg!(feature = "otlp") && is_on("TRACING_ENABLED") {
        given.extend(tracing());
    }
    given.push((
        "log-level",
        or("LOG_LEVEL", "warn")
            .to_lowercase()
            .replace("warning", "warn"),
    ));
    if or("LOG_FORMAT", "text") == "json" {
        given.push(("log-format", "json".to_owned()));
    }
    match &*or("CONFIG_TYPE", "FILE") {
        "FILE" => {
            let root = or("RUNTIME_ROOT", "/srv/runtime_data/current");
            let below = Path::new(&root).join(or("RUNTIME_SUBDIRECTORY", ""));
            let path = below.join(or("RUNTIME_APPDIRECTORY", "config"));
            given.push(("envoy-config", path.to_string_lossy().into_owned()));
        }
        "GRPC_XDS_SOTW" => given.push(("envoy-xds", control_plane())),
        other => {
            return Err(SettingError::ConfigType(other.to_owned()));
        }
    }
    if is_on("GRPC_SERVER_USE_TLS") {
        given.extend(tls()?);
    }
    match &*or("BACKEND_TYPE", "redis") {
        "redis" => given.extend(store()?),
        other => {
            return Err(SettingError::BackendType(other.to_owned()));
        }
    }
    if is_on("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") {
        given.push(("envoy-consume", "all-or-none".to_owned()));
    }
    for (switch, prefix, option) in [
        (
            "LIMIT_RESPONSE_HEADERS_ENABLED",
            "LIMIT",
            "envoy-header-names",
        ),
        (
            "LIMIT_REQUEST_HEADERS_ENABLED",
            "LIMIT_REQUEST",
            "envoy-request-header-names",
        ),
    ] {
        if is_on(switch) {
            let name = |what, usual| or(&format!("{prefix}_{what}_HEADER"), usual);
            let names = [
                name("LIMIT", "RateLimit-Limit"),
                name("REMAINING", "RateLimit-Remaining"),
                name("RESET", "RateLimit-Reset"),
            ];
            given.push((option, names.join(",")));
        }
    }
    given.extend(set([
        ("PROMETHEUS_PATH", "metrics-path"),
        ("NEAR_LIMIT_RATIO", "envoy-near-limit"),
        ("GRPC_MAX_CONNECTION_AGE", "grpc-max-age"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "grpc-max-age-grace"),
    ]));
    let switches = [
        ("MERGE_DOMAIN_CONFIG", "--envoy-merge-domains"),
        (
            "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
            "--envoy-await-rules",
        ),
        ("SHADOW_MODE", "--envoy-shadow"),
        ("QUOTA_MODE", "--envoy-quota"),
        ("RESPONSE_DYNAMIC_METADATA", "--envoy-metadata"),
        (
            "LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED",
            "--envoy-unit-headers",
        ),
        ("USE_CALENDAR_MONTH_RATE_LIMIT", "--envoy-calendar-months"),
    ];
    let mut options: Vec<String> = ["serve", "--insecure", "--envoy-without-reasons"]
        .map(str::to_owned)
        .into();
    options.extend(
        given
            .into_iter()
            .flat_map(|(option, value)| [format!("--{option}"), value]),
    );
    options.extend(
        switches
            .iter()
            .filter(|(name, _)| is_on(name))
            .map(|(_, option)| (*option).to_owned()),
    );
    if metrics.is_some() {
        options.extend(["--open-metrics", "--envoy-metric-names"].map(str::to_owned));
    }
    let is_set = |name: &str| variable(name).is_some_and(|value| switch(&value) != Some(false));
    let ignored = WITHOUT_EFFECT.iter().filter(|(name, _)| is_set(name));
    let ignored = ignored.map(|(name, instead)| format!("{name} ({instead})"));
    let unknown = unknown().map(|name| format!("{name} (unknown here)"));
    Ok((options, ignored.chain(unknown).collect()))
}

/// The set variables that begin as those of envoyproxy/ratelimit do and that Tidegate does not
/// know, in the order of their names: spelling mistakes, and variables of later versions.
fn unknown() -> impl Iterator<Item = String> {
    let is_known = |name: &str| {
        let without_effect = WITHOUT_EFFECT.iter().map(|(name, _)| *name);
        HONOURED
            .into_iter()
            .chain(without_effect)
            .any(|known| known == name)
    };
    // gRPC's own libraries read these.
    let is_of_grpc = |name: &str| {
        let of_grpc = [
            "GRPC_DEFAULT_",
            "GRPC_VERBOSITY",
            "GRPC_TRACE",
            "GRPC_GO_",
            "GRPC_DNS_",
        ];
        of_grpc.iter().any(|own| name.starts_with(own))
    };
    // Kubernetes sets these for each service of the namespace, such as one called `redis`.
    let is_service = |name: &str, value: &str| {
        name.contains("_SERVICE_")
            || name.contains("_PORT_")
            || value.contains("://") && name.ends_with("_PORT")
    };
    let set: BTreeMap<String, String> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    set.into_iter()
        .filter(move |(name, value)| {
            PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                && !value.is_empty()
                && !is_known(name)
                && !is_of_grpc(name)
                && !is_service(name, value)
        })
        .map(|(name, _)| name)
}

/// TLS on gRPC, and what clients need.
fn tls() -> Result<Vec<(&'static str, String)>, SettingError> {
    let file = |name| variable(name).ok_or(SettingError::TlsFile(name));
    let mut options = vec![
        ("tls-cert", file("GRPC_SERVER_TLS_CERT")?),
        ("tls-key", file("GRPC_SERVER_TLS_KEY")?),
        ("tls-listeners", "grpc".to_owned()),
    ];
    if let Some(ca) = variable("GRPC_CLIENT_TLS_CACERT") {
        options.push(("tls-client-ca", ca));
        options.extend(variable("GRPC_CLIENT_TLS_SAN").map(|name| ("tls-client-san", name)));
    }
    Ok(options)
}

/// Where counters are sent. There, `USE_STATSD` is on unless it is false, and no two of the three
/// work together.
fn statsd() -> Option<String> {
    let scheme = if is_on("USE_DOG_STATSD") {
        "dogstatsd"
    } else if is_on("USE_STATSD") || variable("USE_STATSD").is_none() && !is_on("USE_PROMETHEUS") {
        if or("STATSD_PROTOCOL", "tcp").starts_with("udp") {
            "udp"
        } else {
            "tcp"
        }
    } else {
        return None;
    };
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("interval", &or("STATS_FLUSH_INTERVAL", "10s"));
    for tag in or("EXTRA_TAGS", "")
        .split(',')
        .filter(|tag| !tag.is_empty())
    {
        query.append_pair("tag", tag);
    }
    let (host, port) = (or("STATSD_HOST", "localhost"), or("STATSD_PORT", "8125"));
    Some(format!("{scheme}://{host}:{port}?{}", query.finish()))
}

/// Where traces are sent, and how many.
fn tracing() -> Vec<(&'static str, String)> {
    let is_grpc = or("TRACING_EXPORTER_PROTOCOL", "http").eq_ignore_ascii_case("grpc");
    let (protocol, port) = if is_grpc {
        ("grpc", 4317)
    } else {
        ("http", 4318)
    };
    let here = ("otlp", format!("http://localhost:{port}"));
    let endpoint = variable("OTEL_EXPORTER_OTLP_ENDPOINT")
        .is_none()
        .then_some(here);
    let rest = [
        ("otlp-protocol", protocol.to_owned()),
        ("otlp-sample", or("TRACING_SAMPLING_RATE", "1")),
    ];
    endpoint.into_iter().chain(rest).collect()
}

fn control_plane() -> String {
    let server = or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000");
    let uses_tls = is_on("CONFIG_GRPC_XDS_SERVER_USE_TLS");
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("node", &or("CONFIG_GRPC_XDS_NODE_ID", "default"));
    let lists = set([
        ("CONFIG_GRPC_XDS_NODE_METADATA", "metadata"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "header"),
    ]);
    for (option, list) in lists {
        for pair in list.split(',') {
            query.append_pair(option, pair);
        }
    }
    query.extend_pairs(set([
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "max_message"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "first_pause"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "longest_pause"),
    ]));
    if uses_tls {
        query.extend_pairs(set([
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "cert"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "key"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "ca"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "server_name"),
        ]));
    }
    format!(
        "{}://{server}?{}",
        if uses_tls { "https" } else { "http" },
        query.finish()
    )
}

/// The store with its options; none if all limits are counted in memory.
fn store() -> Result<Vec<(&'static str, String)>, SettingError> {
    let Some(servers) = variable("REDIS_URL") else {
        return Ok(Vec::new());
    };
    let socket = or("REDIS_SOCKET_TYPE", "tcp");
    if !["tcp", "tcp4", "tcp6", "tls", "unix"].contains(&&*socket) {
        return Err(SettingError::Socket(socket));
    }
    let uses_tls = is_on("REDIS_TLS") || socket == "tls";
    let encoded = |text: &str| {
        url::form_urlencoded::byte_serialize(text.as_bytes())
            .collect::<String>()
            .replace('+', "%20")
    };
    let login = |name: &str| {
        let auth = variable(name)?;
        let (user, password) = auth.split_once(':').unwrap_or(("", &auth));
        Some((encoded(user), encoded(password)))
    };
    let credentials = login("REDIS_AUTH").map_or_else(String::new, |(user, password)| {
        format!("{user}:{password}@")
    });
    let is_unix = socket == "unix";
    if is_unix && (uses_tls || !servers.starts_with('/')) {
        return Err(SettingError::SocketPath);
    }
    let scheme = if uses_tls { "rediss" } else { "redis" };
    let mut address = match &*or("REDIS_TYPE", "SINGLE").to_ascii_uppercase() {
        "SINGLE" if is_unix => format!("redis+unix://{}", encoded(&servers).replace("%2F", "/")),
        _ if is_unix => return Err(SettingError::SocketType),
        "SINGLE" => format!("{scheme}://{credentials}{servers}"),
        "CLUSTER" => format!("{scheme}+cluster://{credentials}{servers}"),
        "SENTINEL" => {
            let (name, sentinels) = servers.split_once(',').ok_or(SettingError::Sentinels)?;
            format!("{scheme}+sentinel://{credentials}{sentinels}/{name}")
        }
        other => return Err(SettingError::RedisType(other.to_owned())),
    };
    let files = [
        ("REDIS_TLS_CACERT", "ca"),
        ("REDIS_TLS_CLIENT_CERT", "cert"),
        ("REDIS_TLS_CLIENT_KEY", "key"),
    ];
    let mut options: Vec<_> = set(files).filter(|_| uses_tls).collect();
    if let Some((user, password)) =
        login("REDIS_SENTINEL_AUTH").filter(|_| address.contains("+sentinel:"))
    {
        options.extend((!user.is_empty()).then_some(("sentinel_username", user)));
        options.push(("sentinel_password", password));
    }
    if let Some((user, password)) = login("REDIS_AUTH").filter(|_| is_unix) {
        options.extend((!user.is_empty()).then_some(("user", user)));
        options.push(("pass", password));
    }
    for (at, (option, value)) in options.iter().enumerate() {
        address.extend([if at == 0 { "?" } else { "&" }, option, "=", value]);
    }
    // A colon follows the prefix anyway.
    let prefix = variable("CACHE_KEY_PREFIX").map(|prefix| prefix.trim_end_matches(':').to_owned());
    let deadline = variable("REDIS_TIMEOUT").map(|timeout| {
        let is_short = tidegate_core::parse_duration(&timeout).is_ok_and(|time| time < LONGEST);
        if is_short { timeout } else { "5s".to_owned() }
    });
    let all = [
        ("store", Some(address)),
        ("store-prefix", prefix),
        ("store-deadline", deadline),
    ];
    Ok(all
        .into_iter()
        .filter_map(|(option, value)| Some((option, value?)))
        .collect())
}
