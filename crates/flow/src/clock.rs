//! Clocks and sleep: the only place of this crate that reads the time or waits.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use tidegate_core::{Clock, ManualClock, Nanos};

/// Nanoseconds since 1970: started from the wall clock, and monotonic from there on (it does not follow later
/// corrections of the wall clock). Slots so begin on whole seconds, and a metric log needs no other clock.
#[derive(Clone, Debug)]
pub struct SystemClock {
    clock: quanta::Clock,
    began: u64,
    epoch: u64,
}

impl SystemClock {
    /// A clock that starts from the wall clock's time now. The first one in a process takes some milliseconds to learn
    /// the speed of the processor's counter.
    #[must_use]
    #[allow(clippy::disallowed_methods)] // The one module that may.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let began = clock.raw();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { clock, began, epoch: Nanos::from(since).get() }
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
        Nanos::new(self.epoch + self.clock.delta_as_nanos(self.began, self.clock.raw()))
    }
}

/// A wait that ends by itself.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock that can also wait: what a gate runs on.
///
/// [`SystemTimer`] is the real one, [`ManualTimer`] the one for tests. Implement it to wait on a runtime's own timers.
pub trait Timer: Clock {
    /// A future that is ready after `span` of this clock.
    fn sleep(&self, span: Duration) -> Sleep;
}

/// The system's clock, with a timer that needs no async runtime.
#[derive(Clone, Debug, Default)]
pub struct SystemTimer(pub(crate) SystemClock);

impl Clock for SystemTimer {
    #[inline]
    fn now(&self) -> Nanos {
        self.0.now()
    }
}

impl Timer for SystemTimer {
    fn sleep(&self, span: Duration) -> Sleep {
        Box::pin(futures_timer::Delay::new(span))
    }
}

/// A clock that moves only when told to, and wakes whoever waited for the time it reaches: for tests.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tidegate_core::{Clock, Nanos};
/// use tidegate_flow::{Gate, ManualTimer};
/// let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1)));
/// let gate = Gate::builder().timer(timer.clone()).build();
/// timer.advance(Duration::from_secs(2));
/// assert_eq!(gate.now(), Nanos::from_secs(3));
/// ```
#[derive(Debug, Default)]
pub struct ManualTimer(Arc<Manual>);

#[derive(Debug, Default)]
struct Manual {
    clock: ManualClock,
    /// Who waits until when.
    sleepers: Mutex<Vec<(Nanos, Waker)>>,
}

impl ManualTimer {
    /// A timer that stands at `start`.
    #[must_use]
    pub fn new(start: Nanos) -> Self {
        Self(Arc::new(Manual { clock: ManualClock::new(start), sleepers: Mutex::default() }))
    }

    /// Moves on by `span`, and wakes whose time has come.
    pub fn advance(&self, span: Duration) {
        self.0.clock.advance(span.into());
        self.0.wake();
    }

    /// Moves to `to`, backwards too, and wakes whose time has come.
    pub fn set(&self, to: Nanos) {
        self.0.clock.set(to);
        self.0.wake();
    }
}

impl Manual {
    fn wake(&self) {
        let now = self.clock.now();
        let due = |(until, _): &mut (Nanos, Waker)| *until <= now;
        let due: Vec<_> =
            self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).extract_if(.., due).collect();
        for (_, waker) in due {
            waker.wake();
        }
    }
}

impl Clock for ManualTimer {
    fn now(&self) -> Nanos {
        self.0.clock.now()
    }
}

impl Timer for ManualTimer {
    fn sleep(&self, span: Duration) -> Sleep {
        Box::pin(ManualSleep { until: self.now().saturating_add(span.into()), manual: self.0.clone() })
    }
}

struct ManualSleep {
    until: Nanos,
    manual: Arc<Manual>,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Locked before the clock is read: who moves the clock on comes for the wakers after.
        let mut sleepers = self.manual.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.manual.clock.now() >= self.until {
            return Poll::Ready(());
        }
        let mine = |(until, waker): &(Nanos, Waker)| *until == self.until && waker.will_wake(cx.waker());
        if !sleepers.iter().any(mine) {
            sleepers.push((self.until, cx.waker().clone()));
        }
        Poll::Pending
    }
}

/// Blocks the thread until the sleep is over.
pub(crate) fn block_on(mut sleep: Sleep) {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    while sleep.as_mut().poll(&mut cx).is_pending() {
        // May return early; the sleep says when it is over.
        thread::park();
    }
}

/// The clock of a gate: the system's without a virtual call, any other behind one.
#[derive(Clone)]
pub(crate) enum GateTimer {
    System(SystemTimer),
    Other(Arc<dyn Timer>),
}

impl GateTimer {
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match self {
            Self::System(timer) => timer.now(),
            Self::Other(timer) => timer.now(),
        }
    }

    pub(crate) fn sleep(&self, span: Duration) -> Sleep {
        match self {
            Self::System(timer) => timer.sleep(span),
            Self::Other(timer) => timer.sleep(span),
        }
    }
}
