//! Sleeps that end in the thread that polls the sockets.
//!
//! A sleep of [`SystemClock`] ends in a thread of the timer's own, which then wakes the thread of
//! the caller's connection. Here the time is one more descriptor (a timerfd) that this thread polls,
//! so a caller in line costs one wake-up when its time has come.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    future::Future,
    io, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tidegate_core::{
    Clock, Nanos,
    clock::{SystemClock, Timer},
};

use self::alarm::Alarm;

thread_local! {
    /// The sleepers of this thread, if it polls their descriptor.
    static POLLED: RefCell<Option<Arc<Sleepers>>> = const { RefCell::new(None) };
}

/// The system's clock, whose sleeps end in the thread that began them if it polls the descriptor of
/// [`Sleepers`], otherwise in a task of an async runtime. A clone is the same clock.
#[derive(Clone, Debug)]
pub struct PolledClock {
    clock: SystemClock,
    /// Those of the runtime, if it has a descriptor for them.
    runtime: Option<Arc<Sleepers>>,
}

impl PolledClock {
    /// A clock that reads the same as `clock`. The current tokio runtime polls a descriptor for its
    /// sleeps until the guard is dropped; without one they end as those of `clock` do.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(clock: SystemClock) -> (Self, Polling) {
        let runtime = Sleepers::new().map(Arc::new).and_then(|sleepers| {
            let task = alarm::poll_in_runtime(Arc::clone(&sleepers), clock.clone())?;
            Ok((sleepers, task))
        });
        let (runtime, task) = match runtime {
            Ok((sleepers, task)) => (Some(sleepers), Some(task)),
            Err(error) => {
                tracing::debug!(%error, "callers in line are woken by a thread of their own");
                (None, None)
            }
        };
        let polling = Polling {
            sleepers: runtime.clone(),
            task,
        };
        (Self { clock, runtime }, polling)
    }

    /// The sleepers that a new sleep joins.
    fn sleepers(&self) -> Option<Arc<Sleepers>> {
        let here = POLLED.try_with(|polled| polled.borrow().clone());
        let of_runtime = || self.runtime.clone();
        here.ok()
            .flatten()
            .or_else(of_runtime)
            .filter(|sleepers| !sleepers.queue.lock().is_closed)
    }
}

impl Clock for PolledClock {
    #[inline]
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn wall_ahead(&self) -> i64 {
        self.clock.wall_ahead()
    }
}

impl Timer for PolledClock {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        let clock = self.clone();
        async move {
            // A sleep also ends when its thread no longer polls.
            while clock.now() < at {
                match clock.sleepers() {
                    Some(sleepers) => Sleep::new(sleepers, &clock.clock, at).await,
                    None => clock.clock.sleep_until(at).await,
                }
            }
        }
    }
}

/// Ends the runtime's part in a [`PolledClock`] when it is dropped.
#[derive(Debug)]
pub struct Polling {
    sleepers: Option<Arc<Sleepers>>,
    task: Option<tokio::task::AbortHandle>,
}

impl Drop for Polling {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(sleepers) = &self.sleepers {
            sleepers.close();
        }
    }
}

/// The sleeps that end when one descriptor is readable.
pub struct Sleepers {
    alarm: Alarm,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// By the end of the sleep and a unique number.
    wakers: BTreeMap<(Nanos, u64), Waker>,
    next: u64,
    /// When the descriptor becomes readable, if it does.
    armed: Option<Nanos>,
    is_closed: bool,
}

