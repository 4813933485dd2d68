//! Decides when waiting requests are sent to the store.

use std::{mem, sync::Mutex};

use tidegate_core::Nanos;

use crate::{health::Pace, sync::lock};

/// The number of waiting requests from which another call is sent before the current one has
/// returned.
const EARLY: usize = 32;

/// The waiting requests of one kind for a shard.
pub struct Queue<R>(Mutex<QueueState<R>>);

struct QueueState<R> {
    waiting: Vec<R>,
    /// The number of calls by tasks in flight.
    calls: usize,
    /// Whether a caller's own call is in flight.
    own: bool,
    /// When the latest call was sent.
    left: Nanos,
    /// Whether a task is already waiting to send the next call.
    alarm: bool,
    /// The number of holders. While there is one, no request leaves.
    holders: usize,
}

/// The next step for the waiting requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn<R> {
    /// Nothing; another task handles them.
    Wait,
    /// Send these requests, and call [`ended`](Queue::ended) afterwards.
    Send(Vec<R>),
    /// Wait this long, then call [`woken`](Queue::woken).
    Later(Nanos),
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        Self(Mutex::new(QueueState {
            waiting: Vec::new(),
            calls: 0,
            own: false,
            left: Nanos::ZERO,
            alarm: false,
            holders: 0,
        }))
    }
}

impl<R> QueueState<R> {
    fn turn(&mut self, pace: Pace, now: Nanos) -> Turn<R> {
        if self.waiting.is_empty() || self.holders > 0 {
            return Turn::Wait;
        }
        // For a far store, half of the calls are reserved for those that are sent after each gap.
        // They take all waiting requests along. Otherwise callers that arrive together could wait a
        // whole round trip for a free call.
        let most = if pace.gap.is_some() {
            pace.calls / 2
        } else {
            pace.calls
        };
        let early = self.waiting.len() >= EARLY && self.calls < most;
        if self.calls > 0 && !early {
            let Some(gap) = pace.gap.filter(|_| self.calls < pace.calls) else {
                return Turn::Wait;
            };
            let next = self.left.saturating_add(gap);
            if now < next {
                let set = mem::replace(&mut self.alarm, true);
                return if set {
                    Turn::Wait
                } else {
                    Turn::Later(next.saturating_since(now))
                };
            }
        }
        self.calls += 1;
        self.left = now;
        Turn::Send(mem::take(&mut self.waiting))
    }
}

impl<R> Queue<R> {
    /// If no call is in flight, the caller may send its own request while it keeps the returned
    /// guard.
    pub fn alone(&self) -> Option<Alone<'_, R>> {
        let mut state = lock(&self.0);
        let alone = state.calls == 0 && !state.own && state.holders == 0;
        alone.then(|| {
            state.own = true;
            Alone(self)
        })
    }

    /// Appends requests to the queue.
    pub fn put(&self, requests: impl IntoIterator<Item = R>, pace: Pace, now: Nanos) -> Turn<R> {
        let mut state = lock(&self.0);
        state.waiting.extend(requests);
        state.turn(pace, now)
    }

    /// Holds requests back until [`release`](Self::release).
    pub fn hold(&self) {
        lock(&self.0).holders += 1;
    }

    /// Ends a [`hold`](Self::hold).
    pub fn release(&self, pace: Pace, now: Nanos) -> Turn<R> {
        let mut state = lock(&self.0);
        state.holders -= 1;
        state.turn(pace, now)
    }

    /// A call has ended.
    pub fn ended(&self, pace: Pace, now: Nanos) -> Turn<R> {
        let mut state = lock(&self.0);
        state.calls -= 1;
        state.turn(pace, now)
    }

    /// The wait of a [`Turn::Later`] is over.
    pub fn woken(&self, pace: Pace, now: Nanos) -> Turn<R> {
        let mut state = lock(&self.0);
        state.alarm = false;
        state.turn(pace, now)
    }
}

/// A caller's own call in flight.
pub struct Alone<'a, R>(&'a Queue<R>);

