//! Any bytes are a line of an access log, a time, or neither; unpacking them ends.
#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use tidegate_sim::input::{AccessLine, parse_access_log_time, parse_rfc3339, parse_unix, unpack};

fuzz_target!(|input: &[u8]| {
    let _ = AccessLine::parse(input);
    let _ = (parse_access_log_time(input), parse_rfc3339(input));
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = parse_unix(text);
    }
    if let Ok(unpacked) = unpack(input) {
        let mut out = Vec::new();
        // A small archive may hold a great deal: the first megabyte says enough.
        let _ = unpacked.take(1 << 20).read_to_end(&mut out);
    }
});
