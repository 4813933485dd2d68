//! The integration tests of envoyproxy/ratelimit, with `tidegate ratelimit` in its place.
//!
//! They have fixed ports and start their own Redis servers on some of them. So they run in a
//! network of their own, in which the others are started here as its Makefile does.

use std::{env, fs, path::Path, process::Command};

use crate::{certificates::Authority, program::scratch};

/// Tests that are left out, and why.
const EXCEPTIONS: [(&str, &str); 6] = [
    (
        "^TestBasicConfig_ExtraTags$",
        "it reads tags from the statsd store of its own process; interop::statsd compares them",
    ),
    (
        "^TestBasicConfigMemcache$",
        "BACKEND_TYPE=memcache is refused: counts are in memory or in Redis",
    ),
    ("^TestConfigMemcacheWithMaxIdleConns$", "as above"),
    ("^TestMultiNodeMemcache$", "as above"),
    ("^Test_mTLSSetup$", "tests its own helper, without a server"),
    // The last one, because Go takes the first match, and a test that may have matching parts runs.
    (
        "/LocalCache",
        "they count the hits of a cache in its process, which Tidegate does not have",
    ),
];

/// Runs with the directory of the certificates as `$1`, and then the tests and their arguments.
const WORLD: &str = r#"set -e
certificates=$1
shift
ip link set lo up
redis() {
    name=$1
    shift
    mkdir "$name"
    (cd "$name" && exec redis-server --save "" --requirepass password123 "$@") >"$name.log" 2>&1 &
}
tls="--tls-ca-cert-file $certificates/ca.pem --tls-cert-file $certificates/server.pem --tls-key-file $certificates/server.key"
redis 6381 --port 0 --tls-port 16381 $tls --tls-auth-clients no
redis 6361 --port 0 --tls-port 16361 $tls --tls-auth-clients yes
redis 6392 --port 6392
redis 6393 --port 6393 --replicaof 127.0.0.1 6392 --masterauth password123
for port in 6386 6387 6388; do
    redis $port --port $port --cluster-enabled yes
done
until redis-cli -a password123 -p 6388 ping >/dev/null 2>&1 && redis-cli -a password123 -p 6392 ping >/dev/null 2>&1; do :; done
for port in 26394 26395 26396; do
    mkdir $port
    cp conf/sentinel.conf $port
    (cd $port && exec redis-server sentinel.conf --sentinel --port $port) >$port.log 2>&1 &
done
redis-cli --no-auth-warning -a password123 --cluster create 127.0.0.1:6386 127.0.0.1:6387 127.0.0.1:6388 --cluster-yes >cluster.log
until redis-cli -a password123 -p 6388 cluster info 2>/dev/null | grep -q cluster_state:ok; do :; done
until redis-cli -p 26396 sentinel master mymaster 2>/dev/null | grep -q 6392; do :; done
exec "$@""#;

#[test]
#[ignore = "needs root, Go and a minute: TIDEGATE_LONG=1 scripts/test.sh --interop"]
fn interop_the_integration_tests_of_envoyproxy_ratelimit_pass() {
    let tests =
        env::var("TIDEGATE_RATELIMIT_TESTS").expect("scripts/servers.sh ratelimit-tests names it");
    let directory = scratch("reference");
    let mut copy = Command::new("cp");
    copy.arg("-r")
        .arg(Path::new(&tests).with_file_name("integration"))
        .arg(&directory);
    assert!(copy.status().unwrap().success());
    let integration = directory.join("integration");
    let authority = Authority::new(&directory, "ca");
    authority.issue("server", &["localhost", "127.0.0.1"]);
    let [certificate, key] = authority.issue("client", &["client"]);
    // One file is both the client's certificate and the authority there.
    let both =
        fs::read_to_string(certificate).unwrap() + &fs::read_to_string(authority.file()).unwrap();
    fs::write(directory.join("cert.pem"), both).unwrap();
    fs::rename(key, directory.join("key.pem")).unwrap();

    let skipped: Vec<&str> = EXCEPTIONS.iter().map(|(tests, _)| *tests).collect();
    let output = Command::new("unshare")
        .args([
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            WORLD,
            "sh",
        ])
        .arg(&directory)
        .arg(&tests)
        .args([
            "-test.v",
            "-test.timeout=10m",
            "-test.skip",
            &skipped.join("|"),
        ])
        .current_dir(&integration)
        .env("TIDEGATE_PROGRAM", env!("CARGO_BIN_EXE_tidegate"))
        .env("PROJECT_DIR", &directory)
        .env("SSL_CERT_FILE", authority.file())
        .output()
        .expect("util-linux is there");
    let text = String::from_utf8_lossy(&output.stdout);
    let told = format!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    let passed: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("--- PASS: "))
        .collect();
    println!("{} tests pass:\n{}", passed.len(), passed.join("\n"));
    for (tests, why) in EXCEPTIONS {
        println!("not {tests}: {why}");
    }
    assert!(passed.len() >= 20, "{told}");
    fs::remove_dir_all(directory).unwrap();
}