impl<R> Drop for Alone<'_, R> {
    fn drop(&mut self) {
        lock(&self.0.0).own = false;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::health::Distance;

    const NEAR: Pace = Pace {
        calls: 4,
        gap: None,
    };
    const FAR: Pace = Pace {
        calls: 100,
        gap: Some(Nanos::from_millis(1)),
    };
    const NOW: Nanos = Nanos::from_secs(1_000);

    fn after(micros: u64) -> Nanos {
        NOW.saturating_add(Nanos::from_micros(micros))
    }

    #[test]
    fn with_a_near_store_a_call_waits_for_the_previous_one_or_for_enough_requests() {
        let queue = Queue::default();
        assert_eq!(queue.put([0], NEAR, NOW), Turn::Send(vec![0]));
        for at in 1..EARLY {
            assert_eq!(queue.put([at], NEAR, after(1_000_000)), Turn::Wait);
        }
        assert_eq!(
            queue.put([EARLY], NEAR, NOW),
            Turn::Send((1..=EARLY).collect()),
            "enough have gathered"
        );
        assert_eq!(queue.put([1], NEAR, NOW), Turn::Wait);
        assert_eq!(
            queue.ended(NEAR, NOW),
            Turn::Wait,
            "another call is under way"
        );
        assert_eq!(
            queue.ended(NEAR, NOW),
            Turn::Send(vec![1]),
            "it was the last"
        );
        // At most four calls are in flight, however many requests wait.
        for _ in 0..3 {
            assert!(matches!(queue.put(0..EARLY, NEAR, NOW), Turn::Send(_)));
        }
        assert_eq!(queue.put(0..EARLY, NEAR, NOW), Turn::Wait);
    }

    #[test]
    fn with_a_far_store_no_request_waits_for_another_calls_reply() {
        let queue = Queue::default();
        assert_eq!(queue.put([0], FAR, NOW), Turn::Send(vec![0]));
        assert_eq!(
            queue.put([1], FAR, after(400)),
            Turn::Later(Nanos::from_micros(600))
        );
        assert_eq!(
            queue.put([2], FAR, after(500)),
            Turn::Wait,
            "a task will send them"
        );
        assert_eq!(queue.woken(FAR, after(1_000)), Turn::Send(vec![1, 2]));
        assert_eq!(
            queue.put([3], FAR, after(5_000)),
            Turn::Send(vec![3]),
            "no call was sent recently"
        );
        assert_eq!(
            queue.put(0..EARLY, FAR, after(5_001)),
            Turn::Send((0..EARLY).collect()),
            "enough"
        );
    }

    /// Simulates callers that start at the same time and ask again when they are answered. Each
    /// call returns after `trip`. Returns the longest time that a request waits to be sent, over
    /// four round trips.
    fn longest_wait(callers: usize, pace: Pace, trip: Nanos) -> Nanos {
        let (queue, end) = (
            Queue::default(),
            NOW.saturating_add(Nanos::new(4 * trip.get())),
        );
        // How many callers a call answers at that time; 0 when a task is woken.
        let mut events: BTreeMap<(Nanos, usize), usize> = BTreeMap::new();
        let (mut now, mut asking, mut turn) = (NOW, callers, Turn::Wait);
        let (mut nth, mut longest) = (0, Nanos::ZERO);
        loop {
            for turn in [turn]
                .into_iter()
                .chain((0..asking).map(|_| queue.put([now], pace, now)))
            {
                nth += 1;
                match turn {
                    Turn::Wait => {}
                    Turn::Later(pause) => drop(events.insert((now.saturating_add(pause), nth), 0)),
                    Turn::Send(asked) => {
                        let waits = asked.iter().map(|&asked| now.saturating_since(asked));
                        longest = longest.max(waits.max().expect("each call has a caller"));
                        events.insert((now.saturating_add(trip), nth), asked.len());
                    }
                }
            }
            let next = events.pop_first().filter(|((at, _), _)| *at <= end);
            let Some(((at, _), answered)) = next else {
                return longest;
            };
            (now, asking) = (at, answered);
            turn = if answered > 0 {
                queue.ended(pace, now)
            } else {
                queue.woken(pace, now)
            };
        }
    }

    #[test]
    fn with_a_far_store_no_request_waits_longer_than_the_gap() {
        for trip in [2, 40, 400] {
            let (distance, trip) = (Distance::default(), Nanos::from_millis(trip));
            distance.measured(trip);
            let pace = distance.pace();
            for callers in [1, 2, 5, 256, 10_000, 20_000] {
                let longest = longest_wait(callers, pace, trip);
                assert!(
                    longest <= Nanos::from_millis(1),
                    "{callers} callers, {trip:?}: {longest:?}"
                );
            }
        }
    }

    #[test]
    fn held_requests_leave_together() {
        let queue = Queue::default();
        queue.hold();
        assert!(
            queue.alone().is_none(),
            "nobody sends a request of its own meanwhile"
        );
        for at in 0..2 * EARLY {
            assert_eq!(queue.put([at], NEAR, NOW), Turn::Wait);
        }
        queue.hold();
        assert_eq!(queue.release(NEAR, NOW), Turn::Wait, "another still holds");
        assert_eq!(
            queue.release(NEAR, NOW),
            Turn::Send((0..2 * EARLY).collect()),
            "no other holds"
        );
        queue.hold();
        assert_eq!(queue.put([0], NEAR, NOW), Turn::Wait);
        assert_eq!(
            queue.ended(NEAR, NOW),
            Turn::Wait,
            "also when a call ends meanwhile"
        );
        assert_eq!(queue.release(NEAR, NOW), Turn::Send(vec![0]));
    }

    #[test]
    fn a_single_caller_needs_no_queue() {
        let queue = Queue::<u8>::default();
        let alone = queue.alone();
        assert!(alone.is_some() && queue.alone().is_none());
        drop(alone);
        assert!(queue.alone().is_some());
        assert_eq!(queue.put([1], NEAR, NOW), Turn::Send(vec![1]));
        assert!(queue.alone().is_none(), "a task's call is under way");
    }
}
