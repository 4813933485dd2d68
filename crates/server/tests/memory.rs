//! The memory of a server with many limits. This is a separate test binary because it measures the
//! whole process.

#[path = "integration/harness/mod.rs"]
mod harness;

use std::{sync::Mutex, time::Duration};

use harness::{Resp, Running, frame, scratch};

/// Each test measures the process, so only one runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_thousand_limits_reserve_and_touch_no_more_than_the_memory_they_share() {
    const LIMITS: usize = 1_000;
    const MOST: u64 = 64 << 20;
    let _alone = ALONE.lock();
    let before = resident();
    let lines: Vec<_> = (0..LIMITS)
        .map(|at| format!("  - {{name: l{at}, limit: 1/1h, algorithm: fixed-window}}\n"))
        .collect();
    let rules = format!("max_memory: 64MiB\nlimits:\n{}", lines.concat());
    let server = Running::with_rules("memory-shared", &rules);
    let mut client = Resp::connect(server.resp);
    // Tables of 2^20 keys each would touch a page for almost every one of these keys: 800 MB.
    for key in 0..200 {
        let asking: Vec<u8> = (0..LIMITS)
            .flat_map(|at| frame(&format!("ACQUIRE l{at} key-{key}")))
            .collect();
        client.send(&asking);
        (0..LIMITS)
            .for_each(|_| assert!(client.reply().starts_with("[0"), "a new key is admitted"));
    }
    let text = server.get("/metrics").body;
    let reserved = text
        .lines()
        .filter(|line| line.starts_with("tidegate_store_bytes{"));
    let reserved: u64 = reserved
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert!(reserved <= MOST, "{reserved} bytes are reserved");
    let more = resident().saturating_sub(before);
    // The limits themselves and this test's buffers take a few megabytes.
    assert!(more < 2 * MOST, "{more} bytes more are resident");
}

#[test]
fn writing_limits_without_keys_touches_none_of_the_memory_reserved_for_them() {
    let _alone = ALONE.lock();
    let limits: Vec<_> = (0..11)
        .map(|at| format!("  - {{name: l{at}, limit: 100/1m}}\n"))
        .collect();
    let before = resident();
    let server = Running::with_rules_and(
        "memory-empty",
        &format!("limits:\n{}", limits.concat()),
        |options| {
            options.max_keys = 1 << 20;
            options.state = Some(scratch("memory-state").join("state"));
            options.state_interval = Duration::from_millis(10);
        },
    );
    while server.metric(r#"tidegate_state_writes_total{result="ok"}"#) == 0 {}
    // The tables would take 1,600 MB.
    let more = resident().saturating_sub(before);
    assert!(more < 100 << 20, "{more} bytes more");
}

#[test]
fn the_buffers_of_connections_at_rest_are_freed() {
    const CLIENTS: usize = 1_000;
    let _alone = ALONE.lock();
    let _ = tidegate_server::raise_open_files(3 * CLIENTS, 1);
    let server = Running::with_rules_and(
        "memory-buffers",
        "limits: [{name: a, limit: 1/1s}]",
        |options| {
            options.max_connections = CLIENTS + 10;
        },
    );
    let argument = "x".repeat(4_000);
    let long = frame(&format!("ECHO {argument} {argument} {argument}"));
    let docs = frame("COMMAND DOCS").repeat(20);
    let mut before = 0;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|at| {
            let mut client = Resp::connect(server.resp);
            client.send(&docs);
            (0..20).for_each(|_| assert!(client.reply().len() > 2_000));
            // Half of a frame is kept until the rest arrives.
            client.send(&long[..9_000]);
            assert_eq!(server.resp("PING"), "PONG");
            client.send(&long[9_000..]);
            assert!(client.reply().starts_with("ERR wrong number"));
            if at == CLIENTS / 10 {
                before = resident();
            }
            client
        })
        .collect();
    // Each has had 40 KB of replies, and 9 KB of a frame.
    let more = resident().saturating_sub(before);
    assert!(
        more < 8 << 20,
        "{more} bytes more for {} connections",
        clients.len()
    );
}