impl Sleepers {
    /// Nobody sleeps yet.
    ///
    /// # Errors
    /// When the system gives no such descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            alarm: Alarm::new()?,
            queue: Mutex::default(),
        })
    }

    /// Has sleeps that begin in this thread end in it, until the guard is dropped. The thread polls
    /// the descriptor, and calls [`wake_due`](Self::wake_due) when it is readable.
    pub fn enter(self: &Arc<Self>) -> Entered {
        POLLED.set(Some(Arc::clone(self)));
        Entered(Arc::clone(self))
    }

    /// Wakes those whose time has come at `now`.
    pub fn wake_due(&self, now: Nanos) {
        let due = {
            let mut queue = self.queue.lock();
            // A descriptor may be readable a little early by this clock: then it is armed again.
            queue.armed = None;
            let later = queue.wakers.split_off(&(now, u64::MAX));
            let due = mem::replace(&mut queue.wakers, later);
            self.arm(&mut queue, now);
            due
        };
        // Woken outside the lock: a waker may run anything.
        due.into_values().for_each(Waker::wake);
    }

    /// Has the descriptor become readable when the first sleep ends.
    fn arm(&self, queue: &mut Queue, now: Nanos) {
        let first = queue.wakers.first_key_value().map(|((at, _), _)| *at);
        // Without a sleeper it may become readable once in vain, which costs less than a system call
        // for each sleep that is given up.
        if let Some(first) = first
            && queue.armed != Some(first)
        {
            self.alarm.set(first.saturating_since(now));
            queue.armed = Some(first);
        }
    }

    /// Ends all sleeps, which begin again elsewhere.
    fn close(&self) {
        let sleeping = {
            let mut queue = self.queue.lock();
            queue.is_closed = true;
            mem::take(&mut queue.wakers)
        };
        sleeping.into_values().for_each(Waker::wake);
    }
}

impl fmt::Debug for Sleepers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sleeping = self.queue.lock().wakers.len();
        f.debug_struct("Sleepers")
            .field("sleeping", &sleeping)
            .finish_non_exhaustive()
    }
}

/// Ends a thread's part in [`Sleepers`] when it is dropped. It stays in its thread.
#[derive(Debug)]
pub struct Entered(Arc<Sleepers>);

impl Drop for Entered {
    fn drop(&mut self) {
        // Before the sleeps end, so that they begin again elsewhere.
        POLLED.take();
        self.0.close();
    }
}

/// Completes when the clock has reached `at`, or when nothing polls the descriptor any more.
struct Sleep {
    sleepers: Arc<Sleepers>,
    clock: SystemClock,
    at: Nanos,
    /// Its number among the sleepers, once it is one of them.
    number: Option<u64>,
}

impl Sleep {
    fn new(sleepers: Arc<Sleepers>, clock: &SystemClock, at: Nanos) -> Self {
        Self {
            sleepers,
            clock: clock.clone(),
            at,
            number: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let sleepers = Arc::clone(&self.sleepers);
        let mut queue = sleepers.queue.lock();
        // Read with the lock held: a later wake-up sees this waker.
        let now = self.clock.now();
        if queue.is_closed || now >= self.at {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            queue.next += 1;
            queue.next
        });
        let before = queue.wakers.insert((self.at, number), cx.waker().clone());
        sleepers.arm(&mut queue, now);
        drop(queue);
        // Outside the lock, as it may run any code.
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.sleepers.queue.lock().wakers.remove(&(self.at, number));
            drop(waker); // Outside the lock.
        }
    }
}

#[cfg(target_os = "linux")]
mod alarm {
    //! A descriptor that becomes readable after a span.

    use std::{
        io,
        os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        sync::Arc,
        time::Duration,
    };

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tidegate_core::{Clock as _, Nanos, clock::SystemClock};
    use tokio::{
        io::{Interest, unix::AsyncFd},
        task::AbortHandle,
    };

    use super::Sleepers;

    /// Longer than a span of nanoseconds.
    const NEVER: Timespec = Timespec {
        tv_sec: i64::MAX,
        tv_nsec: 0,
    };

    pub(super) struct Alarm(OwnedFd);

    impl Alarm {
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
        }

