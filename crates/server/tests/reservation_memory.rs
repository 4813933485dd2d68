//! The memory of reservations. This is a separate test binary because it measures the whole process.

mod harness;

use harness::{Resp, Running, frame};

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_reservation_takes_as_many_bytes_as_the_book_says() {
    const MOST: usize = 100_000;
    let rules = "limits: [{name: tokens, limit: 4000000000/360d, algorithm: fixed-window}]";
    let server =
        Running::with_rules_and("reservation-memory", rules, |options| options.max_reservations = MOST);
    let mut client = Resp::connect(server.resp);
    let mut make = |count: usize| {
        for _ in 0..count / 100 {
            client.send(&frame("RESERVE 80000000 tokens alice-0001 100").repeat(100));
            (0..100).for_each(|_| assert!(client.reply().starts_with("[0")));
        }
    };
    make(1_000);
    let before = resident();
    make(MOST - 1_000);
    let each = resident().saturating_sub(before) / (MOST as u64 - 1_000);
    println!("{each} bytes for a reservation of one limit");
    assert!((100..400).contains(&each), "{each} bytes");
    assert!(server.resp("RESERVE 1000 tokens alice-0001 1").contains("--max-reservations"));
}
