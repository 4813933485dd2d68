//! The state file: it keeps the use of every key across a restart.
//!
//! ```text
//! "TIDEGATE" │ version u32 │ written at u64 │ how many limits u32
//!   for each limit: name │ policy │ global u8 │ max keys u64 │ hash seeds 2 × u64 │ words u32 │ overridden keys
//!                   its entries: kind u8, then tag (of a record: its place) u64, then words
//! CRC-32 of the above u32
//! ```
//!
//! A server with a store saves only the number of servers that share the store, written as a limit without entries.
//!
//! A quota that an operator gave a key is a section without entries, too. Its name holds all of it.
//!
//! Numbers are little-endian; texts are preceded by a length of 16 bits. Only keys with such a quota are in the file by name. For
//! all others it contains tags, and the hash seeds of the tags. With the seeds one could construct colliding keys, so only the
//! owner may read the file.
//!
//! A file is read twice: first to check every byte of it, and only then to restore from it. A file that fails the check is
//! renamed, never overwritten.

mod format;
mod place;
mod read;
mod write;

use std::{fs::File, io, path::Path};

use tidegate_core::Nanos;

pub use format::StateError;
pub(crate) use place::StateFile;
pub use place::StatePathError;
pub(crate) use read::{Headers, restore};
pub(crate) use write::write;

/// The server waits for times up to this far ahead: clocks are sometimes set back a little.
const AHEAD: Nanos = Nanos::from_secs(300);

/// How far ahead of the clock a file was written if its times cannot be right; otherwise zero. Then one of the two clocks was
/// wrong, and the server takes all units in the file as used now.
pub(crate) fn too_far_ahead(written_at: Nanos, now: Nanos) -> Nanos {
    let ahead = written_at.saturating_since(now);
    if ahead > AHEAD { ahead } else { Nanos::ZERO }
}

/// Reads and checks a state file without restoring anything; `None` if it does not exist.
///
/// # Errors
/// When it cannot be read or is damaged.
pub(crate) fn check(path: &Path) -> Result<Option<Headers>, StateError> {
    match File::open(path) {
        Ok(file) => read::headers(file).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StateError::Io(e)),
    }
}

