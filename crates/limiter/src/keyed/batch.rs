//! Many decisions in one call, whose states are fetched side by side.

use tidegate_core::{Clock, Decision, Key, Nanos};

use super::KeyedLimiter;
use crate::table::Tag;

/// Buckets that are fetched at a time: more than a processor has on their way at once, and few enough to stay in its
/// nearest cache until they are decided on.
const AT_ONCE: usize = 32;

impl<C> KeyedLimiter<C> {
    /// Asks for the cost of each key, at a time of the caller's, and shows the decisions in the order of the requests.
    /// Each is a decision of its own, as [`acquire_at`](Self::acquire_at) makes it: some may be admitted and others
    /// denied, and a key that is asked for twice is charged twice.
    ///
    /// With many keys most of a decision is waiting for memory. Here all buckets of up to 32 keys are on their way before
    /// the first decision.
    #[inline]
    pub fn acquire_each_at<K: Key>(&self, requests: &[(K, u32)], now: Nanos, mut show: impl FnMut(Decision)) {
        let mut tags = [Tag::new(0); AT_ONCE];
        for some in requests.chunks(AT_ONCE) {
            let table = &self.generations.newest().table;
            for (tag, (key, _)) in tags.iter_mut().zip(some) {
                *tag = self.tag_of(key);
                table.prefetch(*tag);
            }
            for (tag, (_, cost)) in tags.iter().zip(some) {
                show(self.decide(*tag, *cost, now));
            }
        }
    }

    /// [`acquire_each_at`](Self::acquire_each_at), with the decisions in a vector.
    pub fn acquire_many_at<K: Key>(&self, requests: &[(K, u32)], now: Nanos) -> Vec<Decision> {
        let mut decisions = Vec::with_capacity(requests.len());
        self.acquire_each_at(requests, now, |decision| decisions.push(decision));
        decisions
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// Asks for the cost of each key now (see [`acquire_each_at`](Self::acquire_each_at)). The time is read once.
    ///
    /// ```
    /// use tidegate::{KeyedLimiter, Policy, Quota};
    /// let limiter = KeyedLimiter::new(Policy::token_bucket(Quota::per_minute(2)))?;
    /// let decisions = limiter.acquire_many(&[("alice", 1), ("bob", 2), ("bob", 1)]);
    /// assert!(decisions[0].is_allowed() && decisions[1].is_allowed() && decisions[2].is_denied());
    /// # Ok::<(), tidegate::BuildError>(())
    /// ```
    pub fn acquire_many<K: Key>(&self, requests: &[(K, u32)]) -> Vec<Decision> {
        self.acquire_many_at(requests, self.clock().now())
    }
}
