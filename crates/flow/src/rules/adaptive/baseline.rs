//! The common part of the three algorithms: how long a call takes without a queue, and how long a
//! useful queue is.
//!
//! Response times alone cannot distinguish a slow service from a queue. So while calls are blocked,
//! the algorithm periodically lowers the limit for a moment, below the number of calls that the
//! service works on at once. The response times in that moment are those without a queue. It also
//! does this before it accepts a sudden rise of response times. Between these measurements it
//! counts the calls that end: a queue does not change their number, but a slower service ends
//! fewer.
//!
//! The share of blocked calls determines how long the queue should be. Calls arrive at random, so
//! without a queue a worker is sometimes idle. If twice as many calls arrive as can be served, a
//! queue of two keeps all workers busy; if hardly any call is blocked, it takes more than ten.

use std::time::Duration;

use super::{CallWindow, Pace};

/// The number of windows between two measurements while calls are blocked.
const EVERY: u32 = 30;
/// The number of windows until a measurement confirms that the service has become slower.
const SOON: u32 = 8;
/// The part of the calls worked on at once that may be in flight during a measurement.
const LOWERED: f64 = 0.7;
/// A measurement never lowers the limit below this part of it, because a sudden rise of response
/// times may not be a queue.
const LEAST: f64 = 0.35;
/// The step factor of a search: `FAR` at first, or when the service has become faster; `NEAR` when
/// there was no queue for some windows.
const FAR: f64 = 1.5;
const NEAR: f64 = 1.1;
/// Means vary: a response time up to this factor longer is not yet a queue.
const MARGIN: f64 = 1.05;
/// The longest allowed queue.
const MOST: f64 = 6.5;
/// The longest allowed queue while nothing is blocked: what a shorter one would gain or lose is not
/// known then.
const UNBLOCKED: f64 = 4.0;
/// The limit does not grow while the share of blocked calls is smaller than this. A higher limit
/// could gain no more than that share, and if the service can serve nearly all calls, the limit
/// would grow until no call is blocked.
const WORTH_MORE: f64 = 0.01;

