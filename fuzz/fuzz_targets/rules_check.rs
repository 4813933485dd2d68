//! Any text is checked by `/v1/rules/check` and replayed by `/v1/what-if`, or refused with a
//! status.
#![no_main]

mod serving;

use libfuzzer_sys::fuzz_target;
use serving::{SERVER, post};

fuzz_target!(|bytes: &[u8]| {
    let (first, text) = bytes.split_first().unwrap_or((&0, &[]));
    post(SERVER.http, "/v1/acquire", br#"{"limit":"a","key":"k"}"#);
    // Half of the texts begin as rules do.
    let beginning: &[u8] = if first & 1 == 0 {
        serving::RULES.as_bytes()
    } else {
        b""
    };
    let text = [beginning, text].concat();
    let status = post(SERVER.admin, "/v1/rules/check", &text);
    assert!([200, 400].contains(&status), "{status}");
    let status = post(SERVER.admin, "/v1/what-if", &text);
    assert!([200, 400, 422, 503].contains(&status), "{status}");
});
