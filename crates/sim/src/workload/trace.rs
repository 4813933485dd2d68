//! Requests read from a log, in memory: 16 bytes per line, and each key once.

use std::ops::Range;

use indexmap::IndexSet;

use super::By;
use super::Workload;

/// Each key once. The hash is seeded at random, so that clients who write to a log cannot choose
/// collisions.
type Keys = IndexSet<Box<[u8]>, foldhash::fast::RandomState>;

/// Marks a `count` that is an index in the large costs.
const LARGE: u32 = 1 << 31;

/// `count` requests of one key at one time; in a trace with costs, one request with that cost, or
/// the [index](LARGE) of its cost.
#[derive(Clone, Copy, Debug)]
struct TraceEvent {
    time: u64,
    key: u32,
    count: u32,
}

/// Requests from a log, sorted by key, then by time; ties stay in the order in which they were
/// read.
#[derive(Clone, Debug)]
pub struct Trace {
    by: By,
    keys: Keys,
    events: Vec<TraceEvent>,
    /// The index in `events` at which each key begins, and at the end the number of events.
    starts: Vec<usize>,
    requests: u64,
    span: (u64, u64),
    dated: bool,
    spread: u64,
    resolution: u64,
    has_costs: bool,
    /// When requests are charged, and their costs; an event's count is its index. Empty if costs
    /// are known before.
    charges: Vec<(u64, u64)>,
    /// Costs from [`LARGE`] on.
    large: Vec<u64>,
}

impl Trace {
    /// Whether a request has a cost above 1.
    pub const fn has_costs(&self) -> bool {
        self.has_costs
    }

    /// The key with the most requests, and their number.
    pub fn busiest(&self) -> Option<(String, u64)> {
        let requests = |key| {
            let events = self.events(key);
            if self.has_costs {
                events.len() as u64
            } else {
                events.iter().map(|event| u64::from(event.count)).sum()
            }
        };
        let (most, key) = (0..self.keys()).map(|key| (requests(key), key)).max()?;
        Some((self.label(key), most))
    }

    /// The first part of a key in readable form.
    ///
    /// # Panics
    /// If the trace has fewer keys.
    pub fn first_part(&self, key: u32) -> String {
        self.by.first_part(&self.keys[key as usize])
    }

    /// The resolution of the times as they were read, in nanoseconds: see
    /// [`TraceBuilder::resolution`].
    pub const fn resolution(&self) -> u64 {
        self.resolution
    }

    /// A trace with only the requests of the keys for whose label `keep` returns true.
    pub fn of_keys(&self, keep: impl Fn(&str) -> bool) -> Self {
        let mut builder = TraceBuilder {
            has_costs: self.has_costs,
            large: self.large.clone(),
            ..TraceBuilder::new(self.by.clone())
        };
        for key in 0..self.keys() {
            if keep(&self.label(key)) {
                let name = &self.keys[key as usize];
                for event in self.events(key) {
                    // There are no more keys than before.
                    let _ = match self.charges.get(event.count as usize) {
                        Some(&(end, cost)) => builder.push_charged(name, event.time, end, cost),
                        None => builder.push(name, event.time, event.count),
                    };
                }
            }
        }
        Self {
            resolution: self.resolution,
            span: self.span,
            ..builder.build(self.dated, self.spread)
        }
    }

    fn events(&self, key: u32) -> &[TraceEvent] {
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
        self.times_of(self.events(key))
    }

    fn costs(&self, key: u32) -> impl Iterator<Item = (u64, u64)> {
        let events = self.events(key);
        let (weighed, counted) = if self.has_costs {
            (events, &[][..])
        } else {
            (&[][..], events)
        };
        let cost = |event: &TraceEvent| match (self.charges.get(event.count as usize), event.count)
        {
            (Some((_, cost)), _) => *cost,
            (None, count) if count < LARGE => count.into(),
            (None, count) => self.large[(count - LARGE) as usize],
        };
        let weighed = weighed.iter().map(move |event| (event.time, cost(event)));
        weighed.chain(self.times_of(counted).map(|time| (time, 1)))
    }

