//! `tidegate ratelimit`: `serve` with the settings of envoyproxy/ratelimit, from its environment variables.
#![allow(clippy::doc_markdown, reason = "the options' comments are their help text")]

use std::{env, ffi::OsString, path::Path, time::Duration};

/// Serve in place of envoyproxy/ratelimit: all settings come from its environment variables
///
/// A program or a link with the name `ratelimit` does the same. The book has a table of the variables (From envoyproxy/ratelimit). Those that
/// have no effect are named in one line at the start.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Variables without an effect, and what to use instead.
const WITHOUT_EFFECT: [(&str, &str); 16] = [
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "the pauses between connections vary by themselves"),
    ("XDS_CLIENT_BACKOFF_JITTER", "the pauses between connections vary by themselves"),
    ("PROMETHEUS_MAPPER_YAML", "names are those of the usual mapping"),
    ("USE_DOG_STATSD_MOGRIFIERS", "names are those of the counters"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "keys expire with their windows"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "the rule's option `sharing: leased` decides in memory"),
    ("REDIS_POOL_SIZE", "one connection carries all calls"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "one connection carries all calls"),
    ("REDIS_PIPELINE_WINDOW", "calls are put together without a pause"),
    ("REDIS_PIPELINE_LIMIT", "calls are put together without a pause"),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "the certificate's name is always verified"),
    ("REDIS_PERSECOND", "all limits are in one store"),
    ("TRACING_SERVICE_NAME", "OTEL_SERVICE_NAME"),
    ("TRACING_SERVICE_NAMESPACE", "OTEL_RESOURCE_ATTRIBUTES"),
    ("TRACING_SERVICE_INSTANCE_ID", "OTEL_RESOURCE_ATTRIBUTES"),
];

/// The longest deadline of the store. There, a request waits for 10s unless `REDIS_TIMEOUT` says otherwise.
const LONGEST: Duration = Duration::from_secs(5);

/// The command line, with the options of `serve` in place of `ratelimit`.
pub fn arguments(given: Vec<OsString>) -> Vec<OsString> {
    let is_called = given
        .first()
        .is_some_and(|program| Path::new(program).file_stem().is_some_and(|stem| stem == "ratelimit"));
    let is_named = given.len() == 2 && given[1] == "ratelimit";
    if !(is_named || is_called && given.len() == 1) {
        return given;
    }
    match options(|name| env::var(name).ok().filter(|value| !value.is_empty())) {
        Ok((options, ignored)) => {
            if !ignored.is_empty() {
                eprintln!("tidegate: without effect: {}", ignored.join("; "));
            }
            let program = given.into_iter().next();
            program.into_iter().chain(options.into_iter().map(OsString::from)).collect()
        }
        Err(what) => {
            eprintln!("tidegate: {what}");
            std::process::exit(2);
        }
    }
}

