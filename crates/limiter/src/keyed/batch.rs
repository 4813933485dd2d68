//! Many decisions in one call, with the states fetched in parallel.

use tidegate_core::{Clock, Decision, Key};

use super::{KeyedAt, KeyedLimiter};
use crate::table::Tag;

/// How many buckets are fetched at a time: more than a processor can fetch in parallel, and few
/// enough to stay in its nearest cache until they are decided on.
const AT_ONCE: usize = 32;

impl<C> KeyedAt<'_, C> {
    /// Asks for the cost of each key, and passes the decisions on in the order of the requests. Each
    /// decision is separate, as [`acquire`](Self::acquire) makes it: some requests may be admitted
    /// and others denied, and a key that occurs twice is charged twice.
    ///
    /// With many keys, most of a decision's time is spent waiting for memory. This method starts
    /// fetching the buckets of up to 32 keys before the first decision.
    #[inline]
    pub fn acquire_each<K: Key>(self, requests: &[(K, u64)], mut show: impl FnMut(Decision)) {
        let Self { limiter, now } = self;
        let mut tags = [Tag::new(0); AT_ONCE];
        for some in requests.chunks(AT_ONCE) {
            let table = limiter.generations.newest().table();
            for (tag, (key, _)) in tags.iter_mut().zip(some) {
                *tag = limiter.tag_of(key);
                table.prefetch(*tag);
            }
            for (tag, (_, cost)) in tags.iter().zip(some) {
                show(limiter.decide(*tag, *cost, now));
            }
        }
    }

    /// [`acquire_each`](Self::acquire_each), with the decisions in a vector.
    pub fn acquire_many<K: Key>(self, requests: &[(K, u64)]) -> Vec<Decision> {
        let mut decisions = Vec::with_capacity(requests.len());
        self.acquire_each(requests, |decision| decisions.push(decision));
        decisions
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// Asks for the cost of each key now (see [`KeyedAt::acquire_each`]). The clock is read once.
    ///
    /// ```
    /// # use tidegate_limiter as tidegate;
    /// use tidegate::{KeyedLimiter, Policy, Quota};
    /// let limiter = KeyedLimiter::new(Policy::token_bucket(Quota::per_minute(2)))?;
    /// let decisions = limiter.acquire_many(&[("alice", 1), ("bob", 2), ("bob", 1)]);
    /// assert!(decisions[0].is_allowed() && decisions[1].is_allowed() && decisions[2].is_denied());
    /// # Ok::<(), tidegate::BuildError>(())
    /// ```
    pub fn acquire_many<K: Key>(&self, requests: &[(K, u64)]) -> Vec<Decision> {
        self.at_now().acquire_many(requests)
    }
}
