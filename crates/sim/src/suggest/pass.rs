//! Replays one limit, on a whole workload or on what is left of it.

use std::num::NonZeroUsize;

use tidegate_core::{Policy, Quota};

use super::{Goal, Survey, busy::Meter, fragments::Fragments, sieve::stretches};
use crate::{
    progress::Progress,
    replay::{KeyState, on_threads},
    workload::Workload,
};

/// The maximum number of requests kept for the next passes: 128 MiB. If more are left, the next
/// pass replays everything again.
const KEPT: usize = 1 << 24;
/// How often progress is reported.
const TOLD: u64 = 1 << 16;

/// The denials of a limit, up to the point at which it has denied too much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Denials {
    pub denied: u64,
    pub denied_keys: u64,
}

/// The denials that a limit may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    pub denied: u64,
    pub denied_keys: u64,
}

impl Allowance {
    pub const ALL: Self = Self {
        denied: u64::MAX,
        denied_keys: u64::MAX,
    };

    pub fn new(goal: Goal, keys: u64, requests: u64) -> Self {
        Self {
            denied: goal.requests.map_or(u64::MAX, |share| share.of(requests)),
            denied_keys: goal.keys.map_or(u64::MAX, |share| share.of(keys)),
        }
    }

    pub const fn covers(self, denials: Denials) -> bool {
        denials.denied <= self.denied && denials.denied_keys <= self.denied_keys
    }
}

/// A quota during a pass.
struct Run<'a> {
    meter: Option<Meter>,
    decider: Decider,
    looked_at: u64,
    progress: &'a Progress,
}

/// Decides on the requests that a meter returns, and keeps them.
struct Decider {
    state: KeyState,
    allowance: Allowance,
    /// The requests to try every higher limit on; `None` if they are too many to keep.
    left: Option<Fragments>,
    denials: Denials,
    /// For the current key: whether it has a fragment, and whether it was denied.
    begun: bool,
    denied: bool,
    /// Requests that the state has seen since it was fresh.
    seen: u64,
}

impl Decider {
    #[inline]
    fn decide(&mut self, time: u64, fresh: bool) {
        if let Some(left) = &mut self.left {
            left.push(time, fresh, fresh && !self.begun);
            if left.len() > KEPT {
                self.left = None;
            }
        }
        self.begun = true;
        if !self.allowance.covers(self.denials) {
            return;
        }
        if fresh {
            self.refresh();
        }
        self.seen += 1;
        if self.state.decide(time, 1).is_denied() {
            self.denials.denied += 1;
            self.denials.denied_keys += u64::from(!self.denied);
            self.denied = true;
        }
    }

    fn refresh(&mut self) {
        self.state.clear(std::mem::take(&mut self.seen));
    }
}

impl<'a> Run<'a> {
    fn new(policy: &Policy, quota: Quota, allowance: Allowance, progress: &'a Progress) -> Self {
        let meter = Meter::new(policy, quota);
        let decider = Decider {
            state: KeyState::new(*policy),
            allowance,
            left: meter.is_some().then(Fragments::default),
            denials: Denials::default(),
            begun: false,
            denied: false,
            seen: 0,
        };
        Self {
            meter,
            decider,
            looked_at: 0,
            progress,
        }
    }

    /// Whether the pass can stop: too much is denied, and what is left is not kept.
    fn is_over(&self) -> bool {
        self.decider.left.is_none() && !self.decider.allowance.covers(self.decider.denials)
    }

    #[inline]
    fn request(&mut self, now: u64) {
        self.looked_at += 1;
        if self.looked_at.is_multiple_of(TOLD) {
            self.progress.add(TOLD);
        }
        let Some(meter) = &mut self.meter else {
            return self.decider.decide(now, false);
        };
        meter.request(now, |time, fresh| self.decider.decide(time, fresh));
        if meter.remembered() > KEPT {
            self.decider.left = None;
        }
    }

    fn requests(&mut self, times: impl Iterator<Item = u64>) {
        for time in times {
            self.request(time);
            if self.is_over() {
                break;
            }
        }
    }

    /// The next requests are a new fragment of the same key.
    fn next_fragment(&mut self) {
        if let Some(meter) = &mut self.meter {
            meter.clear();
        }
        self.decider.refresh();
    }

    fn next_key(&mut self) {
        self.next_fragment();
        (self.decider.begun, self.decider.denied) = (false, false);
    }

    fn absorb(&mut self, other: Self) {
        let (sum, other) = (&mut self.decider, other.decider);
        sum.denials.denied += other.denials.denied;
        sum.denials.denied_keys += other.denials.denied_keys;
        match (&mut sum.left, other.left) {
            (Some(left), Some(others)) if left.len() + others.len() <= KEPT => left.append(others),
            (left, _) => *left = None,
        }
    }

    fn finish(self) -> (Denials, Option<Fragments>) {
        self.progress.add(self.looked_at % TOLD);
        (self.decider.denials, self.decider.left)
    }
}

/// The quota's denials of a whole workload, and the requests that are left for every higher limit.
/// If more is denied than allowed, the pass may stop early, and the number of denials is only a
/// number above the allowed one.
pub(super) fn through_all<W: Workload>(
    (workload, survey): (&W, &Survey),
    (policy, quota): (&Policy, Quota),
    allowance: Allowance,
    threads: NonZeroUsize,
    progress: &Progress,
) -> (Denials, Option<Fragments>) {
    let fresh = || Run::new(policy, quota, allowance, progress);
    let key = |run: &mut Run<'_>, key: u32| {
        run.next_key();
        let Some(stretches) = survey
            .bins(key)
            .and_then(|bins| stretches(bins, policy, quota))
        else {
            return run.requests(workload.times(key));
        };
        for stretch in stretches {
            run.next_fragment();
            run.requests(
                workload
                    .times_from(key, stretch.start)
                    .take_while(|&time| time < stretch.end),
            );
        }
    };
    on_threads(workload.keys(), threads, fresh, key, Run::absorb).finish()
}

/// The quota's denials of the requests that a lower limit left.
pub(super) fn through_fragments(
    fragments: &Fragments,
    (policy, quota): (&Policy, Quota),
    allowance: Allowance,
    progress: &Progress,
) -> (Denials, Option<Fragments>) {
    let mut run = Run::new(policy, quota, allowance, progress);
    for (first, times) in fragments.iter() {
        if first {
            run.next_key();
        } else {
            run.next_fragment();
        }
        for &time in times {
            run.request(time);
        }
    }
    run.finish()
}
