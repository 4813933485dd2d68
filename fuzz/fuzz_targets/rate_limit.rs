//! Any bytes are answered as a message of `ShouldRateLimit`, or refused with a gRPC status.
#![no_main]

use std::{cell::RefCell, time::Duration};

use libfuzzer_sys::fuzz_target;
use tidegate_server::InProcess;

const CONFIG: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: second, requests_per_unit: 4, name: n}}
  - {key: r, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: n}]}}
  - {key: s, value: x*, share_threshold: true, detailed_metric: true, rate_limit: {unit: week, requests_per_unit: 2}}
  - {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: h, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0, algorithm: sliding-log}}
  - {key: k, value: u, metadata: {a: b}, rate_limit: {unlimited: true}, descriptors: [{key: k, rate_limit: {unit: year}}]}
";

thread_local! {
    static SERVICES: RefCell<InProcess> = RefCell::new(InProcess::new(CONFIG));
}

fuzz_target!(|bytes: &[u8]| {
    SERVICES.with_borrow_mut(|services| {
        services.advance(Duration::from_millis(bytes.len() as u64 % 700));
        let (status, answer) = services.should_rate_limit(bytes);
        // An answer has a message; an error has none. Only OK, and errors that tell the client what to change.
        assert!(if status == 0 { answer.len() > 5 } else { answer.is_empty() }, "{status} {answer:?}");
        assert!([0, 3, 8, 9, 13].contains(&status), "{status}");
    });
});