    fn ends(&self, key: u32) -> impl Iterator<Item = u64> {
        self.events(key)
            .iter()
            .filter_map(|event| Some(self.charges.get(event.count as usize)?.0))
    }

    fn is_charged(&self) -> bool {
        !self.charges.is_empty()
    }

    fn times_from(&self, key: u32, from: u64) -> impl Iterator<Item = u64> {
        let events = self.events(key);
        let earlier = events.partition_point(|event| event.time.saturating_add(self.spread) < from);
        self.times_of(&events[earlier..])
            .skip_while(move |&time| time < from)
    }
}

impl Trace {
    fn times_of<'a>(&'a self, events: &'a [TraceEvent]) -> impl Iterator<Item = u64> + 'a {
        let (spread, has_costs) = (self.spread, self.has_costs);
        events.iter().flat_map(move |event| {
            let count = if has_costs { 1 } else { u64::from(event.count) };
            // Request number `at` comes `at * spread / count` after the event's time. The quotient
            // is added up instead: a division for each event, none for each request.
            let (step, rest) = (spread / count, spread % count);
            let (mut time, mut carried) = (event.time, 0);
            (0..count).map(move |_| {
                let now = time;
                time += step;
                carried += rest;
                if carried >= count {
                    carried -= count;
                    time += 1;
                }
                now
            })
        })
    }
}

/// The possible resolutions of times, the coarsest first.
const GRAINS: [u64; 7] = [
    86_400_000_000_000,
    3_600_000_000_000,
    60_000_000_000,
    1_000_000_000,
    1_000_000,
    1_000,
    1,
];

/// Collects requests while they are read, in any order of time.
#[derive(Clone, Debug)]
pub struct TraceBuilder {
    by: By,
    keys: Keys,
    events: Vec<TraceEvent>,
    requests: u64,
    has_costs: bool,
    charges: Vec<(u64, u64)>,
    large: Vec<u64>,
    /// The index in [`GRAINS`] of the coarsest resolution of all times so far.
    grain: usize,
    last_time: u64,
    line_time: Option<u64>,
}

impl TraceBuilder {
    /// A builder without requests; `by` says how keys are composed.
    pub fn new(by: By) -> Self {
        Self {
            by,
            keys: Keys::default(),
            events: Vec::new(),
            requests: 0,
            has_costs: false,
            charges: Vec::new(),
            large: Vec::new(),
            grain: 0,
            last_time: 0,
            line_time: None,
        }
    }

    /// A builder without requests, for requests with costs: see [`push_cost`](Self::push_cost).
    pub fn with_costs(by: By) -> Self {
        Self {
            has_costs: true,
            ..Self::new(by)
        }
    }

    /// Adds `count` requests of a key at a time (in nanoseconds, at most `Nanos::MAX`).
    ///
    /// Returns `false`, and adds nothing, for a new key if there are 4,294,967,295 already.
    pub fn push(&mut self, key: &[u8], time: u64, count: u32) -> bool {
        let Some(key) = self.number_of(key) else {
            return false;
        };
        if count > 0 {
            let requests = if self.has_costs { 1 } else { u64::from(count) };
            self.add(TraceEvent { time, key, count }, requests);
        }
        true
    }

    /// Adds one request of a key that comes at `time`, asks with a cost of 0, and is charged at
    /// `end` (at least `time`) if it is admitted. A builder has requests of this kind only, or
    /// none.
    ///
    /// Returns `false`, and adds nothing, as [`push`](Self::push) does; also for more than
    /// 4,294,967,296 requests.
    pub fn push_charged(&mut self, key: &[u8], time: u64, end: u64, cost: u64) -> bool {
        let (Some(key), Ok(count)) = (self.number_of(key), u32::try_from(self.charges.len()))
        else {
            return false;
        };
        self.charges.push((end.max(time), cost));
        self.add(TraceEvent { time, key, count }, 1);
        true
    }

    fn number_of(&mut self, key: &[u8]) -> Option<u32> {
        let known = match self.by.fields() {
            // One limit for all requests needs no lookup.
            [] if !self.keys.is_empty() => Some(0),
            _ => self.keys.get_index_of(key),
        };
        let key = match known {
            Some(key) => key,
            None if self.keys.len() < u32::MAX as usize => self.keys.insert_full(key.into()).0,
            None => return None,
        };
        Some(key as u32)
    }

