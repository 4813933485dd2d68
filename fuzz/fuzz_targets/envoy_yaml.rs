//! Any text is a configuration of envoyproxy/ratelimit or a list of what is wrong with it, never an
//! empty list. What is one is printed as rules that load.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::{
    envoy,
    rules::{self, Keeping},
};

fuzz_target!(|text: &str| {
    for keeping in [Keeping::Memory, Keeping::Store] {
        match envoy::parse(text, 0, keeping) {
            Err(problems) => assert!(!problems.is_empty()),
            Ok(file) => {
                let config = file.into_config();
                let mut key = Vec::new();
                for rule in config.domains.rules() {
                    let _ = config
                        .domains
                        .find(&rule.domain, [("a", "b")].into_iter(), &mut key);
                }
                if !config.limits.is_empty() && matches!(keeping, Keeping::Memory) {
                    let text = envoy::to_yaml(&config);
                    assert!(rules::parse(&text).is_ok(), "{text}");
                }
            }
        }
    }
});
