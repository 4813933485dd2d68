//! Any text is rules in Sentinel's words that a gate takes, or is refused with a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_flow::{
    Gate,
    sources::sentinel::{self, Kind},
};

fuzz_target!(|text: &str| {
    for kind in [
        Kind::Flow,
        Kind::Degrade,
        Kind::ParamFlow,
        Kind::System,
        Kind::Authority,
        Kind::Isolation,
    ] {
        match sentinel::parse(kind, text) {
            Ok(update) => assert_eq!(
                Gate::new().apply(update),
                Ok(()),
                "what was read is possible"
            ),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
