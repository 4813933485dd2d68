//! A state file that is written while the rules change.

use std::sync::Arc;

use tidegate_core::clock::ManualTimer;
use tidegate_limiter::HashKeys;
use tidegate_service::{
    decide::{limits::Limits, service::Service, throttle::Throttle},
    rules,
};

use super::*;

const START: Nanos = Nanos::from_secs(1_800_000_000);

fn parsed(limit: &str) -> rules::Rules {
    rules::parse(&format!("limits: [{{name: l, {limit}}}]")).unwrap()
}

fn service(limit: &str) -> Service {
    let hash = |_: &str| Some(HashKeys::from_seeds(1, 2));
    let limits = Limits::new(parsed(limit), 16, hash, START).unwrap();
    let throttle = Throttle::new(4, None).unwrap();
    Service::new(limits, throttle, Arc::new(ManualTimer::new(START)) as _)
}

#[test]
fn a_file_that_is_written_amid_a_change_of_the_rules_keeps_what_was_used() {
    let [old, new] = [10, 20].map(|limit| {
        format!(
            "limit: {limit}/1h, algorithm: sliding-log, overrides: {{vip: {}/1h}}",
            2 * limit
        )
    });
    let before = service(&old);
    for key in ["a", "vip"] {
        let limits = before.limits();
        let limit = limits.limit(b"l").unwrap();
        assert!(limit.take_in_memory(key.as_bytes(), 4, START).is_allowed());
    }
    // The states follow the new rules, which are not in force yet.
    let _new = before.limits().follow(parsed(&new), START).unwrap();
    let path = std::env::temp_dir().join(format!("tidegate-amid-{}", std::process::id()));
    let file = StateFile::open(&path).unwrap();
    write(&file, &before).unwrap();
    let after = service(&new);
    check(&path).unwrap();
    let restored = restore(&path, &after, START).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(restored.dropped, 0);
    let limits = after.limits();
    let limit = limits.limit(b"l").unwrap();
    let left = [&b"a"[..], b"vip"].map(|key| limit.limiter().at(START).peek(key, 0).remaining());
    assert_eq!(left, [16, 36]);
}
