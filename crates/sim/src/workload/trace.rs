//! Requests that were read from a log, in memory: 16 bytes for each line, and each key once.

use std::ops::Range;

use indexmap::IndexSet;

use super::Workload;
use crate::input::By;

/// `count` requests of one key at one time.
#[derive(Clone, Copy, Debug)]
struct Event {
    time: u64,
    key: u32,
    count: u32,
}

/// Requests from a log, sorted by key, then by time; ties stay in the order in which they were read.
#[derive(Clone, Debug)]
pub struct Trace {
    by: By,
    keys: IndexSet<Box<[u8]>>,
    events: Vec<Event>,
    /// Where in `events` each key begins, and at last where they end.
    starts: Vec<usize>,
    requests: u64,
    span: (u64, u64),
    dated: bool,
    spread: u64,
}

impl Trace {
    fn events(&self, key: u32) -> &[Event] {
        let range: Range<usize> = self.starts[key as usize]..self.starts[key as usize + 1];
        &self.events[range]
    }
}

impl Workload for Trace {
    fn keys(&self) -> u32 {
        self.keys.len() as u32
    }

    fn requests(&self) -> u64 {
        self.requests
    }

    fn span(&self) -> (u64, u64) {
        self.span
    }

    fn has_dates(&self) -> bool {
        self.dated
    }

    fn label(&self, key: u32) -> String {
        self.by.label(&self.keys[key as usize])
    }

    fn times(&self, key: u32) -> impl Iterator<Item = u64> {
        let spread = self.spread;
        self.events(key).iter().flat_map(move |event| {
            let step = u128::from(spread);
            let (time, count) = (event.time, u128::from(event.count));
            (0..event.count).map(move |at| time + (u128::from(at) * step / count) as u64)
        })
    }
}

/// Takes requests as they are read, in any order of time.
#[derive(Debug)]
pub struct TraceBuilder {
    by: By,
    keys: IndexSet<Box<[u8]>>,
    events: Vec<Event>,
    requests: u64,
}

impl TraceBuilder {
    /// No requests yet; `by` says how the keys to come are put together.
    #[must_use]
    pub fn new(by: By) -> Self {
        Self { by, keys: IndexSet::new(), events: Vec::new(), requests: 0 }
    }

    /// Adds `count` requests of a key at a time (in nanoseconds, at most `Nanos::MAX`).
    ///
    /// Returns `false`, and adds nothing, for a new key when there are 4,294,967,295 already.
    #[must_use]
    pub fn push(&mut self, key: &[u8], time: u64, count: u32) -> bool {
        let known = match self.by.fields() {
            // One limit for all needs no look-up.
            [] if !self.keys.is_empty() => Some(0),
            _ => self.keys.get_index_of(key),
        };
        let key = match known {
            Some(key) => key,
            None if self.keys.len() < u32::MAX as usize => self.keys.insert_full(key.into()).0,
            None => return false,
        };
        if count > 0 {
            self.events.push(Event { time, key: key as u32, count });
            self.requests += u64::from(count);
        }
        true
    }

    /// How many requests were added.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Sorts what was added. `dated` as in [`Workload::has_dates`]. Requests that were added together come evenly over
    /// `spread` nanoseconds; all at once when it is 0.
    #[must_use]
    pub fn build(self, dated: bool, spread: u64) -> Trace {
        let Self { by, keys, mut events, requests } = self;
        let last = events.iter().map(|event| event.time).max().unwrap_or(0);
        let first = events.iter().map(|event| event.time).min().unwrap_or(0);
        events.sort_by_key(|event| (event.key, event.time));
        let mut starts = Vec::with_capacity(keys.len() + 1);
        let mut at = 0;
        for key in 0..keys.len() as u32 {
            starts.push(at);
            at += events[at..].iter().take_while(|event| event.key == key).count();
        }
        starts.push(at);
        Trace { by, keys, events, starts, requests, span: (first, last + spread), dated, spread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_by_key_and_in_order_of_time() {
        let mut builder = TraceBuilder::new(By::ip());
        for (key, time, count) in [("b", 30, 1), ("a", 20, 2), ("b", 10, 1), ("a", 5, 1), ("c", 1, 0)] {
            assert!(builder.push(key.as_bytes(), time, count));
        }
        let trace = builder.build(true, 0);
        assert_eq!((trace.keys(), trace.requests(), trace.span()), (3, 5, (5, 30)));
        let times = |key| trace.times(key).collect::<Vec<_>>();
        assert_eq!((trace.label(0).as_str(), times(0)), ("b", vec![10, 30]));
        assert_eq!((trace.label(1).as_str(), times(1)), ("a", vec![5, 20, 20]));
        assert_eq!((trace.label(2).as_str(), times(2)), ("c", vec![]));
    }

    #[test]
    fn requests_may_be_spread_over_their_second() {
        let mut builder = TraceBuilder::new(By::GLOBAL);
        assert!(builder.push(b"", 1_000, 4));
        let trace = builder.build(false, 1_000);
        assert_eq!(trace.times(0).collect::<Vec<_>>(), [1_000, 1_250, 1_500, 1_750]);
    }
}
