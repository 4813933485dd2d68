//! The rate of Redis alone: `redis-benchmark` with a script of two commands.

use std::process::Command;

use tidegate_redis_servers::Server;

/// 50 connections, 16 requests in flight on each: calls a second.
pub fn redis_benchmark(server: &Server) -> f64 {
    let script = "local c = redis.call('INCRBY', KEYS[1], ARGV[1]) redis.call('PEXPIRE', KEYS[1], ARGV[2]) return c";
    let sha = server.ask(&["SCRIPT", "LOAD", script]).text().to_owned();
    server.ask(&["FLUSHALL"]);
    let calls = |count: &str| {
        Command::new("redis-benchmark")
            .args([
                "-p",
                &server.port().to_string(),
                "-P",
                "16",
                "-n",
                count,
                "-r",
                "100000",
                "--csv",
            ])
            .args(["evalsha", &sha, "1", "key:__rand_int__", "1", "60000"])
            .output()
            .expect("redis-benchmark is installed")
    };
    // As for the other rows: each key for the first time or two.
    calls("300000");
    let output = calls("600000");
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text
        .lines()
        .last()
        .and_then(|line| line.split("\",\"").nth(1)?.parse().ok());
    let rate = rate.unwrap_or_else(|| panic!("redis-benchmark said something else: {output:?}"));
    println!("redis-benchmark -P 16, INCRBY + PEXPIRE script: {rate:.0} a second");
    rate
}