/// The options of `serve`, and the variables that have no effect.
fn options(variable: impl Fn(&str) -> Option<String>) -> Result<(Vec<String>, Vec<String>), String> {
    let or = |name: &str, usual: &str| variable(name).unwrap_or_else(|| usual.to_owned());
    let is_on =
        |name: &str| variable(name).is_some_and(|value| matches!(&*value, "true" | "1" | "TRUE" | "t"));
    let all = |address: &str| match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    let mut options: Vec<String> =
        ["serve", "--insecure", "--envoy-without-reasons"].map(str::to_owned).into();
    let mut give = |option: &str, value: String| options.extend([format!("--{option}"), value]);
    give("http", format!("{}:{}", or("HOST", "0.0.0.0"), or("PORT", "8080")));
    give(
        "grpc",
        match variable("GRPC_UDS") {
            Some(path) => format!("unix:{path}"),
            None => format!("{}:{}", or("GRPC_HOST", "0.0.0.0"), or("GRPC_PORT", "8081")),
        },
    );
    give("resp", "off".to_owned());
    let has_stats = !is_on("DISABLE_STATS");
    let metrics = (has_stats && is_on("USE_PROMETHEUS")).then(|| all(&or("PROMETHEUS_ADDR", ":9090")));
    let debug = || format!("{}:{}", or("DEBUG_HOST", "127.0.0.1"), or("DEBUG_PORT", "6070"));
    give("admin", metrics.clone().unwrap_or_else(debug));
    if has_stats && let Some(statsd) = statsd(&variable, &or, &is_on) {
        give("envoy-statsd", statsd);
    }
    if cfg!(feature = "otlp") && is_on("TRACING_ENABLED") {
        for (option, value) in tracing(&variable, &or) {
            give(option, value);
        }
    }
    give("log-level", or("LOG_LEVEL", "warn").to_lowercase().replace("warning", "warn"));
    if or("LOG_FORMAT", "text") == "json" {
        give("log-format", "json".to_owned());
    }
    match &*or("CONFIG_TYPE", "FILE") {
        "FILE" => {
            let root = or("RUNTIME_ROOT", "/srv/runtime_data/current");
            let below = Path::new(&root).join(or("RUNTIME_SUBDIRECTORY", ""));
            let path = below.join(or("RUNTIME_APPDIRECTORY", "config"));
            give("envoy-config", path.to_string_lossy().into_owned());
        }
        "GRPC_XDS_SOTW" => give("envoy-xds", control_plane(&variable, &or, &is_on)),
        other => return Err(format!("CONFIG_TYPE is {other}; it must be FILE or GRPC_XDS_SOTW")),
    }
    if is_on("GRPC_SERVER_USE_TLS") {
        for (option, value) in tls(&variable)? {
            give(option, value);
        }
    }
    match &*or("BACKEND_TYPE", "redis") {
        "redis" => {
            for (option, value) in store(&variable, &or, &is_on)? {
                give(option, value);
            }
        }
        other => return Err(format!("BACKEND_TYPE is {other}; give REDIS_URL, or none to count in memory")),
    }
    if is_on("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") {
        give("envoy-consume", "all-or-none".to_owned());
    }
    if is_on("LIMIT_RESPONSE_HEADERS_ENABLED") {
        let names = [
            or("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
            or("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
            or("LIMIT_RESET_HEADER", "RateLimit-Reset"),
        ];
        give("envoy-header-names", names.join(","));
    }
    for (name, option) in [
        ("PROMETHEUS_PATH", "metrics-path"),
        ("NEAR_LIMIT_RATIO", "envoy-near-limit"),
        ("GRPC_MAX_CONNECTION_AGE", "grpc-max-age"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "grpc-max-age-grace"),
    ] {
        if let Some(value) = variable(name) {
            give(option, value);
        }
    }
    for (name, option) in [
        ("MERGE_DOMAIN_CONFIG", "--envoy-merge-domains"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "--envoy-await-rules"),
        ("SHADOW_MODE", "--envoy-shadow"),
        ("QUOTA_MODE", "--envoy-quota"),
        ("RESPONSE_DYNAMIC_METADATA", "--envoy-metadata"),
    ] {
        if is_on(name) {
            options.push(option.to_owned());
        }
    }
    if metrics.is_some() {
        options.extend(["--open-metrics", "--envoy-metric-names"].map(str::to_owned));
    }
    let is_set = |name: &str| variable(name).is_some_and(|value| !matches!(&*value, "false" | "0"));
    let ignored = WITHOUT_EFFECT.iter().filter(|(name, _)| is_set(name));
    let ignored = ignored.map(|(name, instead)| format!("{name} ({instead})")).collect();
    Ok((options, ignored))
}

/// TLS on gRPC, and what clients need.
fn tls(variable: &impl Fn(&str) -> Option<String>) -> Result<Vec<(&'static str, String)>, String> {
    let file = |name: &str| variable(name).ok_or(format!("GRPC_SERVER_USE_TLS needs {name}"));
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

/// Where counters are sent. There, `USE_STATSD` is on unless it is false, and no two of the three work together.
fn statsd(
    variable: &impl Fn(&str) -> Option<String>,
    or: &impl Fn(&str, &str) -> String,
    is_on: &impl Fn(&str) -> bool,
) -> Option<String> {
    let scheme = if is_on("USE_DOG_STATSD") {
        "dogstatsd"
    } else if is_on("USE_STATSD") || variable("USE_STATSD").is_none() && !is_on("USE_PROMETHEUS") {
        if or("STATSD_PROTOCOL", "tcp").starts_with("udp") { "udp" } else { "tcp" }
    } else {
        return None;
    };
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("interval", &or("STATS_FLUSH_INTERVAL", "10s"));
    for tag in or("EXTRA_TAGS", "").split(',').filter(|tag| !tag.is_empty()) {
        query.append_pair("tag", tag);
    }
    let (host, port) = (or("STATSD_HOST", "localhost"), or("STATSD_PORT", "8125"));
    Some(format!("{scheme}://{host}:{port}?{}", query.finish()))
}

/// Where traces are sent, and how many.
fn tracing(
    variable: &impl Fn(&str) -> Option<String>,
    or: &impl Fn(&str, &str) -> String,
) -> Vec<(&'static str, String)> {
    let is_grpc = or("TRACING_EXPORTER_PROTOCOL", "http").eq_ignore_ascii_case("grpc");
    let (protocol, port) = if is_grpc { ("grpc", 4317) } else { ("http", 4318) };
    let here = ("otlp", format!("http://localhost:{port}"));
    let endpoint = variable("OTEL_EXPORTER_OTLP_ENDPOINT").is_none().then_some(here);
    let rest = [("otlp-protocol", protocol.to_owned()), ("otlp-sample", or("TRACING_SAMPLING_RATE", "1"))];
    endpoint.into_iter().chain(rest).collect()
}

fn control_plane(
    variable: &impl Fn(&str) -> Option<String>,
    or: &impl Fn(&str, &str) -> String,
    is_on: &impl Fn(&str) -> bool,
) -> String {
    let server = or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000");
    let uses_tls = is_on("CONFIG_GRPC_XDS_SERVER_USE_TLS");
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("node", &or("CONFIG_GRPC_XDS_NODE_ID", "default"));
    let pairs = |name: &str| -> Vec<String> {
        variable(name).map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
    };
    for pair in pairs("CONFIG_GRPC_XDS_NODE_METADATA") {
        query.append_pair("metadata", &pair);
    }
    for pair in pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS") {
        query.append_pair("header", &pair);
    }
    for (option, name) in [
        ("max_message", "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"),
        ("first_pause", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
        ("longest_pause", "XDS_CLIENT_BACKOFF_MAX_INTERVAL"),
    ] {
        if let Some(value) = variable(name) {
            query.append_pair(option, &value);
        }
    }
    let files = [
        ("cert", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
        ("key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
        ("ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
        ("server_name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
    ];
    for (option, name) in files.into_iter().filter(|_| uses_tls) {
        if let Some(value) = variable(name) {
            query.append_pair(option, &value);
        }
    }
    format!("{}://{server}?{}", if uses_tls { "https" } else { "http" }, query.finish())
}

/// The store with its options; none if all limits are counted in memory.
fn store(
    variable: &impl Fn(&str) -> Option<String>,
    or: &impl Fn(&str, &str) -> String,
    is_on: &impl Fn(&str) -> bool,
) -> Result<Vec<(&'static str, String)>, String> {
    let Some(servers) = variable("REDIS_URL") else { return Ok(Vec::new()) };
    let uses_tls = is_on("REDIS_TLS") || or("REDIS_SOCKET_TYPE", "tcp") == "tls";
    let encoded = |text: &str| {
        url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
    };
    let login = |name: &str| {
        let auth = variable(name)?;
        let (user, password) = auth.split_once(':').unwrap_or(("", &auth));
        Some((encoded(user), encoded(password)))
    };
    let credentials =
        login("REDIS_AUTH").map_or_else(String::new, |(user, password)| format!("{user}:{password}@"));
    let is_unix = or("REDIS_SOCKET_TYPE", "tcp") == "unix";
    if is_unix && (uses_tls || !servers.starts_with('/')) {
        return Err(
            "REDIS_SOCKET_TYPE is unix; REDIS_URL must be the path of a socket, without REDIS_TLS".to_owned()
        );
    }
    let scheme = if uses_tls { "rediss" } else { "redis" };
    let mut address = match &*or("REDIS_TYPE", "SINGLE").to_ascii_uppercase() {
        "SINGLE" if is_unix => format!("redis+unix://{}", encoded(&servers).replace("%2F", "/")),
        _ if is_unix => return Err("REDIS_SOCKET_TYPE is unix; REDIS_TYPE must be SINGLE".to_owned()),
        "SINGLE" => format!("{scheme}://{credentials}{servers}"),
        "CLUSTER" => format!("{scheme}+cluster://{credentials}{servers}"),
        "SENTINEL" => {
            let (name, sentinels) = servers
                .split_once(',')
                .ok_or("REDIS_URL is for sentinels: write NAME,HOST:PORT,HOST:PORT".to_owned())?;
            format!("{scheme}+sentinel://{credentials}{sentinels}/{name}")
        }
        other => return Err(format!("REDIS_TYPE is {other}; it must be SINGLE, CLUSTER or SENTINEL")),
    };
    let files =
        [("ca", "REDIS_TLS_CACERT"), ("cert", "REDIS_TLS_CLIENT_CERT"), ("key", "REDIS_TLS_CLIENT_KEY")];
    let files = files.into_iter().filter(|_| uses_tls);
    let mut options: Vec<_> = files.filter_map(|(option, name)| Some((option, variable(name)?))).collect();
    if let Some((user, password)) = login("REDIS_SENTINEL_AUTH").filter(|_| address.contains("+sentinel:")) {
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
    let all = [("store", Some(address)), ("store-prefix", prefix), ("store-deadline", deadline)];
    Ok(all.into_iter().filter_map(|(option, value)| Some((option, value?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<(String, Vec<String>), String> {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        options(find).map(|(options, ignored)| (options.join(" "), ignored))
    }

    #[test]
    fn the_environment_that_envoy_gateway_sets_is_understood() {
        let (options, ignored) = of(&[
            ("RUNTIME_ROOT", "/data"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_IGNOREDOTFILES", "true"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("LOG_LEVEL", "info"),
            ("USE_STATSD", "false"),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
            ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
            ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", "redis.redis-system:6379"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", ":19001"),
        ])
        .unwrap();
        assert_eq!(
            options,
            "serve --insecure --envoy-without-reasons --http 0.0.0.0:8080 --grpc 0.0.0.0:8081 --resp off --admin 0.0.0.0:19001 --log-level info \
             --envoy-xds https://envoy-gateway:18001?node=envoy-ratelimit&cert=%2Fcerts%2Ftls.crt&key=%2Fcerts%2Ftls.key&ca=%2Fcerts%2Fca.crt \
             --tls-cert /certs/tls.crt --tls-key /certs/tls.key --tls-listeners grpc --store redis://redis.redis-system:6379 --open-metrics \
             --envoy-metric-names"
        );
        assert_eq!(ignored, Vec::<String>::new());
    }

    #[test]
    fn without_any_variable_it_serves_the_files_of_its_usual_directory_from_memory() {
        let (options, _) = of(&[]).unwrap();
        assert_eq!(
            options,
            "serve --insecure --envoy-without-reasons --http 0.0.0.0:8080 --grpc 0.0.0.0:8081 --resp off --admin 127.0.0.1:6070 \
             --envoy-statsd tcp://localhost:8125?interval=10s --log-level warn --envoy-config /srv/runtime_data/current/config"
        );
    }

    #[test]
    fn stores_are_addressed_as_they_are_there() {
        let store = |variables: &[(&str, &str)]| {
            let options = of(variables).unwrap().0;
            options.split_once("--store ").map(|(_, store)| store.to_owned())
        };
        let url = |url| ("REDIS_URL", url);
        assert_eq!(store(&[url("a:1"), ("REDIS_AUTH", "p@ss")]).as_deref(), Some("redis://:p%40ss@a:1"));
        let socket = [url("/run/redis.sock"), ("REDIS_SOCKET_TYPE", "unix")];
        assert_eq!(store(&socket).as_deref(), Some("redis+unix:///run/redis.sock"));
        let timed = |timeout| store(&[url("a"), ("CACHE_KEY_PREFIX", "edge:"), ("REDIS_TIMEOUT", timeout)]);
        let expected = "redis://a --store-prefix edge --store-deadline 100ms";
        assert_eq!(timed("100ms").as_deref(), Some(expected));
        assert!(timed("10s").unwrap().ends_with("--store-deadline 5s"));
        let with_login = [&socket[..], &[("REDIS_AUTH", "ops:a b")]].concat();
        assert_eq!(store(&with_login).as_deref(), Some("redis+unix:///run/redis.sock?user=ops&pass=a%20b"));
        let cluster = [url("a:1,b:2"), ("REDIS_TYPE", "CLUSTER"), ("REDIS_AUTH", "user:word")];
        assert_eq!(store(&cluster).as_deref(), Some("redis+cluster://user:word@a:1,b:2"));
        let sentinels = [
            url("main,a:1,b:2"),
            ("REDIS_TYPE", "sentinel"),
            ("REDIS_TLS", "true"),
            ("REDIS_TLS_CACERT", "/ca"),
        ];
        assert_eq!(store(&sentinels).as_deref(), Some("rediss+sentinel://a:1,b:2/main?ca=/ca"));
        let with_login = [&sentinels[..], &[("REDIS_SENTINEL_AUTH", "ops:a b")]].concat();
        let expected = "rediss+sentinel://a:1,b:2/main?ca=/ca&sentinel_username=ops&sentinel_password=a%20b";
        assert_eq!(store(&with_login).as_deref(), Some(expected));
    }

    #[test]
    #[cfg(feature = "otlp")]
    fn traces_go_to_the_collector() {
        let given = |variables: &[(&str, &str)]| {
            let options = of(variables).unwrap().0;
            let (before, _) = options.split_once(" --log-level").unwrap();
            before.split_once("10s ").map(|(_, given)| given.to_owned())
        };
        let on = ("TRACING_ENABLED", "true");
        let here = "--otlp http://localhost:4318 --otlp-protocol http --otlp-sample 1";
        assert_eq!(given(&[on]).as_deref(), Some(here));
        let there = [on, ("TRACING_EXPORTER_PROTOCOL", "gRPC"), ("TRACING_SAMPLING_RATE", "0.5")];
        let there = [&there[..], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4317")]].concat();
        assert_eq!(given(&there).as_deref(), Some("--otlp-protocol grpc --otlp-sample 0.5"));
        assert_eq!(given(&[("TRACING_SAMPLING_RATE", "0.5")]), None);
    }

    #[test]
    fn counters_go_to_statsd_unless_they_are_for_prometheus() {
        let statsd = |variables: &[(&str, &str)]| {
            let options = of(variables).unwrap().0;
            let (_, after) = options.split_once("--envoy-statsd ")?;
            Some(after.split(' ').next().unwrap().to_owned())
        };
        let place = [("STATSD_HOST", "statsd"), ("STATSD_PORT", "9125"), ("STATSD_PROTOCOL", "udp")];
        assert_eq!(statsd(&place).as_deref(), Some("udp://statsd:9125?interval=10s"));
        let tags =
            [("USE_DOG_STATSD", "true"), ("EXTRA_TAGS", "zone:a,app:b"), ("STATS_FLUSH_INTERVAL", "1m30s")];
        let expected = "dogstatsd://localhost:8125?interval=1m30s&tag=zone%3Aa&tag=app%3Ab";
        assert_eq!(statsd(&tags).as_deref(), Some(expected));
        assert_eq!(statsd(&[("USE_STATSD", "false")]), None);
        assert_eq!(statsd(&[("USE_PROMETHEUS", "true")]), None);
        assert!(statsd(&[("USE_PROMETHEUS", "true"), ("USE_STATSD", "true")]).is_some());
        let (none, _) =
            of(&[("DISABLE_STATS", "true"), ("USE_PROMETHEUS", "true"), ("DEBUG_HOST", "0.0.0.0")]).unwrap();
        assert!(
            !none.contains("statsd") && !none.contains("metric") && none.contains("--admin 0.0.0.0:6070"),
            "{none}"
        );
    }

    #[test]
    fn modes_and_header_fields_are_those_of_its_environment() {
        let given = |variables: &[(&str, &str)]| {
            let options = of(variables).unwrap().0;
            options.split_once("/current/config").unwrap().1.trim().to_owned()
        };
        assert_eq!(given(&[("SHADOW_MODE", "true"), ("QUOTA_MODE", "1")]), "--envoy-shadow --envoy-quota");
        assert_eq!(given(&[("RESPONSE_DYNAMIC_METADATA", "true")]), "--envoy-metadata");
        assert_eq!(given(&[("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]), "--envoy-await-rules");
        let counting = [("MERGE_DOMAIN_CONFIG", "true"), ("NEAR_LIMIT_RATIO", "0.9")];
        assert_eq!(given(&counting), "--envoy-near-limit 0.9 --envoy-merge-domains");
        let socket = of(&[("GRPC_UDS", "/run/grpc.sock"), ("GRPC_PORT", "1")]).unwrap().0;
        assert!(socket.contains("--grpc unix:/run/grpc.sock --resp"), "{socket}");
        let ages = [("GRPC_MAX_CONNECTION_AGE", "1h30m"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "5m")];
        assert_eq!(given(&ages), "--grpc-max-age 1h30m --grpc-max-age-grace 5m");
        let stops = [("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")];
        assert_eq!(given(&stops), "--envoy-consume all-or-none");
        assert_eq!(given(&[("SHADOW_MODE", "false"), ("LIMIT_LIMIT_HEADER", "x-limit")]), "");
        let headers = ("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
        assert_eq!(
            given(&[headers]),
            "--envoy-header-names RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset"
        );
        let names = given(&[headers, ("LIMIT_LIMIT_HEADER", "x-limit")]);
        assert_eq!(names, "--envoy-header-names x-limit,RateLimit-Remaining,RateLimit-Reset");
    }

    #[test]
    fn what_has_no_effect_is_named_and_what_cannot_be_is_refused() {
        let (_, ignored) =
            of(&[("REDIS_PERSECOND", "true"), ("PROMETHEUS_MAPPER_YAML", "/a"), ("REDIS_POOL_SIZE", "0")])
                .unwrap();
        assert_eq!(ignored.len(), 2);
        assert!(ignored[1].starts_with("REDIS_PERSECOND (all limits"), "{ignored:?}");
        for (variables, says) in [
            (&[("CONFIG_TYPE", "HTTP")][..], "FILE or GRPC_XDS_SOTW"),
            (&[("BACKEND_TYPE", "memcache")], "give REDIS_URL"),
            (&[("GRPC_SERVER_USE_TLS", "true")], "needs GRPC_SERVER_TLS_CERT"),
            (&[("REDIS_URL", "a"), ("REDIS_TYPE", "RING")], "SINGLE, CLUSTER or SENTINEL"),
            (&[("REDIS_URL", "a:1"), ("REDIS_SOCKET_TYPE", "unix")], "must be the path of a socket"),
            (
                &[("REDIS_URL", "/a"), ("REDIS_SOCKET_TYPE", "unix"), ("REDIS_TYPE", "CLUSTER")],
                "must be SINGLE",
            ),
        ] {
            let said = of(variables).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }
}
