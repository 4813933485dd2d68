//! Any bytes are a line of an access log, a time, or neither; unpacking them ends.
#![no_main]

use std::io::{self, Read as _};

use libfuzzer_sys::fuzz_target;
use tidegate_sim::input::{AccessLine, parse_access_log_time, parse_rfc3339, parse_unix, unpack};

fuzz_target!(|input: &[u8]| {
    let _ = AccessLine::parse(input);
    let _ = (parse_access_log_time(input), parse_rfc3339(input));
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = parse_unix(text);
    }
    // A small archive may hold a great deal: the first megabyte of each file says enough.
    let _: io::Result<()> = unpack(input, |text| {
        text.take(1 << 20).read_to_end(&mut Vec::new()).map(drop)
    });
});
