//! A policy prepared for the scripts.

mod block;
mod error;
mod grants;
mod line;
mod numbers;
mod shares;
mod state;

pub(super) use block::words as block_words;
pub use error::PlanError;
pub use line::LineSeen;
pub(super) use line::seen as line_seen;
use shares::PlanShares;
pub use shares::ShareSeen;
pub(super) use shares::seen as share_seen;
use tidegate_core::{Algorithm, Calendar, Decision, Nanos, Parameters, Penalty, Policy, Priority};

use super::ScriptKind;
use crate::StoreError;

/// A log up to this length is one value that is rewritten whole; a longer one is a ring written in
/// place.
const LIST: u64 = 128;
/// Permits are a list, which is rewritten whenever one is taken or given back.
const MAX_PERMITS: u64 = 4096;

/// A policy prepared for the scripts, once for all keys.
#[derive(Clone, Debug)]
pub struct Plan {
    policy: Policy,
    kind: ScriptKind,
    /// The limit's numbers, as the script unpacks them.
    numbers: Vec<u8>,
    /// Part of the key that names the values' meaning, so that a limit whose values change their
    /// meaning gets other keys.
    shape: String,
    layout: ValueLayout,
    calendar: Option<&'static Calendar>,
    /// How much later than it counts a unit may be used (see [`whole`](Self::whole)).
    held: Nanos,
    /// The blocks that denials lead to, under a separate key.
    penalty: Option<Penalty>,
    /// Whether requests can wait in a line, under another separate key.
    has_line: bool,
    /// The priority of a request that joins the line.
    joins: Option<Priority>,
    /// Tenants that share the limit, under further keys.
    shares: Option<Box<PlanShares>>,
}

/// The layout of a value in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueLayout {
    /// Start and count.
    Window { count_bytes: usize },
    /// The end of what is in use, the count, and the rule that wrote it.
    Saving { window: u64, lump: u64 },
    /// Start, previous count, current count.
    Counter { count_bytes: usize },
    /// Start, sum, and the counts of slots of `slot` microseconds.
    Slots {
        slot: u64,
        count_bytes: usize,
        span: usize,
    },
    /// Microseconds; unless the interval is whole, a fraction in `1 / (1000 × parts)` of one; and
    /// the rule that wrote it.
    Bucket {
        part_bytes: usize,
        parts: u64,
        rule_bytes: usize,
    },
    /// The script's answers instead of the value.
    Log { lifetime: u64, permits: bool },
}

