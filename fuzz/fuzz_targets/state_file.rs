//! Any bytes are a state file or are refused; and what a server restores of them never makes a
//! decision panic. The checksum is put right, so that the fuzzer gets past it.
#![no_main]

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use libfuzzer_sys::fuzz_target;
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_server::{
    limits::Limits,
    rules,
    service::{Act, Ask, Service},
    throttle::Throttle,
};

const NOW: Nanos = Nanos::from_secs(1_000);
const RULES: &str = "limits: [{name: a, limit: 2/1m, algorithm: sliding-log, max_keys: 4}, \
                     {name: b, limit: 5/1s, algorithm: sliding-window, global: true}, \
                     {name: c, limit: 9/1s, algorithm: token-bucket, max_keys: 4, shares: {guarantee: {k: 20%}, ceiling: 60%}}, \
                     {name: d, limit: 9, algorithm: concurrency, max_keys: 4, shares: {}}]";

/// Tenants are restored only before their first request, so each file has a service.
fn service() -> Service {
    let live = Limits::new(rules::parse(RULES).expect("rules"), 4, |_| None, NOW).expect("memory");
    Service::new(
        live,
        Throttle::new(4, None).expect("memory"),
        Arc::new(ManualTimer::new(NOW)),
    )
}

fuzz_target!(|bytes: &[u8]| {
    let checksum = crc32fast::hash(bytes);
    let file = [bytes, &checksum.to_le_bytes()].concat();
    let service = service();
    if tidegate_server::check_and_restore(&file, &service, NOW).is_ok() {
        let asks = [
            ("a", Some(&b"k"[..])),
            ("b", None),
            ("c", Some(b"k")),
            ("d", Some(b"k")),
        ];
        for (limit, key) in asks {
            let ask = Ask {
                limit: limit.as_bytes(),
                key,
                cost: 1,
            };
            let decision = pin!(service.decide(ask, Act::Take, NOW));
            assert!(
                decision
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_ready(),
                "memory never waits"
            );
        }
    }
});
