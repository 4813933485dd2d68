//! The memory of a server with many limits. This is a separate test binary because it measures the whole process.

mod harness;

use harness::{Resp, Running, frame};

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_thousand_limits_reserve_and_touch_no_more_than_the_memory_they_share() {
    const LIMITS: usize = 1_000;
    const MOST: u64 = 64 << 20;
    let before = resident();
    let lines: Vec<_> = (0..LIMITS)
        .map(|at| format!("  - {{name: l{at}, limit: 1/1h, algorithm: fixed-window}}\n"))
        .collect();
    let rules = format!("max_memory: 64MiB\nlimits:\n{}", lines.concat());
    let server = Running::with_rules("memory-shared", &rules);
    let mut client = Resp::connect(server.resp);
    // Tables of 2^20 keys each would touch a page for almost every one of these keys: 800 MB.
    for key in 0..200 {
        let asking: Vec<u8> = (0..LIMITS).flat_map(|at| frame(&format!("ACQUIRE l{at} key-{key}"))).collect();
        client.send(&asking);
        (0..LIMITS).for_each(|_| assert!(client.reply().starts_with("[0"), "a new key is admitted"));
    }
    let text = server.get("/metrics").body;
    let reserved = text.lines().filter(|line| line.starts_with("tidegate_store_bytes{"));
    let reserved: u64 = reserved.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert!(reserved <= MOST, "{reserved} bytes are reserved");
    let more = resident().saturating_sub(before);
    // The limits themselves and this test's buffers take a few megabytes.
    assert!(more < 2 * MOST, "{more} bytes more are resident");
}