impl Plan {
    /// Prepares a policy.
    ///
    /// # Errors
    /// When the scripts cannot implement it exactly; the error says why.
    pub fn new(policy: impl Into<Policy>) -> Result<Self, PlanError> {
        let policy = policy.into();
        if policy.counts_denied() {
            return Err(PlanError::CountsDenied);
        }
        let penalty = policy.penalty().copied();
        let policy = policy.without_block();
        let micros = |nanos: u64| nanos.is_multiple_of(1_000).then_some(nanos / 1_000);
        let (parts, counts_all) = match policy.parameters() {
            Parameters::TokenBucket { parts, .. } | Parameters::LeakyBucket { parts, .. } => {
                (parts, false)
            }
            Parameters::FixedWindow { .. }
            | Parameters::CalendarWindow { .. }
            | Parameters::SavingWindow { .. } => (0, true),
            _ => (0, false),
        };
        if !counts_all && policy.limit().max(parts) > u32::MAX.into() {
            return Err(PlanError::LimitTooHigh);
        }
        let mut followed = None;
        let (kind, numbers, shape, layout) = match policy.parameters() {
            Parameters::CalendarWindow { limit, calendar } => {
                followed = Some(calendar);
                // In place of the boundaries, the calendar's identity.
                let identity = policy.place().unwrap_or_default() >> 12;
                let numbers = numbers::pack(&[limit, calendar.longest() / 1_000, 2, identity]);
                let (name, zone, starts) =
                    (calendar.period().name(), calendar.zone(), calendar.starts());
                (
                    ScriptKind::FixedWindow,
                    numbers,
                    format!("f{name}{starts}@{zone}"),
                    window_of(limit),
                )
            }
            Parameters::FixedWindow {
                limit,
                window,
                first_hit,
            } => {
                let window = micros(window).ok_or(PlanError::Window)?;
                let numbers = numbers::pack(&[limit, window, first_hit.into()]);
                let shape = format!("{}{}", if first_hit { 'h' } else { 'f' }, span_name(window));
                (ScriptKind::FixedWindow, numbers, shape, window_of(limit))
            }
            Parameters::SavingWindow { .. } => saving_window(&policy)?,
            Parameters::SlidingCounter { limit, window } => {
                let window = micros(window).ok_or(PlanError::Window)?;
                let numbers = numbers::pack(&[limit, window]);
                // With two bytes per count, the value fits Redis' smallest allocation for a string
                // that is not a number.
                let count_bytes = if limit < 0xFFFF { 2 } else { 4 };
                let shape = format!("c{}", span_name(window));
                (
                    ScriptKind::SlidingCounter,
                    numbers,
                    shape,
                    ValueLayout::Counter { count_bytes },
                )
            }
            Parameters::SlidingWindow {
                limit, slot, span, ..
            } => {
                let slot = micros(slot).ok_or(PlanError::Slot)?;
                let count_bytes = match limit {
                    0..=0xFE => 1,
                    0xFF..=0xFFFE => 2,
                    _ => 4,
                };
                let numbers = numbers::pack(&[limit, slot, span.into(), count_bytes as u64]);
                let shape = format!("w{}x{span}", span_name(slot));
                (
                    ScriptKind::SlidingWindow,
                    numbers,
                    shape,
                    ValueLayout::Slots {
                        slot,
                        count_bytes,
                        span: span as usize,
                    },
                )
            }
            Parameters::TokenBucket {
                burst, step, parts, ..
            } => {
                let (mut numbers, part_bytes) =
                    numbers::bucket(burst, step, parts, u128::from(burst) * u128::from(step));
                if policy.waits_for_oversize() {
                    numbers.extend(numbers::oversize(policy.highest_cost(), burst));
                }
                let rule_bytes = if part_bytes == 0 { 11 } else { 15 + part_bytes };
                (
                    ScriptKind::TokenBucket,
                    numbers,
                    "t".into(),
                    ValueLayout::Bucket {
                        part_bytes,
                        parts,
                        rule_bytes,
                    },
                )
            }
            Parameters::LeakyBucket {
                limit,
                step,
                parts,
                max_wait,
            } => {
                let wait = u128::from(max_wait) * u128::from(parts);
                let (numbers, part_bytes) = numbers::bucket(limit, step, parts, wait);
                // A rule that changes keeps the start times, so a value needs no rule.
                let layout = ValueLayout::Bucket {
                    part_bytes,
                    parts,
                    rule_bytes: 0,
                };
                (ScriptKind::LeakyBucket, numbers, "l".into(), layout)
            }
            Parameters::SlidingLog { limit, lifetime } => {
                let ring = u64::from(limit > LIST);
                let numbers = numbers::pack(&[limit, lifetime.div_ceil(1_000), ring]);
                (
                    ScriptKind::Log,
                    numbers,
                    "g".into(),
                    ValueLayout::Log {
                        lifetime,
                        permits: false,
                    },
                )
            }
            Parameters::Concurrency { hold: None, .. } => return Err(PlanError::NoHold),
            Parameters::Concurrency { limit, .. } if limit > MAX_PERMITS => {
                return Err(PlanError::TooManyPermits);
            }
            Parameters::Concurrency {
                limit,
                hold: Some(lifetime),
            } => {
                let numbers = numbers::pack(&[limit, lifetime.div_ceil(1_000)]);
                (
                    ScriptKind::Permits,
                    numbers,
                    "p16".into(),
                    ValueLayout::Log {
                        lifetime,
                        permits: true,
                    },
                )
            }
            _ => return Err(PlanError::Unknown),
        };
        Ok(Self {
            policy,
            kind,
            numbers,
            shape,
            layout,
            calendar: followed,
            held: Nanos::ZERO,
            penalty,
            has_line: false,
            joins: None,
            shares: None,
        })
    }

