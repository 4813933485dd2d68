//! The program in place of envoyproxy/ratelimit: called `ratelimit`, without arguments, set by its
//! environment.
#![cfg(unix)]

use crate::certificates;
use crate::program;

use std::{fs, net::UdpSocket, os::unix::fs::symlink, path::Path, process::Command};

use certificates::Authority;
use program::{PATIENCE, Serving, request, scratch, tidegate};

/// `tidegate ratelimit` with free ports of this machine.
fn ratelimit(root: &Path) -> Command {
    let mut command = tidegate();
    command.arg("ratelimit").env("RUNTIME_ROOT", root);
    command.envs(["HOST", "GRPC_HOST"].map(|name| (name, "127.0.0.1")));
    command.envs(["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0")));
    command
}

#[test]
fn a_program_called_ratelimit_serves_the_files_of_its_environment() {
    let directory = scratch("ratelimit");
    let program = directory.join("ratelimit");
    symlink(env!("CARGO_BIN_EXE_tidegate"), &program).unwrap();
    let config = directory.join("data/ratelimit/config");
    fs::create_dir_all(&config).unwrap();
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]\n";
    fs::write(config.join("shop.yaml"), rules).unwrap();
    let authority = Authority::new(&directory, "ca");
    let [cert, key] = authority.issue("server", &["localhost"]);
    let root = directory.join("data");
    let variables = [
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ("PROMETHEUS_PATH", "/stats/prometheus"),
        ("RUNTIME_ROOT", root.to_str().unwrap()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("LOG_LEVEL", "info"),
        ("NEAR_LIMIT_RATIO", "0.9"),
        ("REDIS_POOL_SIZE", "7"),
    ];
    let mut command = Command::new(&program);
    command.envs(variables);
    let server = Serving::run(&mut command);
    assert!(
        server
            .logs("without effect")
            .contains("REDIS_POOL_SIZE (one connection")
    );
    // The probe of a Deployment is plain HTTP, while gRPC has TLS.
    assert!(
        server.told.contains("http://127.0.0.1") && !server.told.contains("https://"),
        "{}",
        server.told
    );
    assert!(request(&server.http, "GET", "/healthcheck", "").starts_with("HTTP/1.1 200"));
    assert!(
        request(&server.admin, "GET", "/metrics", "")
            .contains("tidegate_decisions_total{limit=\"shop.user\"")
    );
    let metrics = || request(&server.admin, "GET", "/stats/prometheus", "");
    assert!(metrics().starts_with("HTTP/1.1 200"));
    assert!(request(&server.http, "GET", "/stats/prometheus", "").starts_with("HTTP/1.1 404"));
    assert!(request(&server.admin, "POST", "/stats/prometheus", "").starts_with("HTTP/1.1 405"));
    assert!(
        metrics()
            .contains("ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"user\"} 0\n")
    );
    let grpc = server
        .told
        .lines()
        .find_map(|line| line.trim().strip_prefix("gRPC"))
        .unwrap();
    let grpc = grpc
        .trim()
        .split(',')
        .next()
        .unwrap()
        .replace("127.0.0.1", "localhost");
    let curl = |url: &str| {
        let mut output = Command::new("curl");
        output.args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_version} %{ssl_verify_result}",
        ]);
        String::from_utf8(
            output
                .args(["--cacert", &authority.file(), url])
                .output()
                .unwrap()
                .stdout,
        )
        .unwrap()
    };
    assert_eq!(curl(&format!("https://{grpc}/")), "2 0");
    let ask = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
    let asked = || request(&server.http, "POST", "/json", ask);
    assert!(asked().contains("\"overallCode\":\"OK\""));
    assert!(asked().starts_with("HTTP/1.1 429"));
    assert!(
        metrics()
            .contains("ratelimit_service_rate_limit_over_limit{domain=\"shop\",key1=\"user\"} 1\n")
    );
}

