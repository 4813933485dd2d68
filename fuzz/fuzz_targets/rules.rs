//! Any text is a rules file or a list of what is wrong with it, never an empty list.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(problems) = tidegate_server::rules::parse(text) {
        assert!(!problems.is_empty());
    }
});
