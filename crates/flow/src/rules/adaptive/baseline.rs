//! What the three algorithms have in common: how long a call takes without a queue, and how long a queue is worth having.
//!
//! Response times alone do not tell a slow service from a queue. So while calls are blocked, the limit is lowered for a
//! moment every now and then, below what the service works on at once: what calls take then is what they take without a
//! queue. The same is done before a sudden rise of response times is believed.
//!
//! How much of a queue is worth having follows from the share of the calls that is blocked. Calls come by chance, so
//! without a queue a worker idles now and then. Where twice as many come as can be served, two in line are enough to keep
//! all workers busy; where hardly any is blocked, it takes more than ten.

use std::time::Duration;

use super::{CallWindow, Pace};

/// Windows between two measurements, while calls are blocked.
const EVERY: u32 = 30;
/// The part of what is worked on at once that is left in flight while measuring.
const LOWERED: f64 = 0.7;
/// A measurement lowers the limit to this part of it at most: a sudden rise of response times may not be a queue.
const LEAST: f64 = 0.35;
/// The steps of a search at first, or when the service has become faster; and when no queue was seen for some windows.
const FAR: f64 = 1.5;
const NEAR: f64 = 1.1;
/// Means vary: so much longer is no queue yet.
const MARGIN: f64 = 1.05;
/// The most that a queue may hold.
const MOST: f64 = 6.5;
/// While a smaller share of the calls is blocked the limit does not grow: it could gain no more than that, and where the
/// service can serve nearly all that comes, it would grow until nothing is blocked any more.
const WORTH_MORE: f64 = 0.01;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Baseline {
    /// The mean time of a call without a queue, in seconds; 0 before the first window.
    rt: f64,
    /// It is a first guess, not yet measured.
    is_rough: bool,
    /// The share of the calls that is blocked, over some windows.
    blocked: f64,
    phase: Phase,
    /// Windows with blocked calls since the last measurement.
    since: u32,
    /// The limit is looked for in steps by this factor; 0 where it is not.
    search: f64,
    /// Windows in a row that saw no queue.
    unhurried: u32,
    /// The last window's mean, to set the pace of a measurement.
    last: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Phase {
    #[default]
    Normal,
    /// The limit is lowered; it was this.
    Measuring { before: f64 },
}

/// What a window says.
pub(super) enum Seen {
    /// The limit is this now, whatever the algorithm thinks.
    Take(f64),
    /// Nothing is known about more.
    Idle,
    Normal {
        /// The mean response time divided by that without a queue, at least 1.
        slower: f64,
        /// How many calls may wait.
        room: f64,
        /// Whether enough calls are blocked for a higher limit to be worth it.
        may_grow: bool,
    },
}

/// The next limit: not above the one so far unless it `may_grow`.
pub(super) fn kept(limit: f64, next: f64, may_grow: bool) -> f64 {
    if may_grow { next } else { next.min(limit) }
}

impl Baseline {
    pub(super) fn new() -> Self {
        Self { search: FAR, ..Self::default() }
    }

    /// How the next window is to be cut.
    pub(super) fn pace(&self) -> Pace {
        match self.phase {
            Phase::Normal => Pace::default(),
            Phase::Measuring { .. } => {
                // The calls that were in line before have left then.
                let skip = Duration::from_secs_f64((2.0 * self.last).min(10.0));
                let span = Duration::from_secs_f64((20.0 * self.rt).clamp(0.25, 1.0));
                Pace { skip, span, calls: 200 }
            }
        }
    }

    /// Learns from a window that went by under `limit`.
    pub(super) fn learn(&mut self, limit: f64, window: &CallWindow) -> Seen {
        let rt = window.mean_rt.as_secs_f64().max(1e-9);
        self.last = rt;
        if let Phase::Measuring { before } = self.phase {
            return Seen::Take(self.measured(limit, before, rt));
        }
        let asked = (window.calls + window.blocked) as f64;
        let share = window.blocked as f64 / asked.max(1.0);
        self.blocked += (share - self.blocked) * 0.3;
        if self.rt <= 0.0 {
            self.rt = rt;
            self.is_rough = true;
            self.since = EVERY;
        }
        if rt < self.rt * 0.8 {
            // The service has become faster: by how much, a measurement tells.
            self.rt = rt;
            self.is_rough = true;
            self.search = FAR;
            self.since = EVERY;
        }
        if window.blocked == 0 {
            self.unhurried = 0;
            return Seen::Idle;
        }
        self.since += 1;
        let slower = (rt / (self.rt * MARGIN)).max(1.0);
        let room = (0.5 + 1.4 / self.blocked.max(0.01)).min(MOST);
        let queue = limit * (1.0 - 1.0 / slower);
        let is_long = queue > 2.0 * room + 0.25 * limit;
        if self.since >= EVERY || is_long && self.since > 1 {
            self.phase = Phase::Measuring { before: limit };
            return Seen::Take((limit / slower * LOWERED).max(limit * LEAST).max(1.0));
        }
        self.unhurried = if queue < room / 2.0 { self.unhurried + 1 } else { 0 };
        if queue > room {
            self.search = 0.0;
        } else if self.unhurried >= 3 && self.search < NEAR {
            self.search = NEAR;
        }
        let may_grow = share >= WORTH_MORE;
        if may_grow && self.search > 0.0 && self.unhurried > 0 {
            return Seen::Take(limit * self.search);
        }
        Seen::Normal { slower, room, may_grow }
    }

    /// Takes in a measurement; returns the limit to go on with.
    fn measured(&mut self, lowered: f64, before: f64, rt: f64) -> f64 {
        let known = self.rt;
        let is_new = self.is_rough || rt < known * 0.8 || rt > known * 1.35;
        self.is_rough = false;
        self.rt = if is_new { rt } else { known + (rt - known) * 0.3 };
        if rt < known * 0.8 {
            // There was a queue still: look again with fewer.
            self.phase = Phase::Measuring { before: lowered };
            return (lowered * LOWERED).max(1.0);
        }
        self.phase = Phase::Normal;
        self.since = 0;
        before
    }
}
