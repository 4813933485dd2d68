//! The memory of callers that wait in line. This is a separate test binary because it measures the
//! whole process.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate_core::{Clock as _, clock::SystemClock};
use tidegate_server::{
    limits::Limits,
    rules,
    service::{Part, Service},
    throttle::Throttle,
    waits::Waits,
};

const CALLERS: u64 = 100_000;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_caller_that_waits_takes_as_many_bytes_as_the_book_says() {
    let clock = SystemClock::new();
    let rules = "limits: [{name: calls, limit: 1/1s, algorithm: token-bucket}]";
    let rules = rules::parse(rules).unwrap();
    let limits = Limits::new(rules, 1 << 10, |_| None, clock.now()).unwrap();
    let throttle = Throttle::new(1 << 10, None).unwrap();
    let mut service = Service::new(limits, throttle, Arc::new(clock));
    service.waits = Waits::new(usize::MAX, Some(usize::MAX));
    let limit = Arc::clone(service.limits().limit(b"calls").unwrap());
    let service = &service;
    let mut callers = Vec::with_capacity(CALLERS as usize);
    let mut wait = |count: u64| {
        for _ in 0..count {
            // A bucket of one call a second serves none of the later ones during the test.
            let part = Part::new(Arc::clone(&limit), b"alice", 1);
            let mut caller = Box::pin(service.take_waiting(part, Duration::from_secs(10_000_000)));
            let polled = caller
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            if matches!(polled, Poll::Pending) {
                callers.push(caller);
            }
        }
    };
    wait(1_000);
    let before = resident();
    wait(CALLERS - 1_000);
    let each = resident().saturating_sub(before) / (CALLERS - 1_000);
    println!("{each} bytes for a caller that waits");
    assert!(callers.len() as u64 >= CALLERS - 100);
    assert!((200..=512).contains(&each), "{each} bytes");
}
