//! When requests that wait leave for the store.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tidegate_core::Nanos;

use crate::health::Pace;

/// So many requests are worth a further call before one under way has returned.
const EARLY: usize = 32;

/// Requests of one kind before a shard.
pub struct Queue<R>(Mutex<State<R>>);

struct State<R> {
    waiting: Vec<R>,
    /// Calls of tasks under way.
    calls: usize,
    /// Whether a caller's own is under way.
    own: bool,
    /// When the latest call left.
    left: Nanos,
    /// Whether a task will come when the next call may leave.
    alarm: bool,
}

/// What is to be done with what waits.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn<R> {
    /// Nothing: somebody else sees to it.
    Wait,
    /// These are to be sent, and the call is to be [ended](Queue::ended).
    Send(Vec<R>),
    /// Come again after so long, by [`woken`](Queue::woken).
    Later(Nanos),
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        Self(Mutex::new(State { waiting: Vec::new(), calls: 0, own: false, left: Nanos::ZERO, alarm: false }))
    }
}

impl<R> State<R> {
    fn turn(&mut self, pace: Pace, now: Nanos) -> Turn<R> {
        if self.waiting.is_empty() {
            return Turn::Wait;
        }
        if self.calls > 0 && (self.calls >= pace.calls || self.waiting.len() < EARLY) {
            let Some(gap) = pace.gap.filter(|_| self.calls < pace.calls) else { return Turn::Wait };
            let next = self.left.saturating_add(gap);
            if now < next {
                let set = mem::replace(&mut self.alarm, true);
                return if set { Turn::Wait } else { Turn::Later(next.saturating_since(now)) };
            }
        }
        self.calls += 1;
        self.left = now;
        Turn::Send(mem::take(&mut self.waiting))
    }
}

impl<R> Queue<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the caller is alone, and sends its own request: until what is returned is dropped.
    pub fn alone(&self) -> Option<Alone<'_, R>> {
        let mut state = self.lock();
        let alone = state.calls == 0 && !state.own;
        alone.then(|| {
            state.own = true;
            Alone(self)
        })
    }

    /// Puts requests behind those that wait.
    pub fn put(&self, requests: impl IntoIterator<Item = R>, pace: Pace, now: Nanos) -> Turn<R> {
        let mut state = self.lock();
        state.waiting.extend(requests);
        state.turn(pace, now)
    }

    /// A call has ended.
    pub fn ended(&self, pace: Pace, now: Nanos) -> Turn<R> {
        let mut state = self.lock();
        state.calls -= 1;
        state.turn(pace, now)
    }

    /// The time of a [`Turn::Later`] has come.
    pub fn woken(&self, pace: Pace, now: Nanos) -> Turn<R> {
        let mut state = self.lock();
        state.alarm = false;
        state.turn(pace, now)
    }
}

/// A caller's own call under way.
pub struct Alone<'a, R>(&'a Queue<R>);

impl<R> Drop for Alone<'_, R> {
    fn drop(&mut self) {
        self.0.lock().own = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Pace = Pace { calls: 4, gap: None };
    const FAR: Pace = Pace { calls: 100, gap: Some(Nanos::from_millis(1)) };
    const NOW: Nanos = Nanos::from_secs(1_000);

    fn after(micros: u64) -> Nanos {
        NOW.saturating_add(Nanos::from_micros(micros))
    }

    #[test]
    fn of_a_near_store_a_call_waits_for_the_one_before_or_until_enough_have_gathered() {
        let queue = Queue::default();
        assert_eq!(queue.put([0], NEAR, NOW), Turn::Send(vec![0]));
        for at in 1..EARLY {
            assert_eq!(queue.put([at], NEAR, after(1_000_000)), Turn::Wait);
        }
        let Turn::Send(gathered) = queue.put([EARLY], NEAR, NOW) else { panic!("enough have gathered") };
        assert_eq!(gathered.len(), EARLY);
        assert_eq!(queue.put([1], NEAR, NOW), Turn::Wait);
        assert_eq!(queue.ended(NEAR, NOW), Turn::Wait, "another call is under way");
        assert_eq!(queue.ended(NEAR, NOW), Turn::Send(vec![1]), "it was the last");
        // At most four, however many wait.
        for _ in 0..3 {
            assert!(matches!(queue.put(0..EARLY, NEAR, NOW), Turn::Send(_)));
        }
        assert_eq!(queue.put(0..EARLY, NEAR, NOW), Turn::Wait);
    }

    #[test]
    fn of_a_far_store_nobody_waits_for_an_answer_to_others() {
        let queue = Queue::default();
        assert_eq!(queue.put([0], FAR, NOW), Turn::Send(vec![0]));
        assert_eq!(queue.put([1], FAR, after(400)), Turn::Later(Nanos::from_micros(600)));
        assert_eq!(queue.put([2], FAR, after(500)), Turn::Wait, "somebody comes for them");
        assert_eq!(queue.woken(FAR, after(1_000)), Turn::Send(vec![1, 2]));
        assert_eq!(queue.put([3], FAR, after(5_000)), Turn::Send(vec![3]), "nothing has left of late");
        let Turn::Send(gathered) = queue.put(0..EARLY, FAR, after(5_001)) else { panic!("enough") };
        assert_eq!(gathered.len(), EARLY);
    }

    #[test]
    fn one_caller_alone_needs_no_queue() {
        let queue = Queue::<u8>::default();
        let alone = queue.alone();
        assert!(alone.is_some() && queue.alone().is_none());
        drop(alone);
        assert!(queue.alone().is_some());
        assert_eq!(queue.put([1], NEAR, NOW), Turn::Send(vec![1]));
        assert!(queue.alone().is_none(), "a task's call is under way");
    }
}
