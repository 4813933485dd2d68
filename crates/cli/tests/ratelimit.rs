//! The program in place of envoyproxy/ratelimit: called `ratelimit`, without arguments, set by its environment.
#![cfg(unix)]

mod certificates;
mod program;

use std::{fs, os::unix::fs::symlink, process::Command};

use certificates::Authority;
use program::{Serving, request, scratch, tidegate};

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
        ("RUNTIME_ROOT", root.to_str().unwrap()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("LOG_LEVEL", "info"),
        ("NEAR_LIMIT_RATIO", "0.9"),
        ("TRACING_ENABLED", "true"),
    ];
    let mut command = Command::new(&program);
    command.envs(variables);
    let server = Serving::run(&mut command);
    assert!(server.logs("without effect").contains("TRACING_ENABLED (TIDEGATE_OTLP"));
    // The probe of a Deployment is plain HTTP, while gRPC has TLS.
    assert!(server.told.contains("http://127.0.0.1") && !server.told.contains("https://"), "{}", server.told);
    assert!(request(&server.http, "GET", "/healthcheck", "").starts_with("HTTP/1.1 200"));
    assert!(
        request(&server.admin, "GET", "/metrics", "")
            .contains("tidegate_decisions_total{limit=\"shop.user\"")
    );
    let grpc = server.told.lines().find_map(|line| line.trim().strip_prefix("gRPC")).unwrap();
    let grpc = grpc.trim().split(',').next().unwrap().replace("127.0.0.1", "localhost");
    let curl = |url: &str| {
        let mut output = Command::new("curl");
        output.args(["-s", "-o", "/dev/null", "-w", "%{http_version} %{ssl_verify_result}"]);
        String::from_utf8(output.args(["--cacert", &authority.file(), url]).output().unwrap().stdout).unwrap()
    };
    assert_eq!(curl(&format!("https://{grpc}/")), "2 0");
    let ask = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
    let asked = || request(&server.http, "POST", "/json", ask);
    assert!(asked().contains("\"overallCode\":\"OK\""));
    assert!(asked().starts_with("HTTP/1.1 429"));
}

#[test]
#[cfg(feature = "servers")]
fn counts_are_in_the_redis_whose_socket_the_environment_names() {
    let redis =
        tidegate_redis_servers::Server::start(&["--requirepass", "a b", "--unixsocket", "redis.sock"]);
    let config = scratch("ratelimit-socket").join("config");
    fs::create_dir_all(&config).unwrap();
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]\n";
    fs::write(config.join("shop.yaml"), rules).unwrap();
    let socket = redis.directory().join("redis.sock");
    let serving = || {
        let mut command = tidegate();
        command.arg("ratelimit").envs([
            ("HOST", "127.0.0.1"),
            ("PORT", "0"),
            ("GRPC_HOST", "127.0.0.1"),
            ("GRPC_PORT", "0"),
            ("DEBUG_PORT", "0"),
            ("RUNTIME_ROOT", config.parent().unwrap().to_str().unwrap()),
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
        assert!(answer.contains(&format!("\"limitRemaining\":{left}")), "{answer}");
    }
}

#[test]
fn the_command_needs_no_link_and_says_which_variable_is_wrong() {
    let output = tidegate().arg("ratelimit").env("CONFIG_TYPE", "HTTP").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("CONFIG_TYPE is HTTP"), "{said}");
    let help = tidegate().args(["ratelimit", "--help"]).output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("envoyproxy/ratelimit"));
}
