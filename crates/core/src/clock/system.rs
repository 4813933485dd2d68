//! The clocks that read the real time. No other module does.
#![allow(clippy::disallowed_methods)] // This is the module that the ban points to.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use crate::{Clock, Nanos};

/// Nanoseconds since the Unix epoch: set once from the system's time and monotonic from then on.
///
/// Later steps of the system's time do not affect it; [`wall_ahead`](Clock::wall_ahead) shows them.
/// Starting from the epoch makes states
/// comparable across a restart, and aligns fixed windows to wall-clock minutes and hours. The clock
/// reads the processor's time stamp counter if that is steady (through `quanta`), and the system's
/// monotonic clock otherwise. It is cheap to clone; the first one in a process may take up to a
/// fifth of a second to calibrate.
#[derive(Clone, Debug)]
pub struct SystemClock {
    source: quanta::Clock,
    /// The raw reading at the time `epoch`.
    anchor: u64,
    /// The epoch time of the anchor.
    epoch: u64,
    /// The length of a tick of the source in nanoseconds, in units of 2⁻⁶⁴; 0 if a tick is a whole
    /// nanosecond or more.
    per_tick: u64,
}

impl SystemClock {
    /// A clock set to the system's time.
    #[must_use]
    pub fn new() -> Self {
        Self::not_before(Nanos::ZERO)
    }

    /// A clock set to the system's time, or to `floor` if that is later, so that time does not run
    /// backwards across a restart.
    #[must_use]
    pub fn not_before(floor: Nanos) -> Self {
        let source = quanta::Clock::new();
        let epoch = unix_time();
        let anchor = source.raw();
        // The source's own conversion checks again which kind of source it is, and shifts by a
        // variable: a multiplication takes a third of its instructions. The error is below a
        // nanosecond in a century.
        let probe = source.delta_as_nanos(0, 1 << 62);
        let per_tick = if probe < 1 << 62 { probe << 2 } else { 0 };
        Self {
            source,
            anchor,
            epoch: Nanos::from(epoch).max(floor).get(),
            per_tick,
        }
    }
}

/// The system's time; 0 before 1970.
fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
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

    fn wall_ahead(&self) -> i64 {
        let wall = Nanos::from(unix_time()).get();
        // A clock that is centuries off is far enough off.
        wall.cast_signed()
            .saturating_sub(self.now().get().cast_signed())
    }
}

/// The time of another clock, read at an interval by a dedicated thread. Reading this clock is one
/// atomic load.
///
/// The time is up to one interval old (older if the machine is too busy to run the thread). A
/// decision made with an old time admits no more than the bound, but may deny for up to an interval
/// longer. The thread ends when the clock is dropped.
pub struct CoarseClock {
    now: Arc<AtomicU64>,
    source: Arc<dyn Clock>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CoarseClock {
    /// The system's time, read every `interval` (at least 10 µs).
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(interval: Duration) -> std::io::Result<Self> {
        Self::over(SystemClock::new(), interval)
    }

    /// The time of `source`, read every `interval` (at least 10 µs).
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn over(source: impl Clock + 'static, interval: Duration) -> std::io::Result<Self> {
        let source: Arc<dyn Clock> = Arc::new(source);
        let read = Arc::clone(&source);
        let now = Arc::new(AtomicU64::new(source.now().get()));
        let interval = interval.max(Duration::from_micros(10));
        let (stop, stopped) = mpsc::channel::<()>();
        let written = Arc::clone(&now);
        let thread = std::thread::Builder::new()
            .name("tidegate-clock".into())
            .spawn(move || {
                // The timeout is the tick; the channel closes when the clock is dropped.
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    // Relaxed: the time carries no other data.
                    written.store(read.now().get(), Ordering::Relaxed);
                }
            })?;
        Ok(Self {
            now,
            source,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Clock for CoarseClock {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos::new(self.now.load(Ordering::Relaxed))
    }

    fn wall_ahead(&self) -> i64 {
        self.source.wall_ahead()
    }
}

impl fmt::Debug for CoarseClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoarseClock")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Drop for CoarseClock {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has no result; a panic in a custom clock ends here.
            let _ = thread.join();
        }
    }
}
