//! Polls a future only when it was woken itself.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;

/// A future that rarely has something to do, in a task that is often woken for something else, such as the requests of a
/// connection: it is polled when it was woken itself, and not each time.
pub(crate) struct WhenWoken<F> {
    future: Pin<Box<F>>,
    alarm: Arc<Alarm>,
}

struct Alarm {
    rang: AtomicBool,
    task: AtomicWaker,
}

impl<F> WhenWoken<F> {
    /// The first poll polls the future.
    pub fn new(future: F) -> Self {
        let alarm = Alarm { rang: AtomicBool::new(true), task: AtomicWaker::new() };
        Self { future: Box::pin(future), alarm: Arc::new(alarm) }
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: before the waker is taken. A poll that comes later sees it; an earlier one has left its waker.
        self.rang.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl<F: Future> Future for WhenWoken<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Before the look at the alarm, so that none is missed between the two.
        self.alarm.task.register(context.waker());
        // Relaxed: a hint, so that most polls only read.
        if !self.alarm.rang.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        // Acquire: the poll sees what the alarm rang for. An alarm that rings during the poll counts for the next one.
        self.alarm.rang.swap(false, Ordering::Acquire);
        let waker = Waker::from(Arc::clone(&self.alarm));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::{future::poll_fn, task::noop_waker};
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_future_is_polled_at_first_and_when_it_was_woken() {
        let (tell, told) = oneshot::channel();
        let polls = AtomicUsize::new(0);
        let mut told = Box::pin(told);
        let mut future = WhenWoken::new(poll_fn(|context| {
            polls.fetch_add(1, Ordering::Relaxed);
            told.as_mut().poll(context)
        }));
        let waker = noop_waker();
        let mut poll = || Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
        for _ in 0..5 {
            assert!(poll().is_pending());
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        tell.send(7).unwrap();
        assert_eq!(poll(), Poll::Ready(Ok(7)));
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }
}
