//! The header fields of the IETF draft `draft-ietf-httpapi-ratelimit-headers`.

use std::{ops::Deref, time::Duration};

use tidegate_core::{Algorithm, Decision, Parameters, Policy};

/// The unit of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Requests in a window. Written only if the window is a whole number of seconds.
    Window(Duration),
    /// Requests in a time that cannot be named.
    Time,
    /// Requests in flight.
    InFlight,
}

/// Appends `"name";q=…;w=…` to the list in `text`. The name must not contain quotes or backslashes.
pub fn write_policy(text: &mut String, name: &str, quota: u64, per: Per) {
    write(text, |line| push_policy(line, name, quota, per));
}

/// Appends `"name";r=…;t=…` to the list in `text`, without `t` if the time is unknown. The name
/// must not contain quotes or backslashes.
pub fn write_state(text: &mut String, name: &str, decision: &Decision) {
    write(text, |line| push_state(line, name, decision));
}

fn write(text: &mut String, push: impl FnOnce(&mut FieldText)) {
    if !text.is_empty() {
        text.push_str(", ");
    }
    let mut line = FieldText::new();
    push(&mut line);
    // All of it was text.
    text.push_str(str::from_utf8(&line).unwrap_or_default());
}

/// A field's value while it is written. Up to 96 bytes are kept without an allocation.
pub struct FieldText {
    short: [u8; SHORT],
    used: usize,
    /// The whole value, once it is longer.
    long: Vec<u8>,
}

/// Two limits with names of usual length.
const SHORT: usize = 96;

impl Default for FieldText {
    fn default() -> Self {
        Self::new()
    }
}

impl FieldText {
    /// An empty value.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            short: [0; SHORT],
            used: 0,
            long: Vec::new(),
        }
    }

    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        match self.short.get_mut(self.used..end) {
            Some(place) if self.long.is_empty() => place.copy_from_slice(bytes),
            _ => self.spill(bytes),
        }
        self.used = end;
    }

    /// Appends an entry of a list.
    pub fn push_entry(&mut self, entry: &[u8]) {
        if !self.is_empty() {
            self.extend_from_slice(b", ");
        }
        self.extend_from_slice(entry);
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.used]);
        }
        self.long.extend_from_slice(bytes);
    }
}

impl Deref for FieldText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.used]
        } else {
            &self.long
        }
    }
}

/// Appends an entry of `RateLimit-Policy`.
pub fn push_policy(line: &mut FieldText, name: &str, quota: u64, per: Per) {
    begin(line, name);
    line.extend_from_slice(b";q=");
    push_number(line, quota);
    match per {
        Per::Window(window) if window.subsec_nanos() == 0 => {
            line.extend_from_slice(b";w=");
            push_number(line, window.as_secs());
        }
        Per::Window(_) | Per::Time => {}
        Per::InFlight => line.extend_from_slice(b";qu=\"concurrent-requests\""),
    }
}

fn push_state(line: &mut FieldText, name: &str, decision: &Decision) {
    begin(line, name);
    line.extend_from_slice(b";r=");
    push_standing(line, decision);
}

/// Appends an entry of `RateLimit` that starts with `"name";r=`.
pub fn push_state_after(line: &mut FieldText, start: &[u8], decision: &Decision) {
    line.push_entry(start);
    push_standing(line, decision);
}

fn push_standing(line: &mut FieldText, decision: &Decision) {
    push_number(line, decision.remaining());
    if decision.reset_after_nanos() != u64::MAX {
        line.extend_from_slice(b";t=");
        push_number(line, ceil_secs(decision.reset_after()));
    }
}

fn begin(line: &mut FieldText, name: &str) {
    line.push_entry(b"\"");
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\"");
}

fn push_number(line: &mut FieldText, number: u64) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Rounds up to whole seconds, so that a client that waits this long has waited long enough.
#[must_use]
pub fn ceil_secs(span: Duration) -> u64 {
    span.as_secs()
        .saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// The highest value of [`retry_after`], in seconds: about 23 days. Clients that count milliseconds
/// in 32 bits misread a time from 24.8 days on, and ask again at once.
const LONGEST_WAIT: u64 = 2_000_000;

/// The value of `Retry-After` in seconds, rounded up, and at most 2,000,000: a client that asks
/// again then gets the rest.
#[must_use]
pub fn retry_after(wait: Duration) -> u64 {
    ceil_secs(wait).min(LONGEST_WAIT)
}

/// The quota of a policy and its unit. For a bucket this is the burst and the time that refills it:
/// the same as its quota if the burst equals the quota.
#[must_use]
pub fn quota(policy: &Policy) -> (u64, Per) {
    let limit = policy.limit();
    let window = |nanos: u64| Per::Window(Duration::from_nanos(nanos));
    let bucket = |step: u64, parts: u64| {
        let ticks = u128::from(limit) * u128::from(step);
        let exact = ticks.is_multiple_of(u128::from(parts.max(1))) && limit > 0;
        u64::try_from(ticks / u128::from(parts.max(1)))
            .ok()
            .filter(|_| exact)
            .map_or(Per::Time, window)
    };
    let per = match policy.parameters() {
        Parameters::FixedWindow { window: nanos, .. }
        | Parameters::SlidingWindow { window: nanos, .. }
        | Parameters::SlidingCounter { window: nanos, .. } => window(nanos),
        // The span of a closed window is one nanosecond longer.
        Parameters::SlidingLog { lifetime, .. } if lifetime % 1_000 == 1 => window(lifetime - 1),
        Parameters::SlidingLog { lifetime, .. } => window(lifetime),
        Parameters::TokenBucket { step, parts, .. }
        | Parameters::LeakyBucket { step, parts, .. } => bucket(step, parts),
        Parameters::Concurrency { .. } => Per::InFlight,
        _ => Per::Time,
    };
    (limit, per)
}