#[test]
fn a_clients_certificate_must_have_the_name_of_the_environment() {
    let directory = scratch("ratelimit-san");
    let config = directory.join("config");
    fs::create_dir_all(&config).unwrap();
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]\n";
    fs::write(config.join("shop.yaml"), rules).unwrap();
    let authority = Authority::new(&directory, "ca");
    let [cert, key] = authority.issue("server", &["localhost"]);
    let serving = |name: &str| {
        let mut command = ratelimit(&directory);
        command.envs([
            ("USE_STATSD", "false"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &cert),
            ("GRPC_SERVER_TLS_KEY", &key),
            ("GRPC_CLIENT_TLS_CACERT", &authority.file()),
            ("GRPC_CLIENT_TLS_SAN", name),
        ]);
        Serving::run(&mut command)
    };
    let call = directory.join("call");
    fs::write(&call, [0; 5]).unwrap();
    // An empty request without a domain, so that it is invalid (3) for a client that may ask.
    let status = |server: &Serving, identity: &[String]| {
        let grpc = server
            .told
            .lines()
            .find_map(|line| line.trim().strip_prefix("gRPC"))
            .unwrap();
        let grpc = grpc
            .trim()
            .split(',')
            .next()
            .unwrap()
            .replace("127.0.0.1", "localhost");
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "-D",
            "-",
            "-o",
            "/dev/null",
            "--cacert",
            &authority.file(),
        ])
        .args(identity);
        curl.args([
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
            "--data-binary",
        ]);
        curl.arg(format!("@{}", call.display()));
        curl.arg(format!(
            "https://{grpc}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        ));
        let head = String::from_utf8(curl.output().unwrap().stdout).unwrap();
        let code = head
            .lines()
            .find_map(|line| line.strip_prefix("grpc-status: "));
        code.unwrap_or_else(|| panic!("{head}")).trim().to_owned()
    };
    let identity = |name: &str| {
        let [cert, key] = authority.issue(name, &[&format!("{name}.example")]);
        ["--cert".to_owned(), cert, "--key".to_owned(), key]
    };
    let (envoy, other) = (identity("envoy"), identity("other"));
    let server = serving("envoy.example");
    assert_eq!(
        [&envoy[..], &other, &[]].map(|identity| status(&server, identity)),
        ["3", "16", "16"]
    );
    let server = serving("");
    assert_eq!(
        [&envoy[..], &other, &[]].map(|identity| status(&server, identity)),
        ["3", "3", "16"]
    );
}

#[test]
fn counters_go_to_the_statsd_of_the_environment() {
    let config = scratch("ratelimit-statsd").join("config");
    fs::create_dir_all(&config).unwrap();
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 9}}]\n";
    fs::write(config.join("shop.yaml"), rules).unwrap();
    let statsd = UdpSocket::bind("127.0.0.1:0").unwrap();
    statsd.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = ratelimit(config.parent().unwrap());
    command.envs([
        ("USE_DOG_STATSD", "true"),
        (
            "STATSD_PORT",
            &statsd.local_addr().unwrap().port().to_string(),
        ),
        ("STATS_FLUSH_INTERVAL", "1h"),
        ("EXTRA_TAGS", "zone:a"),
    ]);
    let server = Serving::run(&mut command);
    let ask = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
    assert!(request(&server.http, "POST", "/json", ask).contains("\"overallCode\":\"OK\""));
    server.signal("TERM");
    let mut bytes = [0; 1500];
    let length = statsd.recv(&mut bytes).unwrap();
    let lines: Vec<&str> = std::str::from_utf8(&bytes[..length])
        .unwrap()
        .lines()
        .collect();
    let names = [
        "config_load_success",
        "rate_limit.shop.user.total_hits",
        "rate_limit.shop.user.within_limit",
    ];
    assert_eq!(
        lines,
        names.map(|name| format!("ratelimit.service.{name}:1|c|#zone:a"))
    );
    assert_eq!(server.ended(), Some(0));
}

/// The variables that envoyproxy/ratelimit reads (src/settings/settings.go), without those of
/// memcached and of a second Redis.
const VARIABLES: &str = "LIMIT_REQUEST_HEADERS_ENABLED LIMIT_REQUEST_LIMIT_HEADER LIMIT_REQUEST_REMAINING_HEADER LIMIT_REQUEST_RESET_HEADER
    LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED USE_CALENDAR_MONTH_RATE_LIMIT HOST PORT DEBUG_HOST DEBUG_PORT GRPC_UDS GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE
    GRPC_MAX_CONNECTION_AGE_GRACE GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN
    LOG_LEVEL LOG_FORMAT CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA
    CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS
    CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT
    CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR
    XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS USE_STATSD STATSD_HOST STATSD_PORT
    STATSD_PROTOCOL EXTRA_TAGS STATS_FLUSH_INTERVAL DISABLE_STATS USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML
    RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT EXPIRATION_JITTER_MAX_SECONDS
    LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO CACHE_KEY_PREFIX BACKEND_TYPE STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
    LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
    REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TLS REDIS_TLS_CLIENT_CERT
    REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_PERSECOND
    REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA
    MERGE_DOMAIN_CONFIG TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID
    TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE";