    /// The plan of a leased token bucket's full burst, for costs that are larger than the burst of
    /// `leased`, its plan with a part kept back. Such a cost is admitted only if it would fit even
    /// though all units that were taken before are used `slack` later.
    #[doc(hidden)]
    pub fn whole(policy: Policy, leased: &Self, slack: Nanos) -> Option<Self> {
        let plan = Self::new(policy).ok()?;
        let is_larger = plan.policy.limit() > leased.policy.limit();
        if !is_larger || plan.kind != ScriptKind::TokenBucket || leased.kind != plan.kind {
            return None;
        }
        let micros = slack.get().div_ceil(1_000);
        let held = numbers::held(micros, leased.policy.limit());
        Some(Self {
            numbers: [plan.numbers, held].concat(),
            held: Nanos::from_micros(micros),
            shares: leased.shares.clone(),
            ..plan
        })
    }

    /// The policy, without its [`Penalty`].
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// A short name for the meaning of this limit's values in Redis, as part of its keys. It
    /// includes the algorithm and its windows but not the limit, so use carries over when the limit
    /// changes.
    #[must_use]
    pub fn shape(&self) -> &str {
        &self.shape
    }

    /// Identifies where units of this limit count: units of a reservation return only if it is the
    /// same as when they were taken. A bucket's units have no time, so it includes the bucket's
    /// rate.
    #[doc(hidden)]
    pub fn place(&self) -> [u8; 8] {
        let mut place = sha1_smol::Sha1::from(&self.shape);
        if matches!(
            self.layout,
            ValueLayout::Bucket { .. } | ValueLayout::Saving { .. }
        ) {
            place.update(&self.numbers);
        }
        place
            .digest()
            .bytes()
            .first_chunk()
            .copied()
            .unwrap_or_default()
    }

    /// For permits, how long after it was taken a permit expires.
    #[must_use]
    pub const fn hold(&self) -> Option<Nanos> {
        match self.layout {
            ValueLayout::Log {
                lifetime,
                permits: true,
            } => Some(Nanos::new(lifetime)),
            _ => None,
        }
    }

    /// Whether the script replies with answers instead of the value.
    #[cfg(feature = "servers")]
    #[doc(hidden)]
    pub const fn is_log(&self) -> bool {
        matches!(self.layout, ValueLayout::Log { .. })
    }