    /// The time of the line of the next request, if the request's time was computed from it. It
    /// has the log's [resolution](Self::resolution), which the computed time exceeds.
    pub(crate) fn line_time(&mut self, time: u64) {
        self.line_time = Some(time);
    }

    fn add(&mut self, event: TraceEvent, requests: u64) {
        let time = self.line_time.take().unwrap_or(event.time);
        if time != self.last_time {
            self.last_time = time;
            while !time.is_multiple_of(GRAINS[self.grain]) {
                self.grain += 1;
            }
        }
        self.events.push(event);
        self.requests += requests;
    }

    /// Adds one request with a cost to a builder [with costs](Self::with_costs); otherwise as
    /// [`push`](Self::push). Callers keep the sum of all costs below 2⁶⁴.
    pub fn push_cost(&mut self, key: &[u8], time: u64, cost: u64) -> bool {
        let count = match u32::try_from(cost) {
            Ok(count) if count < LARGE => count,
            _ => {
                let Some(at) = u32::try_from(self.large.len())
                    .ok()
                    .filter(|at| *at < LARGE)
                else {
                    return false;
                };
                self.large.push(cost);
                LARGE | at
            }
        };
        self.push(key, time, count)
    }

    /// The number of requests added.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// The coarsest of a day, an hour, a minute, a second, a milli-, micro- and nanosecond of which
    /// all times are whole multiples, in nanoseconds.
    pub const fn resolution(&self) -> u64 {
        GRAINS[self.grain]
    }

    /// Sorts the requests and builds the trace. `dated` is [`Workload::has_dates`]. A key's
    /// requests with the same time are spread evenly over `spread` nanoseconds, or all arrive at
    /// once if that is 0.
    pub fn build(self, dated: bool, spread: u64) -> Trace {
        let resolution = self.resolution();
        let Self {
            by,
            keys,
            events,
            requests,
            has_costs,
            charges,
            large,
            ..
        } = self;
        // Without a cost above 1, the requests are as those of a log.
        let has_costs =
            !charges.is_empty() || has_costs && events.iter().any(|event| event.count > 1);
        let last = events.iter().map(|event| event.time).max().unwrap_or(0);
        let first = events.iter().map(|event| event.time).min().unwrap_or(0);
        let (mut events, mut starts) = by_key(&events, keys.len());
        for bounds in starts.windows(2) {
            let own = &mut events[bounds[0]..bounds[1]];
            // A log is written in order of time, or nearly so.
            if !own.is_sorted_by_key(|event| event.time) {
                own.sort_by_key(|event| event.time);
            }
        }
        if spread > 0 && !has_costs {
            // A key's requests of the same time become one event.
            events.dedup_by(|event, last| {
                let joins = (event.key, event.time) == (last.key, last.time)
                    && last.count <= u32::MAX - event.count;
                if joins {
                    last.count += event.count;
                }
                joins
            });
            starts = starts_of(&events, keys.len());
        }
        Trace {
            by,
            keys,
            events,
            starts,
            requests,
            span: (first, last + spread),
            dated,
            spread,
            resolution,
            has_costs,
            charges,
            large,
        }
    }
}

/// The index at which each key's events begin in a list that is grouped by key, and at the end the
/// number of events.
fn starts_of(events: &[TraceEvent], keys: usize) -> Vec<usize> {
    let mut starts = vec![0; keys + 1];
    for event in events {
        starts[event.key as usize + 1] += 1;
    }
    for key in 0..keys {
        starts[key + 1] += starts[key];
    }
    starts
}

/// The events grouped by key, in their original order, and the [starts](starts_of) of the keys.
fn by_key(events: &[TraceEvent], keys: usize) -> (Vec<TraceEvent>, Vec<usize>) {
    let starts = starts_of(events, keys);
    let mut next = starts.clone();
    let mut sorted = vec![
        TraceEvent {
            time: 0,
            key: 0,
            count: 0
        };
        events.len()
    ];
    for event in events {
        let place = &mut next[event.key as usize];
        sorted[*place] = *event;
        *place += 1;
    }
    (sorted, starts)
}