#[test]
fn the_book_has_every_variable_and_those_without_effect_are_named() {
    let book = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/src/envoy.md"
    ))
    .unwrap();
    let rows: Vec<&str> = book
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let names = |row: &str| -> Vec<String> {
        let texts = row.split('`').skip(1).step_by(2);
        let texts = texts.map(|text| text.split('=').next().unwrap_or(text));
        let is_name = |text: &&str| {
            text.chars()
                .all(|c| c.is_ascii_uppercase() || "_…".contains(c))
        };
        texts.filter(is_name).map(str::to_owned).collect()
    };
    let all: Vec<String> = rows.iter().flat_map(|row| names(row)).collect();
    for variable in VARIABLES.split_whitespace() {
        let is_it = |name: &String| match name.strip_suffix('…') {
            Some(family) => variable.starts_with(family),
            None => variable == name,
        };
        assert!(all.iter().any(is_it), "{variable} is not in the book");
    }
    let without_effect = names(
        rows.iter()
            .find(|row| row.contains("| no effect;"))
            .unwrap(),
    );
    let mut command = tidegate();
    command
        .arg("ratelimit")
        .env("RUNTIME_ROOT", "/nowhere")
        .env("USE_STATSD", "false");
    command.envs(without_effect.iter().map(|name| (name.as_str(), "1")));
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    let (_, named) = said
        .lines()
        .next()
        .unwrap()
        .split_once("without effect: ")
        .unwrap();
    let mut named: Vec<&str> = named
        .split("; ")
        .map(|each| each.split(' ').next().unwrap())
        .collect();
    let mut expected: Vec<&str> = without_effect.iter().map(String::as_str).collect();
    named.sort_unstable();
    expected.sort_unstable();
    assert_eq!(named, expected);
}

#[test]
#[cfg(feature = "servers")]
fn counts_are_in_the_redis_whose_socket_the_environment_names() {
    let redis = tidegate_redis_servers::Server::start(&[
        "--requirepass",
        "a b",
        "--unixsocket",
        "redis.sock",
    ]);
    let config = scratch("ratelimit-socket").join("config");
    fs::create_dir_all(&config).unwrap();
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]\n";
    fs::write(config.join("shop.yaml"), rules).unwrap();
    let socket = redis.directory().join("redis.sock");
    let serving = || {
        let mut command = ratelimit(config.parent().unwrap());
        command.envs([
            ("REDIS_SOCKET_TYPE", "unix"),
            ("REDIS_URL", socket.to_str().unwrap()),
            ("REDIS_AUTH", "a b"),
        ]);
        Serving::run(&mut command)
    };
    let ask = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
    // Both servers have the counts, so those are in the store.
    for (server, left) in [(serving(), "2"), (serving(), "1")] {
        let answer = request(&server.http, "POST", "/json", ask);
        assert!(
            answer.contains(&format!("\"limitRemaining\":{left}")),
            "{answer}"
        );
    }
}

#[test]
fn the_command_needs_no_link_and_says_which_variable_is_wrong() {
    let output = tidegate()
        .arg("ratelimit")
        .env("CONFIG_TYPE", "HTTP")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && said.contains("CONFIG_TYPE is HTTP"),
        "{said}"
    );
    let help = tidegate().args(["ratelimit", "--help"]).output().unwrap();
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("envoyproxy/ratelimit")
    );
}

