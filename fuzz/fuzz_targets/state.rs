//! Any words are refused as a state, or work as one: no panic, and what follows is a state again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::{Algorithm, Nanos, Policy, Quota, StoredState};

fuzz_target!(|input: (u8, u64, u64, Vec<u64>, Vec<(u64, u64)>)| {
    let (which, limit, window, mut state, steps) = input;
    let window = std::time::Duration::from_nanos(window.max(1));
    // Few units as often as many.
    let limit = if which & 128 == 0 { limit % 256 } else { limit };
    let Ok(quota) = Quota::new(limit, window) else {
        return;
    };
    let policy = match which % 6 {
        0 => Policy::fixed_window(quota),
        1 => match Policy::sliding_log(quota) {
            Ok(log) if limit < 256 => log,
            _ => return,
        },
        2 => Policy::sliding_window(quota),
        3 => Policy::sliding_counter(quota),
        4 => Policy::token_bucket(quota),
        _ => Policy::leaky_bucket(quota),
    };
    state.resize(policy.words(), 0);
    if !policy.accepts(&state) {
        return;
    }
    for (now, cost) in steps {
        let decision = policy.decide(&mut state, Nanos::new(now), cost);
        assert!(decision.remaining() <= policy.limit());
        assert!(policy.accepts(&state));
    }
});