        /// Becomes readable after this span, and not at an earlier time that was set before.
        pub(super) fn set(&self, after: Nanos) {
            // Zero would stop the alarm.
            let after = Duration::from_nanos(after.get().max(1));
            let once = Itimerspec {
                it_interval: Timespec::default(),
                it_value: Timespec::try_from(after).unwrap_or(NEVER),
            };
            if let Err(error) = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once) {
                tracing::error!(%error, "the system refuses to set a timer; callers in line are late");
            }
        }
    }

    impl AsFd for Sleepers {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.alarm.0.as_fd()
        }
    }

    impl AsRawFd for Sleepers {
        fn as_raw_fd(&self) -> RawFd {
            self.alarm.0.as_raw_fd()
        }
    }

    /// Wakes sleepers in a task of the current runtime, as long as it runs.
    pub(super) fn poll_in_runtime(
        sleepers: Arc<Sleepers>,
        clock: SystemClock,
    ) -> io::Result<AbortHandle> {
        struct Closes(AsyncFd<Arc<Sleepers>>);
        impl Drop for Closes {
            fn drop(&mut self) {
                self.0.get_ref().close();
            }
        }
        // SAFETY: the sleepers own their descriptor, which is open and the same as long as they are
        // there, and `AsyncFd` holds them.
        #[expect(
            unsafe_code,
            reason = "a descriptor that is no socket has no other way in"
        )]
        let polled = unsafe { AsyncFd::register_with_interest(sleepers, Interest::READABLE) };
        let polled = Closes(polled?);
        let task = tokio::spawn(async move {
            // Each expiry of the timer is a new event, so the descriptor need not be read.
            while let Ok(mut ready) = polled.0.readable().await {
                ready.clear_ready();
                polled.0.get_ref().wake_due(clock.now());
            }
        });
        Ok(task.abort_handle())
    }
}

#[cfg(not(target_os = "linux"))]
mod alarm {
    //! Without such a descriptor, sleeps end in a thread of the timer's own.

    use std::{io, sync::Arc};

    use tidegate_core::{Nanos, clock::SystemClock};
    use tokio::task::AbortHandle;

    use super::Sleepers;

    pub(super) enum Alarm {}

    impl Alarm {
        pub(super) fn new() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn set(&self, _after: Nanos) {
            match *self {}
        }
    }

