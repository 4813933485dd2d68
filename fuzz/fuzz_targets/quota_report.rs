//! Any messages over a stream of `StreamRateLimitQuotas` are answered, or end it with a gRPC
//! status; and the assigner lives on.
#![no_main]

mod serving;

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use serving::SERVER;

const PATH: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// Domain `d`, the bucket `k` = `v`, one request.
const REPORT: &[u8] = b"\x0a\x01d\x12\x0c\x0a\x08\x0a\x06\x0a\x01k\x12\x01v\x20\x01";

fuzz_target!(|bytes: &[u8]| {
    SERVER.advance(Duration::from_millis(bytes.len() as u64 * 100));
    // Messages end at 0xFE, which is rare in them.
    let (status, _) = SERVER.call(PATH, bytes.split(|byte| *byte == 0xfe));
    assert!([0, 3, 8, 13].contains(&status), "{status}");
    let (status, answer) = SERVER.call(PATH, [REPORT]);
    assert!(
        status == 0 && answer.len() > 5,
        "{status}: the assigner is gone"
    );
});
