//! Rate limiting of log lines that any request can cause.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Nanos;

/// Logs a line unless one was logged less than a minute ago. `last` is the time of the last line in
/// nanoseconds; 0 for never.
pub(crate) fn at_most_once_a_minute(last: &AtomicU64, now: Nanos, line: impl FnOnce()) {
    const MINUTE: Nanos = Nanos::from_secs(60);
    let before = last.load(Ordering::Relaxed);
    if before > 0 && now.saturating_since(Nanos::new(before)) < MINUTE {
        return;
    }
    // Relaxed is enough: it only matters that one of several threads logs.
    if last
        .compare_exchange(
            before,
            now.get().max(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        )
        .is_ok()
    {
        line();
    }
}
