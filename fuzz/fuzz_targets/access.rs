//! Any text is an access file or a list of what is wrong with it, never an empty list.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for text in [text, &format!("access:\n  - {text}")] {
        if let Err(problems) = tidegate_server::access::parse(text) {
            assert!(!problems.is_empty());
        }
    }
});
