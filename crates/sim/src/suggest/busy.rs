//! Finds the requests that a limit, or any higher one, could deny at all.
//!
//! A [`Meter`] counts all requests that *arrive*, admitted or not, with the algorithm's own
//! weights. An algorithm never records more than what arrived. So if the weight of everything that
//! arrived fits under a limit, that limit and every higher one admit. The requests at which it does
//! not fit are *busy*. A state that was fresh at some moment before a busy request, and has seen
//! everything that still counts, decides on it like a state that has seen all requests. So a limit
//! is replayed only on the busy requests and the requests that lead up to each of them, its
//! *fragment*.

use std::collections::VecDeque;

use tidegate_core::{Parameters, Policy, Quota};

/// The requests that lead up to a busy one, and the busy requests themselves.
#[derive(Debug)]
pub(super) struct Meter {
    weight: Weight,
    limit: u64,
    /// Requests that may still matter to a later one, the oldest first.
    recent: VecDeque<u64>,
    /// How many of `recent`, from the oldest on, have been returned.
    handed_out: usize,
    /// Whether the next returned request begins a fragment.
    fresh: bool,
}

/// How an algorithm weighs earlier requests.
#[derive(Debug)]
pub(super) enum Weight {
    /// Every request younger than `lifetime` counts in full.
    Window { lifetime: u64 },
    /// Every request since the window began. Each window begins with its first request, unless
    /// windows are aligned to the origin.
    Fixed {
        window: u64,
        is_aligned: bool,
        end: u64,
    },
    /// A count for this window and one for the last, which counts less and less.
    Counter {
        window: u64,
        start: u64,
        previous: u64,
        current: u64,
    },
    /// Arrivals minus what has leaked, in requests × nanoseconds of the window, up to `room`.
    Bucket {
        window: u64,
        debt: u128,
        before: u64,
        room: u128,
    },
}

impl Weight {
    /// `None` if this module does not know the algorithm.
    pub fn of(policy: &Policy, quota: Quota) -> Option<Self> {
        let window = quota.window_nanos();
        let in_bucket = |units: u64| u128::from(units) * u128::from(window);
        let bucket = |room| Self::Bucket {
            window,
            debt: 0,
            before: 0,
            room,
        };
        if policy.waits_for_oversize() {
            return None;
        }
        Some(match policy.parameters() {
            Parameters::FixedWindow {
                window, first_hit, ..
            } => Self::Fixed {
                window,
                is_aligned: !first_hit,
                end: 0,
            },
            Parameters::SlidingLog { lifetime, .. } => Self::Window { lifetime },
            Parameters::SlidingWindow { slot, span, .. } => Self::Window {
                lifetime: slot.saturating_mul(span.into()),
            },
            Parameters::SlidingCounter { window, .. } => Self::Counter {
                window,
                start: 0,
                previous: 0,
                current: 0,
            },
            // The last admission fills the bucket. If the burst is the limit, a higher limit has
            // more room.
            Parameters::TokenBucket { burst, .. } => {
                bucket(in_bucket(burst).saturating_sub(window.into()))
            }
            // A debt takes `debt / limit` nanoseconds to leak; a higher limit's debt may be larger
            // for the same wait.
            Parameters::LeakyBucket { max_wait, .. } => {
                bucket(u128::from(quota.limit()) * u128::from(max_wait))
            }
            _ => return None,
        })
    }
}

impl Meter {
    /// A meter for an algorithm with this quota, and with every higher limit in the same window.
    /// `None` if this module does not know the algorithm.
    pub fn new(policy: &Policy, quota: Quota) -> Option<Self> {
        let weight = Weight::of(policy, quota)?;
        Some(Self {
            weight,
            limit: quota.limit(),
            recent: VecDeque::new(),
            handed_out: 0,
            fresh: true,
        })
    }

    /// Starts with another key, or another fragment of a key.
    pub fn clear(&mut self) {
        self.forget_all();
        match &mut self.weight {
            Weight::Window { .. } => {}
            Weight::Fixed { end, .. } => *end = 0,
            Weight::Counter {
                start,
                previous,
                current,
                ..
            } => (*start, *previous, *current) = (0, 0, 0),
            Weight::Bucket { debt, before, .. } => (*debt, *before) = (0, 0),
        }
    }

    /// The number of requests that it remembers.
    pub fn remembered(&self) -> usize {
        self.recent.len()
    }

    /// Processes a request. If it is busy, passes on it and the earlier requests that matter to it
    /// and were not passed on yet, in order of time; the flag is `true` if the request begins a
    /// fragment.
    #[inline]
    pub fn request(&mut self, now: u64, mut hand_out: impl FnMut(u64, bool)) {
        let busy = match &mut self.weight {
            Weight::Window { lifetime } => {
                let lifetime = *lifetime;
                self.forget_older(now, lifetime);
                self.recent.len() as u64 + 1 > self.limit
            }
            Weight::Fixed {
                window,
                is_aligned,
                end,
            } => {
                if now >= *end {
                    let start = if *is_aligned {
                        now - now % *window
                    } else {
                        now
                    };
                    *end = start.saturating_add(*window);
                    self.forget_all();
                }
                self.recent.len() as u64 + 1 > self.limit
            }
            Weight::Counter {
                window,
                start,
                previous,
                current,
            } => {
                let length = *window;
                if now - *start >= length {
                    let aligned = now - now % length;
                    *previous = if aligned - *start == length {
                        *current
                    } else {
                        0
                    };
                    (*start, *current) = (aligned, 0);
                }
                *current += 1;
                let weight = u128::from(*previous) * u128::from(length - (now - *start))
                    + u128::from(*current) * u128::from(length);
                self.forget_older(now, length.saturating_mul(2));
                weight > u128::from(self.limit) * u128::from(length)
            }
            Weight::Bucket {
                window,
                debt,
                before,
                room,
            } => {
                let leaked = u128::from(now - *before) * u128::from(self.limit);
                *before = now;
                let owed = debt.saturating_sub(leaked);
                *debt = owed + u128::from(*window);
                let busy = owed > *room;
                if owed == 0 {
                    self.forget_all();
                }
                busy
            }
        };
        self.recent.push_back(now);
        if busy {
            for &time in self.recent.iter().skip(self.handed_out) {
                hand_out(time, std::mem::take(&mut self.fresh));
            }
            self.handed_out = self.recent.len();
        }
    }

    /// Drops what arrived more than `lifetime` before now.
    #[inline]
    fn forget_older(&mut self, now: u64, lifetime: u64) {
        while self
            .recent
            .front()
            .is_some_and(|&time| now - time > lifetime)
        {
            self.recent.pop_front();
            match self.handed_out.checked_sub(1) {
                Some(handed_out) => self.handed_out = handed_out,
                // Something is skipped: the next returned request does not follow the last one.
                None => self.fresh = true,
            }
        }
    }

    #[inline]
    fn forget_all(&mut self) {
        self.recent.clear();
        self.handed_out = 0;
        self.fresh = true;
    }
}
