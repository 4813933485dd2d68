//! The state file of version 0.1 with any changes, version number included: it is restored or
//! refused, and no decision panics after that.
#![no_main]

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use libfuzzer_sys::fuzz_target;
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_server::{
    limits::Limits,
    rules,
    service::{Act, Ask, Service},
    throttle::Throttle,
};

const NOW: Nanos = Nanos::from_secs(1_700_049_660);
const STATE: &[u8] = include_bytes!("../../crates/server/tests/state-1.bin");
const CHECKSUM: usize = 4;
/// The limits of that state.
const RULES: &str = "
limits:
  - {name: log, limit: 3/1h, algorithm: sliding-log, overrides: {admin: 9/1h}, deny: [mallory], max_keys: 4}
  - {name: fixed, limit: 9/1d, algorithm: fixed-window}
  - {name: first, limit: 9/1d, algorithm: fixed-window, first_hit: true}
  - {name: slots, limit: 9/1d, slots: 24}
  - {name: counter, limit: 9/1d, algorithm: sliding-counter}
  - {name: bucket, limit: 60/1h, algorithm: token-bucket, burst: 9}
  - {name: paced, limit: 60/1h, algorithm: leaky-bucket, max_wait: 30m}
  - {name: seats, limit: 9, algorithm: concurrency, hold: 1d}
  - {name: plain, limit: 9, algorithm: concurrency}
  - {name: everyone, limit: 9/1d, algorithm: token-bucket, global: true}
";

thread_local! {
    static SERVICE: Service = {
        let live = Limits::new(rules::parse(RULES).expect("rules"), 100, |_| None, NOW).expect("memory");
        Service::new(live, Throttle::new(4, None).expect("memory"), Arc::new(ManualTimer::new(NOW)))
    };
}

fuzz_target!(|bytes: &[u8]| {
    let mut file = STATE[..STATE.len() - CHECKSUM].to_vec();
    // Three bytes of the input are a place and what is there instead. The rest of the input is put
    // at the end.
    let (changes, rest) = bytes.as_chunks::<3>();
    for [high, low, byte] in changes {
        let at = usize::from(u16::from_be_bytes([*high, *low])) % file.len();
        file[at] = *byte;
    }
    file.extend_from_slice(rest);
    let checksum = crc32fast::hash(&file);
    file.extend_from_slice(&checksum.to_le_bytes());
    SERVICE.with(|service| {
        let _ = tidegate_server::check_and_restore(&file, service, NOW);
        for limit in service
            .limits()
            .limits()
            .iter()
            .map(|limit| limit.spec().name.clone())
        {
            let ask = Ask {
                limit: limit.as_bytes(),
                key: Some(b"alice"),
                cost: 1,
            };
            let decision = pin!(service.decide(ask, Act::Take, NOW));
            assert!(
                decision
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_ready(),
                "memory never waits"
            );
        }
    });
});