/// Checks bytes as if they were a state file, and restores them into `service` if they pass. For the fuzz target.
///
/// # Errors
/// When they are not a state file, or a damaged one.
#[doc(hidden)]
pub fn check_and_restore(
    bytes: &[u8],
    service: &crate::decide::service::Service,
    now: Nanos,
) -> Result<u64, StateError> {
    read::headers(bytes)?;
    read::restore_from(bytes, service, now).map(|restored| restored.states)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf, sync::Arc};

    use futures_util::FutureExt;
    use tidegate_core::{Decision, ManualClock};

    use super::*;
    use crate::{
        decide::{
            limits::Limits,
            service::{Act, Ask, Service},
            throttle::{Throttle, ThrottleQuota},
        },
        rules,
    };

    const NOW: Nanos = Nanos::from_secs(1_000);

    /// Limits in memory never wait.
    fn decide(service: &Service, ask: Ask<'_>, act: Act) -> Decision {
        service.decide(ask, act, NOW).now_or_never().unwrap().unwrap().decision
    }

    /// A file with entries of every kind.
    fn file(name: &str) -> (PathBuf, Service) {
        let text =
            "limits: [{name: a, limit: 2/1m, algorithm: sliding-log, max_keys: 4, overrides: {own: 9/1h}}]";
        let limits = Limits::new(rules::parse(text).unwrap(), 4, |_| None, NOW).unwrap();
        let clock = Arc::new(ManualClock::new(NOW));
        let service = Service::new(limits, Throttle::new(4, None).unwrap(), clock);
        for key in ["k0", "k1", "k2", "k3", "k4", "k5", "own"] {
            let ask = Ask { limit: b"a", key: Some(key.as_bytes()), cost: 2 };
            // Another key may have evicted this one, so either decision is fine.
            let _ = decide(&service, ask, Act::Take);
        }
        service
            .operate_in_memory(
                b"a",
                Some(b"x"),
                &crate::decide::limits::Operation::Block(None),
                &crate::decide::limits::Operator { client: "test", note: None },
            )
            .unwrap()
            .unwrap();
        let quota = ThrottleQuota { max_burst: 1, count: 1, period: 60 };
        let _ = service.throttle().acquire(b"k", quota, 1, NOW).unwrap();
        let path = std::env::temp_dir().join(format!("tidegate-state-{}-{name}", std::process::id()));
        let file = StateFile::open(&path).unwrap();
        write(&file, &service).unwrap();
        (path, service)
    }

    #[test]
    fn a_file_in_which_any_byte_has_changed_or_is_missing_is_refused() {
        let (path, _) = file("bytes");
        let good = fs::read(&path).unwrap();
        assert!(check(&path).unwrap().is_some());
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(&path, &bad).unwrap();
            assert!(check(&path).is_err(), "byte {at}");
            fs::write(&path, &good[..at]).unwrap();
            assert!(check(&path).is_err(), "cut at {at}");
        }
        fs::write(&path, [&good[..], b"x"].concat()).unwrap();
        assert!(matches!(check(&path), Err(StateError::Length)));
        fs::remove_file(&path).unwrap();
        assert!(check(&path).unwrap().is_none());
    }

    #[test]
    fn a_server_restores_the_bytes_that_another_wrote() {
        let (path, service) = file("memory");
        let bytes = fs::read(&path).unwrap();
        assert!(check_and_restore(&bytes, &service, NOW).unwrap() > 0);
        assert!(matches!(check_and_restore(b"text", &service, NOW), Err(StateError::NotAState)));
    }

    /// The resident memory of this process, in bytes.
    fn resident() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    #[test]
    fn writing_limits_without_keys_touches_none_of_the_memory_reserved_for_them() {
        let limits: Vec<_> = (0..11).map(|at| format!("  - {{name: l{at}, limit: 100/1m}}\n")).collect();
        let rules = rules::parse(&format!("limits:\n{}", limits.concat())).unwrap();
        let limits = Limits::new(rules, 1 << 20, |_| None, NOW).unwrap();
        let throttle = Throttle::new(1 << 20, None).unwrap();
        let service = Service::new(limits, throttle, Arc::new(ManualClock::new(NOW)));
        let path = std::env::temp_dir().join(format!("tidegate-state-{}-empty", std::process::id()));
        let file = StateFile::open(&path).unwrap();
        let before = resident();
        write(&file, &service).unwrap();
        // Other tests of this process use some megabytes; the tables would take 1,600.
        assert!(resident() < before + (100 << 20), "{} bytes more", resident() - before);
    }

    #[test]
    fn units_in_a_file_from_the_future_count_from_now_on() {
        let (path, before) = file("future");
        let found = check(&path).unwrap().unwrap();
        let minutes = |minutes: u64| Nanos::from_secs(NOW.get() / 1_000_000_000 - 60 * minutes);
        assert_eq!(too_far_ahead(NOW, minutes(5)), Nanos::ZERO, "a clock that was set back by a little");
        let now = minutes(10);
        let text =
            "limits: [{name: a, limit: 2/1m, algorithm: sliding-log, max_keys: 4, overrides: {own: 9/1h}}]";
        let limits = Limits::new(rules::parse(text).unwrap(), 4, |name| found.hash_keys(name), now).unwrap();
        let throttle = Throttle::new(4, found.hash_keys(crate::decide::throttle::THROTTLE)).unwrap();
        let after = Service::new(limits, throttle, Arc::new(ManualClock::new(now)));
        assert_eq!(restore(&path, &after, now).unwrap().dropped, 0);
        for key in ["k0", "k1", "k2", "k3", "k4", "k5", "x"] {
            let ask = Ask { limit: b"a", key: Some(key.as_bytes()), cost: 1 };
            let at = |service: &Service, now| {
                service.decide(ask, Act::Peek, now).now_or_never().unwrap().unwrap().decision
            };
            assert!(at(&before, NOW).is_denied() && at(&after, now).is_denied(), "{key}");
            // Records end a little later than states.
            let later = now.saturating_add(Nanos::from_secs(70));
            assert_eq!(at(&after, later).is_denied(), key == "x", "{key}");
        }
    }

    #[test]
    fn a_file_of_another_version_says_so() {
        let (path, _) = file("version");
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 2;
        fs::write(&path, &bytes).unwrap();
        let error = check(&path).err().unwrap();
        assert!(matches!(error, StateError::Version(2)) && error.to_string().contains("newer"), "{error}");
    }

    #[test]
    fn the_records_of_evicted_keys_are_kept_too() {
        // Seven keys use a table of four: some are evicted, and the file has what they owe.
        let (path, before) = file("debts");
        let found = check(&path).unwrap().unwrap();
        let text =
            "limits: [{name: a, limit: 2/1m, algorithm: sliding-log, max_keys: 4, overrides: {own: 9/1h}}]";
        let limits = Limits::new(rules::parse(text).unwrap(), 4, |name| found.hash_keys(name), NOW).unwrap();
        let throttle = Throttle::new(4, found.hash_keys(crate::decide::throttle::THROTTLE)).unwrap();
        let after = Service::new(limits, throttle, Arc::new(ManualClock::new(NOW)));
        let restored = restore(&path, &after, NOW).unwrap();
        assert_eq!(restored.dropped, 0);
        for key in ["k0", "k1", "k2", "k3", "k4", "k5"] {
            let ask = Ask { limit: b"a", key: Some(key.as_bytes()), cost: 1 };
            let limited = |service: &Service| decide(service, ask, Act::Peek).is_denied();
            assert!(limited(&before) && limited(&after), "{key}");
        }
    }
}
