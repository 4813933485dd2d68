//! The clocks that read the time: the only module that does.
#![allow(clippy::disallowed_methods)] // This is the module that the ban points to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use crate::{Clock, Nanos};

/// Nanoseconds since the Unix epoch, set once from the system's time and monotonic from then on.
///
/// Later steps of the system's time do not reach it. That it starts from the epoch makes states comparable across a
/// restart, and aligns fixed windows to the minutes and hours that people know. Reads the processor's time stamp
/// counter where that is steady (by way of `quanta`), the system's monotonic clock elsewhere. Cheap to clone; the
/// first one of a process may take up to a fifth of a second to calibrate.
#[derive(Clone, Debug)]
pub struct SystemClock {
    source: quanta::Clock,
    /// The raw reading that the epoch time belongs to.
    anchor: u64,
    /// The epoch time of the anchor.
    epoch: u64,
    /// Nanoseconds in a tick of the source, in 2⁻⁶⁴; 0 where it is a whole nanosecond or more.
    per_tick: u64,
}

impl SystemClock {
    /// A clock set to the system's time.
    #[must_use]
    pub fn new() -> Self {
        Self::not_before(Nanos::ZERO)
    }

    /// A clock set to the system's time, or to `floor` if that is later: time does not run backwards across a restart.
    #[must_use]
    pub fn not_before(floor: Nanos) -> Self {
        let source = quanta::Clock::new();
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let anchor = source.raw();
        // The source's own conversion asks once more what kind of source it is, and shifts by a variable: a multiplication
        // is a third of its instructions. The error is below a nanosecond in a century.
        let probe = source.delta_as_nanos(0, 1 << 62);
        let per_tick = if probe < 1 << 62 { probe << 2 } else { 0 };
        Self { source, anchor, epoch: Nanos::from(epoch).max(floor).get(), per_tick }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Nanos {
        let raw = self.source.raw();
        let since = if self.per_tick > 0 {
            ((u128::from(raw.saturating_sub(self.anchor)) * u128::from(self.per_tick)) >> 64) as u64
        } else {
            self.source.delta_as_nanos(self.anchor, raw)
        };
        // 584 years of uptime fit in 64 bits.
        Nanos::new(self.epoch + since)
    }
}

/// Another clock's time, read every so often by a thread of its own: reading it is one atomic load.
///
/// Up to one interval old (longer when the machine is too busy to run the thread). A decision made a little in the past
/// admits no more than the bound; it may deny for up to an interval longer. The thread ends when the clock is dropped.
#[derive(Debug)]
pub struct CoarseClock {
    now: Arc<AtomicU64>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CoarseClock {
    /// The system's time, read every `interval` (at least 10 µs).
    ///
    /// # Errors
    /// When the system has no further thread to give.
    pub fn new(interval: Duration) -> std::io::Result<Self> {
        Self::over(SystemClock::new(), interval)
    }

    /// The time of `source`, read every `interval` (at least 10 µs).
    ///
    /// # Errors
    /// When the system has no further thread to give.
    pub fn over(source: impl Clock + 'static, interval: Duration) -> std::io::Result<Self> {
        let now = Arc::new(AtomicU64::new(source.now().get()));
        let interval = interval.max(Duration::from_micros(10));
        let (stop, stopped) = mpsc::channel::<()>();
        let written = Arc::clone(&now);
        let thread = std::thread::Builder::new().name("tidegate-clock".into()).spawn(move || {
            // The time-out is the tick; the channel closes when the clock is dropped.
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                // Relaxed: the time carries no other data.
                written.store(source.now().get(), Ordering::Relaxed);
            }
        })?;
        Ok(Self { now, stop: Some(stop), thread: Some(thread) })
    }
}

impl Clock for CoarseClock {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos::new(self.now.load(Ordering::Relaxed))
    }
}

impl Drop for CoarseClock {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has nothing to report; a panic in a foreign clock ends with it.
            let _ = thread.join();
        }
    }
}