    /// The numbers for the scripts that charge what was used.
    #[doc(hidden)]
    #[must_use]
    pub fn lease_numbers(&self) -> Vec<u8> {
        let mut numbers = self.call_numbers();
        let parameters = self.policy.parameters();
        if let Parameters::TokenBucket { step, parts, .. }
        | Parameters::LeakyBucket { step, parts, .. } = parameters
        {
            // A charge takes any cost.
            numbers.truncate(numbers::SIX);
            numbers.extend(numbers::most_owed(step, parts));
        }
        numbers
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn kind(&self) -> ScriptKind {
        self.kind
    }

    /// The limit's numbers, which identify it.
    #[doc(hidden)]
    pub fn numbers(&self) -> &[u8] {
        &self.numbers
    }

    /// The numbers for a call that is sent now. Those of a calendar include three boundaries, the
    /// middle one the nearest to this server's time. The store's clock decides between which of
    /// them it is, so it may be off by half a period.
    #[doc(hidden)]
    pub fn call_numbers(&self) -> Vec<u8> {
        let Some(calendar) = self.calendar else {
            return self.numbers.clone();
        };
        let now = server_time();
        let (start, end) = (calendar.start_of(now), calendar.end_of(now));
        let is_late = now.saturating_since(start) > end.saturating_since(now);
        let middle = if is_late { end } else { start };
        let before = calendar.start_of(middle.saturating_since(Nanos::new(1)));
        let micros = [before, middle, calendar.end_of(middle)].map(|edge| edge.get() / 1_000);
        numbers::with_edges(&self.numbers, micros)
    }

    /// The decision on one cost, from the value of its key.
    #[doc(hidden)]
    pub fn decision(
        &self,
        before: Option<&[u8]>,
        now: Nanos,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let mut decision = Err(StoreError::NotOurs);
        self.decisions(before, now, &[cost], |_, made, _| decision = Ok(made));
        decision
    }

    /// The decisions on these costs in order, from the reply's part for their key. `None` if the
    /// value cannot be a state of this limit.
    #[doc(hidden)]
    pub fn decisions(
        &self,
        before: Option<&[u8]>,
        now: Nanos,
        costs: &[u64],
        mut answer: impl FnMut(usize, Decision, Nanos),
    ) -> Option<()> {
        if let ValueLayout::Log { lifetime, permits } = self.layout {
            let answers = before?.chunks_exact(state::ANSWER);
            if answers.len() != costs.len() {
                return None;
            }
            for (at, (reply, &cost)) in answers.zip(costs).enumerate() {
                let (decision, seen) =
                    state::answer(reply, now, self.policy.limit(), (lifetime, permits), cost);
                answer(at, decision, seen);
            }
            return Some(());
        }
        let mut state = self.state(before)?;
        let seen = now.saturating_since(self.held);
        for (at, &cost) in costs.iter().enumerate() {
            // Not `decide`: Redis writes nothing for a denial.
            let decision = self.policy.peek(&state, seen, cost);
            if cost > 0 && decision.is_allowed() && at + 1 < costs.len() {
                self.policy.record(&mut state, now, cost);
            }
            answer(at, decision, now);
        }
        Some(())
    }
}

/// Windows that save what is left.
fn saving_window(policy: &Policy) -> Result<(ScriptKind, Vec<u8>, String, ValueLayout), PlanError> {
    let Parameters::SavingWindow {
        limit,
        window,
        first_hit,
        burst,
        ..
    } = policy.parameters()
    else {
        return Err(PlanError::Unknown);
    };
    let window = Some(window).filter(|nanos| nanos.is_multiple_of(1_000));
    let window = window.ok_or(PlanError::Window)? / 1_000;
    let (lump, most) = (limit.max(1), policy.highest_cost());
    let numbers = numbers::pack(&[burst, window, first_hit.into(), lump, most]);
    let shape = format!("s{}{}", if first_hit { "h" } else { "" }, span_name(window));
    let layout = ValueLayout::Saving { window, lump };
    Ok((ScriptKind::SavingWindow, numbers, shape, layout))
}

const fn window_of(limit: u64) -> ValueLayout {
    ValueLayout::Window {
        count_bytes: if limit <= u32::MAX as u64 { 4 } else { 7 },
    }
}

/// Microseconds in the largest unit that divides them, kept short because every key contains the
/// name.
fn span_name(micros: u64) -> String {
    const UNITS: [(u64, &str); 5] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    let whole = |&&(unit, _): &&(u64, &str)| micros > 0 && micros.is_multiple_of(unit);
    UNITS.iter().find(whole).map_or_else(
        || format!("{micros}us"),
        |(unit, name)| format!("{}{name}", micros / unit),
    )
}

/// This server's time, or that of a differential test.
fn server_time() -> Nanos {
    #[cfg(feature = "servers")]
    if let Some(micros) = TEST_TIME.get() {
        return Nanos::from_micros(micros);
    }
    tidegate_core::Clock::now(&tidegate_limiter::SystemClock::new())
}

// A differential test's time, in microseconds since 1970.
#[cfg(feature = "servers")]
thread_local!(pub static TEST_TIME: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) });