    pub(super) fn poll_in_runtime(
        sleepers: Arc<Sleepers>,
        _clock: SystemClock,
    ) -> io::Result<AbortHandle> {
        match sleepers.alarm {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        os::fd::AsFd as _,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        task::Wake,
        time::Duration,
    };

    use proptest::prelude::*;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Bell(AtomicU64);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Bell {
        fn rung(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn poll_once(sleep: Pin<&mut impl Future<Output = ()>>, bell: &Arc<Bell>) -> bool {
        let waker = Waker::from(Arc::clone(bell));
        sleep.poll(&mut Context::from_waker(&waker)).is_ready()
    }

    /// Waits until the descriptor is readable.
    fn wait_for(sleepers: &Sleepers) {
        let mut polled = [PollFd::from_borrowed_fd(sleepers.as_fd(), PollFlags::IN)];
        assert_eq!(poll(&mut polled, None).unwrap(), 1);
    }

    fn clock() -> PolledClock {
        PolledClock {
            clock: SystemClock::new(),
            runtime: None,
        }
    }

    #[test]
    fn a_sleep_ends_in_the_thread_that_polls_the_descriptor() {
        let (clock, sleepers) = (clock(), Arc::new(Sleepers::new().unwrap()));
        let _entered = sleepers.enter();
        let until = clock.now().saturating_add(Nanos::from_millis(50));
        let (bell, mut sleep) = (Arc::default(), pin!(clock.sleep_until(until)));
        assert!(!poll_once(sleep.as_mut(), &bell));
        assert_eq!(sleepers.queue.lock().wakers.len(), 1, "it is one of them");
        while bell.rung() == 0 {
            // Nothing but this call wakes it.
            wait_for(&sleepers);
            sleepers.wake_due(clock.now());
        }
        assert!(clock.now() >= until);
        assert!(poll_once(sleep.as_mut(), &bell));
    }

    #[test]
    fn a_thread_that_no_longer_polls_hands_its_sleeps_over() {
        let (clock, sleepers) = (clock(), Arc::new(Sleepers::new().unwrap()));
        let entered = sleepers.enter();
        let until = clock.now().saturating_add(Nanos::from_millis(100));
        let (bell, mut sleep) = (Arc::default(), pin!(clock.sleep_until(until)));
        assert!(!poll_once(sleep.as_mut(), &bell));
        drop(entered);
        assert_eq!(bell.rung(), 1, "it is asked to sleep elsewhere");
        tidegate_core::clock::block_on(sleep);
        assert!(clock.now() >= until);
        assert!(sleepers.queue.lock().wakers.is_empty());
    }

    #[tokio::test]
    async fn a_runtime_ends_sleeps_and_gives_them_up_when_it_stops() {
        let (clock, polling) = PolledClock::start(SystemClock::new());
        let after = |millis| clock.now().saturating_add(Nanos::from_millis(millis));
        let until = after(50);
        clock.sleep_until(until).await;
        assert!(clock.now() >= until);
        let until = after(100);
        let (bell, mut sleep) = (Arc::default(), pin!(clock.sleep_until(until)));
        assert!(!poll_once(sleep.as_mut(), &bell));
        let runtime = clock.runtime.clone().unwrap();
        assert_eq!(runtime.queue.lock().wakers.len(), 1, "it is one of them");
        drop(polling);
        assert_eq!(bell.rung(), 1, "it is asked to sleep elsewhere");
        sleep.await;
        assert!(clock.now() >= until);
    }

    #[test]
    fn a_clock_that_is_late_arms_the_descriptor_again() {
        let (clock, sleepers) = (clock(), Arc::new(Sleepers::new().unwrap()));
        let _entered = sleepers.enter();
        let until = clock.now().saturating_add(Nanos::from_millis(50));
        let (bell, mut sleep) = (Arc::default(), pin!(clock.sleep_until(until)));
        assert!(!poll_once(sleep.as_mut(), &bell));
        wait_for(&sleepers);
        // By a clock that is late, nobody has slept long enough.
        sleepers.wake_due(Nanos::new(until.get() - 1_000));
        assert_eq!(bell.rung(), 0);
        wait_for(&sleepers);
        sleepers.wake_due(until);
        assert_eq!(bell.rung(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin { after: u64 },
        GiveUp { which: usize },
        Wake { after: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Far enough away that no sleep ends by itself.
        let after = 1_000_000..1_000_020_u64;
        prop::collection::vec(
            prop_oneof![
                after.clone().prop_map(|after| Step::Begin { after }),
                (0..8_usize).prop_map(|which| Step::GiveUp { which }),
                after.prop_map(|after| Step::Wake { after }),
            ],
            1..60,
        )
    }

    proptest! {
        #[test]
        fn those_whose_time_has_come_are_woken_once_and_the_others_not(steps in steps()) {
            let (clock, sleepers) = (clock(), Arc::new(Sleepers::new().unwrap()));
            let start = clock.now();
            let at = |after: u64| start.saturating_add(Duration::from_millis(after).into());
            let mut sleeping: Vec<(u64, Arc<Bell>, Pin<Box<Sleep>>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Begin { after } => {
                        let bell = Arc::default();
                        let mut sleep =
                            Box::pin(Sleep::new(Arc::clone(&sleepers), &clock.clock, at(after)));
                        assert!(!poll_once(sleep.as_mut(), &bell));
                        sleeping.push((after, bell, sleep));
                    }
                    Step::GiveUp { which } if which < sleeping.len() => {
                        drop(sleeping.swap_remove(which));
                    }
                    Step::GiveUp { .. } => {}
                    Step::Wake { after } => {
                        sleepers.wake_due(at(after));
                        for (until, bell, _) in &sleeping {
                            prop_assert_eq!(bell.rung(), u64::from(*until <= after));
                        }
                        sleeping.retain(|(until, ..)| *until > after);
                        // A sleeper is woken when the first one's time has come, and not later.
                        let first = sleeping.iter().map(|(until, ..)| at(*until)).min();
                        prop_assert_eq!(sleepers.queue.lock().armed, first);
                    }
                }
            }
        }
    }
}