/// The bounds of the part of the usual calls below which a service has become slower. Between them
/// the part depends on the number of calls: it is four standard deviations of calls that end at
/// random.
const LOST: (f64, f64) = (0.7, 0.9);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Baseline {
    /// The mean time of a call without a queue, in seconds; 0 before the first window.
    rt: f64,
    /// Whether `rt` is only a first estimate that has not been measured.
    is_rough: bool,
    /// Whether a measurement has succeeded.
    is_measured: bool,
    /// The share of blocked calls, smoothed over some windows.
    blocked: f64,
    phase: Phase,
    /// The number of windows with blocked calls since the last measurement.
    since: u32,
    /// The factor of the search steps; 0 if no search is running.
    search: f64,
    /// The number of consecutive windows without a queue.
    unhurried: u32,
    /// The mean of the last window, which sets the pace of a measurement.
    last: f64,
    /// How many calls a second ended, smoothed over some windows and without measurements. It rises
    /// faster than it falls.
    usual: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Phase {
    #[default]
    Normal,
    /// The limit is lowered. `before` is its previous value.
    Measuring { before: f64 },
}

/// The conclusion from a window.
pub(super) enum Seen {
    /// Use this limit and ignore the algorithm.
    Take(f64),
    Normal(Queueing),
}

pub(super) struct Queueing {
    /// The mean response time divided by the time without a queue, at least 1.
    pub(super) slower: f64,
    /// How many calls may queue.
    pub(super) room: f64,
    /// Whether enough calls are blocked to justify a higher limit.
    may_grow: bool,
}

impl Queueing {
    /// Returns the next limit, which is not above the previous one unless it may grow.
    pub(super) fn kept(&self, limit: f64, next: f64) -> f64 {
        if self.may_grow { next } else { next.min(limit) }
    }
}

/// Returns how many calls ended in a second.
fn ended(window: &CallWindow) -> f64 {
    window.calls as f64 / window.span.as_secs_f64().max(1e-9)
}

impl Baseline {
    pub(super) fn new() -> Self {
        Self {
            search: FAR,
            ..Self::default()
        }
    }

    /// Returns the pace of the next window.
    pub(super) fn pace(&self) -> Pace {
        match self.phase {
            Phase::Normal => Pace::default(),
            Phase::Measuring { .. } => {
                // By then the calls that were queued before have ended.
                let skip = Duration::from_secs_f64((2.0 * self.last).min(10.0));
                let span = Duration::from_secs_f64((20.0 * self.rt).clamp(0.25, 1.0));
                Pace {
                    skip,
                    span,
                    calls: 200,
                }
            }
        }
    }

    /// Learns from a window that ran under `limit`.
    pub(super) fn learn(&mut self, limit: f64, window: &CallWindow) -> Seen {
        let rt = window.mean_rt.as_secs_f64().max(1e-9);
        self.last = rt;
        if let Phase::Measuring { before } = self.phase {
            return Seen::Take(self.measured(limit, before, rt));
        }
        self.follow(window, rt);
        let asked = (window.calls + window.blocked) as f64;
        let share = window.blocked as f64 / asked.max(1.0);
        self.blocked += (share - self.blocked) * 0.3;
        if self.rt <= 0.0 {
            self.rt = rt;
            self.is_rough = true;
            self.since = EVERY;
        }
        if rt < self.rt * 0.8 {
            // The service has become faster. A measurement will show by how much.
            self.rt = rt;
            self.is_rough = true;
            self.search = FAR;
            self.since = EVERY;
        }
        let slower = (rt / (self.rt * MARGIN)).max(1.0);
        if window.blocked == 0 {
            self.unhurried = 0;
            // A limit that is not even half used says nothing. One that is used and blocks nothing
            // may be too high.
            let is_used = window.in_flight as f64 * 2.0 >= limit;
            // While the limit is not used, nothing is known about a higher one.
            return if is_used {
                Seen::Normal(Queueing {
                    slower,
                    room: UNBLOCKED,
                    may_grow: false,
                })
            } else {
                Seen::Take(limit)
            };
        }
        self.since += 1;
        let room = (0.5 + 1.4 / self.blocked.max(0.01)).min(MOST);
        let queue = limit * (1.0 - 1.0 / slower);
        let is_long = queue > 2.0 * room + 0.25 * limit;
        if self.since >= EVERY || is_long && self.since > 1 {
            self.phase = Phase::Measuring { before: limit };
            // Nothing is known before the first measurement, not even whether there is a queue.
            let least = limit * LEAST;
            let lowered = if self.is_measured {
                least.max(limit / slower * LOWERED)
            } else {
                least
            };
            return Seen::Take(lowered.ceil());
        }
        self.unhurried = if queue < room / 2.0 {
            self.unhurried + 1
        } else {
            0
        };
        if queue > room {
            self.search = 0.0;
        } else if self.unhurried >= 3 && self.search < NEAR {
            self.search = NEAR;
        }
        let may_grow = share >= WORTH_MORE;
        if may_grow && self.search > 0.0 && self.unhurried > 0 {
            return Seen::Take(limit * self.search);
        }
        Seen::Normal(Queueing {
            slower,
            room,
            may_grow,
        })
    }

    /// Raises the time of a call without a queue when fewer calls end than usual although some are
    /// blocked. Then either the service has become slower in the same proportion, or the limit is
    /// so low that no call waits in a queue.
    fn follow(&mut self, window: &CallWindow, rt: f64) {
        let ended = ended(window);
        if self.usual <= 0.0 {
            self.usual = ended;
        }
        let lost = self.usual / ended;
        let by_chance = 1.0 - 4.0 / (window.calls as f64).sqrt();
        if window.blocked > 0 && lost * by_chance.clamp(LOST.0, LOST.1) > 1.0 {
            self.rt = self.rt.max(rt.min(self.rt * lost));
            self.usual = ended;
            // Chance may have ended fewer calls: a measurement will show it.
            self.is_rough = true;
            self.since = self.since.max(EVERY - SOON);
        } else {
            let weight = if ended > self.usual { 0.3 } else { 0.05 };
            self.usual += (ended - self.usual) * weight;
        }
    }

    /// Evaluates a measurement and returns the next limit.
    fn measured(&mut self, lowered: f64, before: f64, rt: f64) -> f64 {
        let known = self.rt;
        let is_new = self.is_rough || rt < known * 0.8 || rt > known * 1.35;
        self.is_rough = false;
        self.rt = if is_new {
            rt
        } else {
            known + (rt - known) * 0.3
        };
        let next = (lowered * LOWERED).ceil();
        if rt < known * 0.8 && next < lowered {
            // There was still a queue: measure again with fewer calls.
            self.phase = Phase::Measuring { before: lowered };
            return next;
        }
        self.phase = Phase::Normal;
        self.is_measured = true;
        self.since = 0;
        before
    }
}
