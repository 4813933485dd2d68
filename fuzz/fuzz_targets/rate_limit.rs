//! Any bytes are answered as a message of `ShouldRateLimit`, or refused with a gRPC status.
#![no_main]

mod serving;

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use serving::SERVER;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

fuzz_target!(|bytes: &[u8]| {
    SERVER.advance(Duration::from_millis(bytes.len() as u64 % 700));
    let (status, answer) = SERVER.call(PATH, [bytes]);
    // An answer has a message; an error has none. Only OK, and errors that tell the client what to
    // change.
    assert!(
        if status == 0 {
            answer.len() > 5
        } else {
            answer.is_empty()
        },
        "{status} {answer:?}"
    );
    assert!([0, 3, 8, 9, 13].contains(&status), "{status}");
});
