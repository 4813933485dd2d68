//! The memory of reservations. This is a separate test binary because it measures the whole
//! process.

#[path = "integration/harness/mod.rs"]
mod harness;

use harness::{Resp, Running, frame};

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The bytes that a reservation takes: `RESERVE 80000000` and these limits, keys and costs.
fn measure(asked: &str, most: usize) -> u64 {
    let rules = "limits:
  - {name: tokens, limit: 4000000000/360d, algorithm: fixed-window}
  - {name: input, limit: 4000000000/360d, algorithm: sliding-window}
  - {name: output, limit: 4000000000/360d, algorithm: token-bucket}
  - {name: month, limit: 4000000000/month, algorithm: fixed-window}
  - {name: in-flight, limit: 4000000, algorithm: concurrency}
";
    let server = Running::with_rules_and("reservation-memory", rules, |options| {
        options.max_reservations = most;
    });
    let mut client = Resp::connect(server.resp);
    let command = frame(&format!("RESERVE 80000000 {asked}"));
    let mut make = |count: usize| {
        for _ in 0..count / 100 {
            client.send(&command.repeat(100));
            (0..100).for_each(|_| assert!(client.reply().starts_with("[0")));
        }
    };
    make(1_000);
    let before = resident();
    make(most - 1_000);
    let each = resident().saturating_sub(before) / (most as u64 - 1_000);
    println!("{each} bytes for a reservation of {asked}");
    assert!(
        server
            .resp("RESERVE 1000 tokens alice-01 1")
            .contains("--max-reservations")
    );
    each
}

#[test]
fn a_reservation_takes_as_many_bytes_as_the_book_says() {
    // The tables of the shards are as full as with a million.
    let one = measure("tokens alice-01 100", 250_000);
    assert!((32..=64).contains(&one), "{one} bytes");
    let five = "tokens alice-01 1 input alice-01 800 output alice-01 400 month alice-01 1200 in-flight alice-01 1";
    let five = measure(five, 60_000);
    assert!((80..=130).contains(&five), "{five} bytes");
}
