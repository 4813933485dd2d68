//! Any text is a quota or an error; what is a quota is written so that it reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::Quota;

fuzz_target!(|text: &str| {
    if let Ok(quota) = text.parse::<Quota>() {
        assert_eq!(quota.to_string().parse(), Ok(quota));
    }
});
