//! Clocks whose time can be awaited.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use super::SystemClock;
use crate::{Clock, ManualClock, Nanos};

/// A clock whose time an async task can await, on any runtime. A clone is a handle to the same
/// clock.
///
/// [`ManualClock`] does not implement it, because nothing wakes its sleepers: use [`ManualTimer`]
/// instead.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be waited for",
    label = "this clock is not a `Timer`",
    note = "in tests, wait with a `ManualTimer` instead of a `ManualClock`"
)]
pub trait Timer: Clock + Clone + 'static {
    /// Completes when the clock has reached `at`. A limiter calls this, and polls the future, on
    /// any thread that uses it.
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<Self>;
}

/// Polls a future to its end, and blocks the thread while it waits: for threads without an async
/// runtime. It must not be called from an async task, whose thread it would stop.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(result) => return result,
            // `park` may return early; the next poll shows whether the future is ready.
            Poll::Pending => thread::park(),
        }
    }
}

impl<T: Timer> Timer for Arc<T> {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<T> {
        T::sleep_until(self, at)
    }
}

impl Timer for SystemClock {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        // A delay may end a little early by this clock, so the loop checks the time again.
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

/// A manual clock that wakes its sleepers when it is moved, for tests and simulations of waiting
/// without real sleeps.
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
    shared: Arc<ManualState>,
}

#[derive(Default)]
struct ManualState {
    clock: ManualClock,
    sleepers: Mutex<Sleepers>,
}

/// The waiting tasks, by the time that they wait for and a unique number.
#[derive(Default)]
struct Sleepers {
    wakers: BTreeMap<(Nanos, u64), Waker>,
    next: u64,
}

impl ManualTimer {
    /// A timer that starts at `start`.
    #[must_use]
    pub fn new(start: Nanos) -> Self {
        let shared = ManualState {
            clock: ManualClock::new(start),
            sleepers: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Advances the clock and wakes every task whose time has come.
    pub fn advance(&self, span: impl Into<Nanos>) {
        self.shared.clock.advance(span.into());
        self.shared.wake();
    }

    /// Sets the clock to `to`, which may be earlier than before (to test a clock that goes back),
    /// and wakes every task whose time has come.
    pub fn set(&self, to: Nanos) {
        self.shared.clock.set(to);
        self.shared.wake();
    }

    /// Sets how far the system's time is ahead, as [`ManualClock::set_wall_ahead`] does.
    pub fn set_wall_ahead(&self, ahead: i64) {
        self.shared.clock.set_wall_ahead(ahead);
    }
}

impl ManualState {
    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        // Nothing panics with the lock held.
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let due = {
            let mut sleepers = self.sleepers();
            let later = sleepers.wakers.split_off(&(self.clock.now(), u64::MAX));
            mem::replace(&mut sleepers.wakers, later)
        };
        // Woken outside the lock: a waker may run anything.
        for waker in due.into_values() {
            waker.wake();
        }
    }
}

impl fmt::Debug for ManualTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualTimer")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

impl Clock for ManualTimer {
    fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    fn wall_ahead(&self) -> i64 {
        self.shared.clock.wall_ahead()
    }
}

impl Timer for ManualTimer {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        ManualSleep {
            timer: self.clone(),
            at,
            number: None,
        }
    }
}

struct ManualSleep {
    timer: ManualTimer,
    at: Nanos,
    /// Its number among the sleepers, once it is registered.
    number: Option<u64>,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let shared = Arc::clone(&self.timer.shared);
        // Locked before the clock is read: a call that moves the clock afterwards sees this waker.
        let mut sleepers = shared.sleepers();
        if shared.clock.now() >= self.at {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            sleepers.next += 1;
            sleepers.next
        });
        let before = sleepers
            .wakers
            .insert((self.at, number), cx.waker().clone());
        // Dropping a waker may also run arbitrary code.
        drop(sleepers);
        drop(before);
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self
                .timer
                .shared
                .sleepers()
                .wakers
                .remove(&(self.at, number));
            drop(waker); // Outside the lock.
        }
    }
}
