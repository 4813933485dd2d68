//! Any messages over a stream of `StreamRateLimitQuotas` are answered, or end it with a gRPC status; and the assigner lives on.
#![no_main]

use std::{cell::RefCell, time::Duration};

use libfuzzer_sys::fuzz_target;
use tidegate_server::InProcess;

const CONFIG: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: second, requests_per_unit: 4}}
  - {key: k, value: h, rate_limit: {unit: hour, requests_per_unit: 9}, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 5}}]}
  - {key: u, rate_limit: {unlimited: true}}
";
/// Domain `d`, the bucket `k` = `v`, one request.
const REPORT: &[u8] = b"\x0a\x01d\x12\x0c\x0a\x08\x0a\x06\x0a\x01k\x12\x01v\x20\x01";

thread_local! {
    static SERVICES: RefCell<InProcess> = RefCell::new(InProcess::new(CONFIG));
}

fuzz_target!(|bytes: &[u8]| {
    SERVICES.with_borrow_mut(|services| {
        services.advance(Duration::from_millis(bytes.len() as u64 * 100));
        // Messages end at 0xFE, which is rare in them.
        let (status, _) = services.stream_quotas(bytes.split(|byte| *byte == 0xfe));
        assert!([0, 3, 8, 13].contains(&status), "{status}");
        let (status, answer) = services.stream_quotas([REPORT]);
        assert!(status == 0 && answer.len() > 5, "{status}: the assigner is gone");
    });
});