/// The options of `serve` that an environment stands for, and the variables without effect; or why
/// it stands for none.
fn of(variables: &[(&str, &str)]) -> Result<(String, Vec<String>), String> {
    let output = tidegate()
        .args(["ratelimit", "--options"])
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let [out, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    if output.status.code() == Some(2) {
        return Err(said);
    }
    let ignored = said
        .strip_prefix("tidegate: without effect: ")
        .unwrap_or_default()
        .trim();
    let ignored = ignored
        .split("; ")
        .filter(|one| !one.is_empty())
        .map(str::to_owned)
        .collect();
    Ok((out.trim_end().replace('\n', " "), ignored))
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
    // No version of envoyproxy/ratelimit reads this one.
    assert_eq!(ignored, ["GRPC_SERVER_TLS_CA_CERT (unknown here)"]);
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
        options
            .split_once("--store ")
            .map(|(_, store)| store.to_owned())
    };
    let url = |url| ("REDIS_URL", url);
    assert_eq!(
        store(&[url("a:1"), ("REDIS_AUTH", "p@ss")]).as_deref(),
        Some("redis://:p%40ss@a:1")
    );
    let socket = [url("/run/redis.sock"), ("REDIS_SOCKET_TYPE", "unix")];
    assert_eq!(
        store(&socket).as_deref(),
        Some("redis+unix:///run/redis.sock")
    );
    let timed = |timeout| {
        store(&[
            url("a"),
            ("CACHE_KEY_PREFIX", "edge:"),
            ("REDIS_TIMEOUT", timeout),
        ])
    };
    let expected = "redis://a --store-prefix edge --store-deadline 100ms";
    assert_eq!(timed("100ms").as_deref(), Some(expected));
    assert!(timed("10s").unwrap().ends_with("--store-deadline 5s"));
    let with_login = [&socket[..], &[("REDIS_AUTH", "ops:a b")]].concat();
    assert_eq!(
        store(&with_login).as_deref(),
        Some("redis+unix:///run/redis.sock?user=ops&pass=a%20b")
    );
    let cluster = [
        url("a:1,b:2"),
        ("REDIS_TYPE", "CLUSTER"),
        ("REDIS_AUTH", "user:word"),
    ];
    assert_eq!(
        store(&cluster).as_deref(),
        Some("redis+cluster://user:word@a:1,b:2")
    );
    let sentinels = [
        url("main,a:1,b:2"),
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", "/ca"),
    ];
    assert_eq!(
        store(&sentinels).as_deref(),
        Some("rediss+sentinel://a:1,b:2/main?ca=/ca")
    );
    let with_login = [&sentinels[..], &[("REDIS_SENTINEL_AUTH", "ops:a b")]].concat();
    let expected =
        "rediss+sentinel://a:1,b:2/main?ca=/ca&sentinel_username=ops&sentinel_password=a%20b";
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
    let there = [
        on,
        ("TRACING_EXPORTER_PROTOCOL", "gRPC"),
        ("TRACING_SAMPLING_RATE", "0.5"),
    ];
    let there = [
        &there[..],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4317")],
    ]
    .concat();
    assert_eq!(
        given(&there).as_deref(),
        Some("--otlp-protocol grpc --otlp-sample 0.5")
    );
    assert_eq!(given(&[("TRACING_SAMPLING_RATE", "0.5")]), None);
}

#[test]
fn counters_go_to_statsd_unless_they_are_for_prometheus() {
    let statsd = |variables: &[(&str, &str)]| {
        let options = of(variables).unwrap().0;
        let (_, after) = options.split_once("--envoy-statsd ")?;
        Some(after.split(' ').next().unwrap().to_owned())
    };
    let place = [
        ("STATSD_HOST", "statsd"),
        ("STATSD_PORT", "9125"),
        ("STATSD_PROTOCOL", "udp"),
    ];
    assert_eq!(
        statsd(&place).as_deref(),
        Some("udp://statsd:9125?interval=10s")
    );
    let tags = [
        ("USE_DOG_STATSD", "true"),
        ("EXTRA_TAGS", "zone:a,app:b"),
        ("STATS_FLUSH_INTERVAL", "1m30s"),
    ];
    let expected = "dogstatsd://localhost:8125?interval=1m30s&tag=zone%3Aa&tag=app%3Ab";
    assert_eq!(statsd(&tags).as_deref(), Some(expected));
    assert_eq!(statsd(&[("USE_STATSD", "false")]), None);
    assert_eq!(statsd(&[("USE_PROMETHEUS", "true")]), None);
    assert!(statsd(&[("USE_PROMETHEUS", "true"), ("USE_STATSD", "true")]).is_some());
    let (none, _) = of(&[
        ("DISABLE_STATS", "true"),
        ("USE_PROMETHEUS", "true"),
        ("DEBUG_HOST", "0.0.0.0"),
    ])
    .unwrap();
    assert!(
        !none.contains("statsd")
            && !none.contains("metric")
            && none.contains("--admin 0.0.0.0:6070"),
        "{none}"
    );
}

