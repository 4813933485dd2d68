//! Clocks that one can also wait on.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::SystemClock;
use crate::{Clock, ManualClock, Nanos};

/// A clock whose time an async task can await, whatever runtime runs the task.
pub trait Timer: Clock {
    /// Completes when the clock has reached `at`.
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<Self>;
}

impl<T: Timer> Timer for Arc<T> {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<T> {
        T::sleep_until(self, at)
    }
}

impl Timer for SystemClock {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        // A delay may end a little early by this clock; whoever sleeps looks again.
        let clock = self.clone();
        async move {
            loop {
                let left = at.saturating_since(clock.now());
                if left == Nanos::ZERO {
                    return;
                }
                futures_timer::Delay::new(Duration::from(left)).await;
            }
        }
    }
}

/// A manual clock that wakes those who wait on it when it is moved: tests and simulations of waiting, without sleeping.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Clock, Nanos, clock::ManualTimer};
/// let timer = ManualTimer::new(Nanos::ZERO);
/// timer.advance(Duration::from_secs(1));
/// assert_eq!(timer.now(), Nanos::from_secs(1));
/// ```
#[derive(Clone, Default)]
pub struct ManualTimer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    clock: ManualClock,
    sleepers: Mutex<Vec<(Nanos, Waker)>>,
}

impl ManualTimer {
    /// A timer that stands at `start`.
    #[must_use]
    pub fn new(start: Nanos) -> Self {
        let shared = Shared { clock: ManualClock::new(start), sleepers: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Moves the clock on, and wakes whoever waits for a time that has come.
    pub fn advance(&self, span: impl Into<Nanos>) {
        self.shared.clock.advance(span.into());
        self.shared.wake();
    }

    /// Moves the clock to `to`, backwards too (to test what happens then), and wakes whoever waits for a time that has
    /// come.
    pub fn set(&self, to: Nanos) {
        self.shared.clock.set(to);
        self.shared.wake();
    }
}

impl Shared {
    fn wake(&self) {
        let now = self.clock.now();
        let is_due = |(at, _): &mut (Nanos, Waker)| *at <= now;
        // Woken outside the lock: a waker may run anything.
        let due: Vec<_> =
            self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).extract_if(.., is_due).collect();
        for (_, waker) in due {
            waker.wake();
        }
    }
}

impl fmt::Debug for ManualTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualTimer").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Clock for ManualTimer {
    fn now(&self) -> Nanos {
        self.shared.clock.now()
    }
}

impl Timer for ManualTimer {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        Sleep { timer: self.clone(), at }
    }
}

struct Sleep {
    timer: ManualTimer,
    at: Nanos,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Locked before the clock is read: who moves the clock comes for the wakers after.
        let mut sleepers = self.timer.shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.timer.now() >= self.at {
            return Poll::Ready(());
        }
        // Polled again for other reasons, it waits once all the same.
        if !sleepers.iter().any(|(at, waker)| *at == self.at && waker.will_wake(cx.waker())) {
            sleepers.push((self.at, cx.waker().clone()));
        }
        Poll::Pending
    }
}
