//! Any text is rules that a gate takes, or is refused with a reason; and the server says the same
//! of its sections.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_flow::{Gate, sources::yaml};

fuzz_target!(|text: &str| {
    match yaml::parse(text) {
        Ok(rules) => {
            assert_eq!(
                Gate::new().load(rules.clone()),
                Ok(()),
                "what was read is possible"
            );
            if let Ok(served) = tidegate_server::rules::parse(text) {
                assert_eq!(served.gate, rules);
            }
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(
                tidegate_server::rules::parse(text).is_err(),
                "the server takes no file that a gate refuses"
            );
        }
    }
});