#[test]
fn modes_and_header_fields_are_those_of_its_environment() {
    let given = |variables: &[(&str, &str)]| {
        let options = of(variables).unwrap().0;
        options
            .split_once("/current/config")
            .unwrap()
            .1
            .trim()
            .to_owned()
    };
    assert_eq!(
        given(&[("SHADOW_MODE", "true"), ("QUOTA_MODE", "1")]),
        "--envoy-shadow --envoy-quota"
    );
    for on in ["t", "T", "TRUE", "True"] {
        assert_eq!(given(&[("SHADOW_MODE", on)]), "--envoy-shadow");
    }
    assert_eq!(
        given(&[("RESPONSE_DYNAMIC_METADATA", "true")]),
        "--envoy-metadata"
    );
    assert_eq!(
        given(&[("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]),
        "--envoy-await-rules"
    );
    let counting = [("MERGE_DOMAIN_CONFIG", "true"), ("NEAR_LIMIT_RATIO", "0.9")];
    assert_eq!(
        given(&counting),
        "--envoy-near-limit 0.9 --envoy-merge-domains"
    );
    let socket = of(&[("GRPC_UDS", "/run/grpc.sock"), ("GRPC_PORT", "1")])
        .unwrap()
        .0;
    assert!(
        socket.contains("--grpc unix:/run/grpc.sock --resp"),
        "{socket}"
    );
    let ages = [
        ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "5m"),
    ];
    assert_eq!(given(&ages), "--grpc-max-age 1h30m --grpc-max-age-grace 5m");
    let stops = [("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")];
    assert_eq!(given(&stops), "--envoy-consume all-or-none");
    assert_eq!(
        given(&[("SHADOW_MODE", "false"), ("LIMIT_LIMIT_HEADER", "x-limit")]),
        ""
    );
    let headers = ("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
    assert_eq!(
        given(&[headers]),
        "--envoy-header-names RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset"
    );
    assert_eq!(
        given(&[
            ("LIMIT_REQUEST_HEADERS_ENABLED", "true"),
            ("LIMIT_REQUEST_RESET_HEADER", "x-reset"),
            ("LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED", "true"),
            ("USE_CALENDAR_MONTH_RATE_LIMIT", "true"),
        ]),
        "--envoy-request-header-names RateLimit-Limit,RateLimit-Remaining,x-reset --envoy-unit-headers --envoy-calendar-months"
    );
    let names = given(&[headers, ("LIMIT_LIMIT_HEADER", "x-limit")]);
    assert_eq!(
        names,
        "--envoy-header-names x-limit,RateLimit-Remaining,RateLimit-Reset"
    );
}

#[test]
fn what_has_no_effect_is_named_and_what_cannot_be_is_refused() {
    let (_, ignored) = of(&[
        ("REDIS_PERSECOND", "true"),
        ("PROMETHEUS_MAPPER_YAML", "/a"),
        ("REDIS_POOL_SIZE", "0"),
    ])
    .unwrap();
    assert_eq!(ignored.len(), 2);
    assert!(
        ignored[1].starts_with("REDIS_PERSECOND (all limits"),
        "{ignored:?}"
    );
    // A later variable or a spelling mistake, but not what Kubernetes sets for a service `redis`.
    let (_, ignored) = of(&[
        ("LIMIT_HEADERS_ENABLED", "true"),
        ("REDIS_PERSECOND_URL", "redis:6379"),
        ("USE_ANYTHING", "1"),
        ("LOG_COLOUR", ""),
        ("REDIS_PORT", "tcp://10.0.0.7:6379"),
        ("REDIS_PORT_6379_TCP_ADDR", "10.0.0.7"),
        ("REDIS_SERVICE_HOST", "10.0.0.7"),
        ("LIMIT_REQUEST_LIMIT_HEADER", "x-limit"),
        ("HOME", "/root"),
    ])
    .unwrap();
    assert_eq!(
        ignored,
        [
            "LIMIT_HEADERS_ENABLED (unknown here)",
            "REDIS_PERSECOND_URL (unknown here)",
            "USE_ANYTHING (unknown here)"
        ]
    );
    for (variables, says) in [
        (&[("CONFIG_TYPE", "HTTP")][..], "FILE or GRPC_XDS_SOTW"),
        (
            &[("REDIS_TLS", "oui")],
            "REDIS_TLS is oui; it must be true or false",
        ),
        (
            &[("REDIS_URL", "a:1"), ("REDIS_SOCKET_TYPE", "udp")],
            "it must be tcp, tls or unix",
        ),
        (&[("BACKEND_TYPE", "memcache")], "give REDIS_URL"),
        (
            &[("GRPC_SERVER_USE_TLS", "true")],
            "needs GRPC_SERVER_TLS_CERT",
        ),
        (
            &[("REDIS_URL", "a"), ("REDIS_TYPE", "RING")],
            "SINGLE, CLUSTER or SENTINEL",
        ),
        (
            &[("REDIS_URL", "a:1"), ("REDIS_SOCKET_TYPE", "unix")],
            "must be the path of a socket",
        ),
        (
            &[
                ("REDIS_URL", "/a"),
                ("REDIS_SOCKET_TYPE", "unix"),
                ("REDIS_TYPE", "CLUSTER"),
            ],
            "must be SINGLE",
        ),
    ] {
        let said = of(variables).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
}
